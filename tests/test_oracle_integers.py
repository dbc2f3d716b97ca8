"""Integer and shape arithmetic at random, as onnxruntime computes it; at length: tests/oracle/onnx_integers.py."""

from __future__ import annotations

import pytest


def test_no_size_is_different_from_what_onnxruntime_computes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    from tests.oracle import onnx_integers

    code = onnx_integers.main(["--count", "6000", "--seed", "1000000"])
    printed = capsys.readouterr().out
    assert printed.endswith(", 0 different\n"), printed
    assert code == 0
