"""Quantizing, dequantizing and rehearsing both; products of few bits."""

from __future__ import annotations

import pytest

from graphflops.dims import parse_dim, symbol
from graphflops.errors import ShapeError
from graphflops.passes.gradients import gradient
from graphflops.rules import find
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32
from tests.support import price, shapes, t

Arguments = tuple[object, ...]
X, SCALES, ZEROS = t(3, 4), t(4), t(4, dtype="int32")
RANGE = (-128, 127)


# Operations per element: quantizing 6, dequantizing 3 (2 without zero points), rehearsing both 7, a mask 3.


@pytest.mark.parametrize(
    "op, arguments, per_element, out",
    [
        ("quantize_per_tensor.default", (X, 0.1, 0, *RANGE, INT8), 6, "int8[3, 4]"),
        ("quantize_per_tensor.tensor", (X, t(1), t(1), *RANGE, INT8), 6, "int8[3, 4]"),
        ("quantize_per_tensor.tensor2", (X, t(1), t(1), t(), t(), INT8), 6, "int8[3, 4]"),
        ("quantize_per_channel.default", (X, SCALES, ZEROS, 1, *RANGE, INT8), 6, "int8[3, 4]"),
        ("quantize_per_token.default", (X, t(3, 1), t(3, 1), *RANGE, INT8), 6, "int8[3, 4]"),
        ("quantize_per_channel_group.default", (X, t(3, 2), t(3, 2), *RANGE, INT8, 2), 6, "int8[3, 4]"),
        ("dequantize_per_tensor.default", (t(3, 4, dtype="int8"), 0.1, 0, *RANGE, INT8), 3, "float32[3, 4]"),
        ("dequantize_per_token.default", (X, t(3, 1), t(3, 1), *RANGE, INT8, FLOAT16), 3, "float16[3, 4]"),
        ("dequantize_per_channel.default", (X, SCALES, None, 1, *RANGE, INT8), 2, "float32[3, 4]"),
        ("fake_quant_per_channel.default", (X, SCALES, ZEROS, 1, *RANGE), 7, "float32[3, 4]"),
        ("convert_element_type.no_fuse", (X, FLOAT16), 1, "float16[3, 4]"),
        ("convert_element_type.no_fuse", (X, FLOAT32), 0, "float32[3, 4]"),
    ],
)
def test_exports_vocabulary(op: str, arguments: Arguments, per_element: int, out: str) -> None:
    estimate = price(f"quantized_decomposed.{op}", *arguments)
    assert ([str(value) for value in estimate.out], estimate.vector_flops) == ([out], per_element * 12)


def test_another_result_type_on_demand() -> None:
    arguments = (t(3, 4, dtype="uint8"), t(1), t(1), 0, 255, INT8)
    estimate = price("quantized_decomposed.dequantize_per_tensor.tensor", *arguments, out_dtype=FLOAT16)
    assert str(estimate.out[0]) == "float16[3, 4]"
    assert estimate.cost.read_bytes == 12 + 4 + 4


def test_conversions_of_unknown_size() -> None:
    estimate = price("quantized_decomposed.quantize_per_tensor.default", t("n", 4), 0.1, 0, *RANGE, INT8)
    assert estimate.vector_flops == parse_dim("24*n")
    assert shapes(estimate) == [(symbol("n"), 4)]


def test_choosing_parameters_finds_the_range() -> None:
    whole = price("quantized_decomposed.choose_qparams.tensor", t(3, 4), 0, 255, 1e-5, INT8)
    assert [str(value) for value in whole.out] == ["float64[1]", "int64[1]"]
    rows = price("quantized_decomposed.choose_qparams_per_token_asymmetric.default", t(2, 3, 4), INT8)
    assert [str(value) for value in rows.out] == ["float64[2, 3, 1]", "int64[2, 3, 1]"]
    assert (whole.vector_flops, rows.vector_flops) == (2 * 12, 2 * 24)


def test_quantized_embeddings_read_the_rows_they_return() -> None:
    table, scales, indices = t(1000, 32, dtype="uint8"), t(1000, 2, dtype="float16"), t(5, 7, dtype="int64")
    estimate = price("quantized_decomposed.embedding_4bit.default", table, scales, None, -8, 7, indices)
    assert [str(value) for value in estimate.out] == ["float16[5, 7, 64]"]
    assert estimate.vector_flops == 2 * 35 * 64
    assert estimate.cost.read_bytes == 35 * (32 + 2 * 2 + 8)
    arguments = (table, t(1000), None, 0, 255, indices)
    byte = price("quantized_decomposed.embedding_byte.dtype", *arguments, dtype=FLOAT16)
    assert [str(value) for value in byte.out] == ["float16[5, 7, 32]"]


@pytest.mark.parametrize(
    "op, arguments, per_element, out",
    [
        ("quantize_per_tensor.default", (X, 0.1, 0, INT8), 6, ["int8[3, 4]"]),
        ("quantize_per_tensor.tensor_qparams", (X, t(), t(), None), 6, ["int8[3, 4]"]),
        ("quantize_per_tensor.tensors", ((t(2, 4), t(4)), t(2), t(2), INT8), 6, ["int8[2, 4]", "int8[4]"]),
        ("quantize_per_tensor_dynamic.default", (X, INT8, False), 8, ["int8[3, 4]"]),
        ("quantize_per_channel.default", (X, SCALES, ZEROS, 1, INT8), 6, ["int8[3, 4]"]),
        ("dequantize.self", (t(3, 4, dtype="int8"),), 3, ["float32[3, 4]"]),
        ("int_repr.default", (t(3, 4, dtype="int8"),), 0, ["int8[3, 4]"]),
        ("fake_quantize_per_tensor_affine.default", (X, 0.1, 0, *RANGE), 7, ["float32[3, 4]"]),
        (
            "fake_quantize_per_channel_affine_cachemask.default",
            (X, SCALES, ZEROS, 1, *RANGE),
            7 + 3,
            ["float32[3, 4]", "bool[3, 4]"],
        ),
        ("fake_quantize_per_tensor_affine_cachemask_backward.default", (X, X), 1, ["float32[3, 4]"]),
    ],
)
def test_tensors_with_a_scale(op: str, arguments: Arguments, per_element: int, out: list[str]) -> None:
    estimate = price(f"aten.{op}", *arguments)
    assert ([str(value) for value in estimate.out], estimate.vector_flops) == (out, per_element * 12)


def test_rehearsal_with_a_range_that_follows_the_data() -> None:
    state = (t(1, dtype="int64"), t(1, dtype="int64"), t(1), t(1), t(1), t(1, dtype="int32"))
    op = "aten._fused_moving_avg_obs_fq_helper_functional.default"
    estimate = price(op, X, *state, 0.01, 0, 255, 0)
    kinds = ["float32[3, 4]", "bool[3, 4]", "float32[1]", "float32[1]", "float32[1]", "int32[1]"]
    assert [str(value) for value in estimate.out] == kinds
    assert estimate.vector_flops == (2 + 7 + 3) * 12


def test_rehearsal_passes_the_gradient_where_nothing_was_cut_off() -> None:
    arguments = {
        "x": t(3, 4, requires_grad=True),
        "scale": 0.1,
        "zero_point": 0,
    }
    rule = find("aten.fake_quantize_per_tensor_affine.default")
    assert rule is not None
    estimate = gradient(rule, arguments, rule.function(**arguments))
    assert estimate is not None
    assert (shapes(estimate), estimate.vector_flops) == ([(3, 4)], (3 + 1) * 12)
    op = "aten._fake_quantize_learnable_per_channel_affine_backward.default"
    learned = price(op, X, X, SCALES, SCALES, 1, 0, 9)
    assert shapes(learned) == [(3, 4), (4,), (4,)]


# Products.


def test_int_mm_counts_integer_operations() -> None:
    a, b = t(32, 64, dtype="int8"), t(64, 32, dtype="int8")
    estimate = price("aten._int_mm.default", a, b)
    assert estimate.matrix_flops == 2 * 32 * 64 * 32 == 131_072
    assert str(estimate.out[0]) == "int32[32, 32]"
    assert estimate.matrix_dtype is a.dtype


def test_packed_weights_do_the_same_work_on_fewer_bytes() -> None:
    x, scales_and_zeros = t(4, 64), t(2, 128, 2, dtype="bfloat16")
    packed = t(128, 32, dtype="uint8")
    estimate = price("aten._weight_int4pack_mm_for_cpu.default", x, packed, 32, scales_and_zeros)
    assert estimate.matrix_flops == 2 * 4 * 64 * 128 == 65_536
    assert estimate.cost.read_bytes == 4 * 4 * 64 + 4_096 + 1_024
    assert estimate.vector_flops == 3 * 64 * 128
    plain = price("aten.linear.default", x, t(128, 64))
    assert plain.cost.read_bytes - x.nbytes == 32_768
    dynamic = price("aten._dyn_quant_matmul_4bit.default", x, t(5120, dtype="uint8"), 32, 64, 128)
    assert dynamic.matrix_flops == 65_536
    assert str(dynamic.matrix_dtype) == "int8"
    assert dynamic.vector_flops == (2 + 6) * 4 * 64 + 2 * 2 * 4 * 128  # two blocks of 32


def test_quantizing_around_a_linear_is_apart() -> None:
    quantize = price("quantized_decomposed.quantize_per_tensor.default", t(4, 64), 0.1, 0, *RANGE, INT8)
    dequantize = price("quantized_decomposed.dequantize_per_tensor.default", t(4, 64), 0.1, 0, *RANGE, INT8)
    assert (quantize.matrix_flops, quantize.vector_flops) == (0, 6 * 4 * 64)
    assert (dequantize.matrix_flops, dequantize.vector_flops) == (0, 3 * 4 * 64)


@pytest.mark.parametrize(
    "op, weight, vector",
    [
        ("aten._weight_int8pack_mm", (t(32, 64), t(32)), 64 * 32 + 4 * 32),
        ("aten._weight_int4pack_mm", (t(4, 2, 32, 1), 32, t(2, 32, 2)), 3 * 64 * 32),
        ("aten._weight_int4pack_mm", (t(32, 8), 32, t(2, 32, 2)), 3 * 64 * 32),
        ("quantized_decomposed.mixed_mm", (t(64, 32), t(64), None), 2 * 64 * 32),
        ("quantized_decomposed.mixed_linear", (t(32, 64), t(32), t(32)), 3 * 64 * 32),
    ],
)
def test_products_with_packed_weights(op: str, weight: Arguments, vector: int) -> None:
    estimate = price(f"{op}.default", t(4, 64), *weight)
    assert shapes(estimate) == [(4, 32)]
    assert (estimate.matrix_flops, estimate.vector_flops) == (2 * 4 * 64 * 32, vector)


def test_packing_is_a_copy() -> None:
    tiled = price("aten._convert_weight_to_int4pack.default", t(32, 64, dtype="uint8"), 2)
    assert [str(value) for value in tiled.out] == ["int32[4, 4, 32, 1]"]
    assert (tiled.vector_flops, tiled.cost.read_bytes) == (0, 32 * 64)
    pairs = price("aten._convert_weight_to_int4pack_for_cpu.default", t(32, 64, dtype="int32"), 2)
    assert [str(value) for value in pairs.out] == ["uint8[32, 32]"]


def test_scaled_products_of_narrow_floats() -> None:
    a, b = t(32, 64, dtype="float8_e4m3fn"), t(64, 16, dtype="float8_e4m3fn")
    estimate = price("aten._scaled_mm.default", a, b, t(1), t(1), t(16), out_dtype=FLOAT16)
    assert str(estimate.out[0]) == "float16[32, 16]"
    assert (estimate.matrix_flops, estimate.vector_flops) == (2 * 32 * 64 * 16, 3 * 32 * 16)
    rows = price("aten._scaled_grouped_mm.default", a, t(4, 64, 16), t(32), t(4, 16), t(4, dtype="int32"))
    assert (str(rows.out[0]), rows.matrix_flops) == ("bfloat16[32, 16]", 2 * 32 * 64 * 16)


def test_pairs_of_four_bit_floats_are_twice_as_many_products() -> None:
    a, b = t(32, 32, dtype="float4_e2m1fn_x2"), t(32, 16, dtype="float4_e2m1fn_x2")
    scales = t(128 * 4, dtype="float8_e4m3fn"), t(128 * 4, dtype="float8_e4m3fn")  # a block of 128 rows
    estimate = price("aten._scaled_mm.default", a, b, *scales, None, None, BFLOAT16)
    assert estimate.matrix_flops == 2 * 32 * (2 * 32) * 16
    assert estimate.cost.read_bytes == 32 * 32 + 32 * 16 + 2 * 128 * 4


def test_a_scaled_product_added_to_a_matrix_takes_its_type() -> None:
    a, b, base = (
        t(32, 64, dtype="float8_e4m3fn"),
        t(64, 16, dtype="float8_e4m3fn"),
        t(32, 16, dtype="bfloat16"),
    )
    scales = ((t(1),), (0,), (0,), (t(1),), (0,), (0,))
    added = price("aten._scaled_addmm.default", base, a, b, *scales)
    assert (str(added.out[0]), added.matrix_flops) == ("bfloat16[32, 16]", 2 * 32 * 64 * 16)
    assert added.vector_flops == 3 * 32 * 16
    assert price("aten._scaled_addmm_.default", base, a, b, *scales, alpha=0.5).vector_flops == 4 * 32 * 16


def test_of_pruned_weights_only_the_stored_half_is_multiplied() -> None:
    x, weight, meta = t(8, 64), t(16, 32), t(16, 4, dtype="int16")
    op = "aten._sparse_semi_structured_linear.default"
    linear = price(op, x, weight, meta, bias=t(16), activation="relu")
    assert (shapes(linear), linear.matrix_flops) == ([(8, 16)], 2 * 8 * 16 * 64 // 2)
    assert linear.vector_flops == 2 * 8 * 16
    product = price("aten._sparse_semi_structured_mm.default", weight, meta, t(64, 8), out_dtype=INT32)
    assert (str(product.out[0]), product.matrix_flops) == ("int32[16, 8]", 2 * 16 * 32 * 8)
    added = price("aten._sparse_semi_structured_addmm.default", t(16), weight, meta, t(64, 8))
    assert (shapes(added), added.vector_flops) == ([(16, 8)], 16 * 8)


def test_how_much_a_sparse_matrix_holds_only_data_can_tell() -> None:
    estimate = price("aten._sparse_mm.default", t(16, 32), t(32, 8))
    assert estimate.matrix_flops == 2 * 8 * symbol("nnz?")
    assert shapes(estimate) == [(16, 8)]


def test_packed_weights_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"weight is \[32, 32\], not \(n,k\) with k = 64"):
        price("aten._weight_int8pack_mm.default", t(4, 64), t(32, 32), t(32))


def test_conversions_against_torch() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.ao.quantization.fx._decomposed")

    x = torch.empty(3, 4, device="meta")
    for op in ("choose_qparams.tensor", "choose_qparams_symmetric.tensor"):
        packet, overload = op.split(".")
        function = getattr(getattr(torch.ops.quantized_decomposed, packet), overload)
        theirs = function(x, 0, 255, 1e-5, torch.uint8)
        ours = price(f"quantized_decomposed.{op}", t(3, 4), 0, 255, 1e-5, INT8)
        kinds = [f"{str(y.dtype).removeprefix('torch.')}{list(y.shape)}" for y in theirs]
        assert [str(value) for value in ours.out] == kinds


def test_products_with_packed_weights_of_single_backends() -> None:
    """4 rows of 64 and 128 results; a weight is dequantised by a conversion, a subtraction and a product."""
    product, half = 2 * 4 * 64 * 128, {"dtype": "float16"}
    four_bits = price(
        *("aten._weight_int4pack_mm_with_scales_and_zeros.default", t(4, 64)),
        *(t(128, 32, dtype="uint8"), 32, t(2, 128), t(2, 128)),
    )
    assert (four_bits.matrix_flops, four_bits.vector_flops) == (product, 3 * 64 * 128)
    bias = t(128, **half)
    mixed = ("aten._mixed_dtypes_linear.default", t(4, 64, **half), t(64, 128, dtype="uint8"), bias)
    # A conversion for each weight; for each result the scale, the bias and the activation.
    assert price(*mixed).vector_flops == 64 * 128 + 4 * 128
    assert price(*mixed, bias=bias, activation="relu").vector_flops == 64 * 128 + 3 * 4 * 128
    assert price(*mixed).matrix_flops == product
    for op in ("fbgemm_linear_int8_weight", "fbgemm_linear_int8_weight_fp32_activation"):
        rows = price(
            *(f"aten.{op}.default", t(4, 64), t(128, 64, dtype="int8"), t(128 * 64, dtype="int8")),
            *(t(128, dtype="int32"), 1.0, 0, t(128)),
        )
        # The range of a row 2 and its quantisation 6; for each result the scale and the bias.
        assert (rows.matrix_flops, rows.vector_flops) == (product, (2 + 6) * 4 * 64 + 2 * 4 * 128)
        assert rows.matrix_dtype == INT8


def test_grouped_products_with_several_scales_count_all_rows_once() -> None:
    eight = {"dtype": "float8_e4m3fn"}
    scaled = price(
        *("aten._scaled_grouped_mm_v2.default", t(32, 64, **eight), t(4, 64, 32, **eight)),
        *((t(32),), (1,), (0,), (t(4, 32),), (1,), (0,), t(4, dtype="int32")),
    )
    assert (scaled.matrix_flops, scaled.out) == (2 * 32 * 64 * 32, (t(32, 32, dtype="bfloat16"),))


def test_packing_weights_copies_them_with_scales_and_bias() -> None:
    packed = price(
        *(
            "aten._dyn_quant_pack_4bit_weight.default",
            t(128, 32, dtype="uint8"),
            t(128, 2),
            t(128),
            32,
            64,
            128,
        )
    )
    assert shapes(packed) == [(128 * 32 + 128 * 2 + 128,)]


def test_groups_of_a_channel_and_rows_of_two_bits() -> None:
    arguments = (t(3, 2), None, 0, 255, FLOAT32, 2, FLOAT32)
    assert (
        price("quantized_decomposed.dequantize_per_channel_group.default", X, *arguments).vector_flops
        == 2 * 12
    )
    table, row = t(10, 4, dtype="uint8"), t(10)
    looked_up = price(
        "quantized_decomposed.embedding_2bit.default", table, row, row, 0, 3, t(5, dtype="int64")
    )
    # Four weights in a byte: 5 rows of 16, each dequantised by three operations.
    assert (shapes(looked_up), looked_up.vector_flops) == ([(5, 16)], 3 * 5 * 16)
