"""Sizes must not be negative: the lower bounds that follow, and what is said below them."""

from __future__ import annotations

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto

from graphflops import analyze, cli
from graphflops.errors import ModelError
from graphflops.sweep import sweep
from tests.exporters.build import meta, program, save, size
from tests.exporters.onnx_files import model, node, value


@pytest.fixture
def convolution(tmp_path):
    """A window of 101 x 101 over N x N."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 3, 101, 101])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    inputs, outputs = [value("x", [1, 3, "N", "N"])], [value("y", None)]
    path = tmp_path / "convolution.onnx"
    onnx.save(model([node("Conv", ["x", "w"], ["y"])], inputs, outputs, [weight]), path)
    return path


def test_the_least_size_follows(convolution):
    report = analyze(convolution)
    assert report.symbols["N"].minimum == 100  # N - 100 rows
    (point,) = sweep(report, {"N": [101]})
    assert point.cost["matrix_flops"] == 2 * 8 * 3 * 101 * 101


def test_below_it_there_is_no_number(convolution):
    with pytest.raises(ModelError, match=r"at N = 1 a size of y would be N - 100 = -99"):
        sweep(analyze(convolution), {"N": [200, 1]})


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("s0 - 4", 1, "at s0 = 1 a size of y would be -3"),
        ("FloorDiv(16, s0)", 0, "16//s0 divides by zero"),
        ("Mod(-1, s0)", 0, "divides by zero"),
    ],
)
def test_a_recorded_size_without_a_value_is_refused(text, at, said, tmp_path):
    path = save(tmp_path / "a.pt2", program(values={"x": meta("s0", 8), "y": meta(size(text, 3), 8)}))
    done = CliRunner().invoke(cli.main, ["analyze", str(path), "--dim", f"s0={at}"])
    assert done.exit_code == 1
    assert said in done.output
    assert "defect" not in done.output
    assert CliRunner().invoke(cli.main, ["analyze", str(path)]).exit_code == 0
