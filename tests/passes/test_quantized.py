"""Calls that convert from and to few bits, priced as parts of the calls that runtimes fuse them with."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from onnx import helper, parser

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Graph, Input, Node, Origin, Output, Ref
from graphflops.passes import quantized as quantized_module
from graphflops.runtime.validate import validate
from graphflops.tensor import FLOAT32, INT8
from tests.passes.quantized_models import MODELS, quantized
from tests.support import t

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'
STORED = "float s = {0.5}, float other = {0.25}, uint8 z = {7}, int8 v = {0}"
SCALE = 4 + 1  # bytes of a scale and a zero point


def typed(text):
    """Names and element types of `x: uint8[2, 8], w: int8[8, 4]`, with shapes."""
    return re.findall(r"(\w+): (\w+)\[([\w, ]*)\]", text)


def program(calls, inputs, outputs, weights="", stored=STORED):
    """A model in ONNX's text; weights are zeros."""
    head = f"g ({', '.join(f'{kind}[{shape}] {name}' for name, kind, shape in typed(inputs))})"
    head += f" => ({', '.join(f'{kind}[{shape}] {name}' for name, kind, shape in typed(outputs))})"
    model = parser.parse_model(f"{HEAD}{head} <{stored}> {{ {calls} }}")
    for node in model.graph.node:
        node.name = node.output[0]
    for name, kind, shape in typed(weights):
        sizes = [int(size) for size in shape.split(",")] if shape else []
        code = parser.parse_model(f"{HEAD}g ({kind}[1] a) => ({kind}[1] b) {{ b = Identity(a) }}")
        code = code.graph.input[0].type.tensor_type.elem_type
        bits = {"int4": 4, "uint4": 4, "int16": 16, "uint16": 16, "float": 32, "int32": 32}.get(kind, 8)
        data = bytes(int(np.prod(sizes)) * bits // 8)
        model.graph.initializer.append(helper.make_tensor(name, code, sizes, data, raw=True))
    return Program(model).graph(Origin(format="onnx"))


def priced(*args, **options):
    return analyze(program(*args), **options)


def counted(report):
    """By call that is not a part of another: bytes read and written, and the type of its products."""
    rows = [row for row in report.rows if row.state == "counted"]
    return {row.node: (row.cost.read_bytes, row.cost.written_bytes, row.matrix_dtype) for row in rows}


XW = "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, s, v)"
IN, WEIGHT = "x: uint8[2, 8]", "w: int8[8, 4]"
PRODUCT = (2 * 8 + 8 * 4 + 2 * SCALE, "int8")

# What a model computes: its calls, inputs, results, weights; by call that is left: what it reads, writes, multiplies.
FUSED = {
    "a product": (
        (XW + "c = MatMul(a, b) y = QuantizeLinear(c, s, z)", IN, "y: uint8[2, 4]", WEIGHT),
        {"c": (2 * 8 + 8 * 4 + 3 * SCALE, 2 * 4, "int8")},
    ),
    "a product that stays in floating point": (
        (XW + "y = MatMul(a, b)", IN, "y: float[2, 4]", WEIGHT),
        {"y": (2 * 8 + 8 * 4 + 2 * SCALE, 4 * 2 * 4, "int8")},
    ),
    "a convolution with its bias and activation": (
        (
            "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, s, v) d = DequantizeLinear(bias, s)"
            "c = Conv <pads = [1, 1, 1, 1]> (a, b, d) r = Relu(c) y = QuantizeLinear(r, s, z)",
            "x: uint8[1, 8, 6, 6]",
            "y: uint8[1, 4, 6, 6]",
            "w: int8[4, 8, 3, 3], bias: int32[4]",
        ),
        {"c": (8 * 36 + 4 * 8 * 9 + 4 * 4 + 3 * SCALE + 4, 4 * 36, "int8")},
    ),
    "weights alone": (
        ("b = DequantizeLinear(w, s, v) y = MatMul(x, b)", "x: float[2, 8]", "y: float[2, 4]", WEIGHT),
        {"y": (4 * 2 * 8 + 8 * 4 + SCALE, 4 * 2 * 4, "float32")},
    ),
    "weights of 4 bits with a scale for each block of 16": (
        (
            "b = DequantizeLinear <axis = 0, block_size = 16> (w, scales) y = MatMul(x, b)",
            *("x: float[2, 32]", "y: float[2, 4]", "w: uint4[32, 4], scales: float[2, 4]"),
        ),
        {"y": (4 * 2 * 32 + 32 * 4 // 2 + 4 * 2 * 4, 4 * 2 * 4, "float32")},
    ),
    "weights in another order": (
        (
            "b = DequantizeLinear(w, s, v) c = Unsqueeze(b, axis) d = Cast <to = 10> (c) y = MatMul(x, d)",
            *("x: float16[3, 2, 8]", "y: float16[3, 2, 4]", WEIGHT, STORED + ", int64[1] axis = {0}"),
        ),
        {"y": (2 * 3 * 2 * 8 + 8 * 4 + SCALE, 2 * 3 * 2 * 4, "float16")},
    ),
    "weights that the file holds in floating point": (
        (
            "q = QuantizeLinear(w, s, v) a = DequantizeLinear(x, s, z) b = DequantizeLinear(q, s, v) y = MatMul(a, b)",
            *(IN, "y: float[2, 4]", "w: float[8, 4]"),
        ),
        {"y": (2 * 8 + 8 * 4 + 2 * SCALE, 4 * 2 * 4, "int8")},
    ),
    "16 bits by 8 bits": (
        (
            "a = DequantizeLinear(x, s) b = DequantizeLinear(w, s, v) c = MatMul(a, b)"
            "y = QuantizeLinear <output_dtype = 4> (c, s)",
            *("x: uint16[2, 8]", "y: uint16[2, 4]", WEIGHT),
        ),
        {"c": (2 * 2 * 8 + 8 * 4 + 4 + SCALE + 4, 2 * 2 * 4, "int16")},
    ),
    "8-bit floating point": (
        (
            "a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b)",
            *("x: float8e4m3fn[2, 8]", "y: float[2, 4]", "w: float8e4m3fn[8, 4]"),
        ),
        {"y": (2 * 8 + 8 * 4 + 2 * 4, 4 * 2 * 4, "float8_e4m3fn")},
    ),
    "the domain com.microsoft": (
        (
            "a = com.microsoft.DequantizeLinear(x, s, z) b = com.microsoft.DequantizeLinear(w, s, v)"
            "c = MatMul(a, b) y = com.microsoft.QuantizeLinear(c, s, z)",
            *(IN, "y: uint8[2, 4]", WEIGHT),
        ),
        {"c": (2 * 8 + 8 * 4 + 3 * SCALE, 2 * 4, "int8")},
    ),
    "a sum in the epilogue": (
        (
            XW
            + "r = DequantizeLinear(x2, s, z) c = MatMul(a, b) d = Add(c, r) e = Relu(d) y = QuantizeLinear(e, s, z)",
            *(IN + ", x2: uint8[2, 4]", "y: uint8[2, 4]", WEIGHT),
        ),
        {"c": (2 * 8 + 8 * 4 + 2 * 4 + 4 * SCALE, 2 * 4, "int8")},
    ),
    "an addition": (
        (
            "a = DequantizeLinear(x, s, z) b = DequantizeLinear(x2, s, z) c = Add(a, b) y = QuantizeLinear(c, s, z)",
            *(IN + ", x2: uint8[8]", "y: uint8[2, 8]"),
        ),
        {"c": (2 * 8 + 8 + 3 * SCALE, 2 * 8, "")},
    ),
    "softmax": (
        ("a = DequantizeLinear(x, s, z) b = Softmax(a) y = QuantizeLinear(b, s, z)", IN, "y: uint8[2, 8]"),
        {"b": (2 * 8 + 2 * SCALE, 2 * 8, "")},
    ),
    "a norm with weights in floating point": (
        (
            "a = DequantizeLinear(x, s, z) b = LayerNormalization(a, w) y = QuantizeLinear(b, s, z)",
            *(IN, "y: uint8[2, 8]", "w: float[8]"),
        ),
        {"b": (2 * 8 + 4 * 8 + 2 * SCALE, 2 * 8, "")},
    ),
    "a choice": (
        (
            "a = DequantizeLinear(x, s, z) b = DequantizeLinear(x2, s, z) c = Where(p, a, b)"
            "y = QuantizeLinear(c, other, z)",
            *("p: bool[2, 8], x: uint8[2, 8], x2: uint8[2, 8]", "y: uint8[2, 8]"),
        ),
        {"c": (3 * 2 * 8 + 3 * SCALE, 2 * 8, "")},
    ),
    "the largest of windows, which reads no scale": (
        (
            "a = DequantizeLinear(x, s, z) b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)"
            "y = QuantizeLinear(b, s, z)",
            *("x: uint8[1, 2, 4, 4]", "y: uint8[1, 2, 2, 2]"),
        ),
        {"b": (2 * 16, 2 * 4, "")},
    ),
    "the largest of windows at another scale": (
        (
            "a = DequantizeLinear(x, s, z) b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)"
            "y = QuantizeLinear(b, other, z)",
            *("x: uint8[1, 2, 4, 4]", "y: uint8[1, 2, 2, 2]"),
        ),
        {"b": (2 * 16 + 2 * SCALE, 2 * 4, "")},
    ),
    "rows of a table": (
        (
            "a = DequantizeLinear(w, s, v) y = Gather(a, i)",
            "i: int64[3]",
            "y: float[3, 8]",
            "w: int8[1000, 8]",
        ),
        {"y": (3 * 8 + 3 * 8 + SCALE, 4 * 3 * 8, "")},
    ),
    "rows of a table with a scale for each row": (
        (
            "a = DequantizeLinear <axis = 0> (w, scales) y = Gather(a, i)",
            *("i: int64[3]", "y: float[3, 8]", "w: int8[1000, 8], scales: float[1000]"),
        ),
        {"y": (3 * 8 + 3 * 8 + 4 * 3, 4 * 3 * 8, "")},
    ),
    "the place of the largest": (
        ("a = DequantizeLinear(x, s, z) y = ArgMax <axis = 1, keepdims = 0> (a)", IN, "y: int64[2]"),
        {"y": (2 * 8 + SCALE, 8 * 2, "")},
    ),
    "parts, each quantized, which ONNX copies": (
        (
            "a = DequantizeLinear(x, s, z) b, c = Split <axis = 1, num_outputs = 2> (a)"
            "y = QuantizeLinear(b, s, z) u = QuantizeLinear(c, s, z)",
            *(IN, "y: uint8[2, 4], u: uint8[2, 4]"),
        ),
        {"b": (2 * 8, 2 * 8, "")},
    ),
    "a layout, and another scale": (
        (
            "a = DequantizeLinear(x, s, z) b = Reshape(a, to) y = QuantizeLinear(b, other, z)",
            *(IN, "y: uint8[4, 4]", "", STORED + ", int64[2] to = {4, 4}"),
        ),
        {"y": (2 * 8 + 2 * SCALE, 2 * 8, "")},
    ),
    "a layout before the conversion of a result": (
        (
            XW + "c = MatMul(a, b) d = Reshape(c, to) y = QuantizeLinear(d, s, z)",
            *(IN, "y: uint8[8]", WEIGHT, STORED + ", int64[1] to = {8}"),
        ),
        {"c": (2 * 8 + 8 * 4 + 3 * SCALE, 2 * 4, "int8")},
    ),
    "sums of integers that are scaled": (
        (
            "c = MatMulInteger(x, w, z, v) d = Cast <to = 1> (c) e = Mul(d, s) y = Add(e, bias)",
            *(IN, "y: float[2, 4]", WEIGHT + ", bias: float[4]"),
        ),
        {"c": (2 * 8 + 8 * 4 + 2 + 4 + 4 * 4, 4 * 2 * 4, "int8")},
    ),
}


@pytest.mark.parametrize("model, expected", FUSED.values(), ids=FUSED)
def test_what_is_one_call(model, expected):
    assert counted(priced(*model)) == expected


# What stays apart: by call that is left, bytes read and written.
APART = {
    "what something else reads in floating point": (
        (
            XW + "c = MatMul(a, b) y = QuantizeLinear(c, s, z) u = Exp(a)",
            IN,
            "y: uint8[2, 4], u: float[2, 8]",
            WEIGHT,
        ),
        {
            "a": (2 * 8 + SCALE, 4 * 2 * 8),
            "c": (2 * 8 + 8 * 4 + 3 * SCALE, 2 * 4),
            "u": (4 * 2 * 8, 4 * 2 * 8),
        },
    ),
    "a result that is also wanted in floating point": (
        (XW + "c = MatMul(a, b) y = QuantizeLinear(c, s, z)", IN, "y: uint8[2, 4], c: float[2, 4]", WEIGHT),
        {"c": (2 * 8 + 8 * 4 + 2 * SCALE, 4 * 2 * 4), "y": (4 * 2 * 4 + SCALE, 2 * 4)},
    ),
    "an operator whose result stays in floating point": (
        ("a = DequantizeLinear(x, s, z) y = Exp(a)", IN, "y: float[2, 8]"),
        {"a": (2 * 8 + SCALE, 4 * 2 * 8), "y": (4 * 2 * 8, 4 * 2 * 8)},
    ),
    "one quantized factor that is no weight": (
        (
            "a = DequantizeLinear(x, s, z) y = MatMul(a, w)",
            IN,
            "y: float[2, 4], w: float[8, 4]",
            "w: float[8, 4]",
        ),
        {"a": (2 * 8 + SCALE, 4 * 2 * 8), "y": (4 * 2 * 8 + 4 * 8 * 4, 4 * 2 * 4)},
    ),
    "a layout that is read in floating point too": (
        (
            "a = DequantizeLinear(x, s, z) b = Flatten(a) d = DequantizeLinear(w, s, v) y = MatMul(b, d) u = Exp(b)",
            *(IN, "y: float[2, 4], u: float[2, 8]", WEIGHT),
        ),
        {
            "a": (2 * 8 + SCALE, 4 * 2 * 8),
            "y": (4 * 2 * 8 + 8 * 4 + SCALE, 4 * 2 * 4),
            "u": (4 * 2 * 8, 4 * 2 * 8),
        },
    ),
    "what the caller gets and gives": (
        ("a = QuantizeLinear(x, s, z) y = DequantizeLinear(a, s, z)", "x: float[2, 8]", "y: float[2, 8]"),
        {"a": (4 * 2 * 8 + SCALE, 2 * 8), "y": (2 * 8 + SCALE, 4 * 2 * 8)},
    ),
}


@pytest.mark.parametrize("model, expected", APART.values(), ids=APART)
def test_what_stays_apart(model, expected):
    assert {node: cost[:2] for node, cost in counted(priced(*model)).items()} == expected


@pytest.mark.parametrize(
    "form", [("QUInt8", False), ("QInt8", False), ("QUInt8", True)], ids=["u8", "s8", "by-channel"]
)
@pytest.mark.parametrize("make", MODELS, ids=[make.__name__ for make in MODELS])
def test_both_forms_of_a_quantized_model_cost_the_same(make, form, tmp_path):
    """Bytes and peak within 10 %, matrix FLOPs the same, all of them int8."""
    activations, per_channel = form
    qdq, operators = (
        analyze(quantized(make, tmp_path, name, activations=activations, per_channel=per_channel))
        for name in ("QDQ", "QOperator")
    )
    ours, theirs = qdq.total(), operators.total()
    assert ours.matrix_flops == theirs.matrix_flops
    assert (
        {row.matrix_dtype for row in qdq.rows} == {row.matrix_dtype for row in operators.rows} == {"", "int8"}
    )
    for one, other in ((ours.read_bytes, theirs.read_bytes), (ours.written_bytes, theirs.written_bytes)):
        assert one == pytest.approx(other, rel=0.1)
    assert ours.vector_flops == pytest.approx(theirs.vector_flops, rel=0.01)
    assert qdq.totals.peak_bytes == pytest.approx(operators.totals.peak_bytes, rel=0.1)
    unfused = analyze(str(tmp_path / "QDQ.onnx"), execution="eager").total()
    assert unfused.read_bytes + unfused.written_bytes > 4 * (ours.read_bytes + ours.written_bytes)


# The whole report


def test_arithmetic_and_peak_of_a_convolution():
    """Bias and activation 1 each, zero points off both factors, 6 to quantize a result; nothing between is stored."""
    model, _ = FUSED["a convolution with its bias and activation"]
    report = priced(*model)
    x, w, y = 8 * 36, 4 * 8 * 9, 4 * 36
    assert report.total().matrix_flops == 2 * y * 8 * 9
    assert report.total().vector_flops == y + y + x + w + 6 * y
    assert report.totals.peak_bytes == x + y
    assert [row.state for row in report.rows] == ["free"] * 3 + ["counted"] + ["free"] * 2


def test_arithmetic_where_weights_alone_are_quantized():
    """Three operations dequantize a weight."""
    report = priced(*FUSED["weights alone"][0])
    assert report.total().vector_flops == 3 * 8 * 4
    assert report.totals.peak_bytes == 4 * 2 * 8 + 4 * 2 * 4


def test_a_report_names_what_runtimes_that_do_not_fuse_pay():
    """Apart, x, w and c are stored in float32; at the peak are x, the dequantized operands and their product."""
    report = priced(*FUSED["a product"][0])
    (message,) = [said.message for said in report.diagnostics if said.code == "GF126"]
    x, w, y = 2 * 8, 8 * 4, 2 * 4
    moved = (x + 4 * x) + (w + 4 * w) + (4 * x + 4 * w + 4 * y) + (4 * y + y) + 3 * SCALE
    assert "3 calls that" in message
    assert f"{moved} B are read and written" in message
    assert f"the peak is {x + 4 * x + 4 * w + 4 * y} B" in message
    unfused = priced(*FUSED["a product"][0], execution="eager")
    assert unfused.total().read_bytes + unfused.total().written_bytes == moved
    assert not [said for said in unfused.diagnostics if said.code == "GF126"]


def test_formulas_stay_formulas():
    report = priced(
        XW + "c = MatMul(a, b) y = QuantizeLinear(c, s, z)", "x: uint8[n, 8]", "y: uint8[n, 4]", WEIGHT
    )
    n = symbol("n")
    assert report.total().read_bytes == 8 * n + 8 * 4 + 3 * SCALE
    assert report.total().written_bytes == 4 * n
    assert report.total().vector_flops == 8 * n + 8 * 4 + 6 * 4 * n
    assert report.totals.peak_bytes == 12 * n


def test_a_report_is_saved_and_read_again():
    report = priced(*FUSED["a product"][0])
    assert report.from_json(report.to_json()).to_json() == report.to_json()
    (row,) = [row for row in report.rows if row.state == "counted"]
    assert [str(value.type) for value in row.inputs] == ["uint8[2, 8]", "int8[8, 4]"]
    assert [(value.name, str(value.type)) for value in row.outputs] == [("y", "uint8[2, 4]")]


def test_sizes_are_read_off_the_quantized_value():
    calls = "a = DequantizeLinear(x, s, z) n = Shape(a) b = Reshape(a, n) y = QuantizeLinear(b, other, z)"
    assert counted(priced(calls, IN, "y: uint8[2, 8]")) == {"y": (2 * 8 + 2 * SCALE, 2 * 8, "")}


def branch(name):
    """A graph of a product between conversions, its values called after it."""
    calls = XW + "c = MatMul(a, b) y = QuantizeLinear(c, s, z)"
    calls = re.sub(r"\b([abcy])\b", rf"\1_{name}", calls)
    return f"{name}_branch = {name} () => (uint8[2, 4] y_{name}) {{ {calls} }}"


def test_branches_are_fused_inside():
    """Both branches read, multiply and write the same, so that either is the dearer one."""
    calls = f"y = If <{branch('then')}, {branch('else')}> (p)"
    report = priced(calls, "p: bool[1], " + IN, "y: uint8[2, 4]", WEIGHT)
    rows = [row for row in report.rows if row.matrix_dtype]
    assert {row.matrix_dtype for row in rows} == {"int8"}
    assert {row.cost.written_bytes for row in rows} <= {0, 2 * 4}
    assert report.total().matrix_flops == 2 * 2 * 4 * 8
    assert report.total().read_bytes == 2 * 8 + 8 * 4 + 3 * SCALE


def test_a_training_step_is_priced_call_by_call():
    report = priced(*FUSED["weights alone"][0], training=True)
    assert [row.state for row in report.rows] == ["counted", "counted"]
    assert report.totals.cost.read_bytes == (8 * 4 + SCALE) + (4 * 2 * 8 + 4 * 8 * 4)


def test_a_device_multiplies_integers_at_its_rate_for_them():
    """One product of 2 * 4096**3 FLOPs: at 1979 T a second in int8, at 67 T in float32, as an H100 has it."""
    size = 4096
    model = ("y = MatMul(x, w)", f"x: float[{size}, {size}]", f"y: float[{size}, {size}]")
    quantized_model = (XW + "y = MatMul(a, b)", f"x: uint8[{size}, {size}]", *model[2:])
    fast = priced(*quantized_model, f"w: int8[{size}, {size}]", device="h100").totals.time
    slow = priced(*model, f"w: float[{size}, {size}]", device="h100").totals.time
    assert slow.seconds > 2 * size**3 / 67e12
    assert 2 * size**3 / 1979e12 < fast.seconds < slow.seconds / 10


def test_a_device_reads_weights_in_their_few_bits():
    """One row times 64 M weights: 256 MB in float32, 32 MB in 4 bits, at 3.35 TB a second."""
    calls = "b = DequantizeLinear <axis = 0, block_size = 32> (w, scales) y = MatMul(x, b)"
    few = priced(
        calls,
        "x: float[1, 8192]",
        "y: float[1, 8192]",
        "w: uint4[8192, 8192], scales: float[256, 8192]",
        device="h100",
    )
    all_bits = priced(
        "y = MatMul(x, w)", "x: float[1, 8192]", "y: float[1, 8192]", "w: float[8192, 8192]", device="h100"
    )
    assert all_bits.totals.time.seconds > 4 * 8192**2 / 3.35e12
    assert few.totals.time.seconds < all_bits.totals.time.seconds / 2


def test_a_run_is_compared_call_by_call(tmp_path):
    """onnxruntime runs the file as it is written."""
    results = validate(quantized(MODELS[-1], tmp_path, "QDQ"))
    assert {check.verdict for node in results.nodes for check in node.checks} == {"equal"}


def test_a_model_that_is_not_quantized_is_not_looked_at(monkeypatch):
    def fails(*args):
        raise AssertionError

    monkeypatch.setattr(quantized_module, "fuse", fails)
    analyze("samples/gqa_transformer.onnx")
    analyze("samples/gqa_transformer.pt2")
    with pytest.raises(AssertionError):
        priced(*FUSED["a product"][0])


def test_layouts_that_something_else_reads_are_given_up():
    """The second factor of each product is a layout that the next reads too, and the last is read in floating point."""
    calls, last = "", 20
    for i in range(last):
        calls += f" a{i} = DequantizeLinear(x, s, z) b{i} = Flatten(a{i})"
    for i in range(last - 1):
        calls += f" c{i} = MatMul(b{i}, b{i + 1})"
    results = ", ".join(f"c{i}: float[8, 8]" for i in range(last - 1))
    found = counted(priced(f"{calls} y = Exp(b{last - 1})", "x: uint8[8, 8]", f"{results}, y: float[8, 8]"))
    assert found["y"][:2] == (4 * 64, 4 * 64)
    assert found[f"c{last - 2}"][2] == "float32"


# PyTorch


def decomposed(op, *args):
    return getattr(torch.ops.quantized_decomposed, op)(*args)


def dequantized(x):
    return decomposed("dequantize_per_tensor", x, 0.5, 7, 0, 255, torch.uint8)


def requantized(x):
    return decomposed("quantize_per_tensor", x, 0.5, 7, 0, 255, torch.uint8)


class Layer(torch.nn.Module):
    """A linear layer as pt2e converts it: weights by channel, an activation in place before its result is quantized."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(4, 8, dtype=torch.int8))
        self.register_buffer("scales", torch.ones(4))
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))
        self.bias = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x):
        per_channel = (self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        weight = decomposed("dequantize_per_channel", *per_channel)
        y = torch.nn.functional.linear(dequantized(x), weight, self.bias)
        return requantized(torch.relu_(y))


@pytest.mark.parametrize("is_core", [False, True], ids=["as-exported", "core-aten"])
def test_a_layer_of_pt2e(is_core):
    """Weights may be transposed before the product, the activation run in place."""
    exported = torch.export.export(Layer(), (torch.zeros(2, 8, dtype=torch.uint8),))
    report = analyze(exported.run_decompositions() if is_core else exported)
    (row,) = [row for row in report.rows if row.state == "counted"]
    assert row.matrix_dtype == "int8"
    assert row.cost.read_bytes == 2 * 8 + 4 * 8 + 4 * 4 + (4 + 8) * 4
    assert row.cost.written_bytes == 2 * 4
    assert report.totals.peak_bytes == 2 * 8 + 2 * 4


class WeightsAlone(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(64, 128, dtype=torch.int8))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.to(x.dtype))


@pytest.mark.parametrize("execution", ["eager", "graph", "compiled"])
def test_pytorch_converts_weights_by_calls_of_their_own(execution):
    """Each execution of PyTorch stores the converted weight beside the result; runtimes store the result alone."""
    x = torch.zeros(2, 128)
    exported = torch.export.export(WeightsAlone(), (x,))
    report = analyze(exported, device="h200", execution=execution)
    assert [row.op.split(".")[1] for row in report.rows if row.state == "counted"] == ["to", "linear"]
    assert report.totals.peak_bytes == 4 * 2 * 128 + 4 * 64 * 128 + 4 * 2 * 64
    alone = analyze(exported, device="h200")
    assert (alone.execution, alone.totals.peak_bytes) == ("graph", 4 * 2 * 128 + 4 * 2 * 64)


class Summed(torch.nn.Module):
    def forward(self, x, y):
        a = torch.add(dequantized(x), dequantized(y))
        return requantized(torch.nn.functional.hardtanh(a, 0.0, 6.0).flatten())


def test_a_sum_that_is_clamped_and_laid_out():
    x = torch.zeros(2, 8, dtype=torch.uint8)
    report = analyze(torch.export.export(Summed(), (x, x)))
    assert counted(report) == {"add": (2 * 2 * 8, 2 * 8, "")}


def affine(name, op, x, block, scale, *rest):
    args = (Ref(x), block, *scale, INT8, *rest)
    return Node(name, f"torchao.{op}_affine.default", args, (), (name,))


@pytest.mark.parametrize("limits", [(-128, 127), (-8, 7)], ids=["int8", "int4"])
def test_a_layer_of_torchao(limits):
    """Rows are quantized when their range is known, weights are stored so; a number of 4 bits is stored in a byte."""
    rows, weights = (Ref("scale"), Ref("zero")), (Ref("ws"), None)
    ranged = (Ref("x"), "SYMMETRIC", (1, 8), INT8, -128, 127, 1e-7, FLOAT32, INT8, True)
    nodes = (
        Node("pick", "torchao.choose_qparams_affine.default", ranged, (), ("scale", "zero")),
        affine("q", "quantize", "x", (1, 8), rows, -128, 127),
        affine("d", "dequantize", "q", (1, 8), rows, -128, 127),
        affine("e", "dequantize", "w", (1, 8), weights, *limits),
        Node("y", "aten.linear.default", (Ref("d"), Ref("e")), (), ("y",)),
    )
    types = {
        "x": t(2, 8),
        "w": t(4, 8, dtype="int8"),
        "ws": t(4, 1),
        "scale": t(2, 1),
        "d": t(2, 8),
        "zero": t(2, 1, dtype="int8"),
        "q": t(2, 8, dtype="int8"),
        "e": t(4, 8),
        "y": t(2, 4),
    }
    inputs = (Input("x", "user", "x"), Input("w", "parameter", "w"), Input("ws", "buffer", "ws"))
    found = counted(analyze(Graph(nodes, types, inputs, (Output(Ref("y")),))))
    assert [*found] == ["pick", "q", "y"]
    assert found["y"] == (2 * 8 + 4 * 8 + 2 * (4 + 1) + 4 * 4, 4 * 2 * 4, "int8")
