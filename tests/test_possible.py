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


@pytest.fixture(params=[([-1, 16], 4), ([4, 16], 16), ([2, 32, -1], 16)])
def rows_of_16(request, tmp_path):
    """Rows of 4 in another shape, which their number must allow, and the first number from 1 on that does."""
    shape, least = request.param
    target = helper.make_tensor("t", TensorProto.INT64, [len(shape)], shape)
    nodes = [node("Reshape", ["x", "t"], ["r"]), node("Relu", ["r"], ["y"])]
    path = tmp_path / "reshape.onnx"
    onnx.save(model(nodes, [value("x", ["batch", 4])], [value("y", None)], [target]), path)
    return path, least


def test_a_reshape_that_does_not_divide_is_refused_at_every_size(rows_of_16, tmp_path):
    path, least = rows_of_16
    report = analyze(path)
    assert (report.symbols["batch"].value, report.symbols["batch"].given_by) == (least, "assumption")
    assert report.value(report.total().vector_flops) == 4 * least
    saved = tmp_path / "report.json"
    saved.write_bytes(report.to_json())
    for model_or_report in (path, saved):
        done = CliRunner().invoke(cli.main, ["analyze", str(model_or_report), "--sweep", "batch=3"])
        assert (done.exit_code, "batch = 3: the program requires" in done.output) == (1, True)
        assert (
            CliRunner().invoke(cli.main, ["analyze", str(model_or_report), "--dim", "batch=3"]).exit_code == 1
        )


def test_halves_that_do_not_meet_again_are_refused(tmp_path):
    """As in a U-Net: every second row, twice, beside the whole."""
    two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    ends = [helper.make_tensor(n, TensorProto.INT64, [1], [v]) for n, v in (("from", 0), ("to", 2**62))]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    nodes = [
        node("Slice", ["x", "from", "to", "axis", "two"], ["half"]),
        node("Concat", ["half", "half"], ["again"], axis=0),
        node("Concat", ["x", "again"], ["y"], axis=1),
    ]
    onnx.save(
        model(nodes, [value("x", ["rows", 3])], [value("y", None)], [two, *ends, axis]), tmp_path / "m.onnx"
    )
    report = analyze(tmp_path / "m.onnx")
    assert sweep(report, {"rows": [10]})[0].cost["written_bytes"] == 4 * (5 * 3 + 10 * 3 + 10 * 6)
    with pytest.raises(ModelError, match="rows = 9: the program requires"):
        sweep(report, {"rows": [9]})


def test_sizes_that_no_assumption_fits_stay_open(tmp_path):
    """1,009 numbers, which is prime: not of 64 columns, nor of one row of 64 and up to 512 more."""
    target = helper.make_tensor("t", TensorProto.INT64, [1], [1009])
    path = tmp_path / "m.onnx"
    onnx.save(
        model(
            [node("Reshape", ["x", "t"], ["y"])],
            [value("x", ["rows", "columns"])],
            [value("y", None)],
            [target],
        ),
        path,
    )
    report = analyze(path)
    assert report.values == {}
    assert analyze(path, dims={"rows": 1009, "columns": 1}).total().vector_flops == 0


def test_operands_of_one_form_have_equal_sizes(tmp_path):
    """As torch writes it: angles of one sequence, which onnxruntime refuses for a batch of two."""
    path, angles = tmp_path / "m.onnx", [value(name, [1, "tokens", 4]) for name in ("cos", "sin")]
    call = node("RotaryEmbedding", ["x", "cos", "sin"], ["y"])
    made = model(
        [call],
        [value("x", ["batch", 2, "tokens", 8]), *angles],
        [value("y", None)],
        opset_imports=[helper.make_opsetid("", 23)],
    )
    onnx.save(made, path)
    report = analyze(path)
    assert "batch" not in report.symbols
    assert [one.message for one in report.diagnostics if one.code == "GF112"] == [
        "operators require equal sizes, from which follows batch = 1"
    ]
    assert CliRunner().invoke(cli.main, ["analyze", str(path), "--dim", "batch=2"]).exit_code == 1


def test_positions_beyond_a_table_are_refused(tmp_path):
    """The first positions of a table of 32, added to as many rows."""
    stored = [helper.make_tensor(n, TensorProto.INT64, [1], [v]) for n, v in (("zero", 0), ("one", 1))]
    table = helper.make_tensor("table", TensorProto.FLOAT, [32, 4], [0.0] * 128)
    calls = [
        node("Shape", ["x"], ["rows"], start=0, end=1),
        node("Slice", ["table", "zero", "rows", "zero", "one"], ["positions"]),
        node("Add", ["x", "positions"], ["y"]),
    ]
    onnx.save(
        model(calls, [value("x", ["seq", 4])], [value("y", None)], [*stored, table]), tmp_path / "m.onnx"
    )
    report = analyze(tmp_path / "m.onnx")
    assert report.values == {"seq": 32}  # 64 would be assumed
    assert report.value(report.total().vector_flops) == 32 * 4
    with pytest.raises(ModelError, match="seq = 33: the program requires"):
        sweep(report, {"seq": [33]})


@pytest.mark.parametrize(("op", "fields"), [("Conv", {}), ("MaxPool", {"kernel_shape": [3, 3]})])
def test_a_window_larger_than_its_input_is_refused(op, fields, tmp_path):
    """(2 - 3) // 2 + 1 is no place at all, which is not less than none."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], [0.0] * 108)
    call = node(op, ["x", "w"][: 2 - len(fields)], ["y"], strides=[2, 2], **fields)
    onnx.save(
        model([call], [value("x", [1, 3, "rows", 9])], [value("y", None)], [weight]), tmp_path / "m.onnx"
    )
    report = analyze(tmp_path / "m.onnx")
    assert sweep(report, {"rows": [3]})[0].cost["written_bytes"] == 4 * (4 if op == "Conv" else 3) * 4
    with pytest.raises(ModelError, match="has a window larger than its input"):
        sweep(report, {"rows": [2]})
