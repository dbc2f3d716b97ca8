"""Kernels that move more than they compute, at the borders of their models: each expected time is worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Chunks, Convolution, Kernel, Rows, Strided, Windows
from graphflops.time.predict_traffic import in_turn, seconds as of_traffic
from tests.time.toy_device import TRAFFIC, device

NS, US, MS = 1e-9, 1e-6, 1e-3


def took(
    kernel: Kernel, rates: dict[str, float], cores: int | None = 4, width: float = 4, **more: Any
) -> tuple[float, float, float]:
    """Seconds of a kernel, and of these its arithmetic and its traffic, which takes none unless a bandwidth is given."""
    fast = {"bandwidth": 1e18, "multiprocessors": cores, **more}
    return of_traffic(kernel, width, {**TRAFFIC, **rates}, device(**fast))


def kernel(sizes: Any, family: Any = "elementwise", dtype: str = "float32", **fields: Any) -> Kernel:
    moved = {"read_bytes": 4, "written_bytes": 4}
    return Kernel(family, dtype, sizes=sizes, **{**moved, **fields})


def test_chunks_take_their_floor_and_the_longest() -> None:
    """Three elements of the longest chunk of a millisecond each, and 6 MB that take twice as long."""
    one = kernel(Chunks(8, 3), "optimizer", read_bytes=4 * 10**6, written_bytes=2 * 10**6)
    found = took(one, {"column": 1e6, "memory": 1.0, "floor": 1e6}, bandwidth=1e9)
    assert found == pytest.approx((1 + ((3 * MS) ** 1.5 + (6 * MS) ** 1.5) ** (2 / 3), 3 * MS, 6 * MS))


@pytest.mark.parametrize(("columns", "turns"), [(2047, 2047), (2048, 2048), (2049, 2049 / 32)])
def test_rows_of_at_most_2048_are_of_a_warp(columns: int, turns: float) -> None:
    """Of a longer one each of the 32 warps of a block takes a part; a column takes a millisecond."""
    one = kernel(Rows(1, columns), "softmax")
    found = took(one, {"padded": 1e12, "column": 1e6})[0]
    assert found == pytest.approx(turns * MS, rel=1e-6)


@pytest.mark.parametrize(("cores", "together"), [(4, 4), (1, 1), (0, 1), (None, 1)])
def test_cycles_are_of_all_multiprocessors(cores: int | None, together: int) -> None:
    """A device without a clock has one of 1 GHz, one without multiprocessors is one of them."""
    elements = kernel(Strided(8000, 1, 2))
    assert took(elements, {"elements": 0.5}, cores)[0] == pytest.approx(16000 / (together * 1e9))
    assert took(elements, {"elements": 0.5}, cores, clock_hz=1e6)[0] == pytest.approx(
        16000 / (together * 1e6)
    )
    rows = kernel(Rows(8, 3))
    assert took(rows, {"row": 1e6}, cores)[0] == pytest.approx(8 / together * MS)
    of_weight = depthwise("weight_gradient")
    assert took(of_weight, {"row": 1e6}, cores)[0] == pytest.approx(16 * 9 / together * MS)


def test_the_positions_of_a_window_are_read_in_turn() -> None:
    """9 positions of 1 us each, beside what all windows take together; without a constant no wait."""
    windows = kernel(Windows(1000, 9.0))
    together = took(windows, {"position": 3.0})[0]
    waiting = took(windows, {"position": 3.0, "column": 1e3})
    assert waiting[0] - together == pytest.approx(9 * US)


@pytest.mark.parametrize(
    ("sizes", "rates", "cycles"),
    [
        # Without a constant an address, an operand, waste, a conversion or a position takes no cycles.
        (Strided(1000, 4, 5, 6.0, True), {}, 1000 * 2),
        (Windows(1000, 9.0), {}, 1000 * 2),
        (Strided(1000, 4, 2), {"axis": 7.0}, 1000 * (2 + 3 * 7)),
        (Strided(1000, 1, 5), {"tensor": 7.0}, 1000 * (2 + 3 * 7)),
        (Strided(1000, 1, 1), {"tensor": 1.0}, 1000 * (2 - 1)),
        (Strided(1000, 1, 2, 6.0), {"waste": 7.0}, 1000 * (2 + 6 * 7)),
        (Strided(1000, 1, 2, 0.0, True), {"cast": 7.0}, 1000 * (2 + 7)),
        (Strided(1000, 1, 2, 0.0, False), {"cast": 7.0}, 1000 * 2),
        (Strided(1000, 4, 5, 6.0, True), {"axis": 1.0, "tensor": 2.0, "waste": 3.0, "cast": 4.0},
         1000 * (2 + 3 * 1 + 3 * 2 + 6 * 3 + 4)),
        (Windows(1000, 9.0), {"position": 7.0}, 1000 * (2 + 9 * 7)),
        (Rows(10, 100), {"padded": 0.5}, 10 * 128 * 2),  # a row of a power of two, in the table's own rate
    ],
)  # fmt: skip
def test_cycles_of_an_element(sizes: Any, rates: dict[str, float], cycles: float) -> None:
    found = took(kernel(sizes), {"elements": 0.5, **rates}, clock_hz=1e6)
    assert found[:2] == (pytest.approx(cycles / 4e6), pytest.approx(cycles / 4e6))


@pytest.mark.parametrize(("width", "read", "written", "elements"), [(4, 4000, 80, 1000), (2, 80, 4000, 2000)])
def test_elements_of_what_is_read_or_written(width: float, read: int, written: int, elements: int) -> None:
    one = kernel(None, read_bytes=read, written_bytes=written)
    assert took(one, {"elements": 0.5}, clock_hz=1e6, width=width)[0] == pytest.approx(elements * 2 / 4e6)


def depthwise(
    phase: Any = "forward",
    image: tuple[int, ...] = (8, 8),
    result: tuple[int, ...] = (8, 8),
    taps: tuple[int, ...] = (3, 3),
    **fields: Any,
) -> Kernel:
    sizes = Convolution(2, 16, 16, image, result, taps, 16, phase=phase)
    return kernel(sizes, "convolution", "bfloat16", **fields)


@pytest.mark.parametrize(
    ("phase", "rates", "expected"),
    [
        # Without a constant for positions a weight's gradient has a block for each tap of each filter.
        ("weight_gradient", {"row": 1e6}, 16 * 9 / 4 * MS),
        ("weight_gradient", {}, 0),
        ("forward", {"row": 1e6}, 0),
        ("input_gradient", {"row": 1e6}, 0),
        # With one, taps of a filter are read one after the other.
        ("forward", {"column": 1e6, "position": 1e-9}, 9 * MS),
        ("input_gradient", {"column": 1e6, "position": 1e-9}, 9 * MS),
        ("forward", {"position": 1e-9}, 0),
        # Those in shared memory start each plane of 2 images of 16 channels, on 4 multiprocessors.
        ("forward", {"row": 1e6, "position": 1e-9}, 2 * 16 / 4 * MS),
        ("weight_gradient", {"row": 1e6, "position": 1e-9}, 2 * 16 / 4 * MS),
        ("forward", {"column": 1e6}, 0),
    ],
)
def test_depthwise_convolutions(phase: Any, rates: dict[str, float], expected: float) -> None:
    assert took(depthwise(phase), rates)[0] == pytest.approx(expected, abs=1 * NS)


@pytest.mark.parametrize(
    ("image", "result", "taps", "inside"),
    [
        # What lies in the image of each place's taps, along one axis of each image.
        ((4,), (4,), (3,), (2 + 3 + 3 + 2) / 4),
        ((4,), (2,), (2,), 2.0),  # windows that touch one another
        ((5,), (3,), (3,), (2 + 3 + 2) / 3),  # two apart, from one position before the image on
        ((6,), (2,), (3,), 3.0),
        ((4,), (4,), (1,), 1.0),
        ((3,), (3,), (5,), 3.0),  # more taps than positions
        ((9,), (3,), (5,), (4 + 5 + 4) / 3),  # three apart, as many as a third of the image
        ((1,), (1,), (3,), 1.0),
        ((8, 4), (8, 2), (3, 2), (22 / 8) * 2),
        ((7,), (4,), (5,), (3 + 5 + 5 + 3) / 4),  # two apart, from two positions before the image on
        ((300,), (300,), (3,), (2 + 255 * 3) / 256),  # the first 256 places are looked at
    ],
)
@pytest.mark.parametrize("phase", ["forward", "weight_gradient"])
def test_taps_inside_of_an_image(
    image: tuple[int, ...], result: tuple[int, ...], taps: tuple[int, ...], inside: float, phase: str
) -> None:
    count = 2 * 16
    for size in result:
        count *= size
    found = took(depthwise(phase, image, result, taps), {"position": 3.0, "elements": 1e15}, clock_hz=1e6)[0]
    assert found == pytest.approx(count * inside * 3 / 4e6, rel=3e-6)


def test_a_result_without_places_has_no_taps() -> None:
    assert took(depthwise("forward", (4, 4), (0, 4)), {"position": 3.0}, clock_hz=1e6)[0] < 1 * US


@pytest.mark.parametrize(
    ("taps", "own"),
    [
        ((1, 1), True),
        ((3, 3), True),
        ((5, 5), True),
        ((2, 2), False),
        ((6, 6), False),
        ((1, 3), False),
        ((3,), False),
        ((7, 7), False),
    ],
)
def test_square_filters_of_three_sizes_have_kernels_of_their_own(taps: tuple[int, ...], own: bool) -> None:
    image = (8,) * len(taps)
    with_own, without = (
        took(depthwise(image=image, result=image, taps=taps), {"position": 3.0, **more}, clock_hz=1e6)[0]
        for more in ({"own": 6.0}, {})
    )
    assert with_own == pytest.approx(without * (2 if own else 1), rel=1e-5)


@pytest.mark.parametrize(
    ("phase", "last", "image", "result", "times"),
    [
        ("forward", False, (8, 8), (4, 4), 1),
        ("input_gradient", False, (8, 8), (4, 4), 4),
        ("input_gradient", False, (4, 4), (8, 8), 1),  # never less than all
        ("input_gradient", True, (8, 8), (4, 4), 4),
        ("input_gradient", False, (8, 8), (0, 4), 64),
        ("weight_gradient", True, (8, 8), (4, 4), 1),
        ("weight_gradient", False, (8, 8), (4, 4), (1 + 2) * 32 / 16),
        ("weight_gradient", False, (8, 8), (8, 4), (1 + 2) * 32 / 32),
        ("weight_gradient", False, (8, 8), (3, 11), (2 + 2) * 32 / 33),
    ],
)
def test_how_often_a_depthwise_convolution_repeats_its_work(
    phase: Any, last: bool, image: tuple[int, int], result: tuple[int, int], times: float
) -> None:
    sizes = Convolution(2, 16, 16, image, result, (3, 3), 16, last, phase=phase)
    one = kernel(sizes, "convolution", "bfloat16", flops=10**6)
    assert took(one, {"work": 1.0}, clock_hz=1e6)[0] == pytest.approx(times * 10**6 / 4e6, rel=1e-5)


@pytest.mark.parametrize(
    ("family", "variant", "sizes", "warps", "columns"),
    [
        # Of a reduction short rows share a warp, along an outer axis all do; others have a warp each.
        ("reduction", "", Rows(64, 8), 64 * 8 / 32, 8),
        ("reduction", "", Rows(64, 32), 64, 32),
        ("reduction", "", Rows(64, 8, False), 64 / 32, 8),
        ("reduction", "", Rows(64, 4096, False), 64 / 32, 4096),
        ("reduction", "", Rows(64, 4097, False), 64 / 32, 4096),
        ("reduction", "outer", Rows(64, 5000, False), 64 / 32, 5000),
        ("softmax", "", Rows(64, 8), 64 * 8 / 32, 8),
        ("softmax", "", Rows(64, 5000, False), 64, 5000 * 64 / (2 * 4)),  # two blocks at once on each of 4
        ("softmax", "", Rows(8, 5000, False), 8, 5000),
        ("normalization", "", Rows(64, 5000), 64, 5000),
    ],
)
def test_rows_are_started_and_gone_through(
    family: Any, variant: str, sizes: Rows, warps: float, columns: float
) -> None:
    one = kernel(sizes, family, variant=variant)
    assert took(one, {"row": 1e6})[0] == pytest.approx(warps / 4 * MS)
    assert took(one, {"column": 1e6})[0] == pytest.approx(columns * MS)
    assert took(one, {})[0] < 1 * US


def test_chunks_of_a_reduction_are_no_rows() -> None:
    """A reduction without rows, as of another axis, starts none."""
    assert took(kernel(Windows(8, 2.0), "reduction"), {"row": 1e6})[0] < 1 * US


@pytest.mark.parametrize(
    ("read", "written", "l2", "slower"),
    [
        # Three tensors of what is written, or of what is read where nothing is, of which 0.6 of the cache holds a part.
        (900, 100, None, 2.0),
        (900, 100, 500, 2 - 0.6 * 500 / 300),
        (900, 0, 500, 2 - 0.6 * 500 / 2700),
        (900, 100, 10**6, 1.0),
        (0, 0, 500, 2.0),
    ],
)
def test_batch_norms_wait_less_for_a_cache(read: int, written: int, l2: int | None, slower: float) -> None:
    one = kernel(Rows(4, 5), "normalization", read_bytes=read, written_bytes=written, variant="batch_norm")
    found = took(one, {"load": 1e6}, l2_bytes=l2)
    assert found[0] == pytest.approx(slower * 5 * MS)
    assert found[1] == pytest.approx(slower * 5 * MS)


CONSTANTS = {"step": 3.0, "join": 100.0, "fence": 1000.0, "vector": 0.0, "elements": 1e12}


def reduced(sizes: Rows, cores: int | None = 4, **more: Any) -> tuple[float, float, float]:
    return took(kernel(sizes, "reduction"), CONSTANTS, cores, **more)


@pytest.mark.parametrize("cores", [0, None, 1])
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # Of one multiprocessor 16 blocks of 128 threads run beside one another, 4 of each down.
        (Rows(128 * 16, 400, False), 100 * 3 * NS),
        (Rows(128 * 24, 400, False), 1.5 * 100 * 3 * NS),
        (Rows(128 * 8, 1024, False), 128 * 3 * NS + 1000 * US + 100 * NS),  # in two parts each
        (Rows(128 * 4, 1024, False), 64 * 3 * NS + 1000 * US + 100 * NS),  # in four
        (Rows(3, 100), 3 * 100 * 3 * NS),
        (Rows(1, 256 * 512), 256 * 512 * 3 * NS + 1000 * US),  # four parts of one channel
        (Rows(3, 256 * 512), 3 * 256 * 512 * 3 * NS),
        (Rows(2, 256 * 512), 2 * 256 * 512 * 3 * NS + 1000 * US),
    ],
)
def test_sums_of_one_multiprocessor(sizes: Rows, expected: float, cores: int | None) -> None:
    assert reduced(sizes, cores)[:2] == (pytest.approx(expected, rel=1e-5), pytest.approx(expected, rel=1e-5))


def test_sums_of_four_multiprocessors() -> None:
    """128 threads for four results; three channels in five parts each, four of which one multiprocessor has."""
    assert reduced(Rows(4, 12_900, False))[0] == pytest.approx(101 * 3 * NS, rel=1e-6)
    assert reduced(Rows(3, 256 * 512))[0] == pytest.approx(4 * 256 * 512 / 5 * 3 * NS + 1000 * US)


def test_sums_take_floor_and_traffic_as_well() -> None:
    for sizes, serial in ((Rows(4, 1000), 1000 * 3 * NS), (Rows(128, 400, False), 100 * 3 * NS)):
        one = kernel(sizes, "reduction", read_bytes=3 * 10**6, written_bytes=0)
        rates = {**CONSTANTS, "memory": 1.0, "floor": 1e6}
        longest = 3 * MS if not sizes.is_inner else serial + 3 * MS  # over outer axes both run at once
        assert took(one, rates, bandwidth=1e9) == pytest.approx((1 + longest, serial, 3 * MS), rel=1e-6)


def test_only_rows_are_sums() -> None:
    """All constants of sums do not make a copy one of them."""
    assert took(kernel(Strided(10**9, 1, 2)), {**CONSTANTS, "elements": 1.0}, clock_hz=1e9)[
        0
    ] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("rows", "columns", "threads"),
    [
        # As many threads of a block of 512 as there are columns, where there are few rows; at least the 32 of a warp.
        (1, 16, 32),
        (1, 33, 32),
        (1, 63, 32),
        (1, 64, 64),
        (1, 511, 256),
        (1, 512, 512),
        (1, 5000, 512),
        (3, 5000, 256),
        (4, 1000, 128),
        (16, 1000, 32),
    ],
)
def test_threads_of_a_row(rows: int, columns: int, threads: int) -> None:
    """Few enough elements of each that no warps share a row."""
    assert in_turn(Rows(rows, columns)) == 32 * columns / threads
