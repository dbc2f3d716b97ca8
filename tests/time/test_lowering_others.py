"""Kernels of pooling, scatters, losses, joins and collectives, and of their gradients, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Chunks, Exchange, Rows, Strided, Windows
from tests.one_call import g
from tests.support import t
from tests.time.one_call import Made, backward, copied, forward, made, pointwise

X, Y = 2 * 3 * 8 * 8, 2 * 3 * 4 * 4  # elements before and after windows of 2 x 2


def pool(variant: str, read: int, written: int, results: int, positions: float) -> Made:
    return ("pool", variant, 0, read, written, Windows(results, positions))


def test_maxima_have_positions_of_8_bytes() -> None:
    for outputs, name in ((1, "max_pool2d"), (2, "max_pool2d_with_indices")):
        given: Any = (f"aten.{name}.default", g(2, 3, 8, 8), (2, 2), (2, 2))
        there, back = (function(*given, outputs=outputs) for function in (forward, backward))
        assert made(there) == [pool("max_pool", 4 * X, 12 * Y, Y, 2 * 2)]
        # an element is in one window
        assert made(back) == [pointwise(0, 0, 4 * X), pool("max_pool_backward", 12 * Y, 4 * X, X, 1)]


def test_overlapping_windows() -> None:
    """Windows of 3 x 3 two apart, 4 x 4 of them: each of 8 x 8 elements is in 9 / 4 on average."""
    given: Any = ("aten.max_pool2d.default", g(2, 3, 8, 8), (3, 3), (2, 2), (1, 1))
    assert made(forward(*given)) == [pool("max_pool", 4 * X, 12 * Y, Y, 9)]
    assert made(backward(*given))[1] == pool("max_pool_backward", 12 * Y, 4 * X, X, 9 / 4)


def test_averages_add_up_and_divide() -> None:
    given: Any = ("aten.avg_pool2d.default", g(2, 3, 8, 8), (2, 2), (2, 2))
    assert made(forward(*given)) == [pool("avg_pool", 4 * X, 4 * Y, Y, 2 * 2 + 1)]
    assert made(backward(*given)) == [pool("avg_pool_backward", 4 * Y, 4 * X, X, 5 / 4)]
    volume: Any = ("aten.avg_pool3d.default", g(2, 3, 8, 8, 8), (2, 2, 2), (2, 2, 2))
    assert [kernel.variant for kernel in (*forward(*volume), *backward(*volume))] == [
        "avg_pool_volume",
        "avg_pool_volume_backward",
    ]


@pytest.mark.parametrize(
    ("steps", "variants"),
    [
        ((192, 1, 24, 3), ["avg_pool_last"]),
        ((192, 64, 1, 8), ["strided", "avg_pool"]),  # turned images are copied first
    ],
)
def test_layouts_of_pooled_images(steps: tuple[int, ...], variants: list[str]) -> None:
    kernels = forward("aten.avg_pool2d.default", t(2, 3, 8, 8), (2, 2), (2, 2), strides={0: steps})
    assert [kernel.variant for kernel in kernels] == variants


def test_adaptive_averages() -> None:
    given: Any = ("aten.adaptive_avg_pool2d.default", g(2, 3, 8, 8), (2, 2))
    results = 2 * 3 * 2 * 2
    assert made(forward(*given)) == [pool("adaptive_avg_pool", 4 * X, 4 * results, results, 4 * 4)]
    gradient = pool("adaptive_avg_pool_backward", 4 * results, 4 * X, X, 1)
    assert made(backward(*given)) == [pointwise(0, 0, 4 * X), gradient]


@pytest.mark.parametrize(
    ("steps", "variant", "is_inner"), [((192, 64, 8, 1), "", True), ((192, 1, 24, 3), "outer", False)]
)
def test_an_average_of_all_positions_is_a_mean(steps: Any, variant: str, is_inner: bool) -> None:
    given: Any = ("aten.adaptive_avg_pool2d.default", g(2, 3, 8, 8), (1, 1))
    expected = ("reduction", variant, X, 4 * X, 4 * 6, Rows(6, 64, is_inner))
    assert made(forward(*given, strides={0: steps})) == [expected]
    assert made(backward(*given)) == [pointwise(X, 4 * 6, 4 * X, Strided(X, 2, 2))]


def scattered(variant: str, elements: int, in_turn: int) -> Made:
    return ("scatter", variant, 0, (4 + 8) * elements, 4 * elements, Rows(elements, in_turn))


@pytest.mark.parametrize(
    ("columns", "in_turn"),
    [(12, 1), (13, 2), (80, 7), (90, 8), (800, 8)],  # of 128 threads, up to eight elements each
)
@pytest.mark.parametrize(("name", "variant"), [("scatter.src", "scatter"), ("scatter_add", "scatter_add")])
def test_elements_are_scattered_along_rows(name: str, variant: str, columns: int, in_turn: int) -> None:
    x, index, size = t(10, columns), t(10, columns, dtype="int64"), 4 * 10 * columns
    assert made(forward(f"aten.{name}", x, 1, index, x)) == [
        copied(size, size),
        scattered(variant, 10 * columns, in_turn),
    ]


def test_rows_are_added_by_atomic_additions() -> None:
    x, source, index = t(10, 8), t(4, 8), t(4, dtype="int64")
    added = ("scatter", "index_add", 0, 2 * 4 * 32, 4 * 32, Rows(32, 0))
    copy = copied(4 * 80, 4 * 80)
    assert made(forward("aten.index_add.default", x, 0, index, source)) == [copy, added]
    assert made(forward("aten.index_add_.default", x, 0, index, source)) == [added]
    (kernel,) = forward("aten.index_add_.default", x, 0, t(50, dtype="int64"), t(50, 8))
    assert kernel.sizes == Rows(50 * 8, 5)  # 5 additions to each element, one after the other
    each, places = ("scatter", "elements", *added[2:]), t(4, 8, dtype="int64")
    assert made(forward("aten.scatter.src", x, 0, places, source)) == [copy, each]
    assert made(forward("aten.scatter_reduce.two", x, 0, places, source, "sum")) == [copy, copy, each]
    columns, places = t(10, 2), t(2, dtype="int64")
    added = ("scatter", "index_add", 0, 2 * 4 * 20, 4 * 20, Rows(20, 0))
    assert made(forward("aten.index_add_.default", x, 1, places, columns)) == [added]


def test_losses_of_classes() -> None:
    x, classes = g(10, 8), t(10, dtype="int64")
    rows, n = Rows(10, 8), 10 * 8
    picked = Rows(1, 1)  # one turn of a block
    softmax = ("softmax", "log_softmax", 5 * n, 4 * n, 4 * n, rows)
    back = ("softmax", "log_softmax_backward", 5 * n, 8 * n, 4 * n, rows)
    gather, scatter = (("gather", "nll_loss", 0, 0, 0, picked), ("scatter", "nll_loss", 0, 0, 0, picked))
    zeros = pointwise(0, 0, 4 * n)
    assert made(forward("aten.cross_entropy_loss.default", x, classes)) == [softmax, gather]
    assert made(backward("aten.cross_entropy_loss.default", x, classes)) == [zeros, scatter, back]
    assert made(forward("aten.nll_loss.default", x, classes)) == [gather]
    assert made(backward("aten.nll_loss.default", x, classes)) == [zeros, scatter]
    images = (g(2, 8, 3, 3), t(2, 3, 3, dtype="int64"))
    softmax_kernel, gather_kernel = forward("aten.cross_entropy_loss.default", *images)
    assert (softmax_kernel.sizes, gather_kernel.sizes) == (Rows(1, 8, False), Rows(1, 1))  # 2 * 9 threads


def test_losses_of_elements() -> None:
    n = 10 * 8
    each, mean = pointwise(2 * n, 8 * n, 4 * n), ("reduction", "", n, 4 * n, 4, Rows(1, n))
    assert made(forward("aten.mse_loss.default", g(10, 8), t(10, 8))) == [each, mean]
    assert made(backward("aten.mse_loss.default", g(10, 8), t(10, 8))) == [each] * 2


def test_a_loss_of_logits() -> None:
    """Operations that functions take as long as: as measured 4.6 for a sigmoid, 7.6 for its logarithm."""
    n = 10 * 8
    log_sigmoid, ones = pointwise(int(7.6 * n), 4 * n, 4 * n), pointwise(0, 0, 4 * n)
    of_two, mean = pointwise(n, 8 * n, 4 * n), ("reduction", "", n, 4 * n, 4, Rows(1, n))
    found = made(forward("aten.binary_cross_entropy_with_logits.default", g(10, 8), t(10, 8)))
    assert found == [log_sigmoid, ones, *[of_two] * 3, mean]
    sigmoid, divided = (pointwise(int(work * n), 4 * n, 4 * n) for work in (4.6, 1))
    scaled = pointwise(n, 4 * n + 4, 4 * n, Strided(n, 1, 3))  # by one number
    found = made(backward("aten.binary_cross_entropy_with_logits.default", g(10, 8), t(10, 8)))
    assert found == [sigmoid, of_two, scaled, divided]


def test_a_loss_that_is_not_reduced() -> None:
    assert len(forward("aten.mse_loss.default", g(10, 8), g(10, 8), 0)) == 1
    assert len(backward("aten.mse_loss.default", g(10, 8), g(10, 8), 0)) == 2 * 2


@pytest.mark.parametrize(
    ("shapes", "axis", "variant"),
    [
        (((4, 8), (6, 8)), 0, "cat_aligned"),
        (((4, 8), (4, 4)), 1, "cat_aligned"),
        (((4, 8), (4, 3)), 1, "cat"),  # 12 bytes are no multiple of 16, and 32 a sector
        (((2, 3, 8), (2, 5, 8)), 1, "cat_aligned"),
        (((2, 3, 1), (2, 5, 1)), 1, "cat_narrow"),  # 12 and 20 bytes lie side by side
        (((2, 3, 1), (2, 8, 1)), 1, "cat"),  # a part of 32
    ],
)
def test_joined_tensors(shapes: tuple[Any, Any], axis: int, variant: str) -> None:
    parts = tuple(t(*shape) for shape in shapes)
    size = sum(part.nbytes for part in parts)
    looked_at = len(parts) * size if variant == "cat_narrow" else 0  # each part goes through all
    assert made(forward("aten.cat.default", parts, axis)) == [("copy", variant, looked_at, size, size, None)]
    wanted = tuple(g(*shape) for shape in shapes)
    assert not backward("aten.cat.default", wanted, axis)


def test_each_of_many_parts_has_as_many_blocks_as_the_largest_needs() -> None:
    (kernel,) = forward("aten.cat.default", (t(12, 8), t(4, 8), t(4, 8)), 0)
    assert (kernel.variant, kernel.vector_flops) == ("cat_aligned", 3 * 12 * 8)


def test_parts_that_hold_nothing_count_as_out_of_order() -> None:
    """ATen tells a tensor without elements from others by its one axis, and then copies element by element."""
    size = 2 * 4 * 8 * 4
    (kernel,) = forward("aten.cat.default", (t(0), t(2, 4, 8)), -2)
    assert made([kernel]) == [("copy", "joined", 2 * 4 * 8, size, size, None)]


def test_images_with_their_channels_last_are_joined_as_rows() -> None:
    first, second = t(2, 8, 4, 4), t(2, 16, 4, 4)
    lies = {"0_0": (128, 1, 32, 8), "0_1": (256, 1, 64, 16)}
    size = 4 * 2 * (8 + 16) * 4 * 4
    assert made(
        forward("aten.cat.default", (first, second), 1, strides=lies, out_strides=(384, 1, 96, 24))
    ) == [("copy", "cat_last", 0, size, size, None)]
    mixed = made(forward("aten.cat.default", (first, second), 1, strides={"0_0": lies["0_0"]}))
    assert mixed == [("copy", "joined", 2 * 16 * 4 * 4, size, size, None)]


@pytest.mark.parametrize(
    ("op", "parts", "axis", "kernels"),
    [
        ("cat", (t(2, 4, 4, 8), t(2, 4, 4, 8)), 0, 1),
        ("cat", (t(1, 2, 4, 4, 8), t(1, 2, 4, 4, 8)), 0, 2),  # more than four axes
        ("stack", (t(2, 4, 4, 8), t(2, 4, 4, 8)), 0, 1),  # joined along an axis that they have
        ("stack", (t(2, 4, 4, 8), t(2, 4, 4, 8)), -1, 2),
        ("stack", (t(4, 4, 8), t(4, 4, 8)), -1, 1),
    ],
)
def test_what_one_kernel_cannot_join_is_copied_part_by_part(
    op: str, parts: tuple[Any, Any], axis: int, kernels: int
) -> None:
    found = forward(f"aten.{op}.default", parts, axis)
    assert [kernel.family for kernel in found] == ["copy"] * kernels
    assert sum(kernel.read_bytes for kernel in found) == sum(part.nbytes for part in parts)
    assert sum(kernel.written_bytes for kernel in found) == 4 * sum(part.numel for part in parts)


def test_a_split_into_given_tensors_is_no_join() -> None:
    outs = (t(4, 8), t(4, 24))
    (kernel,) = forward("fsdp.split_with_sizes_copy.default", t(4, 32), (8, 24), 1, out=outs)
    assert (kernel.family, kernel.vector_flops) == ("copy", 0)


def test_copies_into_a_last_axis_skip_elements() -> None:
    """Elements of the other part lie between: two of 4 bytes, so that a load brings 4 of waste."""
    found = forward("aten.stack.default", (t(2, 4, 4, 8), t(2, 4, 4, 8)), -1)
    assert [kernel.sizes for kernel in found] == [Strided(256, 1, 2, 4.0)] * 2


def test_parts_that_are_all_used_are_joined_in_the_gradient() -> None:
    size = 4 * 4 * 8
    assert made(backward("aten.unbind.int", g(4, 8), 0, outputs=4)) == [
        copied(size, size, variant="cat_aligned")
    ]
    assert made(backward("aten.split.Tensor", g(4, 8), 2, outputs=2)) == [("copy", "", 0, size, size, None)]


C10D, SIZE = "_c10d_functional", 4 * 4 * 8


def exchange(name: str, read: int, written: int, sent: int) -> Made:
    return ("collective", name, 0, read, written, Exchange(sent))


def test_collectives_that_work_in_place_copy_their_operand_first() -> None:
    given: Any = (f"{C10D}.all_reduce.default", g(4, 8), "sum", "0")
    for kernels in (forward(*given), backward(*given)):
        assert [kernel.family for kernel in kernels] == ["copy", "collective"]
        assert made(kernels[:1]) == [copied(SIZE, SIZE)]
    in_place = forward(f"{C10D}.all_reduce_.default", g(4, 8), "sum", "0")
    assert [kernel.family for kernel in in_place] == ["collective"]


def test_parts_are_gathered_where_they_were_scattered() -> None:
    """Between two devices each sends one part of what both have together."""
    gather: Any = (f"{C10D}.all_gather_into_tensor.default", g(4, 8), 2, "0")
    scatter: Any = (f"{C10D}.reduce_scatter_tensor.default", g(4, 8), "sum", 2, "0")
    assert made(forward(*gather)) == [exchange("all_gather", SIZE, 2 * SIZE, SIZE)]
    assert made(backward(*gather)) == [exchange("reduce_scatter", 2 * SIZE, SIZE, SIZE)]
    assert made(forward(*scatter)) == [exchange("reduce_scatter", SIZE, SIZE // 2, SIZE // 2)]
    assert made(backward(*scatter)) == [exchange("all_gather", SIZE // 2, SIZE, SIZE // 2)]
    assert not forward(f"{C10D}.wait_tensor.default", t(4, 8))


def test_gradients_of_views() -> None:
    """Parts are copied into zeros, repeats are added up; the whole in another shape is a view."""
    size = 4 * 4 * 64
    assert backward("aten.expand.default", g(4, 64), (4, 64)) == []
    assert backward("aten.expand.default", g(4, 64), (1, 4, 64)) == []
    (summed,) = backward("aten.expand.default", g(4, 1), (4, 64))
    assert (summed.family, summed.read_bytes, summed.written_bytes) == ("reduction", size, 4 * 4)
    assert backward("aten.reshape.default", g(4, 64), (64, 4)) == []
    assert backward("aten.slice.Tensor", g(4, 64), 1, 0, 64) == []
    zeros, copy = backward("aten.slice.Tensor", g(4, 64), 1, 0, 16)
    assert made([zeros]) == [pointwise(0, 0, size)]
    assert (copy.family, copy.read_bytes, copy.written_bytes) == ("copy", size // 4, size // 4)
    for name, variant, outputs in (("unbind.int", "joined", 64), ("split.Tensor", "", 4)):
        rest = (1,) if variant else (16, 1)
        joined = ("copy", variant, 0, size, size, None)
        assert made(backward(f"aten.{name}", g(4, 64), *rest, outputs=outputs)) == [joined]


def test_calls_on_lists_run_as_passes_of_an_optimizer_do() -> None:
    """The tensors of a list are packed into one kernel; chunks of 65,536 elements each, 320 of them in a kernel."""

    def lists(name: str, *operands: Any) -> list[Made]:
        return made(forward(f"aten._foreach_{name}", *operands))

    two, chunks = (t(8), t(16)), Chunks(2, 16)
    moved = 4 * (8 + 16)
    assert lists("add_.List", two, two) == [("optimizer", "", 0, 2 * moved, moved, chunks)]
    assert lists("sqrt.default", two) == [("optimizer", "root", 0, moved, moved, chunks)]
    assert lists("div_.ScalarList", two, (1.0, 2.0)) == [("optimizer", "division", 0, moved, moved, chunks)]
    halves = (t(8, dtype="bfloat16"),)
    assert lists("copy_.default", halves, (t(8),)) == [("optimizer", "", 0, 4 * 8, 2 * 8, Chunks(1, 8))]
    long = lists("mul_.Scalar", (t(321 * 65536),), 2.0)
    assert [kernel[-1] for kernel in long] == [Chunks(320, 65536), Chunks(1, 65536)]
    many = (t(8),) * 65  # a kernel takes 64 pairs of tensors, or 110 alone
    assert [
        len(lists(name, many, *more)) for name, more in (("add_.List", (many,)), ("neg_.default", ()))
    ] == [2, 1]


def test_gradients_are_joined_by_a_kernel_of_their_own() -> None:
    (same,) = made(forward("fsdp.chunk_cat.default", (t(3), t(2, 2)), 0, 4, out=t(4, 2)))
    assert same == ("copy", "chunks", 0, 4 * (3 + 4), 4 * 8, None)
    halves = (t(3, dtype="bfloat16"), t(2, 2, dtype="bfloat16"))
    (converted,) = made(forward("fsdp.chunk_cat.default", halves, 0, 4, out=t(4, 2)))
    assert converted == ("copy", "chunks_converting", 0, 2 * (3 + 4), 4 * 8, None)
