"""Whole ONNX programs that counters often get wrong: gradients, sharing, branches, published models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import TensorProto, parser

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.exporters.onnx import read
from graphflops.exporters.onnx_graph import Program
from graphflops.graph import Origin
from tests.support import price, t

if TYPE_CHECKING:
    from graphflops.report import Report

IMPORTS = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'


def analyzed(text: str, training: bool = False, **held: tuple[int, ...]) -> Report:
    """The report of a program whose stored floating tensors are `held`, by name and shape."""
    model = parser.parse_model(f"{IMPORTS} {text}")
    for name, shape in held.items():
        model.graph.initializer.add(name=name, dims=shape, data_type=TensorProto.FLOAT)
    return analyze(Program(model).graph(Origin()), training=training)


# Products.


def test_a_product_is_two_operations_per_term() -> None:
    assert (
        analyzed("g (float[4, 5] a, float[5, 6] b) => (y) { y = MatMul(a, b) }").total().matrix_flops == 240
    )


def test_sums_of_products_and_outer_products() -> None:
    summed = """g (float[3, 8, 5] a, float[3, 5, 9] b, float[8, 9] c) => (y) <int64[1] axis = {0}> {
      p = MatMul(a, b) s = ReduceSum<keepdims = 0>(p, axis) y = Add(s, c)
    }"""
    assert analyzed(summed).total().matrix_flops == 2 * 3 * 8 * 5 * 9 == 2_160
    outer = "g (float[8, 1] a, float[1, 9] b) => (y) { y = MatMul(a, b) }"
    assert analyzed(outer).total().matrix_flops == 2 * 8 * 9 == 144


def test_a_bilinear_layer_multiplies_its_first_operand_first() -> None:
    equation = 'y = Einsum<equation = "bi,oij,bj->bo">(a, w, b)'
    report = analyzed(f"g (float[4, 8] a, float[4, 16] b) => (y) {{ {equation} }}", w=(32, 8, 16))
    assert report.total().matrix_flops == 2 * 4 * 8 * 32 * 16 + 2 * 4 * 32 * 16 == 36_864


def test_distances_of_all_pairs() -> None:
    """onnxruntime computes |a|**2 - 2ab + |b|**2, the middle term as a product of matrices."""
    assert price("com.microsoft.CDist.1", t(100, 32), t(200, 32)).matrix_flops == 2 * 100 * 200 * 32


def test_multi_head_attention_and_the_layer_around_it() -> None:
    attention = """p = MatMul(x, qkv) q, k, v = Split<axis = -1, num_outputs = 3>(p)
      a = Attention<q_num_heads = 4, kv_num_heads = 4>(q, k, v) o = MatMul(a, out)"""
    held = {"qkv": (64, 192), "out": (64, 64)}
    report = analyzed(f"g (float[2, 16, 64] x) => (o) {{ {attention} }}", **held)
    products = 2 * 32 * 64 * 192 + 4 * 2 * 16 * 16 * 64 + 2 * 32 * 64 * 64
    assert report.total().matrix_flops == products == 786_432 + 131_072 + 262_144 == 1_179_648
    layer = f"""g (float[2, 16, 64] x) => (y) {{ {attention}
      n = Add(x, o) m = LayerNormalization(n, scale) u = MatMul(m, up) r = Relu(u) d = MatMul(r, down)
      s = Add(m, d) y = LayerNormalization(s, scale) }}"""
    report = analyzed(layer, **held, up=(64, 256), down=(256, 64), scale=(64,))
    assert report.total().matrix_flops == 1_179_648 + 2_097_152 == 3_276_800


def test_a_product_in_eight_bits_says_so() -> None:
    text = """g (float8e4m3fn[16, 32] a, float8e4m3fn[64, 32] b) => (y) <float one = {1}> {
      y = com.microsoft.GemmFloat8<transB = 1, dtype = 1>(a, b, "", one, one, one)
    }"""
    (row,) = analyzed(text).rows
    assert (row.outputs[0].type.dtype.name, row.matrix_dtype) == ("float32", "float8_e4m3fn")


# Gradients. In ONNX what a file stores is trained, and what it is given is not.


@pytest.mark.parametrize(
    "x, w, attributes, forward",
    [
        ((1, 32, 16, 16), (32, 32, 3, 3), "pads = [1, 1, 1, 1]", 4_718_592),
        ((1, 32, 16, 16), (32, 1, 3, 3), "pads = [1, 1, 1, 1], group = 32", 147_456),
        ((1, 32, 16, 16), (64, 8, 3, 3), "pads = [1, 1, 1, 1], group = 4", 2_359_296),
    ],
    ids=["dense", "depthwise", "grouped"],
)
def test_gradients_of_a_convolution_are_the_product_twice(x, w, attributes, forward) -> None:
    """A scale that is trained stands before it, so that its input wants a gradient too."""
    text = f"g (float[{','.join(map(str, x))}] x) => (y) {{ s = Mul(x, scale) y = Conv<{attributes}>(s, w) }}"
    report = analyzed(text, training=True, w=w, scale=(1, x[1], 1, 1))
    assert report.total().matrix_flops == forward
    assert report.backward.cost.matrix_flops == 2 * forward


@pytest.mark.parametrize(
    "x, w, attributes, forward",
    [
        (
            (1, 32, 8, 8),
            (32, 1, 4, 4),
            "strides = [2, 2], pads = [1, 1, 1, 1], group = 32",
            65_536,
        ),
        ((6, 192, 30, 96), (192, 384, 2, 2), "strides = [2, 2]", 10_192_158_720),
    ],
    ids=["depthwise", "dense"],
)
def test_gradients_of_a_transposed_convolution_are_the_product_twice(x, w, attributes, forward) -> None:
    text = f"g (float[{','.join(map(str, x))}] x) => (y) {{ s = Mul(x, scale) y = ConvTranspose<{attributes}>(s, w) }}"
    report = analyzed(text, training=True, w=w, scale=(1, x[1], 1, 1))
    assert report.total().matrix_flops == forward
    assert report.backward.cost.matrix_flops == 2 * forward


def test_the_input_of_the_first_layer_wants_no_gradient() -> None:
    report = analyzed("g (float[1, 3, 10, 10] x) => (y) { y = Conv(x, w) }", training=True, w=(8, 3, 3, 3))
    assert report.total().matrix_flops == 2 * 8 * 8 * 8 * 27 == 27_648
    assert report.total().matrix_flops + report.backward.cost.matrix_flops == 55_296


def test_a_frozen_first_layer_needs_one_gradient_product_only() -> None:
    text = "g (float[4, 64] x, float[64, 64] frozen) => (y) { h = MatMul(x, frozen) y = MatMul(h, w) }"
    report = analyzed(text, training=True, w=(64, 64))
    assert report.total().matrix_flops + report.backward.cost.matrix_flops == 3 * 2 * 4 * 64 * 64 == 98_304


def test_attention_computes_its_scores_again_unless_it_is_spelled_as_products() -> None:
    scaled = "g (float[1, 1, 64, 16] x) => (y) { q = Mul(x, s) k = Mul(x, s) v = Mul(x, s) "
    fused = analyzed(scaled + "y = Attention(q, k, v) }", training=True, s=(16,))
    spelled = "t = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, t) p = Softmax(a) y = MatMul(p, v) }"
    products = analyzed(scaled + spelled, training=True, s=(16,))
    for report in (fused, products):
        assert report.total().matrix_flops == 4 * 64 * 64 * 16 == 262_144
    assert 262_144 + fused.backward.cost.matrix_flops == 917_504
    assert 262_144 + products.backward.cost.matrix_flops == 786_432


# Branches, sharing, sizes.


def test_work_around_an_if_is_added_once() -> None:
    text = """g (bool c, float[8, 8] x, float[2, 8, 8] b) => (m, y) {
      m = MatMul(x, x)
      y = If(c) <then_branch = one () => (p) { p = MatMul(x, x) }, else_branch = two () => (r) { r = MatMul(b, b) }>
    }"""
    assert analyzed(text).total().matrix_flops == 1_024 + max(1_024, 2_048) == 3_072


def test_a_layer_called_thrice_costs_thrice_and_is_held_once() -> None:
    report = analyzed(
        "g (float[1, 100] x) => (y) { a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w) }", w=(100, 100)
    )
    assert (report.total().matrix_flops, report.parameters) == (60_000, 10_000)


def test_a_table_that_is_also_the_last_layer_is_held_once() -> None:
    text = "g (int64[1, 16] ids) => (y) { x = Gather(table, ids) h = Transpose(table) y = MatMul(x, h) }"
    report = analyzed(text, table=(1000, 64))
    assert (report.parameters, report.total().matrix_flops) == (64_000, 2 * 16 * 64 * 1000)


def test_a_symbolic_peak_is_the_maximum_of_polynomials() -> None:
    text = """g (float[N, 1] x, float[1, 100] w1, float[100, 1] w2, float[1, N] b) => (y) {
      wide = MatMul(x, w1) thin = MatMul(wide, w2) y = MatMul(thin, b)
    }"""
    peak = analyzed(text).totals.peak_bytes
    given = 4 * (2 * symbol("N") + 200)  # x, b and the two factors are there throughout
    for n in (10, 98, 99, 100, 1000):  # wide and thin against thin and y: they cross at 100
        assert (peak - given).substitute({"N": n}) == 4 * max(100 * n + n, n + n * n)


def test_a_recurrent_layer_is_one_call_whose_length_is_open() -> None:
    text = "g (float[T, 1, 64] x) => (y) { y = LSTM<hidden_size = 64>(x, w, r) }"
    report = analyzed(text, w=(1, 256, 64), r=(1, 256, 64))
    assert [row.op for row in report.rows] == ["onnx.LSTM.22"]
    assert report.total().matrix_flops == 2 * 4 * (64 * 64 + 64 * 64) * symbol("T")


# Published models.


def llama(layers: int) -> str:
    """Decoder layers of Llama-3-8B between its embedding and its head."""
    inputs, calls = ["int64[1, 1024] ids", "int32[1] lengths", "int32 total", "float[4096] scale"], []
    shapes = {"q": 4096, "k": 1024, "v": 1024, "o": 4096, "gate": 14336, "up": 14336}
    for n in range(layers):
        inputs += [f"float[4096, {width}] {name}{n}" for name, width in shapes.items()]
        inputs.append(f"float[14336, 4096] down{n}")
        products = " ".join(f"{name.upper()}{n} = MatMul(n{n}, {name}{n})" for name in "qkv")
        calls.append(
            f"""n{n} = RMSNormalization(x{n}, scale) {products}
            a{n} = com.microsoft.GroupQueryAttention<num_heads = 32, kv_num_heads = 8>
              (Q{n}, K{n}, V{n}, "", "", lengths, total)
            O{n} = MatMul(a{n}, o{n}) h{n} = Add(x{n}, O{n}) m{n} = RMSNormalization(h{n}, scale)
            G{n} = MatMul(m{n}, gate{n}) s{n} = Sigmoid(G{n}) w{n} = Mul(G{n}, s{n}) U{n} = MatMul(m{n}, up{n})
            z{n} = Mul(w{n}, U{n}) D{n} = MatMul(z{n}, down{n}) x{n + 1} = Add(h{n}, D{n})"""
        )
    tables = "float[128256, 4096] table, float[4096, 128256] head"
    body = " ".join(calls)
    return f"g ({', '.join(inputs)}, {tables}) => (y) {{ x0 = Gather(table, ids) {body} y = MatMul(x{layers}, head) }}"


def test_llama_3_8b_at_a_sequence_of_1024() -> None:
    """Layers are equal: the whole is one layer's program and 31 times the difference that a second layer makes."""
    one, two = (analyzed(llama(layers)).total() for layers in (1, 2))
    total = one.matrix_flops + 31 * (two.matrix_flops - one.matrix_flops)
    hidden = one.masked_flops + 31 * (two.masked_flops - one.masked_flops)
    assert total == 15_369_540_468_736 + 549_755_813_888
    assert total - hidden == 15_369_540_468_736 + 275_146_342_400


def test_the_resnet_50_that_onnx_brings_has_its_strides_in_the_larger_convolutions() -> None:
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    assert round(analyze(read(path)).total().macs / 1e9, 3) == 4.089
