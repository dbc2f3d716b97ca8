"""Operators of onnxruntime's own domains, each run by its CPU kernel and compared with what our rule derives.

    python tests/oracle/onnx_contrib.py [--only NAME,NAME]

Every case is a model of one call. The types of the kernel's results must be those that the rule derives from the operands'
types; small integer operands are constants for it, and a size that only data can tell agrees with any. Prints each failure
and one summary line; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from graphflops.dims import Expr
from graphflops.errors import GraphflopsError
from graphflops.rules.onnx.entries import onnx_dtype
from graphflops.rules.registry import find
from graphflops.tensor import SequenceType, TensorType

FOLLOWED = 64  # elements of an integer operand whose contents the rule is told
random = np.random.default_rng(0)


@dataclass
class Case:
    """One call; `results` says which of the results are asked for."""

    op: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: tuple[bool, ...] = (True,)
    domain: str = "com.microsoft"
    version: int = 1


def f(*shape: int) -> np.ndarray:
    return random.standard_normal(shape, dtype=np.float32)


def i(*values: int, dtype: Any = np.int64) -> np.ndarray:
    return np.array(values, dtype)


def scalar(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def ids(*shape: int, dtype: Any = np.int32, most: int = 4) -> np.ndarray:
    return random.integers(0, most, shape).astype(dtype)


def u8(*shape: int) -> np.ndarray:
    return random.integers(0, 255, shape).astype(np.uint8)


def s8(*shape: int) -> np.ndarray:
    return random.integers(-127, 127, shape).astype(np.int8)


def words(*values: str) -> np.ndarray:
    return np.array(values, object)


S, ZU, ZS = scalar(0.1), scalar(3, np.uint8), scalar(0, np.int8)
H2 = {"num_heads": 2}
G42 = {"num_heads": 4, "kv_num_heads": 2}
CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
NHWC = {"channels_last": 1}
ML = "ai.onnx.ml"
TREE = {
    "nodes_treeids": [0, 0, 0, 0, 0],
    "nodes_nodeids": [0, 1, 2, 3, 4],
    "nodes_featureids": [0, 1, 0, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.5, 0.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 3, 0, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0],
}
VOTES = {
    "class_treeids": [0, 0, 0],
    "class_nodeids": [2, 3, 4],
    "class_ids": [0, 1, 2],
    "class_weights": [1.0, 2.0, 3.0],
}
TARGETS = {
    "target_treeids": [0, 0, 0],
    "target_nodeids": [2, 3, 4],
    "target_ids": [0, 1, 0],
    "target_weights": [1.0, 2.0, 3.0],
}
SVM = {"support_vectors": [0.1] * 12, "kernel_params": [0.5, 0.0, 3.0]}


def cases() -> list[Case]:
    """All of them, by family."""
    return [*attention(), *products(), *quantized(), *norms(), *windows(), *others(), *classical()]


def attention() -> list[Case]:
    both, three = (True, True), (True, True, True)
    past = f(2, 2, 2, 5, 8)
    kv = (f(2, 2, 5, 8), f(2, 2, 5, 8))
    total = i(7, dtype=np.int32)
    lengths = i(6, 6, dtype=np.int32)
    rotary = {**G42, "do_rotary": 1}
    tables = (f(16, 8), f(16, 8))
    one, wide = (f(1, 2, 5, 8),) * 2, (f(1, 2, 5, 16),) * 2
    return [
        Case("Attention", (f(2, 3, 16), f(16, 48), f(48)), H2),
        Case("Attention", (f(2, 3, 16), f(16, 48), f(48), None, past), {**H2, "unidirectional": 1}, both),
        Case("Attention", (f(2, 3, 12), f(12, 56), f(56)), {**H2, "qkv_hidden_sizes": [16, 16, 24]}),
        Case("Attention", (f(2, 3, 16), f(16, 48), f(48), np.ones((2, 3), np.int32)), H2),
        Case("MultiHeadAttention", (f(2, 3, 16), f(2, 7, 16), f(2, 7, 24)), H2),
        Case("MultiHeadAttention", (f(2, 3, 16), f(2, 7, 16), f(2, 7, 16), f(48)), H2, three),
        Case("MultiHeadAttention", (f(2, 3, 16), f(2, 2, 7, 8), f(2, 2, 7, 8)), H2),
        Case(
            "MultiHeadAttention",
            (f(2, 3, 16), f(2, 3, 16), f(2, 3, 16), None, None, f(1, 2, 3, 8), *kv),
            H2,
            three,
        ),
        Case("MultiHeadAttention", (f(2, 3, 16), f(2, 3, 16), f(2, 3, 16), None, None, None, *kv), H2, three),
        Case("DecoderMaskedMultiHeadAttention", (f(2, 1, 16), f(2, 2, 5, 8), f(2, 2, 5, 8)), H2),
        Case(
            "DecoderMaskedMultiHeadAttention",
            (f(2, 1, 16), f(2, 1, 16), f(2, 1, 16), None, None, *kv, scalar(3, np.int32).reshape(1)),
            {**H2, "past_present_share_buffer": 1},
            three,
        ),
        Case(
            "GroupQueryAttention",
            (f(2, 7, 32), f(2, 7, 16), f(2, 7, 16), None, None, lengths, total),
            G42,
            three,
        ),
        Case(
            "GroupQueryAttention",
            (f(1, 2, 32), f(1, 2, 16), f(1, 2, 16), *one, lengths[:1], total),
            G42,
            three,
        ),
        Case("GroupQueryAttention", (f(2, 1, 64), None, None, *kv, lengths - 1, total - 1), G42, three),
        Case(
            "GroupQueryAttention",
            (f(1, 2, 128), None, None, *wide, lengths[:1], total, *tables),
            rotary,
            three,
        ),
        Case(
            "GroupQueryAttention",
            (f(2, 1, 32), f(2, 1, 16), f(2, 1, 16), f(2, 2, 9, 8), f(2, 2, 9, 8), lengths, total),
            {**G42, "local_window_size": 3},
            three,
        ),
        Case(
            "QAttention",
            (u8(2, 3, 16), s8(16, 48), f(48), S, S, None, ZU, ZS),
            H2,
        ),
        Case(
            "QAttention",
            (u8(2, 3, 16), s8(16, 48), f(48), S, S, None, ZU, ZS, past),
            {**H2, "unidirectional": 1},
            both,
        ),
        Case(
            "LinearAttention",
            (f(2, 3, 16), f(2, 3, 16), f(2, 3, 24), None, f(2, 3, 2), f(2, 3, 2)),
            {"q_num_heads": 2, "kv_num_heads": 2},
            both,
        ),
        Case("CausalConvWithState", (f(2, 6, 9), f(6, 1, 4), f(6)), {"activation": "silu"}, both),
        Case("RotaryEmbedding", (f(2, 3, 16), ids(2, 3, dtype=np.int64), f(16, 4), f(16, 4))),
        Case("RotaryEmbedding", (f(2, 2, 3, 8), i(0), f(16, 4), f(16, 4))),
        Case(
            "MRotaryEmbedding",
            (f(2, 3, 16), ids(3, 2, 3, dtype=np.int64), f(16, 4), f(16, 4)),
            {"mrope_section": [2, 1, 1], "num_heads": 2},
        ),
        Case("EngramGate", (f(2, 3, 4, 8), f(2, 3, 4, 8), f(2, 3, 8), f(4, 8), f(4, 8), f(4, 8)), {}, both),
        Case("LinearAttentionGate", (f(2, 3, 4), f(4), f(4), f(2, 3, 4)), {}, both),
        Case("HyperConnectionPreMix", (f(2, 3, 4, 8), f(2, 3, 4))),
        Case("HyperConnectionPostMix", (f(2, 3, 4, 8), f(2, 3, 8), f(2, 3, 4), f(2, 3, 4, 4))),
    ]


def products() -> list[Case]:
    nbits = {"K": 64, "N": 128, "bits": 4, "block_size": 32}
    packed, scales = u8(128, 2, 16), f(128, 2)
    swiglu = {"activation_type": "swiglu", "swiglu_fusion": 1, "k": 2}
    return [
        Case("FusedMatMul", (f(2, 3, 4), f(2, 5, 4)), {"transB": 1, "alpha": 0.5}),
        Case("FusedMatMul", (f(3, 2, 4), f(2, 4, 5)), {"transBatchA": 1}),
        Case(
            "FusedMatMul",
            (f(4, 2, 3), f(5, 2, 4)),
            {"transA": 1, "transB": 1, "transBatchA": 1, "transBatchB": 1},
        ),
        Case("FusedMatMul", (f(4), f(4, 5)), {"transA": 1}),
        Case("TransposeMatMul", (f(2, 3, 4), f(2, 5, 4)), {"transB": 1}),
        Case("FusedGemm", (f(4, 3), f(5, 4), f(5)), {"transA": 1, "transB": 1, "activation": "Relu"}),
        Case("MatMulInteger16", (ids(2, 3, 4, dtype=np.int16), ids(4, 5, dtype=np.int16))),
        Case("MatMulNBits", (f(2, 4, 64), packed, scales), nbits),
        Case(
            "MatMulNBits",
            (f(4, 64), packed, scales, u8(128, 1), None, f(128)),
            {**nbits, "accuracy_level": 4},
        ),
        Case(
            "MatMulBnb4",
            (f(2, 64), u8(64 * 32 // 2), f(64)),
            {"K": 64, "N": 32, "block_size": 32, "quant_type": 1},
        ),
        Case("MatMulIntegerToFloat", (u8(2, 3, 4), s8(4, 5), S, S, ZU, ZS, f(5))),
        Case("DynamicQuantizeMatMul", (f(2, 3, 4), s8(4, 5), f(5), None, f(5))),
        Case("QGemm", (u8(3, 4), S, ZU, s8(5, 4), f(5), np.zeros(5, np.int8), None, S, ZU), {"transB": 1}),
        Case("QGemm", (u8(3, 4), S, ZU, s8(4, 5), S, ZS)),
        Case(
            "MoE",
            (f(2, 3, 16), f(6, 4), f(4, 32, 16), None, f(4, 16, 32)),
            {"k": 2, "activation_type": "silu"},
        ),
        Case("MoE", (f(6, 16), f(6, 4), f(4, 64, 16), f(4, 64), f(4, 16, 32), f(4, 16)), swiglu),
        Case("QMoE", (f(6, 32), f(6, 4), u8(4, 64, 16), f(4, 64), None, u8(4, 32, 16), f(4, 32)), swiglu),
        Case(
            "GatherBlockQuantized",
            (u8(20, 16), ids(2, 3), f(20, 1)),
            {"bits": 4, "block_size": 32, "quantize_axis": 1},
        ),
        Case(
            "GatherBlockQuantized",
            (u8(20, 32), ids(2, 3), f(20, 1)),
            {"bits": 8, "block_size": 32, "quantize_axis": 1},
        ),
        Case("GatherPacked", (u8(20, 2 * 34), ids(2, 3)), {"packed_type": 8, "K": 64, "output_dtype": 1}),
        Case("MoEGroupRouter", (f(2, 3, 8), f(8)), {"top_k": 2, "n_group": 4, "topk_group": 2}),
        Case(
            "DynamicQuantizeLSTM",
            (
                f(5, 2, 3),
                s8(1, 3, 16),
                s8(1, 4, 16),
                f(1, 32),
                None,
                None,
                None,
                None,
                f(1),
                i(0, dtype=np.int8),
                f(1),
                i(0, dtype=np.int8),
            ),
            {"hidden_size": 4},
            (True, True, True),
        ),
        Case("Inverse", (np.eye(3, dtype=np.float32)[None].repeat(2, 0),)),
        Case("CDist", (f(4, 3), f(5, 3)), {"metric": "euclidean"}),
    ]


def quantized() -> list[Case]:
    return [
        Case("QuantizeLinear", (f(2, 3), S, ZS)),
        Case("QuantizeLinear", (f(2, 3), f(3), np.zeros(3, np.uint8)), {"axis": 1}),
        Case("DequantizeLinear", (u8(2, 3), S, ZU)),
        Case("QLinearAdd", (u8(2, 3), S, ZU, u8(3), S, ZU, S, ZU)),
        Case("QLinearMul", (s8(2, 1), S, ZS, s8(2, 3), S, ZS, S, ZS)),
        Case("QLinearSigmoid", (u8(2, 3), S, ZU, S, ZU)),
        Case("QLinearLeakyRelu", (u8(2, 3), S, ZU, S, ZU), {"alpha": 0.1}),
        Case("QLinearSoftmax", (u8(2, 3), S, ZU, S, ZU), {"opset": 13, "axis": -1}),
        Case("QLinearWhere", (np.ones((2, 1), bool), u8(2, 3), S, ZU, u8(3), S, ZU, S, ZU)),
        Case("QLinearConcat", (S, ZU, u8(2, 3), S, ZU, u8(2, 5), S, ZU), {"axis": 1}),
        Case(
            "QLinearAveragePool",
            (u8(1, 3, 8, 9), S, ZU, S, ZU),
            {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        ),
        Case("QLinearAveragePool", (u8(1, 8, 9, 3), S, ZU, S, ZU), {**NHWC, "kernel_shape": [3, 3]}),
        Case("QLinearGlobalAveragePool", (u8(1, 8, 9, 3), S, ZU, S, ZU), NHWC),
        Case(
            "QLinearConv",
            (u8(1, 9, 8, 4), S, ZU, s8(6, 4, 3, 3), f(6), np.zeros(6, np.int8), S, ZU),
            {**NHWC, **CONV},
        ),
        Case(
            "QEmbedLayerNormalization",
            (
                ids(2, 3),
                None,
                u8(9, 8),
                u8(7, 8),
                None,
                u8(8),
                u8(8),
                None,
                S,
                S,
                None,
                S,
                S,
                ZU,
                ZU,
                None,
                ZU,
                ZU,
            ),
            {},
            (True, True),
        ),
    ]


def norms() -> list[Case]:
    first, fourth = (True,), (True, False, False, True)
    return [
        Case("SkipLayerNormalization", (f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)), {}, fourth),
        Case("SkipLayerNormalization", (f(2, 3, 8), f(1, 3, 8), f(8)), {}, first),
        Case("SkipSimplifiedLayerNormalization", (f(2, 3, 8), f(2, 3, 8), f(8)), {}, fourth),
        Case("SimplifiedLayerNormalization", (f(2, 3, 8), f(8)), {"axis": -1}, (True, True), ""),
        Case(
            "EmbedLayerNormalization",
            (ids(2, 3), ids(2, 3, most=2), f(9, 8), f(7, 8), f(2, 8), f(8), f(8), np.ones((2, 3), np.int32)),
            {},
            (True, True, True),
        ),
        Case("BranchwiseRMSNorm", (f(2, 3, 4, 8), f(4, 8))),
        Case("GatedRMSNorm", (f(2, 3, 32), f(8), f(2, 3, 32))),
        Case("Gelu", (f(2, 3),)),
        Case("FastGelu", (f(2, 3), f(3))),
        Case("BiasGelu", (f(2, 3), f(3))),
        Case("QuickGelu", (f(2, 3),)),
        Case("ScaledSiLU", (f(2, 3),), {"alpha": 2.0}),
        Case("GatedAdd", (f(2, 3), f(2, 3), f(2, 1))),
    ]


def windows() -> list[Case]:
    blocks = "com.microsoft.nchwc"
    return [
        Case(
            "FusedConv", (f(1, 3, 9, 8), f(4, 3, 3, 3), f(4), f(1, 4, 5, 4)), {**CONV, "activation": "Relu"}
        ),
        Case(
            "ConvTransposeWithDynamicPads", (f(1, 3, 5, 5), f(3, 4, 3, 3), i(1, 1, 1, 1)), {"strides": [2, 2]}
        ),
        Case("NhwcMaxPool", (u8(1, 9, 8, 3),), CONV),
        Case("MaxpoolWithMask", (f(1, 3, 9, 8), np.ones((1, 3, 9, 8), np.int32)), CONV),
        Case("CropAndResize", (f(2, 3, 9, 8), f(4, 4), ids(4, most=2), i(5, 6, dtype=np.int32))),
        Case("GridSample", (f(2, 3, 9, 8), f(2, 4, 5, 2)), {"mode": "bilinear"}),
        Case("Conv", (f(1, 16, 9, 8), f(32, 16, 3, 3)), CONV, domain=blocks),
        Case("MaxPool", (f(1, 16, 9, 8),), CONV, domain=blocks),
        Case("GlobalAveragePool", (f(1, 16, 9, 8),), domain=blocks),
        Case("ReorderInput", (f(1, 16, 9, 8),), domain=blocks),
        Case("ReorderInput", (f(1, 9, 8, 16),), NHWC, domain=blocks),
        Case("ReorderOutput", (f(1, 16, 9, 8),), {"channels": 12}, domain=blocks),
        Case("ReorderOutput", (f(1, 16, 9, 8),), {"channels": 12, "channels_last": 1}, domain=blocks),
        Case("Upsample", (f(1, 16, 4, 5),), {"scales": [1, 1, 2, 3]}, domain=blocks),
    ]


def others() -> list[Case]:
    text = {"mark": 0, "mincharnum": 1, "pad_value": "", "separators": [" "]}
    tokens = i(1, 2, 3, 1)
    grams = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 0}
    return [
        Case("GatherND", (f(2, 3, 4), np.array([[0, 1], [1, 2]], np.int64))),
        Case("Pad", (f(2, 3), i(0, 1, 2, 3))),
        Case("Trilu", (f(2, 3, 3), scalar(1, np.int64))),
        Case("ExpandDims", (f(2, 3), scalar(1, np.int32))),
        Case("Range", (scalar(1, np.int64), scalar(8, np.int64), scalar(3, np.int64))),
        Case("Range", (scalar(1, np.int64), scalar(8, np.int64))),
        Case("SampleOp", (f(2, 3),)),
        Case("UnfoldTensor", (f(2, 9),), {"dim": -1, "size": 3, "step": 2}),
        Case("Unique", (f(7),), {}, (True, True, True)),
        Case("MurmurHash3", (ids(2, 3),), {"positive": 1}),
        Case("MurmurHash3", (words("a", "b"),), {"positive": 0}),
        Case("DynamicTimeWarping", (f(4, 5),)),
        Case("Tokenizer", (words("one two", "three"),), text),
        Case("NGramRepeatBlock", (ids(2, 5, dtype=np.int64), f(2, 9)), {"ngram_size": 2}),
        Case(
            "NGramHashMapping",
            (ids(2, 5, dtype=np.int64), i(3, 5, 7), i(11, 13, 17, 19)),
            grams,
            (True, True),
        ),
        Case(
            "VarlenNGramHashMapping",
            (i(1, 2, 3, 4, 5), i(3, 5, 7), i(11, 13, 17, 19), i(0, 2, 5, dtype=np.int32)),
            grams,
            (True, True),
        ),
        Case("BifurcationDetector", (tokens, tokens, scalar(0, np.int64)), {}, (True, True)),
        Case("WordConvEmbedding", (ids(2, 6, most=9) + 1, f(5, 1, 3, 4), f(5), f(12, 4))),
    ]


def classical() -> list[Case]:
    both = (True, True)

    def ml(
        op: str,
        operands: tuple[Any, ...],
        attributes: dict[str, Any],
        results: tuple[bool, ...] = (True,),
        version: int = 3,
    ) -> Case:
        return Case(op, operands, attributes, results, ML, version)

    x = f(5, 3)
    labels = {"classlabels_ints": [0, 1, 2]}
    return [
        ml("ArrayFeatureExtractor", (x, i(0, 2)), {}),
        ml("ArrayFeatureExtractor", (f(3), i(0, 2)), {}),
        ml("Binarizer", (x,), {}),
        ml("CastMap", ({1: 0.5, 2: 0.25},), {"cast_to": "TO_FLOAT"}),
        ml("CastMap", ({1: 0.5, 2: 0.25},), {"map_form": "SPARSE", "max_map": 5}),
        ml("CategoryMapper", (words("a", "b"),), {"cats_strings": ["a", "b"], "cats_int64s": [1, 2]}),
        ml("DictVectorizer", ({"a": 1.0},), {"string_vocabulary": ["a", "b", "c"]}),
        ml("FeatureVectorizer", (f(5, 3), f(5, 2)), {"inputdimensions": [3, 2]}),
        ml("Imputer", (x,), {"imputed_value_floats": [1.0], "replaced_value_float": 0.0}),
        ml("LabelEncoder", (words("a", "b"),), {"keys_strings": ["a"], "values_floats": [1.0]}, version=2),
        ml("LabelEncoder", (words("a", "b"),), {"classes_strings": ["a", "b"]}, version=1),
        ml("LinearClassifier", (x,), {**labels, "coefficients": [0.1] * 9, "intercepts": [0.1] * 3}, both),
        ml(
            "LinearClassifier",
            (x,),
            {"classlabels_ints": [0, 1], "coefficients": [0.1] * 3, "intercepts": [0.1]},
            both,
        ),
        ml(
            "LinearClassifier",
            (x,),
            {"classlabels_strings": ["a", "b"], "coefficients": [0.1] * 6, "intercepts": [0.1] * 2},
            both,
        ),
        ml("LinearRegressor", (x,), {"coefficients": [0.1] * 6, "intercepts": [0.1] * 2, "targets": 2}),
        ml("Normalizer", (x,), {"norm": "L2"}),
        ml("OneHotEncoder", (ids(5, 2, dtype=np.int64),), {"cats_int64s": [0, 1, 2, 3]}),
        ml(
            "SVMClassifier",
            (x,),
            {
                **labels,
                **SVM,
                "kernel_type": "RBF",
                "vectors_per_class": [1, 2, 1],
                "coefficients": [0.1] * 8,
                "rho": [0.1] * 3,
            },
            both,
        ),
        ml(
            "SVMClassifier",
            (x,),
            {
                **labels,
                **SVM,
                "vectors_per_class": [1, 2, 1],
                "coefficients": [0.1] * 8,
                "rho": [0.1] * 3,
                "prob_a": [0.1] * 3,
                "prob_b": [0.1] * 3,
            },
            both,
        ),
        ml(
            "SVMClassifier",
            (x,),
            {
                "classlabels_strings": ["a", "b"],
                **SVM,
                "vectors_per_class": [2, 2],
                "coefficients": [0.1] * 4,
                "rho": [0.1],
            },
            both,
        ),
        ml(
            "SVMClassifier",
            (x,),
            {
                "classlabels_ints": [0, 1, 2, 3],
                **SVM,
                "vectors_per_class": [1] * 4,
                "coefficients": [0.1] * 12,
                "rho": [0.1] * 6,
            },
            both,
        ),
        ml(
            "SVMClassifier",
            (x,),
            {**labels, "kernel_params": [0.0] * 3, "coefficients": [0.1] * 9, "rho": [0.1]},
            both,
        ),
        ml(
            "SVMRegressor",
            (x,),
            {**SVM, "kernel_type": "POLY", "n_supports": 4, "coefficients": [0.1] * 4, "rho": [0.1]},
        ),
        ml("SVMRegressor", (x,), {"kernel_params": [0.0] * 3, "coefficients": [0.1] * 3, "rho": [0.1]}),
        ml("Scaler", (x,), {"offset": [0.1], "scale": [0.2]}),
        ml("TreeEnsembleClassifier", (x,), {**TREE, **VOTES, "classlabels_int64s": [0, 1, 2]}, both),
        ml("TreeEnsembleRegressor", (x,), {**TREE, **TARGETS, "n_targets": 2}),
        ml("ZipMap", (x,), {"classlabels_strings": ["a", "b", "c"]}, version=1),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run all cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="comma-separated names of operators")
    options = parser.parse_args(arguments)
    only = set(options.only.split(",")) if options.only else None
    onnxruntime.set_default_logger_severity(4)
    count: Counter[str] = Counter()
    operators = set()
    for case in cases():
        if only is not None and case.op not in only:
            continue
        operators.add((case.domain, case.op))
        verdict = judge(case)
        count[verdict.partition(":")[0]] += 1
        if verdict != "equal":
            print(f"{case.domain}.{case.op} {case.attributes}: {verdict}")
    print(
        f"onnxruntime {onnxruntime.__version__}: {len(operators)} operators of its CPU kernels, "
        f"{sum(count.values())} calls: "
        f"{count['equal']} equal, {count['wrong']} wrong, {count['not run']} that it refused to run"
    )
    return 1 if count["wrong"] or count["not run"] else 0


def judge(case: Case) -> str:
    """`equal`, `not run: why`, or `wrong: why`."""
    try:
        expected = run(case)
    except Exception as error:
        return f"not run: {str(error)[:300]}"
    try:
        derived = derive(case)
    except GraphflopsError as error:
        return f"wrong: {error}"
    for place, (ours, theirs) in enumerate(zip(derived, expected, strict=False)):
        if theirs is not None and not agrees(ours, theirs):
            shown = (
                f"{theirs.dtype}{list(theirs.shape)}"
                if isinstance(theirs, np.ndarray)
                else type(theirs).__name__
            )
            return f"wrong: result {place} is {shown}, derived {ours}"
    return "equal"


def run(case: Case) -> list[Any]:
    """What the kernel returns, None in the place of a result that is not asked for."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = model_of(case).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    results = iter(session.run(None, inputs_of(case)))
    return [next(results) if wanted else None for wanted in case.results]


def inputs_of(case: Case) -> dict[str, Any]:
    """The operands that are given, by their names in the model."""
    return {f"in{place}": value for place, value in enumerate(case.operands) if value is not None}


def model_of(case: Case) -> onnx.ModelProto:
    """A model of the one call."""
    names = [f"in{place}" if value is not None else "" for place, value in enumerate(case.operands)]
    outputs = [f"out{place}" if wanted else "" for place, wanted in enumerate(case.results)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    graph = helper.make_graph(
        [node],
        "call",
        [helper.make_value_info(name, type_proto(value)) for name, value in inputs_of(case).items()],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
    )
    opsets = [helper.make_opsetid("", 21)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, case.version))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def type_proto(value: Any) -> onnx.TypeProto:
    """The type of an operand; a map's is that of its first entry."""
    if not isinstance(value, dict):
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    key, entry = next(iter(value.items()))
    proto = onnx.TypeProto()
    proto.map_type.key_type = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
    kind = onnx.TensorProto.FLOAT if isinstance(entry, float) else onnx.TensorProto.STRING
    proto.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(kind, None))
    return proto


def derive(case: Case) -> tuple[Any, ...]:
    """What the rule says the call returns."""
    rule = find(f"{case.domain or 'onnx'}.{case.op}.{case.version}")
    assert rule is not None, f"no rule for {case.op}"
    attributes = {
        key: tuple(value) if isinstance(value, list) else value for key, value in case.attributes.items()
    }
    if "outputs" in rule.signature.keywords:
        attributes["outputs"] = case.results
    operands = [typed(value) for value in case.operands]
    estimate = rule.price(f"{case.domain or 'onnx'}.{case.op}.{case.version}", *operands, **attributes)
    assert estimate.cost is not None
    return estimate.out


def typed(value: Any) -> Any:
    """An operand's type, with its contents where it is small and integer."""
    if not isinstance(value, np.ndarray):
        return value
    dtype = onnx_dtype(helper.np_dtype_to_tensor_dtype(value.dtype))
    known = value.dtype.kind in "iu" and value.size <= FOLLOWED
    return TensorType(value.shape, dtype, value=nested(value.tolist()) if known else None)


def nested(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(nested(part) for part in value) if isinstance(value, list) else value


def agrees(ours: Any, theirs: Any) -> bool:
    """Whether a derived type is that of a result."""
    if isinstance(theirs, list):
        return isinstance(ours, SequenceType) and ours.length == len(theirs)
    if not isinstance(ours, TensorType) or ours.rank != theirs.ndim:
        return False
    dtype = onnx_dtype(helper.np_dtype_to_tensor_dtype(theirs.dtype))
    return ours.dtype is dtype and all(
        isinstance(a, Expr) or a == b for a, b in zip(ours.shape, theirs.shape, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
