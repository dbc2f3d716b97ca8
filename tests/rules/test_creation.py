"""Tensors made from nothing: lengths, element types, known contents, traffic."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import DTYPES, TensorType
from tests.support import price, shapes, t

s = symbol("s")
HALF = {"dtype": DTYPES["float16"]}


MADE: list[tuple[Any, ...]] = [
    ("zeros.default", ((2, s),), {}, (2, s), "float32", 8 * s),
    ("ones.default", ((3,),), {"dtype": DTYPES["bool"]}, (3,), "bool", 3),
    ("full.default", ((2,), 1), {}, (2,), "int64", 16),
    ("full.default", ((2,), True), {}, (2,), "bool", 2),
    ("full.default", ((2,), 1.0), {}, (2,), "float32", 8),
    ("full.default", ((2,), 1j), {}, (2,), "complex64", 16),
    ("full.default", ((2,), 1), HALF, (2,), "float16", 4),
    ("scalar_tensor.default", (1,), {}, (), "float32", 4),
    ("empty.memory_format", ((5,),), {}, (5,), "float32", 0),
    ("empty_strided.default", ((5, 2), (1, 5)), {}, (5, 2), "float32", 0),
    ("empty_permuted.default", ((5, 2), (1, 0)), HALF, (5, 2), "float16", 0),
    ("zeros_like.default", (t(4),), {}, (4,), "float32", 16),
    ("zero_.default", (t(4),), {}, (4,), "float32", 16),
    ("ones_like.default", (t(4),), HALF, (4,), "float16", 8),
    ("full_like.default", (t(4, dtype="int32"), 2.5), {}, (4,), "int32", 16),
    ("empty_like.default", (t(4),), {}, (4,), "float32", 0),
    ("new_zeros.default", (t(4, dtype="int8"), (2, 2)), {}, (2, 2), "int8", 4),
    ("new_full.default", (t(4), (2,), 7), {}, (2,), "float32", 8),
    ("new_empty_strided.default", (t(4), (2,), (1,)), {}, (2,), "float32", 0),
    ("fill_.Scalar", (t(4), 1.5), {}, (4,), "float32", 16),
    ("eye.default", (s,), {}, (s, s), "float32", 4 * s * s),
    ("eye.m", (3, 4), {}, (3, 4), "float32", 48),
    ("_shape_as_tensor.default", (t(3, "s"),), {}, (2,), "int64", 16),
    ("_dim_arange.default", (t(3, "s"), -1), {}, (s,), "int64", 8 * s),
    # progressions
    ("arange.default", (5,), {}, (5,), "int64", 40),
    ("arange.default", (2.5,), {}, (3,), "float32", 12),
    ("arange.default", (s,), HALF, (s,), "float16", 2 * s),
    ("arange.start", (1, s), {}, (s - 1,), "int64", 8 * s - 8),
    ("arange.start", (s, s + 7), {}, (7,), "int64", 56),
    ("arange.start_step", (0, 10, 3), {}, (4,), "int64", 32),
    ("arange.start_step", (10, 0, -3), {}, (4,), "int64", 32),
    ("arange.start_step", (0, 1, 0.25), {}, (4,), "float32", 16),
    ("arange.start_step", (0, s, 2), {}, ((s + 1) // 2,), "int64", 8 * ((s + 1) // 2)),
    ("arange.start_step", (s - 1, -1, -1), {}, (s,), "int64", 8 * s),
    ("arange.start_step", (0.0, s, 1.0), {}, (s,), "float32", 4 * s),
    ("range.step", (1, 6, 2), {}, (3,), "float32", 12),
    ("linspace.default", (0, 1, 7), {}, (7,), "float32", 28),
    ("linspace.default", (0, 1j, 7), {}, (7,), "complex64", 56),
    ("logspace.default", (0, 1, s), {}, (s,), "float32", 4 * s),
    ("tril_indices.default", (4, 4), {}, (2, 10), "int64", 160),
    ("triu_indices.default", (4, 4, 1), {}, (2, 6), "int64", 96),
    ("tril_indices.default", (s, s), {}, (2, s * (s + 1) // 2), "int64", 16 * (s * (s + 1) // 2)),
    ("vander.default", (t(5), 3), {}, (5, 3), "float32", 60),
    ("linalg_vander.default", (t(2, 5),), {}, (2, 5, 5), "float32", 200),
    ("hann_window.default", (8,), {}, (8,), "float32", 32),
    ("kaiser_window.beta", (8, False, 5.0), HALF, (8,), "float16", 16),
]


@pytest.mark.parametrize(("op", "operands", "keywords", "shape", "dtype", "written"), MADE)
def test_shape_type_and_traffic(
    op: str, operands: tuple[Any, ...], keywords: dict[str, Any], shape: Any, dtype: str, written: Any
) -> None:
    estimate = price(f"aten.{op}", *operands, **keywords)
    (out,) = estimate.out
    assert isinstance(out, TensorType)
    assert (out.shape, out.dtype.name) == (shape, dtype)
    assert estimate.cost.written_bytes == written
    assert estimate.cost.read_bytes == (t(*operands[0].shape).nbytes if op.endswith("vander.default") else 0)


@pytest.mark.parametrize(
    ("op", "operands", "flops", "evaluations"),
    [
        ("zeros.default", ((9,),), 0, 0),
        ("arange.default", (9,), 0, 0),  # whole numbers are counted up
        ("arange.default", (9.0,), 2 * 9, 0),
        ("linspace.default", (0, 1, 9), 2 * 9, 0),
        ("logspace.default", (0, 1, 9), 2 * 9, 9),
        ("vander.default", (t(9), 4), 2 * 9, 0),  # columns 1 and x cost nothing
        ("vander.default", (t(9), 1), 0, 0),
        ("bartlett_window.default", (9,), 2 * 9, 0),
        ("hamming_window.periodic_alpha_beta", (9, True, 0.5, 0.4), 3 * 9, 9),
        ("blackman_window.default", (9,), 6 * 9, 2 * 9),
    ],
)
def test_work(op: str, operands: tuple[Any, ...], flops: int, evaluations: int) -> None:
    cost = price(f"aten.{op}", *operands).cost
    assert (cost.vector_flops, cost.transcendentals) == (flops, evaluations)


@pytest.mark.parametrize(
    ("op", "operands", "value"),
    [
        ("full.default", ((), 7), 7),
        ("full.default", ((2,), s), (s, s)),
        ("full.default", ((2,), 1.5), None),
        ("full.default", ((65,), 1), None),
        ("full.default", ((s,), 1), None),
        ("arange.start_step", (1, 8, 3), (1, 4, 7)),
        ("arange.default", (s,), None),
        ("_shape_as_tensor.default", (t(3, "s"),), (3, s)),
        ("fill.Tensor", (t(2, dtype="int64"), t(dtype="int64", value=3)), (3, 3)),
    ],
)
def test_contents_of_small_integer_tensors_are_known(op: str, operands: tuple[Any, ...], value: Any) -> None:
    assert price(f"aten.{op}", *operands).out[0].value == value  # type: ignore[union-attr]


def test_a_step_of_zero_is_refused() -> None:
    with pytest.raises(ShapeError, match="a step that is not zero"):
        price("aten.arange.start_step", 0, 9, 0)


def test_a_progression_that_never_starts_is_empty() -> None:
    assert shapes(price("aten.arange.start_step", 5, 0, 1)) == [(0,)]


def test_a_length_no_formula_gives_is_named() -> None:
    assert shapes(price("aten.arange.start_step", 0, s, 0.3)) == [(symbol("steps?"),)]


def test_triangles_have_as_many_elements_as_are_counted_one_by_one() -> None:
    for rows in range(5):
        for columns in range(5):
            for offset in range(-6, 7):
                counted = sum(j <= i + offset for i in range(rows) for j in range(columns))
                made = price("aten.tril_indices.default", rows, columns, offset)
                assert shapes(made) == [(2, counted)]
