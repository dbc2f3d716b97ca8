"""Products of matrices in ONNX's spellings."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import FLOAT32, INT32
from tests.support import price, shapes, t


def test_linear_counts_the_whole_batch() -> None:
    estimate = price("onnx.Gemm.13", t(4, 64), t(128, 64), t(128), transB=1)
    assert estimate.matrix_flops == 2 * 4 * 64 * 128 == 65_536
    assert estimate.vector_flops == 4 * 128 == 512


def test_broadcast_product_counts_the_batch_of_the_result() -> None:
    estimate = price("onnx.MatMul.13", t(1, 8, 16), t(5, 16, 4))
    assert (shapes(estimate), estimate.matrix_flops) == ([(5, 8, 4)], 2 * (5 * 8 * 4) * 16)
    assert estimate.matrix_flops == 5_120


@pytest.mark.parametrize(
    "a, b, out, flops",
    [((128, 64), (64,), (128,), 16_384), ((64,), (64,), (), 128), ((64,), (3, 64, 2), (3, 2), 2 * 64 * 6)],
)
def test_products_with_a_vector_count(a: Any, b: Any, out: Any, flops: int) -> None:
    estimate = price("onnx.MatMul.9", t(*a), t(*b))
    assert (shapes(estimate), estimate.matrix_flops) == ([out], flops)


def test_integer_products_are_counted_and_named() -> None:
    zero = t(dtype="uint8")
    estimate = price("onnx.MatMulInteger.10", t(32, 64, dtype="uint8"), t(64, 32, dtype="int8"), zero)
    assert estimate.out == (t(32, 32, dtype=INT32),)
    assert estimate.matrix_flops == 131_072
    assert estimate.vector_flops == 32 * 64  # the zero point of one operand


def test_einsum_of_attention_scores_counts_every_head() -> None:
    estimate = price("onnx.Einsum.12", t(2, 4, 8, 16), t(2, 4, 8, 16), equation="bhid,bhjd->bhij")
    assert (shapes(estimate), estimate.matrix_flops) == ([(2, 4, 8, 8)], 16_384)


def test_einsum_counts_the_path_that_is_executed() -> None:
    estimate = price("onnx.Einsum.12", t(8, 64), t(64, 64), t(64, 4), equation="ij,jk,kl->il")
    assert estimate.matrix_flops == 2 * 8 * 64 * 64 + 2 * 8 * 64 * 4 == 69_632
    assert "36864" in estimate.hint[1]


@pytest.mark.parametrize(
    "operands, equation, out, flops",
    [
        (((3, 4),), "ij->ji", (4, 3), 0),
        (((3, 3),), "ii->i", (3,), 0),
        (((3, 4),), "ij->i", (3,), 0),
        (((5, 3, 4), (5, 4, 2)), "...ij,...jk", (5, 3, 2), 2 * 5 * 3 * 4 * 2),
        (((3,), (4,)), "i, j -> ij", (3, 4), 0),
        (((3, 4), (4,)), "Ab,b->A", (3,), 24),
    ],
)
def test_einsum(operands: Any, equation: str, out: Any, flops: int) -> None:
    estimate = price("onnx.Einsum.12", *(t(*shape) for shape in operands), equation=equation)
    assert (shapes(estimate), estimate.matrix_flops) == ([out], flops)


def test_an_einsum_that_only_turns_axes_is_a_copy() -> None:
    cost = price("onnx.Einsum.12", t(3, 4), equation="ij->ji").cost
    assert (cost.read_bytes, cost.written_bytes, cost.vector_flops) == (48, 48, 0)


def test_a_malformed_equation_is_rejected() -> None:
    with pytest.raises(ShapeError):
        price("onnx.Einsum.12", t(3, 4), equation="ijk->i")
    with pytest.raises(ShapeError):
        price("onnx.Einsum.12", t(3, 4), t(4), equation="ij->i")


@pytest.mark.parametrize(
    "a, b, settings, vector",
    [
        ((3, 4), (4, 5), {}, 15),
        ((4, 3), (5, 4), {"transA": 1, "transB": 1}, 15),
        ((3, 4), (4, 5), {"alpha": 0.5, "beta": 2.0}, 45),
        ((3, 4), (4, 5), {"beta": 0.0}, 0),
    ],
)
def test_gemm(a: Any, b: Any, settings: dict[str, Any], vector: int) -> None:
    estimate = price("onnx.Gemm.13", t(*a), t(*b), t(5), **settings)
    assert (shapes(estimate), estimate.matrix_flops) == ([(3, 5)], 2 * 3 * 4 * 5)
    assert estimate.vector_flops == vector


def test_gemm_without_an_addend() -> None:
    assert price("onnx.Gemm.11", t(3, 4), t(4, 5)).vector_flops == 0
    assert price("onnx.Gemm.11", t(3, 4), t(4, 5), alpha=2.0).vector_flops == 15


def test_an_addend_of_sizes_nobody_knows_gets_the_benefit_of_the_doubt() -> None:
    estimate = price("onnx.Gemm.13", t("m", 4), t(4, "n"), t("k"))
    assert shapes(estimate) == [(symbol("m"), symbol("n"))]


def test_what_provably_does_not_fit_is_rejected() -> None:
    with pytest.raises(ShapeError, match="4 and 5"):
        price("onnx.MatMul.13", t(3, 4), t(5, 6))
    with pytest.raises(ShapeError):
        price("onnx.Gemm.13", t(3, 4), t(4, 5), t(4))


def test_symbolic_batch() -> None:
    b, s = symbol("b"), symbol("s")
    estimate = price("onnx.MatMul.13", t("b", "s", 64), t(64, 128))
    assert (shapes(estimate), estimate.matrix_flops) == ([(b, s, 128)], 2 * 64 * 128 * b * s)


def test_determinant() -> None:
    assert price("onnx.Det.11", t(2, 3, 3)).out == (t(2, dtype=FLOAT32),)
