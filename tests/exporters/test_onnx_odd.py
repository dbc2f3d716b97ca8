"""ONNX files that are odd but of use: what is odd is said, or read as runtimes read it, and nothing of it is acted on."""

from __future__ import annotations

import csv
import io
import sys

import onnx
import pytest
from onnx import TensorProto, helper, parser

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.render import render
from graphflops.render.formats import names
from graphflops.report import Report
from tests.exporters.onnx_files import HEAD, RELU, messages, model, node, result, value
from tests.support import t

NAMELESS = onnx.ValueInfoProto


def relu(x, **fields):
    return model([node("Relu", ["x"], ["y"])], [x], [NAMELESS(name="y")], **fields)


# Sizes by text.


@pytest.mark.parametrize(
    "text, size",
    [
        ("2", 2),
        ("007", 7),
        ("N + 1", symbol("N") + 1),
        ("4*h4", 4 * symbol("h4")),
        ("floor(N/3)", symbol("N") // 3),
        ("N+" * 200 + "N", 201 * symbol("N")),
        ("(" * 10_000 + "N" + ")" * 10_000, symbol("N")),
        ("", symbol("x_0")),
        (" ", symbol("x_0")),
    ],
)
def test_sizes_that_are_read(text, size, write):
    assert result(analyze(write(relu(value("x", (text, 4)))))).shape == (size, 4)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').abort()",
        "[N for N in M]",
        "lambda: N",
        "N.real",
        "N;M",
        "N//0",
        "N % 0",
        "-3",
        "1e999",
        "N**999999999",
        "2**2**2**2**2**2",
        "(N+M)**60",
        "N*" * 3000 + "N",
        "max(" * 300 + "N" + ",1)" * 300,
        "x" * 100_000,
        "N\x00M",
        "\u202eN",
        "\x1b[2JN\n",
        "\u0663",
        "=HYPERLINK(1)",
    ],
)
def test_texts_that_are_no_size_are_names(text, write):
    """A name as short and plain as can be; nothing is computed from it."""
    report = analyze(write(relu(value("x", (text, 4)))))
    (name,) = report.symbols
    assert result(report).shape == (symbol(name), 4)
    assert name.isascii()
    assert name.isidentifier()
    assert len(name) < 80


def test_two_texts_that_look_alike_stay_two_sizes(write):
    report = analyze(write(relu(value("x", ("N;M", "N:M")))))
    assert len(report.symbols) == 2


# Names.

NAMES = [
    "\x1b[31mred\x1b[0m",
    "two\nlines",
    "nul\x00byte",
    "\u202eright to left",
    "../../etc/passwd",
    "=cmd|' /C calc'!A0",
    "__import__('os').abort()",
    "<script>alert(1)</script>",
    "x" * 100_000,
    "\U0001f600",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_hostile_names_are_shown_and_no_more(name, write):
    made = model(
        [node("Relu", [name], ["y"], name=name), node(name, ["y"], [name + "2"])], [], [NAMELESS(name="y")]
    )
    made.graph.input.add().CopyFrom(value(name, (name, 4)))
    made.graph.name = made.producer_name = name
    for key in ("name_scopes", "class_hierarchy", "stack_trace"):
        entry = made.graph.node[0].metadata_props.add()
        entry.key, entry.value = f"pkg.torch.onnx.{key}", repr([name, name, name])
    report = analyze(write(made))
    assert report.coverage.unknown_ops.keys() == {row.op for row in report.rows} - {"onnx.Relu.14"}
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    for form in names("Listing"):
        text = render(report, form)
        assert all(line.isprintable() for line in text.split("\n"))
    cells = [cell for row in csv.reader(io.StringIO(render(report, "csv"))) for cell in row]
    assert not any(cell.startswith(("=", "+", "@")) for cell in cells)


# Values.


def test_an_input_that_is_stored_too_is_what_is_stored(write):
    report = analyze(write("g (float[N, 7] x) => (y) <float[2, 3] x = {1, 2, 3, 4, 5, 6}> { y = Relu(x) }"))
    assert result(report).shape == (2, 3)
    assert not report.symbols
    said = "tensor x has another type than the input whose default it is"
    assert messages(report, "GF210") == [said]  # onnxruntime does not load it


def test_a_stored_tensor_of_a_branch_hides_one_around_it(write):
    branch = "b () => (r) <float[5] w = {1, 2, 3, 4, 5}> { r = Add(w, w) }"
    other = "c () => (s) { s = Add(w, w) }"
    text = f"""g (bool go) => (y) <float[2] w = {{1, 2}}> {{
      y = If(go) <then_branch = {branch}, else_branch = {other}>
    }}"""
    report = analyze(write(text))
    shapes = {row.node: row.outputs[0].type.shape for row in report.rows}
    assert (shapes["If/Add"], shapes["If/Add_1"]) == ((5,), (2,))
    (said,) = messages(report, "GF130")
    assert said.startswith("w of b hides a value around it")


def test_results_that_are_inputs_or_stored(write):
    stored = helper.make_tensor("w", TensorProto.FLOAT, (2, 2), [1, 2, 3, 4])
    report = analyze(write(model([], [value("x")], [value("x"), value("w", (2, 2)), value("x")], [stored])))
    assert (report.rows, report.diagnostics) == ((), ())
    assert report.totals.peak_bytes == 4 * symbol("N") * 4


def test_nothing_at_all(write):
    assert analyze(write(model([], [], []))).coverage.nodes == 0


def test_fields_that_are_not_known_and_graphs_that_are_not_run(write):
    made = parser.parse_model(f"{HEAD} {RELU}")
    expected = analyze(write(made)).rows
    made.training_info.add().algorithm.node.add(op_type="Nonsense", input=["lost"], output=["q"])
    unknown = b"\xfa\x3f\x03abc\xf8\x3f\x07"  # fields number 1023
    assert analyze(write(made.SerializeToString() + unknown)).rows == expected


# Attributes.


def test_attributes_without_a_type_or_a_value(write):
    call = node("Softmax", ["x"], ["y"])
    call.attribute.add(name="axis", i=0)
    call.attribute[0].ClearField("type")
    call.attribute.add(name="nothing")
    report = analyze(write(model([call], [value("x")], [NAMELESS(name="y")])))
    assert result(report) == t("N", 4)


# Types.


def test_strings_are_references(write):
    report = analyze(write("g (string[N] x, string[N] z) => (y) { y = StringConcat(x, z) }"))
    assert report.coverage.counted == 1
    assert result(report) == t("N", dtype="string")


@pytest.mark.parametrize(
    "code, sizes, length, expected",
    [
        (TensorProto.FLOAT8E4M3FN, (100,), 7, 100),
        (TensorProto.INT4, (5,), 7, 3),
        (TensorProto.INT4, (100,), 49, 50),
        (TensorProto.FLOAT4E2M1, (5,), 1, 3),
        (TensorProto.UINT2, (9,), 2, 3),
        (TensorProto.FLOAT, (100,), 399, 400),
        (TensorProto.COMPLEX64, (3,), 23, 24),
        (TensorProto.BFLOAT16, (3,), 5, 6),
        (TensorProto.INT64, (2,), 15, 16),
    ],
)
def test_data_of_another_length(code, sizes, length, expected, write):
    stored = TensorProto(name="w", data_type=code, dims=sizes, raw_data=b"1" * length)
    report = analyze(write(model([node("Identity", ["w"], ["y"])], [], [NAMELESS(name="y")], [stored])))
    (said,) = messages(report, "GF210")
    assert said.endswith(f", {expected} bytes, but its data in the file has {length}")
    assert result(report).value is None


@pytest.mark.parametrize(
    "code", [TensorProto.INT8, TensorProto.UINT4, TensorProto.FLOAT8E5M2, TensorProto.FLOAT4E2M1]
)
def test_quantized_values(code, write):
    """In bits of their own: what is read is as long as it is stored."""
    stored = TensorProto(name="w", data_type=code, dims=(64, 32))
    scale = helper.make_tensor("s", TensorProto.FLOAT, (), [0.5])
    calls = [node("DequantizeLinear", ["w", "s"], ["v"]), node("MatMul", ["x", "v"], ["y"])]
    report = analyze(
        write(
            model(
                calls,
                [value("x", (4, 64))],
                [NAMELESS(name="y")],
                [stored, scale],
                opset_imports=[helper.make_opsetid("", 23)],
            )
        )
    )
    assert report.total().matrix_flops == 2 * 4 * 64 * 32
    assert report.parameter_bytes == 64 * 32 * report.rows[0].inputs[0].type.dtype.bits // 8
    # A runtime reads the stored weight in the product; unpacked, it is never in memory.
    assert report.rows[0].cost.read_bytes == 0
    assert report.rows[1].cost.read_bytes == 4 * 4 * 64 + report.parameter_bytes + 4


def sparse(sizes, values, indices):
    tensor = onnx.SparseTensorProto(dims=sizes)
    tensor.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, (len(values),), values))
    if indices:
        tensor.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, (len(indices),), indices))
    return tensor


@pytest.mark.parametrize(
    "tensor, said",
    [
        (sparse((4, 4), [1.0], [0]), []),
        (
            sparse((4, 4), [1.0], []),
            ["sparse tensor w is float32[4, 4], but stores 1 elements at indices []"],
        ),
        (
            sparse((4, 4), [1.0], [99]),
            ["sparse tensor w is float32[4, 4], but stores an element outside of it"],
        ),
        (
            sparse((1, 2), [1.0] * 3, [0, 1, 2]),
            ["sparse tensor w is float32[1, 2], but stores 3 elements at indices [3]"],
        ),
    ],
)
def test_sparse_tensors(tensor, said, write):
    made = model([node("Identity", ["w"], ["y"])], [], [NAMELESS(name="y")])
    made.graph.sparse_initializer.add().CopyFrom(tensor)
    report = analyze(write(made))
    assert result(report).stored is None
    assert messages(report, "GF210") == said


def test_sparse_tensors_of_sizes_that_cannot_be(refused):
    made = model([], [], [])
    made.graph.sparse_initializer.add().CopyFrom(sparse((-4, 4), [1.0], [0]))
    assert refused(made) == "tensor w has a negative size: [-4, 4]"


@pytest.mark.parametrize("kind", ["sequence_type", "optional_type", "map_type", "tensor_type", ""])
def test_types_that_say_next_to_nothing(kind, write):
    x = onnx.ValueInfoProto(name="x")
    if kind:
        getattr(x.type, kind).SetInParent()
    report = analyze(write(model([node("Identity", ["x"], ["a"]), node("Relu", ["a"], ["y"])], [x], [])))
    assert [row.state for row in report.rows] == ["free", "unknown"]


def test_sequences_of_sequences(write):
    x = onnx.ValueInfoProto(name="x")
    typed = x.type
    for _ in range(40):
        typed = typed.sequence_type.elem_type
    typed.tensor_type.elem_type = TensorProto.FLOAT
    assert analyze(write(model([node("SequenceLength", ["x"], ["y"])], [x], []))).coverage.unknown == 0


# Data in other files.

_opened: list[str] = []
_watching = False


def _watch(event, arguments):
    if _watching and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch)


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../secret", "weights/../../secret", "C:\\secret", "file:///x", "", "a\x00b"]
)
def test_data_in_other_files_is_never_looked_for(location, write):
    global _watching
    stored = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=(4, 5), data_location=TensorProto.EXTERNAL
    )
    for key, held in (("location", location), ("offset", "-1"), ("length", "80")):
        stored.external_data.add(key=key, value=held)
    path = write(model([node("MatMul", ["x", "w"], ["y"])], [value("x")], [NAMELESS(name="y")], [stored]))
    _opened.clear()
    _watching = True
    try:
        report = analyze(path)
    finally:
        _watching = False
    assert [
        name for name in _opened if name != str(path) and "graphflops" not in name and ".py" not in name
    ] == []
    assert report.total().matrix_flops == 2 * symbol("N") * 4 * 5
    assert report.diagnostics == ()


# Depth.


@pytest.mark.parametrize("depth", [3, 9])
def test_loops_in_loops(depth, write):
    inner = "r = MatMul(s, s)"
    for level in range(depth):
        inner = (
            f'r = Loop(n, "", s) <body = b{level} (int64 i, bool c, float[4, 4] s) => (c, r) {{ {inner} }}>'
        )
    report = analyze(write(f"g (float[4, 4] s) => (float[4, 4] r) <int64 n = {{5}}> {{ {inner} }}"))
    assert report.coverage.unknown == 0
    assert report.total().matrix_flops == 5**depth * 2 * 4 * 4 * 4


def test_branches_in_branches(write):
    body = "r0 = Relu(x)"
    for depth in range(1, 25):
        body = (
            f"r{depth} = If(c) <then_branch = t{depth} () => (r{depth - 1}) {{ {body} }}, "
            f"else_branch = e{depth} () => (s{depth}) {{ s{depth} = Neg(x) }}>"
        )
    report = analyze(write(f"g (bool c, float[4] x) => (r24) {{ {body} }}"))
    assert (report.coverage.unknown, report.coverage.nodes) == (0, 2 * 24 + 1)
