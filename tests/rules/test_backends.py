"""Operators of one backend or of autograd itself, which exports seldom hold: work, results and bytes of one call each."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.tensor import FLOAT16, FLOAT32
from tests.support import price, t

IMAGE, KERNEL, MAP = t(2, 4, 8, 8), t(6, 4, 3, 3), t(2, 6, 8, 8)
VOLUME, PACE = t(2, 4, 8, 8, 8), (1, 1)
TAPS = 2 * 6 * 64 * (4 * 9)  # multiply-adds of a 3 x 3 convolution of IMAGE, padded, to 6 channels
UP = 2 * 64 * 4 * (6 * 4)  # and of a transposed one, 2 x 2 with a stride of 2
ALL = (True, True, True)


@pytest.mark.parametrize(
    ("op", "operands", "matrix", "vector", "out"),
    [
        ("cudnn_convolution", (IMAGE, KERNEL, PACE, PACE, PACE, 1, False, False, False), 2 * TAPS, 0, [(2, 6, 8, 8)]),
        ("_nnpack_spatial_convolution", (IMAGE, KERNEL, t(6), PACE), 2 * TAPS, 2 * 6 * 64, [(2, 6, 8, 8)]),
        (
            "cudnn_convolution_transpose",
            (IMAGE, t(4, 6, 2, 2), (0, 0), (0, 0), (2, 2), PACE, 1, False, False, False),
            *(2 * UP, 0, [(2, 6, 16, 16)]),
        ),
        (
            "miopen_convolution_transpose",
            (IMAGE, t(4, 6, 2, 2), t(6), (0, 0), (0, 0), (2, 2), PACE, 1, False, False),
            *(2 * UP, 2 * 6 * 256, [(2, 6, 16, 16)]),
        ),
        (
            "convolution_backward_overrideable",
            (MAP, IMAGE, KERNEL, PACE, PACE, PACE, False, (0, 0), 1, ALL),
            *(2 * 2 * TAPS, 2 * 6 * 64, [(2, 4, 8, 8), (6, 4, 3, 3), (6,)]),
        ),
        (
            "_slow_conv2d_backward.output_mask",
            (MAP, IMAGE, KERNEL, (3, 3), PACE, PACE, ALL),
            *(2 * 2 * TAPS, 2 * 6 * 64, [(2, 4, 8, 8), (6, 4, 3, 3), (6,)]),
        ),
        ("mkldnn_max_pool2d", (IMAGE, (2, 2)), 0, 2 * 4 * 16 * 4, [(2, 4, 4, 4)]),
        ("mkldnn_max_pool3d", (VOLUME, (2, 2, 2)), 0, 2 * 4 * 64 * 8, [(2, 4, 4, 4, 4)]),
        ("mkldnn_max_pool2d_backward", (t(2, 4, 4, 4), t(2, 4, 4, 4), IMAGE, (2, 2)), 0, 2 * 4 * 16, [(2, 4, 8, 8)]),
        (
            "avg_pool3d_backward",
            (t(2, 4, 4, 4, 4), VOLUME, (2, 2, 2), (2, 2, 2), (0, 0, 0), False, True, None),
            *(0, 2 * 4 * 64 * (1 + 8), [(2, 4, 8, 8, 8)]),  # divided once, added to 8 places
        ),
        ("_adaptive_avg_pool3d", (VOLUME, (4, 4, 4)), 0, 2 * 4 * 64 * (8 + 1), [(2, 4, 4, 4, 4)]),
        ("adaptive_avg_pool3d_backward", (t(2, 4, 4, 4, 4), VOLUME), 0, 2 * 4 * 64 * (1 + 8), [(2, 4, 8, 8, 8)]),
        ("_adaptive_avg_pool3d_backward", (t(2, 4, 4, 4, 4), VOLUME), 0, 2 * 4 * 64 * (1 + 8), [(2, 4, 8, 8, 8)]),
        (
            "fractional_max_pool2d_backward",
            (t(2, 4, 4, 4), IMAGE, (2, 2), (4, 4), t(2, 4, 4, 4, dtype="int64")),
            *(0, 2 * 4 * 16, [(2, 4, 8, 8)]),
        ),
        ("mm.dtype", (t(4, 8, dtype="bfloat16"), t(8, 3, dtype="bfloat16"), FLOAT32), 2 * 4 * 8 * 3, 0, [(4, 3)]),
        ("_compute_linear_combination", (t(4, 5), t(3, 4)), 2 * 3 * 4 * 5, 0, [(3, 5)]),
        ("mkldnn_linear_backward_input", ((4, 8), t(4, 6), t(6, 8)), 2 * 4 * 6 * 8, 0, [(4, 8)]),
        ("mkldnn_linear_backward_weights", (t(4, 6), t(4, 8), t(6, 8), True), 2 * 4 * 6 * 8, 4 * 6, [(6, 8), (6,)]),
        # Half of each row of 64 weights is stored.
        ("_cslt_sparse_mm", (t(128, 36, dtype="float16"), t(64, 16, dtype="float16")), 2 * 128 * 32 * 16, 0, [(128, 16)]),
    ],
)  # fmt: skip
def test_products_and_pools(
    op: str, operands: tuple[Any, ...], matrix: int, vector: int, out: list[Any]
) -> None:
    estimate = price(f"aten.{op}", *operands)
    assert (estimate.matrix_flops, estimate.vector_flops, estimate.transcendentals) == (matrix, vector, 0)
    assert [x.shape for x in estimate.out] == out


ROWS, INDEX = t(8, 4), t(3, dtype="int64")
PART, PLACES = t(3, 4), t(3, 4, dtype="int64")
ONE, HALF, MASK = t(1), t(4, dtype="float16"), t(4, dtype="bool")
BAGS, BAG_ROWS, BAG_SIZE = t(2, 3), t(5, dtype="int64"), t(2, dtype="int64")
CHOSEN = t(2, 3, dtype="int64")
SAVED = (BAG_ROWS, BAG_SIZE, CHOSEN)  # bag of each row, rows of each bag, row of each maximum
LENGTHS = t(5, dtype="int64")
LABELS = t(2, 6, dtype="int64")
LEARNED = "float32[3, 4] float32[1] float32[1]"
TABLE, MASKED, FOUND = "float32[10, 3]", "float32[3, 4] bool[3, 4]", "?"


@pytest.mark.parametrize(
    ("op", "operands", "vector", "evaluations", "out"),
    [
        ("_fused_dropout", (t(8), 0.5), 3 * 8, 0, "float32[8] uint8[8]"),
        ("_prelu_kernel_backward", (PART, PART, PART), 4 * 12, 0, "float32[3, 4] float32[3, 4]"),
        ("_masked_softmax_backward", (PART, PART, t(3, 4, dtype="bool")), (4 + 1) * 12, 0, "float32[3, 4]"),
        ("l1_loss_backward", (t(), t(8), t(8), 1), 3 * 8, 0, "float32[8]"),
        # Each of 6 labels meets 6 classes: 2 * 36 pairs of five operations, and a product per score.
        ("multilabel_margin_loss_backward", (t(), t(2, 6), LABELS, 1, t(2, 6)), 5 * 72 + 12, 0, "float32[2, 6]"),
        ("_weight_norm_interface_backward", (PART, PART, t(3, 1), t(3, 1), 0), 5 * 12, 0, "float32[3, 4] float32[3, 1]"),
        # Rehearsing a quantization is seven operations per element, its mask three, the range of the elements two.
        ("fake_quantize_per_tensor_affine_cachemask", (PART, 0.1, 0, 0, 255), (7 + 3) * 12, 0, MASKED),
        ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", (PART, ONE, ONE, ONE, 0, 1), (7 + 3) * 12, 0, MASKED),
        ("_fake_quantize_learnable_per_tensor_affine", (PART, ONE, ONE, 0, 255), 7 * 12, 0, "float32[3, 4]"),
        ("_fake_quantize_learnable_per_channel_affine", (PART, t(4), t(4), 1, 0, 255), 7 * 12, 0, "float32[3, 4]"),
        # Rounding 4 and mask 3 again; a selection for x, four operations for the scale, three for the zero point.
        ("_fake_quantize_learnable_per_tensor_affine_backward", (PART, PART, ONE, ONE, 0, 1), 14 * 12, 0, LEARNED),
        ("fused_moving_avg_obs_fake_quant", (PART, *(ONE,) * 6, 0.1, 0, 255, 0), (2 + 7) * 12, 0, "float32[3, 4]"),
        ("_fused_moving_avg_obs_fq_helper", (PART, *(ONE,) * 6, 0.1, 0, 255, 0), (2 + 7 + 3) * 12, 0, MASKED),
        ("dequantize.tensors", ((PART, t(4)),), 3 * (12 + 4), 0, "float32[3, 4] float32[4]"),
        ("_make_per_tensor_quantized_tensor", (t(4, dtype="int8"), 0.1, 0), 0, 0, "int8[4]"),
        ("_make_per_channel_quantized_tensor", (t(4, dtype="int8"), t(4), t(4), 0), 0, 0, "int8[4]"),
        # A sum for each gradient of a row looked up; mean and weights scale it first, max has one row per element.
        ("embedding_backward", (t(5, 3), BAG_ROWS, 10, -1, False, False), 5 * 3, 0, TABLE),
        ("_embedding_bag_dense_backward", (BAGS, BAG_ROWS, *SAVED, 10, False, 0, None), 5 * 3, 0, TABLE),
        ("_embedding_bag_dense_backward", (BAGS, BAG_ROWS, *SAVED, 10, False, 1, None), 2 * 5 * 3, 0, TABLE),
        ("_embedding_bag_dense_backward", (BAGS, BAG_ROWS, *SAVED, 10, False, 2, None), 2 * 3, 0, TABLE),
        ("_embedding_bag_backward", (BAGS, BAG_ROWS, BAG_SIZE, *SAVED, 10, False, 1, False, None), 2 * 5 * 3, 0, TABLE),
        ("_embedding_bag_sparse_backward", (BAGS, BAG_ROWS, BAG_SIZE, *SAVED[:2], 10, False, 1, None), 5 * 3, 0, TABLE),
        ("_embedding_bag_per_sample_weights_backward", (BAGS, t(10, 3), BAG_ROWS, *SAVED[1::-1], 0), 30, 0, "float32[5]"),
        # A power, a sum and a product for each element of a row, a root for each row.
        ("embedding_renorm", (t(10, 3), BAG_ROWS, 1.0, 2.0), 3 * 5 * 3, 5, TABLE),
        ("binomial", (t(4), t(4)), 0, 4, "float32[4]"),
        ("_sample_dirichlet", (t(4),), 2 * 4, 4, "float32[4]"),
        ("_standard_gamma_grad", (t(4), t(4)), 0, 4, "float32[4]"),
        ("_dirichlet_grad", (t(4), t(4), t(4)), 0, 4, "float32[4]"),
        ("_sobol_engine_draw", (INDEX, 5, t(3, 30, dtype="int64"), 3, 0, None), 2 * 5 * 3, 0, "float32[5, 3] int64[3]"),
        ("_sobol_engine_ff_", (INDEX, 5, t(3, 30, dtype="int64"), 3, 0), 3, 0, "int64[3]"),
        ("_sobol_engine_scramble_", (t(3, 30, dtype="int64"), t(3, 30, 30, dtype="int64"), 3), 3 * 30, 0, "int64[3, 30]"),
        ("_sobol_engine_initialize_state_", (t(3, 30, dtype="int64"), 3), 3 * 30, 0, "int64[3, 30]"),
        # The mean, then the squared distances: four operations per element, two divisions per result.
        ("std.dim", (PART, (1,)), 4 * 12 + 2 * 3, 3, "float32[3]"),
        ("var_mean.dim", (PART, (1,)), 4 * 12 + 2 * 3, 0, "float32[3] float32[3]"),
        ("unique_dim_consecutive", (t(8, 2), 0), 8 * 2, 0, f"float32[{FOUND}, 2] int64[8] int64[{FOUND}]"),
        ("_unique", (t(8),), 8 * 3 + 8, 0, f"float32[{FOUND}] int64[0]"),  # sorted in 3 halvings, then compared
        # Squared norms 2 per element, three operations and a root per pair.
        ("_euclidean_dist", (t(5, 3), t(7, 3)), 2 * (15 + 21) + 3 * 35, 35, "float32[5, 7]"),
        ("_histogramdd_bin_edges", (t(10, 2), (3, 4)), 2 * 20, 0, "float32[4] float32[5]"),
        ("_histogramdd_from_bin_cts", (t(10, 2), (3, 4)), 3 * 20 + 10, 0, "float32[3, 4]"),
        ("_histogramdd_from_bin_tensors", (t(10, 2), (t(5), t(9))), 10 * (3 + 4 + 1), 0, "float32[4, 8]"),
        ("allclose", (t(4), t(4)), 6 * 4, 0, "Symbol('allclose?')"),
        ("equal", (t(4), t(4)), 4, 0, "Symbol('equal?')"),
    ],
)  # fmt: skip
def test_work_of_elements(
    op: str, operands: tuple[Any, ...], vector: int, evaluations: int, out: str
) -> None:
    estimate = price(f"aten.{op}", *operands)
    assert (estimate.vector_flops, estimate.transcendentals) == (vector, evaluations)
    assert " ".join(map(str, estimate.out)) == out


@pytest.mark.parametrize(
    ("op", "operands", "read", "written", "out"),
    [
        # Rows that change are read and written, with their places; a copy writes the whole.
        ("_index_put_impl", (ROWS, (INDEX,), PART, False), 128 + 24 + 48, 128, "float32[8, 4]"),
        ("_index_put_impl_", (ROWS, (INDEX,), PART, True), 48 + 24 + 48, 48, "float32[8, 4]"),
        ("index_fill_", (ROWS, 0, INDEX, 1.0), 24, 48, "float32[8, 4]"),
        ("index_reduce_", (ROWS, 0, INDEX, PART, "prod"), 48 + 24 + 48, 48, "float32[8, 4]"),
        ("put_", (ROWS, INDEX, t(3)), 24 + 12, 12, "float32[8, 4]"),
        ("scatter_reduce_", (ROWS, 0, PLACES, PART, "sum"), 48 + 96 + 48, 48, "float32[8, 4]"),
        ("_gather_sparse_backward", (ROWS, 0, PLACES, PART), 96 + 48, 96 + 48, "float32[8, 4]"),
        ("masked_select_backward", (t(3), t(4), MASK), 12 + 4, 16, "float32[4]"),
        ("_pack_padded_sequence_backward", (t(7, 3), (5, 2, 3), LENGTHS, False), 84 + 40, 120, "float32[5, 2, 3]"),
        ("flatten_dense_tensors", ((t(2, 3), t(4)),), 40, 40, "float32[10]"),
        ("_to_cpu", ((t(4), t(2)),), 24, 24, "float32[4] float32[2]"),
        ("_copy_from", (t(4), t(4)), 16, 16, "float32[4]"),
        ("_copy_from_and_resize", (t(4), t(4)), 16, 16, "float32[4]"),
        ("resize_as", (t(4), t(2, 2)), 16, 16, "float32[2, 2]"),
        ("mkldnn_reorder_conv2d_weight", (KERNEL,), 864, 864, "float32[6, 4, 3, 3]"),
        ("mkldnn_reorder_conv3d_weight", (t(6, 4, 1, 3, 3),), 864, 864, "float32[6, 4, 1, 3, 3]"),
        ("_new_zeros_with_same_feature_meta", (t(5, 3), t(2, 4)), 0, 32, "float32[2, 4]"),
        ("from_file", ("weights.bin", False, 16), 0, 64, "float32[16]"),
        ("_philox_key_fold_in", (t(2, dtype="int64"), 3), 16, 16, "int64[2]"),
        ("_cudnn_rnn_flatten_weight", ((t(8, 4), t(8)), 2, 4, 0, 8, 0, 1, False, False), 160, 160, "float32[40]"),
        ("_reshape_copy", (PART, (4, 3)), 48, 48, "float32[4, 3]"),
        ("_reshape_alias_copy", (PART, (4, 3), (3, 1)), 48, 48, "float32[4, 3]"),
        ("_fw_primal_copy", (PART, 0), 48, 48, "float32[3, 4]"),
        ("_make_dual_copy", (PART, PART, 0), 48, 48, "float32[3, 4]"),
        ("view_as_complex_copy", (t(3, 2),), 24, 24, "complex64[3]"),
        ("view_as_real_copy", (t(3, dtype="complex64"),), 24, 24, "float32[3, 2]"),
        ("slice_inverse", (t(8), t(3), 0, 0, 3), 0, 0, "float32[8]"),
        ("_resize_output", (t(4), (2, 2), "cpu"), 0, 0, "float32[2, 2]"),
        ("requires_grad_", (t(4),), 0, 0, "float32[4]"),
        ("_use_cudnn_rnn_flatten_weight", (), 0, 0, "False"),
    ],
)  # fmt: skip
def test_bytes_of_what_is_moved(
    op: str, operands: tuple[Any, ...], read: int, written: int, out: str
) -> None:
    estimate = price(f"aten.{op}", *operands)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (read, written)
    assert " ".join(map(str, estimate.out)) == out
    assert (estimate.matrix_flops, estimate.transcendentals) == (0, 0)


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [
        ("_cast_Byte", "uint8", 1),
        ("_cast_Char", "int8", 1),
        ("_cast_Short", "int16", 2),
        ("_cast_Int", "int32", 4),
        ("_cast_Long", "int64", 8),
        ("_cast_Half", "float16", 2),
        ("_cast_Float", "float32", 4),
        ("_cast_Double", "float64", 8),
    ],
)
def test_casts_by_name_convert_each_element(name: str, dtype: str, size: int) -> None:
    estimate = price(f"aten.{name}.default", t(5, dtype="bfloat16"))
    assert estimate.out == (t(5, dtype=dtype),)
    assert (estimate.vector_flops, estimate.cost.read_bytes, estimate.cost.written_bytes) == (
        5,
        2 * 5,
        size * 5,
    )


def test_conversions_that_may_be_needless() -> None:
    for converted in (
        price("aten.to.dtype_layout", t(4), dtype=FLOAT16),
        price("aten.to.prim_Device", t(4), "cpu", FLOAT16),
        price("aten.to.prim_dtype", t(4), FLOAT16),
        price("aten._autocast_to_reduced_precision.default", t(4), True, False, FLOAT16, FLOAT16),
    ):
        assert (converted.out, converted.vector_flops) == ((HALF,), 4)
    assert price("aten._autocast_to_full_precision.default", HALF, False, True).out == (t(4),)
    for kept in (
        price("aten.to.prim_dtype", HALF, FLOAT16),
        price("aten._autocast_to_reduced_precision.default", t(4), False, False, FLOAT16, FLOAT16),
        price("aten._autocast_to_full_precision.default", HALF, False, False),
    ):
        assert not kept.cost


def test_sizes_that_only_data_tell() -> None:
    packed, steps = price("aten._pack_padded_sequence.default", t(5, 2, 3), t(2, dtype="int64"), False).out
    assert (packed.shape, steps.shape) == ((symbol("packed?"), 3), (symbol("longest?"),))
    padded, lengths = price(
        "aten._pad_packed_sequence.default", t(7, 3), t(5, dtype="int64"), False, 0.0, 0
    ).out
    assert (padded.shape, lengths.shape) == ((5, symbol("batch?"), 3), (symbol("batch?"),))
    padded, _ = price("aten._pad_packed_sequence.default", t(7, 3), t(5, dtype="int64"), True, 0.0, 9).out
    assert padded.shape == (symbol("batch?"), 9, 3)
    scattered = price("aten.masked_scatter_.default", t(4), MASK, t(4))
    assert scattered.cost.written_bytes == 4 * symbol("masked_scatter?")


def test_the_exponential_of_a_matrix_differentiates_through_one_of_twice_the_order() -> None:
    twice, gradient = (
        price("aten.matrix_exp.default", t(8, 8)),
        price("aten.matrix_exp_backward.default", t(4, 4), t(4, 4)),
    )
    assert gradient.matrix_flops == twice.matrix_flops == 2 * 8**3 * (5 + symbol("squarings?"))
    assert gradient.out == (t(4, 4),)
