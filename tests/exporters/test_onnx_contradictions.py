"""ONNX files that two readers could take for two programs: as onnxruntime reads them, or refused.

What onnxruntime does with each is in the comment of its table: version 1.32 was tried.
"""

from __future__ import annotations

import onnx
import pytest
from click.testing import CliRunner
from onnx import AttributeProto, TensorProto, helper

from graphflops.analysis import analyze
from graphflops.cli import main
from tests.exporters.onnx_files import messages, model, node, result, value

NAMELESS = onnx.ValueInfoProto
PLAIN, CALLED = [helper.make_opsetid("", 21)], [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]


def tensor(code: str, sizes: tuple[int, ...], **data: object) -> TensorProto:
    raw = data.pop("raw_data", None)
    made = TensorProto(name="c", data_type=getattr(TensorProto, code), dims=sizes, **data)
    if raw is not None:
        made.raw_data = raw
    return made


def of_constant(stored: TensorProto, reader: str = "Identity", **attributes: object) -> onnx.ModelProto:
    return model([node(reader, ["c"], ["y"], **attributes)], [], [NAMELESS(name="y")], [stored])


# onnxruntime: any bit makes a truth value true, integers keep their lowest bits.
@pytest.mark.parametrize(
    ("code", "given", "held"),
    [
        ("BOOL", 256, 1),
        ("BOOL", -1, 1),
        ("BOOL", 2, 1),
        ("BOOL", 0, 0),
        ("INT8", 300, 44),
        ("UINT8", -1, 255),
        ("INT16", 65537, 1),
        ("UINT16", -1, 65535),
        ("INT4", 300, -4),
        ("UINT4", 300, 12),
        ("FLOAT16", 0x3C00, 1.0),
        ("BFLOAT16", 0x3F80, 1.0),
    ],
)
def test_numbers_that_their_type_has_no_room_for(code, given, held, write):
    report = analyze(write(of_constant(tensor(code, (1,), int32_data=[given]))))
    assert result(report).value == (held,)


@pytest.mark.parametrize("byte", [1, 2, 255])
def test_any_byte_but_zero_is_true(byte, write):
    stored = tensor("BOOL", (1,), raw_data=bytes([byte]))
    report = analyze(write(of_constant(stored, "Cast", to=TensorProto.INT64)))
    assert result(report).value == (1,)


@pytest.mark.parametrize("held", [256, 1, -(2**31)])
def test_a_branch_is_the_one_that_runs(held, write):
    """If of a stored condition: the product of 8 x 8, or nothing."""
    branch = {
        name: helper.make_graph([node(op, inputs, [name])], name, [], [value(name, (8, 8))])
        for name, op, inputs in (("a", "MatMul", ["x", "x"]), ("b", "Relu", ["x"]))
    }
    call = node("If", ["c"], ["y"], then_branch=branch["a"], else_branch=branch["b"])
    made = model([call], [value("x", (8, 8))], [value("y", (8, 8))], [tensor("BOOL", (), int32_data=[held])])
    assert analyze(write(made)).total().matrix_flops == 2 * 8**3


# onnxruntime loads none of these, but for two places of data: it takes the raw one, another file, or the field of the type.
EIGHT = (5).to_bytes(8, "little")
WRONG = {
    "one number more": (
        tensor("INT64", (1,), int64_data=[5, 6]),
        "1 numbers, but its data in the file has 2",
    ),
    "one less": (tensor("INT64", (3,), int64_data=[5, 6]), "3 numbers, but its data in the file has 2"),
    "for no element": (tensor("INT64", (0,), int64_data=[5]), "0 numbers, but its data in the file has 1"),
    "for a scalar": (tensor("INT64", (), int64_data=[5, 6]), "1 numbers, but its data in the file has 2"),
    "a long one": (
        tensor("FLOAT", (70,), float_data=[0.0] * 69),
        "70 numbers, but its data in the file has 69",
    ),
    "a large one": (
        tensor("FLOAT", (700,), float_data=[0.0] * 699),
        "700 numbers, but its data in the file has 699",
    ),
    "large integers": (
        tensor("INT64", (7, 7), int64_data=[1] * 2000),
        "49 numbers, but its data in the file has 200",
    ),
    "raw, short": (tensor("INT64", (2,), raw_data=EIGHT), "16 bytes, but its data in the file has 8"),
    "raw, long": (tensor("INT64", (1,), raw_data=2 * EIGHT), "8 bytes, but its data in the file has 16"),
    "raw, none": (tensor("INT64", (1,), raw_data=b""), "8 bytes, but its data in the file has 0"),
    "nowhere": (tensor("INT64", (1,)), "8 bytes, but its data in the file has 0"),
    "four bits each": (
        tensor("INT4", (3,), int32_data=[1, 2, 3]),
        "2 numbers, but its data in the file has 3",
    ),
    "strings": (tensor("STRING", (2,), string_data=[b"a"]), "2 numbers, but its data in the file has 1"),
    "complex": (tensor("COMPLEX64", (1,), float_data=[1.0]), "2 numbers, but its data in the file has 1"),
    "another field": (tensor("INT64", (1,), int32_data=[5]), "that of int64 belongs in int64_data"),
    "of doubles": (tensor("DOUBLE", (1,), float_data=[1.0]), "that of float64 belongs in double_data"),
    "two fields": (
        tensor("INT64", (1,), int32_data=[5], int64_data=[6]),
        "twice: in int32_data and in int64_data",
    ),
    "raw and typed": (
        tensor("INT64", (1,), int64_data=[5], raw_data=EIGHT),
        "twice: in int64_data and in raw_data",
    ),
    "too large": (tensor("UINT32", (1,), uint64_data=[2**32]), "a number that its type has no room for"),
    "no half": (tensor("FLOAT16", (1,), int32_data=[-1]), "a number that its type has no room for"),
}


@pytest.mark.parametrize("case", WRONG)
def test_data_that_their_type_does_not_need_are_an_error(case, write):
    stored, said = WRONG[case]
    path = write(of_constant(stored))
    (found,) = messages(analyze(path), "GF210")
    assert said in found
    done = CliRunner().invoke(main, ["analyze", str(path)])
    assert (done.exit_code, done.stderr) == (1, f"graphflops: error: {found}\n")
    assert CliRunner().invoke(main, ["audit", str(path)]).exit_code == 3


def external(**entries: object) -> TensorProto:
    made = TensorProto(name="c", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, told in entries.items():
        made.external_data.add(key=key, value=str(told))
    return made


def test_data_in_another_file_and_here(write):
    stored = external(location="w", offset=0, length=16)
    assert messages(analyze(write(of_constant(stored))), "GF210") == []
    stored.external_data.add(key="offset", value="16")
    assert "tells twice where" in messages(analyze(write(of_constant(stored))), "GF210")[0]
    stored = external(location="w", length=0)  # as good as not told: the rest of the file
    assert messages(analyze(write(of_constant(stored))), "GF210") == []
    stored.raw_data = 2 * EIGHT
    assert (
        "twice: in raw_data and in another file" in messages(analyze(write(of_constant(stored))), "GF210")[0]
    )
    stored.data_location = TensorProto.DEFAULT  # what was told of another file is left over then
    assert result(analyze(write(of_constant(stored)))).value == (5, 5)


def test_a_mark_of_left_out_data_that_the_file_brings(write):
    """It would hide the target of a Reshape, so that what the file declares counts."""
    stored = tensor("INT64", (2,), raw_data=2 * EIGHT)
    stored.external_data.add(key="graphflops.dropped_bytes", value="raw_data:16:0")
    assert "has data twice" in messages(analyze(write(of_constant(stored))), "GF210")[0]


def test_a_sparse_tensor_is_dense_when_it_is_loaded(write):
    made = model([node("MatMul", ["x", "w"], ["y"])], [value("x", (2, 8))], [NAMELESS(name="y")])
    stored = made.graph.sparse_initializer.add(dims=(8, 8))
    stored.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, (1,), [1.0]))
    stored.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, (1,), [0]))
    report = analyze(write(made))
    assert (report.parameter_bytes, report.total().read_bytes) == (4 * 64, 4 * (16 + 64))


# Attributes. onnxruntime refuses the first four, takes the value of the fifth, and the first of a constant's two.
def attribute(name: str, kind: int, **held: object) -> AttributeProto:
    return AttributeProto(name=name, type=kind, **held)


ONE = attribute("keepdims", AttributeProto.INT, i=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([ONE, attribute("keepdims", AttributeProto.INT, i=0)], "states the attribute keepdims twice"),
        (
            [attribute("keepdims", AttributeProto.INTS, i=1)],
            "keepdims has a value of another kind than it states",
        ),
        ([attribute("keepdims", AttributeProto.INT, ints=[1])], "keepdims has a value of another kind"),
        ([attribute("keepdims", AttributeProto.INT, i=1, f=0.0)], "keepdims has a value of another kind"),
        (
            [attribute("keepdims", AttributeProto.INT, i=1, ref_attr_name="k")],
            "of a function that it is not in",
        ),
    ],
)
def test_attributes_that_have_two_values(given, said, refused):
    call = node("ReduceSum", ["x"], ["y"])
    call.attribute.extend(given)
    assert said in refused(model([call], [value("x")], [NAMELESS(name="y")]))


def test_a_constant_with_two_values(refused):
    call = node("Constant", [], ["y"], value_int=1, value_float=1.0)
    assert (
        refused(model([call], [], [NAMELESS(name="y")]))
        == "the constant y has two values, value_float and value_int"
    )


# Functions and opsets. onnxruntime refuses the first, runs the operator for the second, and takes the last opset.
def function(name: str, domain: str, op: str, opsets: object = PLAIN, **fields: object) -> onnx.FunctionProto:
    return helper.make_function(domain, name, ["a"], ["b"], [node(op, ["a"], ["b"], **fields)], opsets)


def test_a_function_is_defined_once(refused):
    both = [function("F", "f", "Relu"), function("F", "f", "ReduceSum")]
    call = node("F", ["x"], ["y"], domain="f")
    made = model([call], [value("x")], [NAMELESS(name="y")], functions=both, opset_imports=CALLED)
    assert refused(made) == "the function f.F is defined twice"


@pytest.mark.parametrize(
    ("name", "domain", "version", "said"),
    [
        ("Relu", "", 21, "ai.onnx.Relu is a function of the file and an operator of runtimes"),
        (
            "Gelu",
            "com.microsoft",
            1,
            "com.microsoft.Gelu is a function of the file and an operator of runtimes",
        ),
        ("RMSNormalization", "", 21, ""),  # an operator since 23
        ("Ours", "com.microsoft", 1, ""),
        ("Relu", "f", 1, ""),
    ],
)
def test_a_function_that_hides_an_operator(name, domain, version, said, write):
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, version)] if domain else [])]
    made = model(
        [node(name, ["x"], ["y"], domain=domain)],
        [value("x")],
        [NAMELESS(name="y")],
        functions=[function(name, domain, "ReduceSum", opsets)],
        opset_imports=opsets,
    )
    found = messages(analyze(write(made)), "GF130")
    assert [text.partition(": ")[0] for text in found] == [said] * bool(said)


def test_a_function_of_another_opset(write):
    """Flatten since 21 is that of 13, Squeeze took its axes as an attribute before 13."""
    for op, version, fields, says in (
        ("Softmax", 13, {}, False),
        ("Squeeze", 11, {"axes": [0]}, True),
        ("Squeeze", 21, {}, False),
    ):
        made = model(
            [node("F", ["x"], ["y"], domain="f")],
            [value("x", (1, 4))],
            [NAMELESS(name="y")],
            functions=[function("F", "f", op, [helper.make_opsetid("", version)], **fields)],
            opset_imports=CALLED,
        )
        found = messages(analyze(write(made)), "GF130")
        assert bool(found) == says, (op, found)


@pytest.mark.parametrize("second", ["", "ai.onnx"])
def test_an_opset_is_imported_once(second, refused, write):
    made = model([node("Relu", ["x"], ["y"])], [value("x")], [NAMELESS(name="y")])
    made.opset_import.add(domain=second, version=21)
    assert analyze(write(made)).coverage.unknown == 0
    made.opset_import[-1].version = 9
    assert refused(made) == "opsets 21 and 9 of ai.onnx are imported"


# Fields of messages: of a number or a text that is stated twice the last counts, of a message the two are merged.
def field(number: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([number << 3 | 2, len(body)]) + body


def test_a_field_that_is_stated_twice_is_read_as_by_onnxruntime(write):
    """A second graph adds a call; a stored tensor whose second name is another is not the one that is used."""
    made = model(
        [node("Reshape", ["x", "c"], ["y"])],
        [value("x", (8, 8))],
        [NAMELESS(name="y")],
        [tensor("INT64", (2,), int64_data=[2, 32])],
    )
    other = tensor("INT64", (2,), int64_data=[64, 1]).SerializeToString() + field(8, b"unused")
    more = onnx.GraphProto(node=[node("MatMul", ["x", "x"], ["z"])]).SerializeToString() + field(5, other)
    report = analyze(write(made.SerializeToString() + field(7, more)))
    assert report.rows[0].outputs[0].type.shape == (2, 32)
    assert report.total().matrix_flops == 2 * 8**3


# onnxruntime refuses a second field whatever it holds, and takes a kind without a value as its zero.
@pytest.mark.parametrize(
    "field",
    [{"g": onnx.GraphProto()}, {"t": TensorProto()}, {"tp": onnx.TypeProto()}, {"s": b""}, {"f": 0.0}],
)
@pytest.mark.parametrize("kind", [AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.GRAPH])
def test_an_empty_field_beside_the_value(field, kind, write):
    call = node("ReduceSum", ["x"], ["y"])
    call.attribute.append(attribute("keepdims", kind, i=1, **field))
    said = CliRunner().invoke(
        main, ["analyze", str(write(model([call], [value("x")], [NAMELESS(name="y")])))]
    )
    assert said.exit_code == 1
    assert "keepdims has a value of another kind than it states" in said.stderr


def test_a_kind_without_a_value(write):
    call = node("ReduceSum", ["x"], ["y"])
    call.attribute.append(attribute("keepdims", AttributeProto.INT))
    assert result(analyze(write(model([call], [value("x")], [NAMELESS(name="y")])))).shape == ()


# onnxruntime refuses each: an operator gives no more results than it has, a tensor without a name is none.
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (node("Relu", ["x"], ["z", "y"]), "rule gives 1 results, the file names 2"),
        (node("Relu", ["x"], ["y", "z"]), "rule gives 1 results, the file names 2"),
        (node("Split", ["x"], ["y", "z"], axis=0), ""),
        (node("MatMul", ["x", ""], ["y"]), "called without operand 2"),
    ],
)
def test_results_and_operands_that_no_runtime_knows(call, said, write):
    unnamed = helper.make_tensor("", TensorProto.FLOAT, (2, 2), [0.0] * 4)
    report = analyze(write(model([call], [value("x", (2, 2))], [NAMELESS(name="y")], [unnamed])))
    assert [said in each.message for each in report.diagnostics if each.code in ("GF105", "GF118")] == (
        [True] if said else []
    )


# onnxruntime refuses each but the first.
@pytest.mark.parametrize(
    ("results", "returned", "given", "said"),
    [
        (["s", "y"], "o", {}, ""),
        (["s"], "o", {}, "rule gives 2 results, the file names 1"),
        (["s", "y"], "x", {}, "b returns x of the graph around it, and no copy: onnxruntime refuses it"),
        (["s", "y"], "o", {"scan_output_axes": [0, 0]}, "(0, 0) must have 1 entries"),
        (["s", "y"], "o", {"scan_output_axes": [4]}, "axis 4 does not exist"),
        (["s", "y"], "o", {"scan_input_directions": []}, "() must have 1 entries"),
    ],
)
def test_scans_that_no_runtime_knows(results, returned, given, said, write):
    calls = [node("Add", ["c", "e"], ["n"]), node("Mul", ["n", "n"], ["o"])]
    body = helper.make_graph(
        calls, "b", [value("c", (8,)), value("e", (8,))], [NAMELESS(name="n"), NAMELESS(name=returned)]
    )
    scan = node("Scan", ["c0", "x"], results, body=body, num_scan_inputs=1)
    for name, numbers in given.items():
        scan.attribute.append(helper.make_attribute(name, numbers, attr_type=AttributeProto.INTS))
    start = helper.make_tensor("c0", TensorProto.FLOAT, (8,), [0.0] * 8)
    made = model([scan], [value("x", (8, 8))], [NAMELESS(name=results[-1])], [start])
    found = [
        one.message for one in analyze(write(made)).diagnostics if one.code in ("GF105", "GF118", "GF130")
    ]
    assert [said in text for text in found] == ([True] if said else [])
