"""Kernels of calls by their kind, and of their gradients, where one kind or size borders on another: worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Kernel, Rows, Strided, Windows
from graphflops.kernels.lower import inside_operator
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, backward, copied, forward, made, one_call, pointwise

N, W = 4 * 8, 4 * 4 * 8  # elements of a matrix of 4 x 8, and bytes in float32
X, HALF = t(4, 8), t(4, 8, dtype="bfloat16")
G, G_HALF = g(4, 8), g(4, 8, dtype="bfloat16")
MASK, INDEX = t(4, 8, dtype="bool"), t(4, dtype="int64")
TURNED = {0: (1, 4)}
MANY, SIXTEEN = t(17, dtype="int64"), t(16, dtype="int64")
HALF_12 = t(4, 12, dtype="bfloat16")
NEAREST = [("pool", "nearest_backward", 0, 4 * 4 * 384, 4 * 384, Windows(2 * 132 * 1024, 4))]
DRAWN = [pointwise(0, 0, W)] * 2  # for each channel, and scaled


def spread(read: int) -> Made:
    """A number for each row, or one for all, repeated along the rest."""
    return pointwise(N, read, W, Strided(N, 2, 3))


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        # A function takes as long as three operations; of gelu and gradients it runs beside them.
        ("silu.default", (X,), [pointwise(int(4.9 * N), W, W)]),  # operations that a function takes as long as
        ("tanh.default", (X,), [pointwise(int(3.4 * N), W, W)]),
        ("log2.default", (X,), [pointwise(3 * N, W, W)]),  # not measured: three for each evaluation
        ("gelu.default", (X,), [pointwise(int(6.5 * N), W, W)]),
        ("gelu.default", (X, "tanh"), [pointwise(int(5.1 * N), W, W)]),
        ("silu_backward.default", (X, X), [pointwise(5 * N + N, 2 * W, W)]),
        ("sigmoid_backward.default", (X, X), [pointwise(3 * N, 2 * W, W)]),
        # Memory that nobody has written, and numbers of the CPU, take no kernel.
        ("empty.memory_format", ((4, 8),), []),
        ("new_empty.default", (X, (4, 8)), []),
        ("scalar_tensor.default", (1.0,), []),
        ("full.default", ((4, 8), 1.0), [pointwise(0, 0, W)]),
        ("new_zeros.default", (X, (4, 8)), [pointwise(0, 0, W)]),
        ("copy.default", (X, X), [pointwise(0, W, W)]),
        ("copy_.default", (X, X), [pointwise(0, W, W)]),
        # Whatever is not known by name is one kernel with the operator's work: differences, squares, sums and a root.
        ("cdist.default", (X, t(5, 8)), [("other", "", 4 * 5 * 3 * 8 + 4 * 5, W + 4 * 5 * 8, 4 * 4 * 5, None)]),
        ("cross.default", (t(4, 3), t(4, 3)), [("other", "", 4 * 9, 2 * 48, 48, None)]),
        ("native_dropout.default", (X, 0.5, True), [("random", "dropout", 3 * N, W, W + N, None)]),
        ("feature_dropout.default", (X, 0.5, True), [*DRAWN, ("random", "dropout", 3 * N, W, W, None)]),
        ("feature_dropout.default", (X, 0.5, False), []),
        (
            "feature_dropout.default",  # of six channels, drawn and scaled, with which four elements each are multiplied
            (t(2, 3, 4), 0.5, True),
            [*[("elementwise", "", 0, 0, 4 * 6, None)] * 2, ("random", "dropout", 2 * 6 + 24, 96, 96, None)],
        ),
        ("dropout.default", (X, 0.0, False), []),
        ("masked_fill_.Scalar", (X, MASK, 0.0), [pointwise(N, W + N, W)]),
        # A number is written where a mask tells by one such call.
        ("index_put_.default", (X, (MASK,), t()), [pointwise(N, W + N, W)]),
        ("index_put.default", (X, (MASK,), t()), [copied(W, W), pointwise(N, W + N, W)]),
        ("bernoulli.default", (X,), [("random", "bernoulli", N, W, W, Rows(4, 8))]),
        ("randint.default", (8, (4, 8)), [("random", "rand", 0, 0, 2 * W, Rows(4, 8))]),
        # Rows of 16 bytes are copied whole, others element by element.
        ("index.Tensor", (X, (INDEX,)), [("gather", "index", 0, W + 32, W, Rows(4, 8))]),
        ("index.Tensor", (t(4, 6), (INDEX,)), [("gather", "elements", 0, 4 * 24 + 32, 4 * 24, Strided(24, 2, 3))]),
        ("index.Tensor", (HALF, (INDEX,)), [("gather", "index", 0, W // 2 + 32, W // 2, Rows(4, 8))]),
        ("index.Tensor", (t(4, 4, dtype="bfloat16"), (INDEX,)), [("gather", "elements", 0, 32 + 32, 32, Strided(16, 2, 3))]),
        ("index.Tensor", (HALF_12, (INDEX,)), [("gather", "elements", 0, 96 + 32, 96, Strided(48, 2, 3))]),
        # A row is all that lies behind the first axis; a block copies 4,096 bytes of it.
        ("index.Tensor", (t(10, 2, 4), (INDEX,)), [("gather", "index", 0, W + 32, W, Rows(4, 8))]),
        ("index.Tensor", (t(10, 2, 1024), (INDEX,)), [("gather", "index", 0, 32768 + 32, 32768, Rows(8, 1024))]),
        ("index.Tensor", (t(10, 7), (None, INDEX)), [("gather", "elements", 0, 160 + 32, 160, Strided(40, 2, 3))]),
        # cuFFT has a kernel for each axis, that of real numbers first or last; it may overwrite what it makes real.
        ("_fft_r2c.default", (X, (1,), 0, True), [("fft", "", 4 * 60, W, 4 * 5 * 8, None)]),
        (
            "_fft_c2r.default",
            (t(4, 5, dtype="complex64"), (1,), 2, 8),
            [("copy", "memcpy", 0, 160, 160, None), ("fft", "", 4 * 60, 160, W, None), pointwise(N, W, W)],
        ),
        # More than 16 rows of 16 bytes or a multiple are read as those of an index.
        ("index_select.default", (t(10, 8), 0, MANY), [("gather", "index", 0, 544 + 136, 544, Rows(17, 8))]),
        ("index_select.default", (t(10, 2, 4), 0, MANY), [("gather", "index", 0, 544 + 136, 544, Rows(17, 8))]),
        ("index_select.default", (t(10, 6), 0, MANY), [("gather", "gather", 0, 544, 408, Strided(102, 2, 3))]),
        ("index_select.default", (t(10, 8), 1, INDEX), [("gather", "index_select", 0, 4 * 40 + 32, 4 * 40, Rows(10, 4))]),
        ("embedding.default", (t(10, 6), MANY), [("gather", "gather", 0, 544, 408, Strided(102, 2, 3))]),
        ("embedding.default", (t(10, 8), MANY), [("gather", "embedding", 0, 680, 544, Rows(17, 8))]),
        # A thread for each element of a row goes through up to 16 rows.
        ("index_select.default", (t(10, 8), 0, INDEX), [("gather", "few", 0, 4 * 32 + 32, 4 * 32, Rows(8, 4))]),
        ("embedding.default", (t(10, 6), INDEX), [("gather", "few", 0, 4 * 24 + 32, 4 * 24, Rows(6, 4))]),
        ("embedding.default", (t(99, 8), SIXTEEN), [("gather", "few", 0, 640, 512, Rows(8, 16))]),
        # Reflected elements are read by the kernel that writes all; a copy fills the result with zeros first.
        ("pad.default", (t(1, 4, 8), (1, 1), "reflect"), [pointwise(0, W, 4 * 40)]),
        ("pad.default", (t(1, 4, 8), (1, 1), "replicate"), [pointwise(0, W, 4 * 40)]),
        ("pad.default", (t(1, 4, 8), (1, 1), "circular"), [pointwise(0, 0, 4 * 40), copied(W, W, Strided(N, 2, 2))]),
        ("constant_pad_nd.default", (X, (0, 0), 0.0), [copied(W, W)]),
        ("roll.default", (X, 1), [copied(W, W, variant="roll")]),
        ("roll.default", (X, (1, 2, 3), (0, 1, 0)), [copied(W, W, variant="roll")] * 3),
    ],
)  # fmt: skip
def test_forwards(op: str, given: tuple[Any, ...], expected: list[Made]) -> None:
    outputs = 2 if op.startswith("native_dropout") else 1
    found = forward(f"aten.{op}", *given, outputs=outputs)
    assert made(found) == expected
    assert all(kernel.flops == 0 for kernel in found)


@pytest.mark.parametrize(
    ("op", "given", "rows", "variant"),
    [
        ("sum.default", (X,), Rows(1, N), ""),
        ("sum.default", (t(8),), Rows(1, 8), ""),
        ("sum.dim_IntList", (t(8), (0,)), Rows(1, 8), ""),
        ("sum.dim_IntList", (t(8), (0,), True), Rows(1, 8), ""),
        ("sum.dim_IntList", (X, (0,)), Rows(8, 4, False), "outer"),
        ("sum.dim_IntList", (X, (0,), True), Rows(8, 4, False), "outer"),
        ("sum.dim_IntList", (X, (-2,)), Rows(8, 4, False), "outer"),
        ("sum.dim_IntList", (X, (1,), True), Rows(4, 8), ""),
        ("argmax.default", (X, 0), Rows(8, 4, False), "outer_pairs"),
        ("argmax.default", (X, 1), Rows(4, 8), "pairs"),
        ("argmax.default", (X, -1), Rows(4, 8), "pairs"),
        ("argmax.default", (X,), Rows(1, N), "pairs"),
        ("var.correction", (X, (0,)), Rows(8, 4, False), "outer_pairs"),
        ("var.correction", (X, (-1,)), Rows(4, 8), "pairs"),
        ("var_mean.correction", (X, (-1,)), Rows(4, 8), "pairs"),
        ("max.default", (X,), Rows(1, N), ""),
        ("max.dim", (X, 1), Rows(4, 8), "pairs"),
        ("amax.default", (X, (1,)), Rows(4, 8), ""),
        ("max.default", (t(8),), Rows(1, 8), ""),
        ("any.dim", (MASK, 1), Rows(4, 8), ""),
        ("any.dim", (MASK, 0), Rows(8, 4, False), "outer"),
        ("sum.default", (t(),), Rows(1, 1), ""),
        ("sum.dim_IntList", (t(8, 8), (0,)), Rows(8, 8, False), "outer"),
        ("sum.dim_IntList", (t(8, 8), (1,)), Rows(8, 8), ""),
    ],
)
def test_rows_of_reductions(op: str, given: tuple[Any, ...], rows: Rows, variant: str) -> None:
    """pairs: of a mean and squares, or a value and its place, where each element waits for the one before."""
    (kernel,) = forward(f"aten.{op}", *given)
    assert (kernel.family, kernel.sizes, kernel.variant) == ("reduction", rows, variant)


@pytest.mark.parametrize(
    ("op", "given", "is_copy", "lies", "expected"),
    [
        ("clone.default", (X,), None, {}, [copied(W, W)]),
        ("clone.default", (X,), False, {}, []),
        ("contiguous.default", (X,), True, TURNED, [copied(W, W, Strided(N, 2, 2, 32 / 8))]),
        ("reshape.default", (X, (32,)), None, {}, []),
        ("reshape.default", (X, (32,)), True, {}, [copied(W, W)]),
        ("reshape.default", (X, (32,)), False, {}, []),
        ("detach.default", (X,), None, {}, []),
        ("permute.default", (X, (1, 0)), None, {}, []),
        ("to.dtype", (X, X.dtype), None, {}, []),
    ],
)  # fmt: skip
def test_layouts_that_copy(
    op: str, given: Any, is_copy: bool | None, lies: Any, expected: list[Made]
) -> None:
    found = made(forward(f"aten.{op}", *given, is_copy=is_copy, strides=lies))
    assert [one[:5] for one in found] == [one[:5] for one in expected]


@pytest.mark.parametrize(
    ("op", "given", "images"),
    [
        ("upsample_linear1d.vec", (t(64, 32, 512), None, False, (2.0,)), 64 * 32),
        ("upsample_bilinear2d.vec", (t(64, 32, 64, 64), None, False, (0.5, 0.5)), 64 * 32),
        ("upsample_trilinear3d.vec", (t(64, 32, 8, 8, 8), None, False, (2.0, 2.0, 2.0)), 64 * 32),
        ("upsample_bilinear2d.vec", (t(64, 1, 2, 2), None, False, (256.0, 256.0)), 64),
    ],
)
def test_loads_of_interpolation(op: str, given: Any, images: int) -> None:
    """A thread for each position takes one image after the other."""
    (kernel,) = forward(f"aten.{op}", *given)
    assert isinstance(kernel.sizes, Rows)
    assert (kernel.variant, kernel.sizes.columns, kernel.sizes.is_inner) == ("linear", images, False)


@pytest.mark.parametrize(
    ("how", "own", "times"),
    [
        ("sum", True, [2]),
        ("sum", False, [2, 2]),
        ("amax", False, [2, 4]),
        ("prod", True, [4]),
        ("mean", True, [2, 2]),
    ],
)
def test_elements_of_scatter_reduce(how: str, own: bool, times: list[int]) -> None:
    """Without the operand itself places are overwritten first; extremes load and exchange; a mean counts its terms too."""
    given = t(100, 8), 0, t(500, 8, dtype="int64"), t(500, 8), how
    made_of = forward("aten.scatter_reduce.two", *given, include_self=own)
    added = [kernel.read_bytes for kernel in made_of if kernel.family == "scatter"]
    assert added == [each * 4 * 500 * 8 for each in times]


def test_interpolation_without_arithmetic_has_a_thread_for_each_result() -> None:
    (kernel,) = forward("aten.upsample_nearest2d.vec", t(2, 3, 8, 8), None, (2.0, 2.0))
    assert made([kernel]) == [("pool", "nearest", 0, 4 * 384, 4 * 4 * 384, Windows(4 * 384, 0))]
    given = t(4, 1, 16, 16), None, False, (2.0, 2.0)
    single = forward("aten.upsample_bilinear2d.vec", *given, strides={0: (256, 1, 16, 1)})
    assert single == forward("aten.upsample_bilinear2d.vec", *given)  # one channel is no channels last


BAG = g(10, 8), t(6, dtype="int64"), t(3, dtype="int64")
BAGS = ("scatter", "at_once", 0, 6 * 4 * 8, 0, Rows(6, 0))


def zeros(written: int) -> list[Made]:
    return [pointwise(0, 0, written)]


def added_in_order(table: int, name: str, rows: int, added: Made) -> list[Made]:
    """Rows that are added into zeros, after their indices of 8 bytes are sorted."""
    order = ("sort", f"{name}_indices", 0, 8 * rows, 8 * rows, Rows(1, rows))
    return [*zeros(table), order, added]


def repeated(moved: int) -> Made:
    """Four of ten rows drawn at random: 0.4 + 3 * 0.4 ** 0.5 = 2.3 times the same at most, a third where rows are short."""
    return ("scatter", "repeated", 0, moved, moved, Rows(4, 2 // 3))


def resized(work: int) -> list[Made]:
    """Images of 384 elements from those of 4 * 384."""
    return [("pool", "resize_backward", work, 4 * 4 * 384, 4 * 384, None)]


def interpolated(elements: int, results: int) -> list[Made]:
    """Each result adds to four neighbours, which are zeros before; too few results add to one place for any to wait."""
    moved = 4 * results, 4 * 4 * results
    return [*zeros(4 * elements), ("scatter", "linear", 0, *moved, Windows(results, 0))]


PAIR = (G, g(6, 8, dtype="bfloat16"))


@pytest.mark.parametrize(
    ("op", "given", "outputs", "expected"),
    [
        # Joined parts are views of the gradient; one of another element type is converted.
        ("cat.default", (PAIR, 0), 1, [copied(4 * 48, 2 * 48)]),
        ("cat.default", ((G, g(6, 8)), 0), 1, []),
        ("stack.default", ((G, G), 0), 1, []),
        ("repeat.default", (G, (8, 1)), 1, [("reduction", "outer", 8 * N, 8 * W, W, Rows(8, 32, False))]),
        ("tril.default", (g(8, 8),), 1, [copied(2 * 128, 2 * 128)]),
        ("flip.default", (G, (0,)), 1, [copied(W, W)]),
        ("pixel_shuffle.default", (g(2, 16, 4, 4), 2), 1, [copied(4 * 512, 4 * 512, Strided(512, 4, 2))]),
        ("pad.default", (g(1, 4, 8), (1, 1), "reflect"), 1, [copied(W, W)]),
        ("pad.default", (g(1, 4, 8), (1, 1), "constant"), 1, [pointwise(0, 0, W), copied(W, W)]),
        # Elements that were chosen go back into zeros, with their places of 8 bytes.
        ("sort.default", (G,), 2, [pointwise(0, 0, W), ("scatter", "scatter", 0, W + 8 * N, W, Rows(N, 1))]),
        ("topk.default", (G, 2), 2, [pointwise(0, 0, W), ("scatter", "scatter", 0, 8 * 12, 8 * 4, Rows(8, 1))]),
        ("median.dim", (G, 1), 2, [pointwise(0, 0, W), ("scatter", "scatter", 0, 4 * 12, 4 * 4, Rows(4, 1))]),
        ("kthvalue.default", (G, 2, 1), 2, [pointwise(0, 0, W), ("scatter", "scatter", 0, 4 * 12, 4 * 4, Rows(4, 1))]),
        ("cummax.default", (G, 1), 2, [pointwise(0, 0, W), ("scatter", "scatter", 0, W + 8 * N, W, Rows(N, 1))]),
        ("max.dim", (G, 1), 2, [pointwise(0, 0, W), ("scatter", "scatter", 0, 4 * 12, 4 * 4, Rows(4, 1))]),
        ("median.default", (G,), 1, [pointwise(N, W, W)]),  # a function without a formula
        ("sum.default", (G,), 1, []),
        ("mean.default", (G,), 1, [pointwise(N, 4, W, Strided(N, 2, 2))]),
        ("logsumexp.default", (G, (1,)), 1, [spread(W + 16), pointwise(N, W, W), spread(W + 16)]),
        ("prod.dim_int", (G, 1), 1, [pointwise(N, W, N), spread(W + 16), spread(W + 16)]),
        # Gradients of a selection: a number for what is hidden, and a choice by the mask.
        ("where.self", (MASK, G, X), 1, [pointwise(0, 0, 4), pointwise(N, W + N, W)]),
        ("where.self", (MASK, G_HALF, HALF), 1, [pointwise(0, 0, 2), pointwise(N, W // 2 + N, W // 2)]),
        ("pow.Tensor_Scalar", (G, 3.0), 1, [pointwise(N, W, W), pointwise(N, W, W), pointwise(N, 2 * W, W)]),
        ("tanh.default", (G,), 1, [pointwise(3 * N, 2 * W, W)]),  # a kernel of its own
        ("silu.default", (G,), 1, [pointwise(5 * N + N, 2 * W, W)]),
        ("native_dropout.default", (G, 0.5, True), 2, [("elementwise", "dropout_backward", 2 * N, W + N, W, None)]),
        # Rows that were gathered are added into zeros: those of a plain index in order of their places.
        ("index.Tensor", (g(10, 8), (INDEX,)), 1, added_in_order(320, "few", 4, repeated(W))),
        ("index.Tensor", (g(10), (INDEX,)), 1, added_in_order(40, "few", 4, repeated(16))),
        ("take.default", (g(10, 6), INDEX), 1, [*zeros(240), ("scatter", "index_add", 0, 32, 16, Rows(4, 0))]),
        ("embedding_bag.default", BAG, 4, added_in_order(320, "few", 6, BAGS)),
        ("embedding.default", (t(10, 8), INDEX), 1, []),
        # One kernel, or several that share work and traffic, for what has no lowering of its own.
        ("upsample_nearest2d.vec", (g(2, 3, 8, 8), None, (2.0, 2.0)), 1, NEAREST),
        ("cross.default", (g(4, 3), g(4, 3)), 1, [("other", "aten.cross_backward", 36, 144 // 2, 96 // 2, None)] * 2),
        ("upsample_linear1d.vec", (g(2, 3, 8), None, False, (2.0,)), 1, interpolated(48, 96)),
        ("upsample_bilinear2d.vec", (g(1, 1, 8, 8), None, False, (0.25, 0.25)), 1, interpolated(64, 4)),
        ("_upsample_bicubic2d_aa.vec", (g(2, 3, 8, 8), None, False, (2.0, 2.0)), 1, resized(12 * 1536)),
    ],
)  # fmt: skip
def test_backwards(op: str, given: tuple[Any, ...], outputs: int, expected: list[Made]) -> None:
    found = backward(f"aten.{op}", *given, outputs=outputs)
    assert made(found) == expected
    assert all(kernel.flops == 0 for kernel in found)


def test_masks_have_a_byte_for_each_element() -> None:
    """Of a maximum: where both are equal, half of the gradient; where one is less, none. Each mask is read as bytes."""
    kernels = made(backward("aten.maximum.default", G, X))
    assert kernels == [
        pointwise(N, 2 * W, N),
        pointwise(N, W, W),
        pointwise(N, 2 * W + N, W),
        pointwise(N, 2 * W, N),
        pointwise(N, W + N, W),
    ]


def test_a_scan_goes_back_from_the_last_element() -> None:
    """Of a cumulative product: the gradient times the result, its sum from the end, divided by the operand."""
    product, mask, found, turned, scan, back, last = made(backward("aten.cumprod.default", G, 1))
    assert (product, last) == (pointwise(N, 2 * W, W), pointwise(N, 2 * W, W))
    assert mask == pointwise(N, W, N)
    assert found == ("reduction", "", N, W, 4, Rows(1, N))  # whether one is zero
    assert turned == back == ("copy", "strided", 0, W, W, None)
    assert scan == ("scan", "cumprod", N, W, W, Rows(4, 8))


def test_gradients_of_operands_of_other_types_are_converted() -> None:
    """In the type of the result, then as narrow as the operand."""
    *kernels, last = made(backward("aten.mul.Tensor", G_HALF, X))
    assert kernels == [pointwise(N, W + W, W)]
    assert last == copied(W, W // 2)


def test_one_kernel_for_the_gradients_of_all_operands() -> None:
    """Where the formula is fused each operand that is repeated is summed after it."""
    first, summed = backward("aten.prelu.default", g(1, 4, 7), g(4))
    assert (first.family, first.written_bytes) == ("elementwise", 4 * 28)
    assert (summed.family, summed.read_bytes, summed.written_bytes) == ("reduction", 4 * 28, 4 * 4)
    assert len(backward("aten.prelu.default", g(2, 4, 8), t(4))) == 1


@pytest.mark.parametrize(
    ("op", "given", "families", "left"),
    [
        # A module that is one operator copies nothing, and applies what follows a product with it.
        ("relu.default", (X,), ["elementwise"], []),
        ("mul.Tensor", (X, X), ["elementwise"], ["elementwise"]),
        ("linear.default", (X, t(6, 8), t(6)), ["matmul", "elementwise", "copy"], ["matmul"]),
        ("sum.default", (X,), ["reduction", "copy"], ["reduction"]),
        ("softmax.int", (X, -1), ["copy", "softmax", "elementwise"], ["softmax", "elementwise"]),
    ],
)
def test_kernels_inside_of_one_operator(op: str, given: Any, families: list[Any], left: list[str]) -> None:
    call = one_call(f"aten.{op}", *given)
    kernels = tuple(Kernel(family, "float32") for family in families)
    assert [kernel.family for kernel in inside_operator(call.call, kernels)] == left


def test_the_gradient_of_what_is_added_by_index_is_rows_of_that_of_the_result() -> None:
    index = t(40, dtype="int64")
    (kernel,) = backward("aten.index_add.default", t(100, 8), 0, index, g(40, 8))
    assert (kernel.family, kernel.variant, kernel.sizes) == ("gather", "index", Rows(40, 8))
    (uneven,) = backward("aten.index_add.default", t(100, 3), 0, index, g(40, 3))  # rows of 12 bytes
    assert (uneven.family, uneven.variant, uneven.sizes) == ("gather", "gather", Strided(120, 2, 3))


@pytest.mark.parametrize(("strides", "is_by_rows"), [((1, 0), True), ((8, 1), False)])
def test_rows_are_taken_where_an_index_is_repeated_along_them(
    strides: tuple[int, int], is_by_rows: bool
) -> None:
    index = t(40, 8, dtype="int64")
    given = (t(100, 8), 0, index, g(40, 8))
    (kernel,) = backward("aten.scatter_add.default", *given, strides={2: strides})
    assert (kernel.family == "gather" and kernel.sizes == Rows(40, 8)) is is_by_rows


def test_entries_of_a_bag_are_added_one_after_the_other() -> None:
    given = t(10, 8), t(12, dtype="int64"), t(3, dtype="int64")
    (kernel,) = forward("aten.embedding_bag.default", *given, outputs=4)
    assert (kernel.variant, kernel.sizes) == ("embedding_bag", Rows(3, 4))


@pytest.mark.parametrize(
    ("lie", "first"),
    [
        ({}, None),
        ({1: (1, 4)}, None),
        ({0: (1, 4)}, Strided(N, 2, 3, 4.0)),
    ],  # four rows use a sector of 32 bytes
)
def test_a_gradient_without_a_formula_goes_along_the_first_operand(lie: Any, first: Strided | None) -> None:
    """Two kernels share what all read: both operands and the gradient of the result; one alone reads all three."""
    each = pointwise(N, 3 * W // 2, W, first)
    assert made(backward("aten.special_zeta.default", G, G, strides=lie)) == [each, each]
    alone = pointwise(N, 3 * W, W, first)
    assert made(backward("aten.special_zeta.default", G, X, strides=lie)) == [alone]


@pytest.mark.parametrize(
    ("given", "sums"),
    [
        ((G, G), []),
        ((G, g(8)), [8]),
        ((g(8), G), [8]),
        ((g(1, 8), g(4, 1)), [8, 4]),
        ((t(8), G), []),
        ((G, t(8)), []),
    ],
)
def test_gradients_that_are_calls_are_summed_where_an_operand_is_repeated(
    given: Any, sums: list[int]
) -> None:
    """Behind all calls, one for each operand that wants a gradient and has fewer elements than the result."""
    whole = [G if each.requires_grad else X for each in given]
    count = len(backward("aten.atan2.default", *whole))
    found = backward("aten.atan2.default", *given)[count:]
    assert [(kernel.read_bytes, kernel.written_bytes) for kernel in found] == [(W, 4 * left) for left in sums]


def test_the_gradient_of_an_operator_of_no_known_arguments_is_one_kernel() -> None:
    """It reads a place of eight bytes and a gradient for each element that it writes."""
    places, count = t(2, 3, 8, 8, dtype="int64"), 2 * 3 * 8 * 8
    assert made(backward("aten.max_unpool2d.default", g(2, 3, 8, 8), places, (16, 16))) == [
        ("other", "aten.max_unpool2d_backward", 0, (8 + 4) * count, 4 * count, None)
    ]
