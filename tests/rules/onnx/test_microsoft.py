"""onnxruntime's other operators: norms, activations, quantized tensors, layouts, text, older spellings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from graphflops.cost import Cost
from graphflops.dims import symbol
from graphflops.tensor import BOOL, FLOAT16, FLOAT32, INT8, INT32, INT64, STRING, UINT8, UINT32
from tests.support import price, shapes, t

MS = "com.microsoft."
S, Z = t(), t(dtype=UINT8)
X = t(2, 3, 8)
N, ROWS = 48, 6


# Norms.


@pytest.mark.parametrize(
    "op, operands, outputs, results, per_element, read",
    [
        (MS + "SkipLayerNormalization", (X, X, t(8), t(8), t(8)), (True,), 1, 7 + 2, 2 * N + 24),
        (MS + "SkipLayerNormalization", (X, t(3, 8), t(8)), (True, False, False, True), 2, 6 + 1, N + 24 + 8),
        (
            MS + "SkipSimplifiedLayerNormalization",
            (X, X, t(8)),
            (True, False, False, True),
            2,
            4 + 1,
            2 * N + 8,
        ),
        ("onnx.SimplifiedLayerNormalization", (X, t(8)), (True,), 1, 4, N + 8),
    ],
)
def test_norms(op, operands, outputs, results, per_element, read) -> None:
    estimate = price(op, *operands, outputs=outputs)
    assert estimate.vector_flops == per_element * N
    assert estimate.transcendentals == ROWS
    assert estimate.cost.read_bytes == 4 * read
    assert estimate.cost.written_bytes == 4 * results * N


def test_statistics_have_one_entry_per_row() -> None:
    x = t("b", 3, 8, dtype=FLOAT16)
    scale = t(8, dtype=FLOAT16)
    skip = price(MS + "SkipLayerNormalization", x, x, scale, outputs=(True, True, True, True))
    assert [y.shape[1:] for y in skip.out if y] == [(3, 8), (3, 1), (3, 1), (3, 8)]
    assert [y.dtype for y in skip.out if y] == [FLOAT16, FLOAT32, FLOAT32, FLOAT16]
    simple = price("onnx.SimplifiedLayerNormalization", x, scale, outputs=(True, True))
    assert [(y.rank, y.dtype) for y in simple.out if y] == [(3, FLOAT16), (3, FLOAT32)]


def test_group_norms() -> None:
    x = t(2, 4, 4, 32)
    plain = price(MS + "GroupNorm", x, t(32), t(32), activation=0, groups=8)
    assert (plain.vector_flops, plain.transcendentals) == (7 * x.numel, 2 * 8)
    silu = price(
        MS + "SkipGroupNorm", x, t(32), t(32), x, t(32), activation=1, groups=8, outputs=(True, True)
    )
    assert shapes(silu) == [x.shape, x.shape]
    assert (silu.vector_flops, silu.transcendentals) == ((7 + 2 + 1) * x.numel, 16 + x.numel)


def test_embedding_layer() -> None:
    ids = t(2, 3, dtype=INT32)
    operands = (ids, ids, t(30000, 8), t(512, 8), t(2, 8), t(8), t(8), ids)
    estimate = price(MS + "EmbedLayerNormalization", *operands, outputs=(True, True, True))
    assert [(x.shape, x.dtype) for x in estimate.out if x] == [
        ((2, 3, 8), FLOAT32),
        ((2,), INT32),
        ((2, 3, 8), FLOAT32),
    ]
    assert estimate.vector_flops == (7 + 2) * N + 6
    # ids twice, mask; rows of words, of three places, of segments; scale and shift
    assert estimate.cost.read_bytes == 4 * (6 + 6 + 6 + N + 3 * 8 + N + 16)
    narrow = [t(*x.shape, dtype=UINT8) for x in operands[2:7]]
    quantized = price(MS + "QEmbedLayerNormalization", ids, ids, *narrow, None, *(S,) * 5, *(Z,) * 5)
    assert [(x.shape, x.dtype) for x in quantized.out if x] == [((2, 3, 8), FLOAT32), ((2,), INT32)]


# Elementwise.


@pytest.mark.parametrize(
    "op, operands, attributes, flops, functions",
    [
        ("Gelu", (X,), {}, 4, 1),
        ("BiasGelu", (X, t(8)), {}, 5, 1),
        ("FastGelu", (X,), {}, 9, 1),
        ("FastGelu", (X, t(8)), {}, 10, 1),
        ("QuickGelu", (X,), {}, 2, 1),
        ("QuickGelu", (X,), {"alpha": 1.0}, 1, 1),
        ("BiasAdd", (X, t(8), X), {}, 2, 0),
        ("BiasSoftmax", (X, X), {"axis": 2, "is_inner_broadcast": 1}, 5, 1),
        ("BiasDropout", (X, t(8), X, t()), {}, 2, 0),
        ("BiasDropout", (X, t(8), X, t(), t(dtype=BOOL, value=1)), {}, 2 + 3, 0),
        ("GatedAdd", (X, X, t(2, 3, 1)), {}, 2, 0),
        ("ComplexMul", (X, X), {}, 3, 0),
        ("QLinearSigmoid", (t(2, 3, 8, dtype=UINT8), S, Z, S, Z), {}, 3 + 6, 1),
        ("QLinearLeakyRelu", (t(2, 3, 8, dtype=UINT8), S, Z, S, Z), {"alpha": 0.1}, 3 + 2 + 6, 0),
        ("QLinearSoftmax", (t(2, 3, 8, dtype=UINT8), S, Z, S, Z), {"opset": 13}, 3 + 4 + 6, 1),
        ("QOrderedGelu", (t(2, 3, 8, dtype=INT8), S, S), {}, 2 + 4 + 5, 1),
    ],
)
def test_elementwise(op, operands, attributes, flops, functions) -> None:
    estimate = price(MS + op, *operands, **attributes)
    (out, *_) = estimate.out
    assert (out.shape, out.dtype) == ((2, 3, 8), operands[0].dtype)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * N, functions * N)


def test_halves() -> None:
    estimate = price(MS + "BiasSplitGelu", X, t(8))
    assert (shapes(estimate), estimate.vector_flops) == ([(2, 3, 4)], N + 5 * N // 2)


def test_masks_of_bits() -> None:
    estimate = price(MS + "BitmaskDropout", t(3, 33), t(), t(dtype=BOOL, value=1), outputs=(True, True))
    assert [(x.shape, x.dtype) for x in estimate.out if x] == [((3, 33), FLOAT32), ((4,), UINT32)]
    assert price(MS + "BitmaskDropout", t(3, 33)).alias


# Quantized tensors.


def test_sums_of_quantized_tensors() -> None:
    a, b = t(2, 3, dtype=UINT8), t(3, dtype=UINT8)
    estimate = price(MS + "QLinearAdd", a, S, Z, b, S, Z, S, Z)
    assert (shapes(estimate), estimate.vector_flops) == ([(2, 3)], 3 * 6 + 3 * 3 + 6 + 6 * 6)
    assert estimate.cost.read_bytes == 6 + 3 + 3 * 4 + 3
    where = price(MS + "QLinearWhere", t(2, 1, dtype=BOOL), a, S, Z, b, S, Z, S, Z)
    assert shapes(where) == [(2, 3)]
    joined = price(MS + "QLinearConcat", S, Z, a, S, Z, t(2, 5, dtype=UINT8), S, Z, axis=1)
    assert (shapes(joined), joined.vector_flops) == ([(2, 8)], 9 * 16)
    mean = price(MS + "QLinearReduceMean", a, S, Z, S, Z, axes=(1,), keepdims=1)
    assert (shapes(mean), mean.vector_flops) == ([(2, 1)], 3 * 6 + 6 + 2 + 6 * 2)


def test_channels_last() -> None:
    x, w = t(1, 32, 32, 3, dtype=UINT8), t(16, 3, 3, 3, dtype=INT8)
    geometry = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
    conv = price(MS + "QLinearConv", x, S, Z, w, S, t(dtype=INT8), S, Z, channels_last=1, **geometry)
    assert (shapes(conv), conv.matrix_flops) == ([(1, 16, 16, 16)], 221_184)
    assert conv.cost.read_bytes == x.numel + w.numel + 3 * 4 + 3
    pool = price(
        MS + "QLinearAveragePool", x, S, Z, S, Z, channels_last=1, kernel_shape=(2, 2), strides=(2, 2)
    )
    assert shapes(pool) == [(1, 16, 16, 3)]
    glob = price(MS + "QLinearGlobalAveragePool", x, S, Z, S, Z, channels_last=1)
    assert shapes(glob) == [(1, 1, 1, 3)]
    plain = t(1, 32, 32, 3)
    for op in (MS + "NhwcConv", MS + "NhwcFusedConv", "com.ms.internal.nhwc.Conv"):
        assert shapes(price(op, plain, t(16, 3, 3, 3), t(16), **geometry)) == [(1, 16, 16, 16)]
    for weight, group in ((t(16, 5, 3, 8), 1), (t(16, 8, 5, 3), 1), (t(8, 5, 3, 1), 8)):  # in either order
        turned = price(MS + "NhwcConv", t(1, 32, 32, 8), weight, kernel_shape=(5, 3), group=group)
        assert shapes(turned) == [(1, 28, 30, weight.shape[0])]
        assert turned.matrix_flops == 2 * (28 * 30) * weight.shape[0] * (5 * 3 * 8 // group)
    window = {"kernel_shape": (2, 2), "strides": (2, 2)}
    pooled = price("com.ms.internal.nhwc.MaxPool", plain, outputs=(True,), **window)
    assert shapes(pooled) == [(1, 16, 16, 3)]
    assert shapes(price(MS + "NhwcMaxPool", x, kernel_shape=(2, 2), strides=(2, 2))) == [(1, 16, 16, 3)]


def test_fused_convolution() -> None:
    x, w, added = t(1, 3, 32, 32), t(16, 3, 3, 3), t(1, 16, 16, 16)
    estimate = price(
        MS + "FusedConv",
        x,
        w,
        t(16),
        added,
        activation="Relu",
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        kernel_shape=(3, 3),
    )
    assert (estimate.matrix_flops, estimate.vector_flops) == (221_184, 3 * added.numel)
    assert estimate.cost.read_bytes == 4 * (x.numel + w.numel + 16 + added.numel)


def test_channels_in_blocks() -> None:
    assert shapes(price("com.microsoft.nchwc.ReorderInput", t(1, 32, 8, 8))) == [(1, 32, 8, 8)]
    assert shapes(price("com.microsoft.nchwc.ReorderInput", t(1, 3, 8, 8))) == [
        (1, symbol("padded_channels?"), 8, 8)
    ]
    out = price("com.microsoft.nchwc.ReorderOutput", t(1, 32, 8, 8), channels=20, channels_last=1)
    assert shapes(out) == [(1, 8, 8, 20)]


# Tokens, tables, transforms.


@pytest.mark.parametrize(
    "op, operands, attributes, expected",
    [
        ("TorchEmbedding", (t(1000, 64), t(4, 4, dtype=INT64)), {}, [(4, 4, 64)]),
        ("UnfoldTensor", (t(2, 9),), {"size": 3, "step": 2}, [(2, 4, 3)]),
        ("Unique", (t(7),), {}, [(symbol("unique?"),), (7,), (symbol("unique?"),)]),
        ("Rfft", (t(2, 16),), {}, [(2, 9, 2)]),
        ("Irfft", (t(2, 9, 2),), {"signal_ndim": 1}, [(2, 16)]),
        ("Inverse", (t(2, 4, 4),), {}, [(2, 4, 4)]),
        (
            "Tokenizer",
            (t(2, dtype=STRING),),
            {"mark": 0, "mincharnum": 1, "pad_value": ""},
            [(2, symbol("tokens?"))],
        ),
        ("RemovePadding", (t(2, 5, 8), t(2, dtype=INT32, value=(3, 5))), {}, [(8, 8), (2, 5), (3,), (1,)]),
        ("RestorePadding", (t(8, 8), t(2, 5, dtype=INT32)), {}, [(2, 5, 8)]),
        ("DynamicTimeWarping", (t(1, 4, 5),), {}, [(2, symbol("warping_path?"))]),
        ("WordConvEmbedding", (t(2, 6, dtype=INT32), t(5, 1, 3, 4), t(5), t(12, 4)), {}, [(2, 5)]),
        ("Range", (t(dtype=INT64, value=1), t(dtype=INT64, value=8)), {}, [(7,)]),
        ("ExpandDims", (t(2, 3), t(dtype=INT32, value=1)), {}, [(2, 1, 3)]),
        ("IsAllFinite", (t(2, 3), t(4)), {}, [()]),
        ("CausalConvWithState", (t(2, 6, 9), t(6, 1, 4)), {}, [(2, 6, 9), (2, 6, 3)]),
        (
            "CausalConvWithState",
            (t(2, 9, 6), t(6, 1, 4)),
            {"channels_last": 1, "dilation": 2},
            [(2, 9, 6), (2, 6, 6)],
        ),
    ],
)
def test_sizes(op, operands, attributes, expected) -> None:
    assert shapes(price(MS + op, *operands, **attributes)) == expected


def test_transforms_and_distances() -> None:
    assert price(MS + "Rfft", t(1, 1024)).vector_flops == 5 * 1024 * 10 // 2
    assert price(MS + "CDist", t(10, 4), t(20, 4), metric="euclidean").transcendentals == 200
    table = price(MS + "TorchEmbedding", t(1000, 64), t(16, dtype=INT64))
    assert table.cost.read_bytes == 4_096 + 128


def test_linear_attention_of_more_value_heads() -> None:
    q, kv = t(1, 5, 2 * 8), t(1, 5, 4 * 8)
    settings = {"q_num_heads": 2, "kv_num_heads": 4, "outputs": (True, True)}
    estimate = price(MS + "LinearAttention", q, kv, kv, None, t(1, 5, 4), t(1, 5, 4), **settings)
    assert shapes(estimate) == [(1, 5, 32), (1, 4, 8, 8)]
    assert estimate.matrix_flops == 2 * 3 * 5 * 4 * 64


# Generation.


@dataclass
class Decoder:
    """A nested graph that costs so much."""

    flops: int
    declared: tuple[Any, ...] = (t("rows", 1, dtype=INT32),)
    name: str = "decoder"
    out: tuple[Any, ...] = (t("rows", 1, 50257),)

    @property
    def cost(self) -> Cost:
        return Cost(matrix_flops=self.flops)

    def __call__(self, *operands: Any, **_: Any) -> Decoder:
        assert operands == self.declared
        return self


def test_unknown_steps_have_a_name() -> None:
    ids, one = t(2, 7, dtype=INT32), t(1, dtype=INT32, value=(1,))
    length, beams = t(1, dtype=INT32, value=(20,)), t(1, dtype=INT32, value=(4,))
    step, first = Decoder(10), Decoder(70)
    estimate = price(
        *(MS + "BeamSearch", ids, length, None, beams, one),
        decoder=step,
        init_decoder=first,
        outputs=(True, True, True),
        eos_token_id=0,
        pad_token_id=0,
    )
    steps = symbol("generated_tokens?")
    assert [(run.cost.matrix_flops, times) for run, times in estimate.regions] == [(70, 1), (10, steps - 1)]
    assert shapes(estimate) == [(2, 1, 20), (2, 1), (13, 2, 4, 50257)]
    assert estimate.transcendentals == 8 * steps * 50257
    operands, tokens = (ids, t(1, dtype=INT32)), {"eos_token_id": 0, "pad_token_id": 0}
    greedy = price(MS + "GreedySearch", *operands, decoder=step, outputs=(True,), **tokens)
    assert shapes(greedy) == [(2, symbol("max_length?"))]


# What ONNX's first years called experimental.


@pytest.mark.parametrize(
    "op, operands, attributes, shape, flops",
    [
        ("Affine", (t(2, 3),), {"alpha": 2.0}, (2, 3), 12),
        ("ImageScaler", (t(1, 3, 4, 4),), {"bias": (1.0, 1.0, 1.0), "scale": 2.0}, (1, 3, 4, 4), 96),
        ("Crop", (t(1, 3, 9, 8),), {"border": (1, 2, 3, 4)}, (1, 3, 3, 4), 0),
        ("Crop", (t(1, 3, 9, 8),), {"border": (1, 2, 3, 4), "scale": (2, 2)}, (1, 3, 2, 2), 0),
        ("GivenTensorFill", (), {"shape": (2, 3), "values": (0.0,)}, (2, 3), 0),
        ("EfficientNMS_TRT", (t(2, 10, 4), t(2, 10, 3)), {"max_output_boxes": 5}, (2, 1), None),
    ],
)
def test_experiments(op, operands, attributes, shape, flops) -> None:
    estimate = price(f"onnx.{op}.1", *operands, **attributes)
    assert shapes(estimate)[0] == shape
    assert flops is None or estimate.vector_flops == flops


def test_every_kernel_of_onnxruntime(capsys) -> None:
    pytest.importorskip("onnxruntime", minversion="1.31")  # earlier kernels take other calls
    from tests.oracle import onnx_contrib

    code = onnx_contrib.main([])
    printed = capsys.readouterr().out
    assert " 0 wrong," in printed, printed
    assert code == 0
