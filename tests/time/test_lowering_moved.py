"""Kernels of calls that move more than they compute: what each reads, writes and works on, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import devices
from graphflops.kernels.kernel import Rows, Strided
from graphflops.time.predict import predict
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, backward, copied, forward, made, pointwise

N = 4 * 64  # elements
TURNED = copied(4 * N, 4 * N, variant="strided")  # from the last element to the first


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("relu", (t(4, 64),), [pointwise(N, 4 * N, 4 * N)]),
        ("exp", (t(4, 64),), [pointwise(int(0.1 * N), 4 * N, 4 * N)]),
        ("mul.Tensor", (t(4, 64), t(64)), [pointwise(N, 4 * (N + 64), 4 * N, Strided(N, 2, 3))]),
        ("mul.Tensor", (t(4, 64), 2.0), [pointwise(N, 4 * N, 4 * N)]),
        (
            "add.Tensor",
            (t(4, 64, dtype="bfloat16"), t(4, 64)),
            [pointwise(N, 6 * N, 4 * N, Strided(N, 1, 3, has_casts=True))],
        ),
        ("eq.Scalar", (t(4, 64), 0), [pointwise(N, 4 * N, N)]),
        ("masked_fill.Scalar", (t(4, 64), t(4, 64, dtype="bool"), 0.0), [copied(4 * N, 4 * N), pointwise(N, 5 * N, 4 * N)]),
        ("zeros_like.default", (t(4, 64),), [pointwise(0, 0, 4 * N)]),
        (
            "constant_pad_nd.default",
            (t(4, 64), (1, 1), 0.0),
            [pointwise(0, 0, 4 * 4 * 66), copied(4 * N, 4 * N, Strided(N, 2, 2))],
        ),
        ("roll.default", (t(4, 64), (1, 2), (0, 1)), [copied(4 * N, 4 * N, variant="roll")] * 2),
        ("roll.default", (t(4, 64), (1,), (0,)), [copied(4 * N, 4 * N, variant="roll")]),
        ("dropout.default", (t(4, 64), 0.5, True), [("random", "dropout", 3 * N, 4 * N, 4 * N, None)]),
        ("dropout.default", (t(4, 64), 0.5, False), []),
    ],
)  # fmt: skip
def test_forwards_of_elements(op: str, operands: tuple[Any, ...], expected: list[Made]) -> None:
    assert made(forward(f"aten.{op}", *operands)) == expected


@pytest.mark.parametrize(
    ("dtype", "to", "sizes"),
    [  # only float32 is narrowed as fast as it is moved
        ("float32", "bfloat16", None),
        ("bfloat16", "float32", Strided(N, 1, 2, has_casts=True)),
        ("float32", "float64", Strided(N, 1, 2, has_casts=True)),
    ],
)
def test_casts(dtype: str, to: str, sizes: Strided | None) -> None:
    widths = {"float32": 4, "bfloat16": 2, "float64": 8}
    (there,) = made(forward("aten.to.dtype", g(4, 64, dtype=dtype), t(1, dtype=to).dtype))
    (back,) = made(backward("aten.to.dtype", g(4, 64, dtype=dtype), t(1, dtype=to).dtype))
    assert there == copied(widths[dtype] * N, widths[to] * N, sizes)
    assert back[3:5] == (widths[to] * N, widths[dtype] * N)
    assert not forward("aten.to.dtype", t(4, 64), t(1).dtype)


@pytest.mark.parametrize(
    ("shape", "steps", "waste"),
    [
        # a load brings 32 bytes; rows of 512 elements are too long for neighbours in a block of 256 to share them
        ((16, 512), (1, 16), 32 - 4),
        ((16, 128), (1, 16), 32 / 2 - 4),  # two rows share it
        ((16, 128), (2, 32), 32 - 4),  # neighbours are two elements apart
        ((3, 512), (1, 3), 3 * 4 - 4),  # all of what is between two elements
        ((16, 8), (1, 16), 0),  # 16 rows share it
        ((2, 64), (1, 2), 2 * 4 - 4),
    ],
)
def test_bytes_that_a_transposed_operand_loads_beside_its_own(
    shape: tuple[int, int], steps: tuple[int, int], waste: float
) -> None:
    (kernel,) = forward("aten.add.Tensor", t(*shape), t(*shape), strides={1: steps})
    elements = shape[0] * shape[1]
    assert kernel.sizes == Strided(elements, 2, 3, waste)


def test_axes_in_which_all_tensors_lie_alike_are_one() -> None:
    (kernel,) = forward("aten.add.Tensor", t(2, 3, 4, 5), t(4, 5))
    assert kernel.sizes == Strided(2 * 3 * 4 * 5, 2, 3)  # 2 * 3 and 4 * 5
    (kernel,) = forward("aten.add.Tensor", t(2, 3, 4, 5), t(3, 1, 5))
    assert kernel.sizes == Strided(2 * 3 * 4 * 5, 4, 3)
    (kernel,) = forward("aten.add.Tensor", t(2, 1, 3), t(2, 1, 3), strides={1: (3, 7, 1)})
    assert kernel.sizes is None  # the step of an axis of one element does not matter


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("relu", (g(4, 64),), [pointwise(N, 8 * N, 4 * N)]),
        # a product: of each factor the other one times the gradient, summed over where it was repeated
        (
            "mul.Tensor",
            (g(4, 64), g(64)),
            [
                pointwise(N, 4 * (N + 64), 4 * N, Strided(N, 2, 3)),
                pointwise(N, 8 * N, 4 * N),
                ("reduction", "outer", N, 4 * N, 4 * 64, Rows(64, 4, False)),
            ],
        ),
        (
            "mul.Tensor",
            (t(32, 8), g(8)),
            [pointwise(N, 8 * N, 4 * N), ("reduction", "outer", N, 4 * N, 4 * 8, Rows(8, 32, False))],
        ),
        ("add.Tensor", (g(4, 64), g(4, 64)), []),
        ("masked_fill.Scalar", (g(4, 64), t(4, 64, dtype="bool"), 0.0), [copied(4 * N, 4 * N), pointwise(N, 5 * N, 4 * N)]),
        ("constant_pad_nd.default", (g(4, 64), (1, 1), 0.0), [pointwise(0, 0, 4 * N), copied(4 * N, 4 * N)]),
        ("roll.default", (g(4, 64), (1, 2), (0, 1)), [copied(4 * N, 4 * N, variant="roll")] * 2),
        ("slice.Tensor", (g(4, 64), 0, 0, 2), [pointwise(0, 0, 4 * N), copied(4 * N // 2, 4 * N // 2)]),
        ("slice.Tensor", (g(4, 64), 0, 0, 4), []),
        ("expand.default", (g(1, 64), (4, 64)), [("reduction", "outer", N, 4 * N, 4 * 64, Rows(64, 4, False))]),
        ("sum.dim_IntList", (g(4, 64), (1,)), []),
        ("cumsum.default", (g(4, 64), 1), [TURNED, ("scan", "cumsum", N, 4 * N, 4 * N, Rows(4, 64)), TURNED]),
        ("cumsum.default", (g(4, 64), 0), [TURNED, ("scan", "outer", N, 4 * N, 4 * N, Rows(64, 4, False)), TURNED]),
        ("dropout.default", (g(4, 64), 0.5, True), [("elementwise", "dropout_backward", 2 * N, 5 * N, 4 * N, None)]),
    ],
)  # fmt: skip
def test_gradients_of_elements(op: str, operands: tuple[Any, ...], expected: list[Made]) -> None:
    assert made(backward(f"aten.{op}", *operands)) == expected


R = 4 * 6 * 8


@pytest.mark.parametrize(
    ("axes", "results", "is_inner", "variant"),
    [
        ((1,), 4 * 8, False, "outer"),
        ((2,), 4 * 6, True, ""),
        ((-1,), 4 * 6, True, ""),
        ((0, 2), 6, True, "planes"),
        ((0, 1), 8, False, "outer"),
        ((0, 1, 2), 1, True, ""),
        ((1, 2), 4, True, ""),
    ],
)
def test_sums_by_the_axes_that_are_left(
    axes: tuple[int, ...], results: int, is_inner: bool, variant: str
) -> None:
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        rows = Rows(results, R // results, is_inner)
        expected = ("reduction", variant, R, width * R, width * results, rows)
        assert made(forward("aten.sum.dim_IntList", t(4, 6, 8, dtype=dtype), axes)) == [expected]


def test_the_gradient_of_a_mean_is_repeated() -> None:
    (kernel,) = backward("aten.mean.dim", g(4, 6, 8), (1,))
    assert (kernel.read_bytes, kernel.written_bytes, kernel.vector_flops) == (4 * 4 * 8, 4 * R, R)
    assert kernel.sizes == Strided(R, 2, 2)


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [
        ((4, 6, 8), -1, Rows(4 * 6, 8)),
        ((4, 8), 1, Rows(4, 8)),
        # along an outer axis: as many blocks as runs of up to 1024 neighbours, and 1024 / 16 threads for each of a block
        ((4, 100, 16), 1, Rows(4, 2, False)),
        ((4, 128, 16), 1, Rows(4, 128 // 64, False)),
        ((4, 64, 16), 1, Rows(4, 1, False)),
        (
            (4, 63, 16),
            1,
            Rows(1, 63, False),
        ),  # too short to be shared; 4 * 16 threads are less than a whole block
        ((4, 100, 64), 1, Rows(4, 100 // 16 + 1, False)),
        ((16, 100, 100), 1, Rows(16 * 128 // 1024, 100, False)),  # 128 neighbours: too many to share
        ((4, 100, 2048), 1, Rows(4 * 2, 100, False)),
        ((3, 7), 0, Rows(1, 3, False)),
    ],
)
def test_softmax_by_its_axis(shape: tuple[int, ...], axis: int, rows: Rows) -> None:
    count = 1
    for size in shape:
        count *= size
    (kernel,) = forward("aten.softmax.int", t(*shape), axis)
    assert (kernel.read_bytes, kernel.written_bytes, kernel.sizes) == (4 * count, 4 * count, rows)
    is_shared = not rows.is_inner and rows.columns < shape[axis]
    assert kernel.variant == ("softmax" if rows.is_inner else "outer_shared" if is_shared else "outer")
    product, gradient = backward("aten.softmax.int", g(*shape), axis)
    assert made([product]) == [pointwise(count, 8 * count, 4 * count)]
    assert (gradient.read_bytes, gradient.written_bytes, gradient.sizes) == (8 * count, 4 * count, rows)
    (alone,) = backward("aten.log_softmax.int", g(*shape), axis)
    assert (alone.read_bytes, alone.written_bytes, alone.sizes) == (8 * count, 4 * count, rows)


def test_a_softmax_of_a_turned_operand_copies_it_first() -> None:
    kernels = forward("aten.softmax.int", t(4, 8), -1, strides={0: (1, 4)})
    assert [kernel.family for kernel in kernels] == ["copy", "softmax"]


def test_lookups_and_their_gradients() -> None:
    table, index = g(100, 8), t(4, 5, dtype="int64")
    rows = 4 * 5
    assert made(forward("aten.embedding.default", table, index)) == [
        ("gather", "embedding", 0, (4 * 8 + 8) * rows, 4 * 8 * rows, Rows(rows, 8))
    ]
    zeros = pointwise(0, 0, 4 * 100 * 8)
    moved = 4 * 8 * rows
    assert made(backward("aten.embedding.default", table, index)) == [
        zeros,
        ("scatter", "embedding_backward", 0, moved, moved, Rows(8, rows, False)),
    ]
    rows = 3072  # up to which they are added in any order
    (_, added) = backward("aten.embedding.default", table, t(rows, dtype="int64"))
    assert added.sizes == Rows(8, rows, False)
    rows, moved = 3073, 4 * 8 * 3073
    assert made(backward("aten.embedding.default", table, t(rows, dtype="int64"))) == [
        zeros,
        ("sort", "embedding_indices", 0, 8 * rows, 8 * rows, Rows(1, rows)),
        ("scatter", "at_once", 0, moved, 0, Rows(rows, 30)),  # to each of 100 rows
    ]


@pytest.mark.parametrize(
    ("op", "rows", "columns", "count", "microseconds"),
    [
        ("embedding", 181, 128, 338_967, 193.9),
        ("embedding", 2_146, 128, 1_171_875, 437.9),
        ("embedding", 44_562, 128, 160_197, 204.7),
        ("index", 3_145, 768, 733, 16.8),
        ("index", 121, 256, 31_012, 217.2),
        ("index", 1_081, 256, 53_291, 105.4),
    ],
)
def test_gradients_of_looked_up_rows_take_as_long_as_on_an_h100(
    op: str, rows: int, columns: int, count: int, microseconds: float
) -> None:
    table, index = g(rows, columns, dtype="bfloat16"), t(count, dtype="int64")
    operator, given = {"embedding": ("embedding.default", index), "index": ("index.Tensor", (index,))}[op]
    kernels = backward(f"aten.{operator}", table, given)
    found = sum(predict(kernel, devices.device("h100")).seconds for kernel in kernels)
    assert found == pytest.approx(microseconds * 1e-6, rel=0.3)


def test_gathers_are_scattered_back() -> None:
    table, index = g(10, 8), t(4, 8, dtype="int64")
    zeros = pointwise(0, 0, 4 * 10 * 8)
    elements = 4 * 8
    assert made(backward("aten.gather.default", table, 0, index)) == [
        zeros,
        ("scatter", "elements", 0, 8 * elements, 4 * elements, Rows(elements, 0)),
    ]
    assert made(backward("aten.gather.default", table, 1, index)) == [
        zeros,
        ("scatter", "scatter_add", 0, (4 + 8) * elements, 4 * elements, Rows(elements, 1)),
    ]
    assert made(backward("aten.index_select.default", table, 0, t(4, dtype="int64"))) == [
        zeros,
        ("scatter", "index_add", 0, 8 * elements, 4 * elements, Rows(elements, 0)),
    ]


def test_rows_that_are_copied_are_not_added_to_others() -> None:
    """What `index_copy_` writes over is not read; `index_add_` reads it."""
    x, index, source = t(10, 8), t(4, dtype="int64"), t(4, 8)
    read = {
        name: forward(f"aten.{name}_.default", x, 0, index, source)[0].read_bytes
        for name in ("index_copy", "index_add")
    }
    assert read == {"index_copy": 4 * 4 * 8, "index_add": 2 * 4 * 4 * 8}
