"""Sizes must not be negative: the lower bounds that follow, and what is said below them."""

from __future__ import annotations

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from graphflops import analyze, cli
from graphflops.derived.resize import sweep
from graphflops.dims import symbol
from graphflops.errors import ModelError
from graphflops.passes.sizes import without_impossible
from graphflops.report import Named, SymbolInfo
from graphflops.tensor import FLOAT32, TensorType
from tests.exporters.build import call, meta, program, save, size, tensor
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


def test_an_assumed_size_is_at_least_that(tmp_path):
    inputs, outputs = [value("x", [1, "length"])], [value("y", None)]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 301], [0.0] * 301)
    calls = [node("Unsqueeze", ["x", "axis"], ["z"]), node("Conv", ["z", "w"], ["y"])]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    onnx.save(model(calls, inputs, outputs, [weight, axis]), tmp_path / "m.onnx")
    info = analyze(tmp_path / "m.onnx").symbols["length"]
    assert (info.minimum, info.value) == (300, 301)  # length - 300 results: none at the 64 of the table


def test_sizes_of_inputs_follow_too(tmp_path):
    """An input of s0 - 4 elements, s0 being at least 0, whose result is recorded with one element."""
    limits = {"s0": {"min_val": 0, "max_val": None}}
    content = program(values={"x": meta(size("s0 - 4")), "y": meta(1)}, range_constraints=limits)
    report = analyze(save(tmp_path / "m.pt2", content))
    assert (report.symbols["s0"].minimum, report.symbols["s0"].value) == (4, 68)  # 64 elements are assumed
    with pytest.raises(ModelError, match=r"at s0 = 1 a size of x would be s0 - 4 = -3"):
        sweep(report, {"s0": [1]})


def test_costs_that_a_forged_shape_makes_negative(tmp_path):
    """arange from 9 to s0, recorded with s0 elements: s0 - 9 of them are written, s0 being 4."""
    nine, symbolic = {"as_int": 9}, {"as_sym_int": {"as_name": "s0"}}
    calls = [
        call("torch.ops.aten.sym_size.int", tensor("x"), {"as_int": 0}, out=[symbolic]),
        call("torch.ops.aten.arange.start", nine, symbolic),
    ]
    values = {"x": meta(size("s0", 4)), "y": meta(size("s0", 4), dtype=5)}
    sizes = {"sym_int_values": {"s0": size("s0", 4)}}
    path = save(tmp_path / "m.pt2", program(calls, values, graph=sizes))
    with pytest.raises(ModelError, match="written_bytes of y would be negative"):
        analyze(path)


def test_assumed_sizes_that_make_another_negative_stay_open():
    total, part = symbol("total"), symbol("part")
    infos = {name: SymbolInfo(64, "assumption", where=("x[0]",)) for name in ("total", "part")}
    named = [Named("a", TensorType((total - 2 * part,), FLOAT32))]
    assert without_impossible(infos, named) == {
        name: SymbolInfo(None, None, where=("x[0]",)) for name in infos
    }
    given = {**infos, "total": SymbolInfo(64, "user")}
    assert without_impossible(given, named)["part"].value is None


def test_below_it_there_is_no_number(convolution):
    with pytest.raises(ModelError, match=r"at N = 1 a size of y would be N - 100 = -99"):
        sweep(analyze(convolution), {"N": [200, 1]})


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("s0 - 4", 1, "at x[0] = 1 a size of y would be -3"),
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
