"""ONNX files that are damaged, contradict themselves or were made to harm: one line each, in bounded time."""

from __future__ import annotations

import random
import time

import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from graphflops import cli
from graphflops.analysis import analyze
from graphflops.dims import symbol
from tests.exporters.onnx_files import HEAD, RELU, messages, model, node, value


@pytest.mark.parametrize("kept", [3, 10, 40, 60, -1])
def test_a_file_cut_off(kept, refused):
    whole = model(
        [node("Relu", ["x"], ["y"])], [value("x")], [value("y")], producer_name="p"
    ).SerializeToString()
    assert refused(whole[:kept]).startswith(("is damaged, ", "holds no graph"))


def test_garbage(refused):
    noise = random.Random(0)
    for length in (1, 10, 1000, 100_000):
        assert refused(b"\x08\x0a" + noise.randbytes(length))


@pytest.mark.parametrize(
    "data, said",
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n", "is a git-lfs pointer"),
        (b"<!DOCTYPE html>\n<html><body>Not found</body></html>", "is a web page"),
        (b"<html lang=en><body>Not found</body></html>", "is a web page"),
        (b"", "is empty"),
        (b"hello", "is not an ONNX model"),
        (b'{"schema": 1}', "is JSON, but not that of an ONNX model"),
        (b"\x80\x04\x95junk", "is a pickle"),
    ],
)
def test_what_is_no_model(data, said, refused):
    assert refused(data).startswith(said)


def test_forms_of_text_that_are_damaged(refused):
    assert "ParseError" in refused(f"{HEAD} {RELU}".encode()[:-3], "model.onnxtxt")
    for number in ("9" * 40, "1e999"):
        data = RELU.replace("Relu(x)", f"Relu<a = {number}>(x)").replace(
            "float[N", f"float[{number[:1]}{number[1:]}"
        )
        assert refused(f"{HEAD} {data}".encode(), "model.onnxtxt").startswith("is not ONNX's text: ")
    assert refused(b'{"irVersion": "8", "graph": {"node": [}', "m.json").startswith(
        "is not the JSON of an ONNX model"
    )
    assert refused(b"ir_version: 8 graph { node {", "m.textproto").startswith(
        "is not the text of an ONNX model"
    )
    assert refused(f"{HEAD} {RELU}".encode() + b"\xff", "model.onnxtxt") == "is not UTF-8"


def test_nesting_too_deep_in_every_form(refused):
    branch = "y = If(x) <then_branch = g () => (float y) { "
    assert (
        refused(f"{HEAD} g (bool x) => (float y) {{ {branch * 5000}".encode(), "m.onnxtxt")
        == "nests too deep"
    )
    assert refused(b'{"irVersion": 8, "graph":' + b'{"node":[' * 20_000, "m.json") == "nests too deep"
    assert refused(b"ir_version: 8 graph " + b"{node{attribute{g" * 20_000, "m.textproto") == "nests too deep"
    inner = b""
    for _ in range(3000):  # GraphProto.node.attribute.g of GraphProto, as bytes
        for field in (6, 5, 1):
            size = len(inner)
            encoded = bytearray()
            while size > 0x7F:
                encoded.append(size & 0x7F | 0x80)
                size >>= 7
            encoded.append(size)
            inner = bytes((field << 3 | 2,)) + bytes(encoded) + inner
    tail = bytearray()
    size = len(inner)
    while size > 0x7F:
        tail.append(size & 0x7F | 0x80)
        size >>= 7
    tail.append(size)
    assert refused(b"\x08\x0a\x3a" + bytes(tail) + inner).startswith("is damaged, nests too deep")


@pytest.mark.parametrize(
    "nodes, said",
    [
        (
            [node("Add", ["x", "c"], ["b"]), node("Relu", ["b"], ["c"])],
            "Add depends on its own results",
        ),
        ([node("Add", ["x", "c"], ["c"])], "Add depends on its own results"),
        (
            [node("Add", ["x", "lost"], ["c"], name="adder")],
            "adder uses the value lost, which nothing defines",
        ),
        ([node("Relu", ["x"], ["b"])], "output c uses the value c, which nothing defines"),
    ],
)
def test_values_that_are_made_of_themselves_or_by_nothing(nodes, said, refused):
    assert refused(model(nodes, [value("x")], [value("c")])).startswith(said)


@pytest.mark.parametrize(
    "sizes, said",
    [
        ((-4, 8), "tensor w has a negative size: [-4, 8]"),
        ((2**62, 8), "tensor w has the sizes [4611686018427387904, 8], more than any machine can hold"),
    ],
)
def test_sizes_of_stored_tensors_that_cannot_be(sizes, said, refused):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=sizes)
    assert refused(model([node("MatMul", ["x", "w"], ["y"])], [value("x")], [value("y")], [weight])) == said


@pytest.mark.parametrize(
    "sizes, said",
    [
        ((-7, 4), "x[0] has the size -7"),
        (("9" * 40, 4), "x[0] has the size 999"),
        (
            (2**40, 2**40),
            "input x has the sizes [1099511627776, 1099511627776], more than any machine can hold",
        ),
        ((1,) * 10_000, "a tensor has 10000 axes"),
        ([f"N{axis}" for axis in range(10_000)], "a tensor has 10000 axes"),
    ],
)
def test_sizes_of_inputs_that_cannot_be(sizes, said, refused):
    assert refused(model([], [value("x", sizes)], [])).startswith(said)


def test_stored_tensors_of_very_many_axes(refused):
    """An element is held in lists as deep as there are axes."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1] * 10_000, float_data=[1.0])
    assert refused(model([], [], [], [tensor])).startswith("a tensor has 10000 axes")


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\xff\xff\xff\xff\x3f"])
def test_a_length_that_the_file_does_not_have(length, refused):
    """A field that says it is 2 gigabytes long, or 4 exabytes."""
    assert refused(b"\x08\x0a\x3a" + length + b"abc").startswith("is damaged")


def test_an_element_type_that_does_not_exist(refused):
    assert refused(model([], [value("x", code=99)], [])).startswith("element type 99 is not one of ONNX")


def test_one_failing_call_does_not_stop_the_others(write):
    made = model(
        [
            node("MatMul", ["x", "x"], ["a"]),
            node("Nonsense", ["a"], ["b"]),
            node("MatMul", ["b", "b"], ["y"]),
        ],
        [value("x", (4, 4))],
        [onnx.ValueInfoProto(name="y")],
    )
    report = analyze(write(made))
    assert [row.state for row in report.rows] == ["counted", "unknown", "unknown"]
    assert report.diagnostics[-1].message == "the types of b, y are not known"
    made.graph.value_info.append(value("b", (8, 8)))
    report = analyze(write(made))
    assert [row.state for row in report.rows] == ["counted", "unknown", "counted"]
    assert report.total().matrix_flops == 2 * 4 * 4 * 4 + 2 * 8 * 8 * 8
    assert report.diagnostics[-1].message == "the types of b are known only from what the file declares"


@pytest.mark.parametrize(
    "text, said",
    [
        ("{ a = Relu(x) a = MatMul(x, w) y = Relu(a) }", "MatMul makes the value a, which exists already"),
        ("{ x = Relu(w) y = Relu(x) }", "Relu makes the value x, which exists already"),
        ("{ y, y = TopK(x, w) }", "TopK makes the value y, which exists already"),
        ("<float k = {1}, float k = {2}> { y = Relu(x) }", "a stored tensor makes the value k, which exists already"),
        ("{ y = Relu(x) y = d.F(x) } <domain: \"d\", opset_import: [\"\": 21]> F (v) => (u) { u = Relu(v) }",
         "F makes the value y, which exists already"),
        ("{ y = d.F(x) } <domain: \"d\", opset_import: [\"\": 21]> F (v) => (u) { v = Relu(v) u = Relu(v) }",
         "F/Relu makes the value v, which exists already"),
    ],
)  # fmt: skip
def test_a_value_is_made_once(text, said, refused):
    assert refused(f"g (float[2, 3] x, float[3, 5] w) => (y) {text}") == said


# Functions.

CALL = 'g (float[4] x) => (y) { y = d.F0(x) } <domain: "d", opset_import: ["": 21, "d": 1]>'
AGAIN = '<domain: "d", opset_import: ["": 21, "d": 1]>'


def test_functions_that_call_themselves(refused):
    assert refused(f"{CALL} F0 (a) => (b) {{ b = d.F0(a) }}") == "the function d.F0 calls itself"
    assert refused(
        f"{CALL} F0 (a) => (b) {{ b = d.F1(a) }} {AGAIN} F1 (a) => (b) {{ b = d.F0(a) }}"
    ).endswith("calls itself")


def test_functions_that_multiply(refused):
    bodies = [f"F{i} (a) => (b) {{ t = d.F{i + 1}(a) b = d.F{i + 1}(t) }}" for i in range(40)]
    bodies.append("F40 (a) => (b) { b = Relu(a) }")
    assert refused(f"{CALL} " + f" {AGAIN} ".join(bodies)).startswith(
        "functions that call one another have more than"
    )


def test_functions_that_nest(refused):
    bodies = [f"F{i} (a) => (b) {{ b = d.F{i + 1}(a) }}" for i in range(200)]
    bodies.append("F200 (a) => (b) { b = Relu(a) }")
    assert refused(f"{CALL} " + f" {AGAIN} ".join(bodies)).endswith("nest deeper than 60 calls")


def test_a_function_with_too_many_operands(refused):
    text = 'g (float[4] x) => (y) { y = d.F(x, x) } <domain: "d", opset_import: ["": 21]> F (a) => (b) { b = Relu(a) }'
    assert refused(text) == "F gives 2 operands to d.F, which takes 1"


def test_a_function_with_too_many_results(refused):
    text = 'g (float[4] x) => (y) { y, z = d.F(x) } <domain: "d", opset_import: ["": 21]> F (a) => (b) { b = Relu(a) }'
    assert refused(text) == "F wants 2 results of d.F, which has 1"


@pytest.mark.parametrize("version", [0, -5])
def test_an_opset_that_there_is_not(version, write):
    opsets = [helper.make_opsetid("", version)]
    relu = [node("Relu", ["x"], ["y"])]
    report = analyze(write(model(relu, [value("x")], [value("y")], opset_imports=opsets)))
    said = f"there is no opset {version} of ai.onnx: operators are taken as those of 1"
    assert messages(report, "GF209") == [said]


# Size and depth.


def test_nested_branches(write):
    body = "r0 = Relu(x)"
    for depth in range(1, 20):
        body = (
            f"r{depth} = If(c) <then_branch = t{depth} () => (r{depth - 1}) {{ {body} }}, "
            f"else_branch = e{depth} () => (s{depth}) {{ s{depth} = Neg(x) }}>"
        )
    report = analyze(write(f"g (bool c, float[4] x) => (r19) {{ {body} }}"))
    assert report.coverage.unknown == 0
    assert report.coverage.nodes == 2 * 19 + 1


@pytest.mark.parametrize(
    "turns, expected",
    [
        (10**9, 10**9 * 2 * 4 * 4 * 4),
        (10**18, 10**18 * 2 * 4 * 4 * 4),
        (2**63 - 1, 2 * 4 * 4 * 4 * symbol("loop_trips_0")),
    ],
)
def test_a_loop_of_very_many_turns(turns, expected, write):
    """The trip count multiplies; the largest integer is there only because a trip count has to be."""
    body = "b (int64 i, bool go, float[4, 4] s) => (bool go, float[4, 4] r) { r = MatMul(s, s) }"
    loop = f'y = Loop(turns, "", x) <body = {body}>'
    report = analyze(write(f"g (float[4, 4] x) => (float[4, 4] y) <int64 turns = {{{turns}}}> {{ {loop} }}"))
    assert report.total().matrix_flops == expected


def test_a_long_chain(write):
    count = 100_000
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    path = write(model(nodes, [value("v0")], [value(f"v{count}")]))
    began = time.process_time()
    report = analyze(path)
    assert time.process_time() - began < 60
    assert report.coverage.counted == count


def test_sizes_that_grow_get_names(write):
    nodes = []
    for i in range(40):
        nodes += [
            node("Shape", [f"v{i}"], [f"s{i}"]),
            node("Add", [f"s{i}", "k"], [f"a{i}"]),
            node("Mul", [f"a{i}", f"s{i}"], [f"m{i}"]),
            node("ConstantOfShape", [f"m{i}"], [f"v{i + 1}"]),
        ]
    k = helper.make_tensor("k", TensorProto.INT64, (2,), [3, 7])
    path = write(model(nodes, [value("v0", ("N", "M"))], [onnx.ValueInfoProto(name="v40")], [k]))
    began = time.process_time()
    report = analyze(path)
    assert time.process_time() - began < 60
    assert report.coverage.unknown == 0
    assert {d.code for d in report.diagnostics} == {"GF116"}


def test_versions_from_the_future(write):
    path = write(
        model(
            [node("Relu", ["x"], ["y"])],
            [value("x")],
            [value("y")],
            opset_imports=[helper.make_opsetid("", 9999)],
            ir_version=99,
        )
    )
    report = analyze(path)
    assert report.coverage.counted == 1
    assert [d.code for d in report.diagnostics] == ["GF209", "GF209"]


def test_a_domain_that_is_not_imported(write):
    made = model([node("Relu", ["x"], ["y"], domain="strange")], [value("x")], [value("y")])
    report = analyze(write(made))
    assert report.coverage.unknown_ops == {"strange.Relu.1": 1}
    assert report.diagnostics[0].message == "the domain strange is used, but not imported"


def test_names_that_are_not_text(write, refused):
    whole = model([node("Relu", ["xyz"], ["y"])], [value("xyz")], [value("y")]).SerializeToString()
    for name in (b"x\xffz", b"\xed\xa0\x80"):  # no beginning of a character; half of one in another encoding
        assert "is not UTF-8" in refused(whole.replace(b"xyz", name))
    assert "is not UTF-8" in refused(whole.replace(b"Relu", b"\xff\xfelu"))
    strange = "\x1b[31mx\n"
    made = model([node("Relu", [strange], ["y"], name="a\nb")], [value(strange)], [value("y")])
    assert analyze(write(made)).coverage.counted == 1


def test_contents_that_their_type_has_no_room_for(write):
    tensor = TensorProto(name="c", data_type=TensorProto.UINT32, dims=[1], uint64_data=[2**40])
    made = model([node("Identity", ["c"], ["y"])], [], [value("y", (1,), TensorProto.UINT32)], [tensor])
    assert [d.code for d in analyze(write(made)).diagnostics] == ["GF210"]


@pytest.mark.parametrize(
    "data",
    [
        b"\x08\x0a\x3a\xff\xff\xff\xff\x07abc",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
        "g (float[N] x) => (y) { a = Add(x, y) y = Relu(a) }",
        "g (float[N] x) => (y) { y = Relu(lost) }",
    ],
)
def test_on_the_command_line_it_is_one_line(data, write):
    result = CliRunner().invoke(cli.main, ["analyze", str(write(data))], prog_name="graphflops")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("graphflops: error: ")
    assert result.stderr.count("\n") == 1


def test_a_stored_tensor_of_many_rows_without_elements_is_not_small(tmp_path):
    rows = TensorProto(name="rows", data_type=TensorProto.INT64, dims=[2**40, 0])
    proto = model([node("Shape", ["rows"], ["y"])], [], [value("y", [2], TensorProto.INT64)], [rows])
    onnx.save(proto, tmp_path / "rows.onnx")
    started = time.process_time()
    assert analyze(tmp_path / "rows.onnx").rows[0].outputs[0].type.value == (2**40, 0)
    assert time.process_time() - started < 5
