"""Writing ONNX models to files, and the one line with which a file is refused."""

from __future__ import annotations

import time

import pytest
from onnx import parser

from graphflops.analysis import analyze
from graphflops.errors import FileError
from graphflops.exporters import load
from tests.exporters.onnx_files import HEAD


@pytest.fixture
def write(tmp_path):
    """The path of a file that holds a model, given as bytes, as a message, or as text without its head."""

    def write_file(data, name="model.onnx"):
        path = tmp_path / name
        if isinstance(data, str):
            data = parser.parse_model(f"{HEAD} {data}")
        path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
        return path

    return write_file


@pytest.fixture
def refused(write):
    """The one line with which a file is refused, without the file's name."""

    def refusal(data, name="model.onnx"):
        path = write(data, name)
        began = time.process_time()
        with pytest.raises(FileError) as caught:
            analyze(path)
        assert time.process_time() - began < 20
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(f"{path}: ")
        assert len(message) < len(str(path)) + 900
        return message.removeprefix(f"{path}: ")

    return refusal


@pytest.fixture
def read(tmp_path):
    """The graph of a model, given as text or as a message."""

    def read_model(model):
        if isinstance(model, str):
            model = parser.parse_model(f"{HEAD} {model}")
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return load(path)

    return read_model
