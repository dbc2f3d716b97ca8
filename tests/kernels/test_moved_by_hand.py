"""Kernels that move more than they compute, at the borders between one kernel and another, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.execution.strides import row_major
from graphflops.kernels.call import Tensor
from graphflops.kernels.gathered import _listed
from graphflops.kernels.kernel import Rows, Strided, Windows
from graphflops.kernels.moved import added_rows, copy, fill, is_last, reduction, scattered, strided, sum_to
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, made, pointwise

WIDTHS = {"float32": 4, "bfloat16": 2, "float64": 8, "bool": 1}


def tensor(*shape: int, steps: tuple[int, ...] | None = None, dtype: str = "float32") -> Tensor:
    """A tensor in order, or with strides of its own."""
    count = 1
    for size in shape:
        count *= size
    width = WIDTHS[dtype]
    return Tensor(shape, dtype, 8 * width, steps or row_major(shape), width * count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "kept", "rows", "variant"),
    [
        (tensor(4, 6, 8), [0], Rows(4, 6 * 8), ""),
        (tensor(4, 6, 8), [0, 1], Rows(4 * 6, 8), ""),
        (tensor(4, 6, 8), [1], Rows(6, 4 * 8), "planes"),  # images and pixels of a channel
        (tensor(4, 6, 8), [2], Rows(8, 4 * 6, False), "outer"),
        (tensor(4, 6, 8), [], Rows(1, 4 * 6 * 8), ""),
        (tensor(4, 6, 8), [0, 1, 2], Rows(4 * 6 * 8, 1), ""),  # nothing is added up
        (tensor(2, 8), [1], Rows(8, 2, False), "outer"),  # two rows are rows
        (tensor(8, 2), [1], Rows(2, 8, False), "outer"),
        (tensor(8, 2), [0], Rows(8, 2), ""),
        (tensor(2, 8), [0], Rows(2, 8), ""),
        (tensor(4, 8, 1), [1], Rows(8, 4, False), "outer"),  # an axis of one element is not innermost
        (tensor(1, 8), [1], Rows(8, 1), ""),
        (tensor(1, 8), [0], Rows(1, 8), ""),
        (tensor(1, 4, steps=(0, 1)), [0], Rows(1, 4), ""),  # as a view that could be repeated
        (tensor(8, 4, steps=(1, 8)), [1], Rows(4, 8), ""),  # turned: what is added lies together
        (tensor(8, 4, steps=(1, 8)), [0], Rows(8, 4, False), "outer"),
        (tensor(4, 6, 8, steps=(48, 1, 6)), [1], Rows(6, 4 * 8, False), "outer"),  # channels last
    ],
)
def test_which_axis_lies_innermost_decides_how_a_sum_is_computed(
    x: Tensor, kept: list[int], rows: Rows, variant: str
) -> None:
    found = sum_to(x, kept)
    assert (found.sizes, found.variant) == (rows, variant)
    assert (found.read_bytes, found.written_bytes) == (4 * x.numel, 4 * rows.rows)
    assert sum_to(x, kept, 16).written_bytes == 2 * rows.rows


def test_a_reduction_adds_each_element_once() -> None:
    found = reduction(tensor(6, 5, dtype="bfloat16"), 6)
    assert made([found]) == [("reduction", "", 6 * 5, 2 * 6 * 5, 2 * 6, Rows(6, 5))]
    found = reduction(tensor(6, 5, dtype="bfloat16"), 5, is_inner=False, bits=64)
    assert made([found]) == [("reduction", "outer", 6 * 5, 2 * 6 * 5, 8 * 5, Rows(5, 6, False))]
    assert reduction(tensor(0, 5), 0).sizes == Rows(0, 0)


def test_a_fill_writes_each_element_of_a_repeated_view() -> None:
    view = Tensor((4, 8), "float32", 32, (0, 1), 4 * 8)
    assert made([fill(view)]) == [pointwise(0, 0, 4 * 4 * 8)]


@pytest.mark.parametrize(
    ("x", "last"),
    [
        (tensor(2, 3, 4, 4, steps=(48, 1, 12, 3)), True),
        (tensor(2, 3, 4, steps=(12, 1, 3)), True),  # of a sequence
        (tensor(2, 2, 4, steps=(8, 1, 2)), True),  # two channels are several
        (tensor(2, 1, 4, steps=(4, 1, 1)), False),
        (tensor(4, 3, steps=(3, 1)), False),  # rows have no positions beside their channels
        (tensor(2, 3, 4, steps=(24, 2, 6)), False),
    ],
)
def test_channels_are_innermost(x: Tensor, last: bool) -> None:
    assert is_last(x) is last


@pytest.mark.parametrize(
    ("out", "operands", "walk"),
    [
        (tensor(4, 8), [tensor(4, 8)], None),
        (tensor(4, 8), [tensor()], Strided(32, 1, 2)),  # a number is read by each thread
        (tensor(4, 8), [tensor(4, 8), tensor(4, 8, dtype="bool")], None),  # truth values are no conversion
        (
            tensor(4, 8),
            [tensor(4, 8), tensor(4, 8, dtype="bfloat16")],
            Strided(32, 1, 3, has_casts=True),
        ),
        (tensor(4, 8), [tensor(4, 8, dtype="bfloat16")], None),  # only operands of several types are
        (tensor(4, 8), [tensor(8)], Strided(32, 2, 2)),
        (tensor(4, 8), [tensor(1, 8)], Strided(32, 2, 2)),
        (tensor(4, 8), [tensor(4, 1)], Strided(32, 2, 2)),
        (tensor(4, 8), [tensor(1)], Strided(32, 1, 2)),  # one element for all
        (tensor(1), [tensor(1)], None),
        (tensor(1, 1), [tensor(1, 1), tensor(1, dtype="bfloat16")], Strided(1, 1, 3, has_casts=True)),
        (tensor(), [tensor()], None),
        (tensor(2), [tensor(2, steps=(3,))], Strided(2, 1, 2, 3 * 4 - 4)),
        # every second element of both: the result brings as much as the operand that is not wanted, and is read first
        (
            tensor(8, steps=(2,)),
            [tensor(8, steps=(2,))],
            Strided(8, 1, 2, 2 * (2 * 4 - 4)),
        ),
        (tensor(4, 8), [tensor(4, 8, steps=(16, 1))], Strided(32, 2, 2)),  # rows with gaps between them
        (tensor(2, 3, 8), [tensor(2, 3, 8, steps=(48, 8, 1))], Strided(48, 2, 2)),  # 3 * 8 lie together
        (tensor(2, 3, 8), [tensor(3, 1)], Strided(48, 3, 2)),
        (tensor(2, 3, 8), [tensor(2, 1, 1)], Strided(48, 2, 2)),
        (tensor(8, 4, steps=(1, 8)), [tensor(8, 4, steps=(1, 8))], None),  # both turned alike
    ],
)
def test_kernels_that_compute_an_address_for_each_element(
    out: Tensor, operands: list[Tensor], walk: Strided | None
) -> None:
    assert strided(out, operands) == walk


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "users"),
    [
        # Of a result of rows x columns the operand's columns lie together: a load of 32 bytes brings 8 elements of a
        # column, which as many rows use as fit into a block of 256 neighbouring elements.
        (64, 256, "float32", 1),
        (64, 255, "float32", 1),
        (64, 129, "float32", 1),
        (64, 128, "float32", 2),
        (64, 86, "float32", 2),
        (64, 85, "float32", 3),
        (64, 64, "float32", 4),
        (64, 64, "bfloat16", 4),
        (64, 128, "float64", 2),
        (64, 512, "float32", 1),
    ],
)
def test_rows_share_what_a_load_brings(rows: int, columns: int, dtype: str, users: int) -> None:
    out, width = tensor(rows, columns, dtype=dtype), WIDTHS[dtype]
    found = strided(out, [tensor(rows, columns, steps=(1, rows), dtype=dtype)])
    assert found == Strided(rows * columns, 2, 2, max(32 / users - width, 0))


def test_no_more_rows_share_a_load_than_there_are() -> None:
    found = strided(tensor(3, 64), [tensor(3, 64, steps=(1, 3))])
    assert found == Strided(3 * 64, 2, 2, 32 / 3 - 4)
    found = strided(tensor(2, 64), [tensor(2, 64, steps=(1, 2))])
    assert found == Strided(2 * 64, 2, 2, 2 * 4 - 4)  # less than half of a load


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [
        ((4, 6, 8), 0, Rows(6 * 8, 4, False)),
        ((4, 6, 8), 1, Rows(4 * 8, 6, False)),
        ((4, 6, 8), 2, Rows(4 * 6, 8)),
        ((4, 6, 8), -1, Rows(4 * 6, 8)),
        ((4, 6, 8), -3, Rows(6 * 8, 4, False)),
        ((8,), 0, Rows(1, 8)),
    ],
)
def test_scans_and_sorts_work_on_rows_along_an_axis(shape: tuple[int, ...], axis: int, rows: Rows) -> None:
    count = rows.rows * rows.columns
    variant = "cumsum" if rows.is_inner else "outer"
    assert made(forward("aten.cumsum.default", t(*shape), axis)) == [
        ("scan", variant, count, 4 * count, 4 * count, rows)
    ]
    *before, kernel = forward("aten.sort.default", t(*shape), axis, outputs=2)
    assert kernel.sizes == rows
    # In place: a copy of the values, and places of 8 bytes that are counted, repeated for each row and copied.
    assert [each.written_bytes for each in before] == [4 * count, 8 * rows.columns, 8 * count, 8 * count]
    assert [each.read_bytes for each in before] == [4 * count, 0, 8 * count, 8 * count]
    assert {each.sizes for each in before} == {None}  # each in order
    assert (kernel.read_bytes, kernel.written_bytes) == (4 * count, (4 + 8) * count)


@pytest.mark.parametrize(
    ("columns", "axis", "variant"),
    [
        (32, -1, "warp"),
        (33, -1, "block"),
        (128, -1, "block"),
        (4096, -1, "block"),
        (4097, -1, "radix"),
        (128, 0, "warp"),  # of four elements along the first axis
    ],
)
def test_short_rows_are_sorted_by_a_warp_or_a_block(columns: int, axis: int, variant: str) -> None:
    *_, kernel = forward("aten.sort.default", t(4, columns), axis, outputs=2)
    assert kernel.variant == variant
    (of_topk,) = forward("aten.topk.default", t(4, columns), 2, outputs=2)
    assert of_topk.variant == "topk"


@pytest.mark.parametrize(("columns", "places"), [(33, 128), (128, 128), (129, 256)])
def test_a_block_sorts_a_power_of_two_of_places(columns: int, places: int) -> None:
    *_, kernel = forward("aten.sort.default", t(4, columns), -1, outputs=2)
    assert (kernel.vector_flops, kernel.sizes) == (4 * places * 32, Rows(1, 32))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "sorts", "passes"),
    [
        (4, 5000, "float32", 1, 4 + 3),  # of 8 bits each; then by the numbers of the rows
        (4, 5000, "bfloat16", 1, 2 + 3),
        (1, 5000, "float32", 1, 4 + 1),
        (4, 1_000_000, "float32", 4, 4 + 1),  # each row by itself
    ],
)
def test_passes_of_a_radix_sort(rows: int, columns: int, dtype: str, sorts: int, passes: int) -> None:
    *_, kernel = forward("aten.sort.default", t(rows, columns, dtype=dtype), -1, outputs=2)
    assert kernel.sizes == Rows(sorts * passes, rows * columns // sorts)
    assert (kernel.read_bytes, kernel.written_bytes) == (passes * rows * columns * int(dtype[-2:]) // 8, 0)


@pytest.mark.parametrize(
    ("rows", "length", "variant"),
    [
        (20, 19_999, "topk"),
        (20, 20_000, "topk_in_parts"),
        (21, 10_000, "topk_in_parts"),
        (200, 2_999, "topk"),
        (4000, 800, "topk_in_parts"),
        (4001, 400, "topk_in_parts"),
    ],
)
def test_long_rows_are_searched_by_many_blocks(rows: int, length: int, variant: str) -> None:
    """As `should_use_multiblock` of TensorTopK.cu says; along any axis."""
    for shape, axis in (((rows, length), 1), ((length, rows), 0)):
        (kernel,) = forward("aten.topk.default", t(*shape), 2, axis, outputs=2)
        assert kernel.variant == variant


X1, X3 = 2 * 3 * 8, 2 * 3 * 8 * 8 * 8


@pytest.mark.parametrize(
    ("op", "shape", "window", "positions", "results"),
    [
        # one number stands for all axes of a window
        ("max_pool1d", (2, 3, 8), (2,), 2, 2 * 3 * 4),
        ("max_pool2d", (2, 3, 8, 8), (2,), 2 * 2, 2 * 3 * 4 * 4),
        ("max_pool2d", (2, 3, 8, 8), (4,), 4 * 4, 2 * 3 * 2 * 2),
        ("max_pool2d", (2, 3, 8, 8), (2, 4), 2 * 4, 2 * 3 * 4 * 2),
        ("max_pool3d", (2, 3, 8, 8, 8), (2,), 2 * 2 * 2, 2 * 3 * 4 * 4 * 4),
        ("max_pool3d", (2, 3, 8, 8, 8), (2, 4, 8), 2 * 4 * 8, 2 * 3 * 4 * 2 * 1),
    ],
)
def test_positions_of_a_window(
    op: str, shape: tuple[int, ...], window: tuple[int, ...], positions: int, results: int
) -> None:
    count = positions * results  # windows that touch one another
    (kernel,) = forward(f"aten.{op}.default", g(*shape), window, window)
    assert kernel.sizes == Windows(results, positions)
    assert (kernel.read_bytes, kernel.written_bytes) == (4 * count, (4 + 8) * results)
    assert kernel.variant == ("max_pool_volume" if len(shape) == 5 else "max_pool")
    zeros, back = backward(f"aten.{op}.default", g(*shape), window, window)
    assert (zeros.read_bytes, zeros.written_bytes) == (0, 4 * count)
    assert (back.read_bytes, back.written_bytes) == ((4 + 8) * results, 4 * count)
    is_volume = len(shape) == 5  # whose gradients are added, one by one
    assert back.sizes == Windows(results if is_volume else count, 1)


@pytest.mark.parametrize(
    ("shape", "positions", "sizes"),
    [
        ((2, 8, 16, 16), (1, 1), Windows(2 * 8, 16 * 16)),  # one thread of a block works
        ((2, 8, 16, 16), (1, 8), Windows(2 * 8, 16 * 2)),  # eight do
        ((2, 16, 128, 128), (64, 64), Windows(2 * 16, (2 * 2) * 2 * 8)),  # a thread has 2 x 8 results
        ((2, 4, 128, 128), (64, 64), Windows(2 * 4, (2 * 2) * 2 * 2)),  # few channels: four blocks each
    ],
)
def test_adaptive_maxima_have_a_block_for_each_plane(
    shape: tuple[int, ...], positions: tuple[int, int], sizes: Windows
) -> None:
    (kernel,) = forward("aten.adaptive_max_pool2d.default", g(*shape), positions)
    assert kernel.sizes == sizes


def test_a_pooling_without_results_is_no_kernel() -> None:
    assert forward("aten.max_pool2d.default", t(0, 3, 8, 8), (2, 2), (2, 2)) == []
    assert backward("aten.max_pool2d.default", g(0, 3, 8, 8), (2, 2), (2, 2)) == []


def test_gradients_of_pooling_copy_turned_images_again() -> None:
    """That of an adaptive average reads no image, so it copies none."""
    turned = (192, 64, 1, 8)
    size, given = 4 * 2 * 3 * 8 * 8, (g(2, 3, 8, 8), (2, 2))
    (again, *rest) = backward("aten.max_pool2d.default", *given, (2, 2), strides={0: turned})
    assert (again.family, again.read_bytes, again.written_bytes) == ("copy", size, size)
    assert isinstance(again.sizes, Strided)
    assert [kernel.family for kernel in rest] == ["elementwise", "pool"]
    back = backward("aten.adaptive_avg_pool2d.default", *given, strides={0: turned})
    assert [kernel.family for kernel in back] == ["elementwise", "pool"]
    (first, _) = forward("aten.adaptive_avg_pool2d.default", *given, strides={0: turned})
    assert (first.family, first.read_bytes, first.written_bytes) == ("copy", size, size)


@pytest.mark.parametrize(
    ("dtype", "elements", "name", "variant", "in_turn"),
    [
        ("float32", 128, "scatter", "scatter", 1),
        ("float32", 129, "scatter", "scatter", 2),
        ("float32", 7 * 128 + 1, "scatter_add", "scatter_add", 8),
        ("bfloat16", 9 * 128, "scatter_reduce", "scatter_add", 8),
    ],
)
def test_elements_go_to_places_of_their_own(
    dtype: str, elements: int, name: str, variant: str, in_turn: int
) -> None:
    size = WIDTHS[dtype] * elements
    found = scattered(tensor(10, dtype=dtype), elements, name)
    assert made([found]) == [("scatter", variant, 0, size + 8 * elements, size, Rows(elements, in_turn))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_added_rows_are_read_with_what_they_are_added_to(dtype: str) -> None:
    size = WIDTHS[dtype] * 24
    found = added_rows(tensor(10, 8, dtype=dtype), 24)
    assert made([found]) == [("scatter", "index_add", 0, 2 * size, size, Rows(24, 0))]


def test_values_at_named_places_are_rows_of_the_last_axis() -> None:
    """Four rows of 8 are written to ten, in place or into a copy."""
    x, places, values = t(10, 8), (t(4, dtype="int64"),), t(4, 8)
    kernels = forward("aten.index_put_.default", x, places, values)
    (kernel,) = kernels
    assert (kernel.family, kernel.written_bytes, kernel.sizes) == ("scatter", 4 * 4 * 8, Rows(4, 8))
    whole: list[Any] = forward("aten.index_put.default", x, places, values)
    assert [each.family for each in whole] == ["scatter", "elementwise"]
    halves = t(10, 8, dtype="bfloat16"), places, t(4, 8, dtype="bfloat16")
    (kernel,) = forward("aten.index_put_.default", *halves)
    assert (kernel.written_bytes, kernel.sizes) == (2 * 4 * 8, Rows(4, 8))


def softmax(shape: tuple[int, ...], axis: int) -> Any:
    (kernel,) = forward("aten.softmax.int", t(*shape), axis)
    return kernel.sizes


@pytest.mark.parametrize(
    ("shape", "variants"),
    [
        ((4, 64, 64), ("outer_shared", "outer_shared_backward")),
        ((4, 63, 64), ("outer", "outer_backward")),
        ((4, 64, 128), ("outer", "outer_backward")),
        ((4, 64, 1), ("log_softmax", "log_softmax_backward")),
    ],
)
def test_kernels_of_a_softmax_along_an_outer_axis(shape: tuple[int, ...], variants: tuple[str, str]) -> None:
    given = "aten.log_softmax.int", g(*shape), 1
    found = (*forward(*given), *backward(*given))
    assert tuple(kernel.variant for kernel in found) == variants


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [
        # Of two neighbours along an outer axis, 1024 / 2 threads share what is added up.
        ((4, 512, 2), 1, Rows(4, 1, False)),
        ((4, 513, 2), 1, Rows(4, 2, False)),
        # Four blocks of 64 * 2 threads are half a block of 1,024, eight a whole one.
        ((4, 64, 2), 1, Rows(1, 1, False)),
        ((8, 64, 2), 1, Rows(1, 1, False)),
        ((9, 64, 2), 1, Rows(2, 1, False)),
        ((4, 63, 2), 1, Rows(1, 63, False)),
        ((4, 64, 64), 1, Rows(4, 64 // 16, False)),
        ((16, 64, 65), 1, Rows(16 * 128 // 1024, 64, False)),  # a block for 65 has the place of 128
        ((16, 64, 128), 1, Rows(16 * 128 // 1024, 64, False)),
        ((4, 64, 1024), 1, Rows(4, 64, False)),
        ((4, 64, 1025), 1, Rows(4 * 2, 64, False)),
        ((3, 4, 64, 1024), 2, Rows(3 * 4, 64, False)),
        ((64, 1), 0, Rows(1, 64)),
    ],
)
def test_neighbouring_rows_of_a_softmax_have_a_block(shape: tuple[int, ...], axis: int, rows: Rows) -> None:
    assert softmax(shape, axis) == rows


def test_a_turned_operand_is_converted_as_it_is_put_in_order() -> None:
    """Of 32 elements in float64, whose columns lie together: a load of 32 bytes serves the four of a column it brings."""
    x = tensor(4, 8, steps=(1, 4), dtype="float64")
    found = copy(x, 32)
    assert found.sizes == Strided(32, 2, 2, 32 / 4 - 8, True)
    assert (found.read_bytes, found.written_bytes, found.variant) == (8 * 32, 4 * 32, "strided")
    assert copy(tensor(4, 8, steps=(1, 4)), 16).sizes == Strided(
        32, 2, 2, 32 / 4 - 4
    )  # narrowed as it is moved


@pytest.mark.parametrize(
    ("index", "copies", "is_in_order"),
    [
        (None, 0, True),
        (tensor(1, steps=(7,)), 0, True),
        (tensor(4, 6), 0, True),
        (tensor(4, steps=(3,)), 0, False),  # a list with gaps
        (tensor(2, steps=(3,)), 0, False),
        (tensor(4, 6, steps=(1, 4)), 1, True),  # turned
    ],
)
def test_indices_become_one_list(index: Tensor | None, copies: int, is_in_order: bool) -> None:
    made, found = _listed(index)
    assert (len(made), found) == (copies, is_in_order)
