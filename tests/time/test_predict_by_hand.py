"""Times of kernels on a device of round numbers: each expected time is a sum that a reader can work out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import astuple, replace

from graphflops.devices import Link
from graphflops.kernels.kernel import (
    Attention,
    Chunks,
    Convolution,
    Exchange,
    Kernel,
    Rows,
    Strided,
    Windows,
)
from graphflops.time.predict import predict
from tests.time.toy_device import FAST, MATMUL, TRAFFIC, device, seconds, with_rates

if TYPE_CHECKING:
    from graphflops.devices import Device


def pointwise(elements: int, sizes: Any = None, work: int = 0, family: Any = "elementwise") -> Kernel:
    return Kernel(family, "float32", 0, work, 4 * elements, 4 * elements, sizes)


def test_traffic_comes_from_the_cache_and_from_memory() -> None:
    """A device without a clock: constants are shares of the bandwidth."""
    kernel = pointwise(1_000_000)
    slow = {**TRAFFIC, "memory": 0.5}
    assert seconds(kernel, with_rates("elementwise", slow)) == pytest.approx(8e6 / 0.5e9)
    cached = 0.6 * 1e6
    known = with_rates("elementwise", {**slow, "cache": 3.0}, l2_bytes=10**6)
    assert seconds(kernel, known) == pytest.approx(cached / 3e9 + (8e6 - cached) / 0.5e9)
    all_cached = with_rates("elementwise", {**slow, "cache": 3.0}, l2_bytes=10**9)
    assert seconds(kernel, all_cached) == pytest.approx(8e6 / 3e9)
    reached = with_rates("elementwise", {**TRAFFIC, "reached": 0.25})
    assert seconds(kernel, reached) == pytest.approx(8e6 / 0.25e9)
    unnamed = with_rates("elementwise", {name: rate for name, rate in TRAFFIC.items() if name != "reached"})
    assert seconds(kernel, unnamed) == pytest.approx(8e6 / 0.905e9)


def test_shares_are_of_what_multiprocessors_move_in_a_cycle() -> None:
    """18.4 bytes each: 4 of 1 MHz move 73.6 MB/s, half of it through memory."""
    known = with_rates("elementwise", {**TRAFFIC, "memory": 0.5}, clock_hz=1e6)
    assert seconds(pointwise(1000), known) == pytest.approx(8000 / (0.5 * 18.4 * 4 * 1e6), rel=1e-3)


@pytest.mark.parametrize(
    ("kernel", "rates", "cycles"),
    [
        # elements at `elements` a cycle, and what an address, an operand, a wasted byte or a cast adds
        (pointwise(1000), {"elements": 0.5}, 1000 * 2),
        (pointwise(1000, Strided(3000, 1, 2)), {"elements": 0.5}, 3000 * 2),
        (pointwise(1000, Strided(3000, 4, 2)), {"elements": 0.5, "axis": 7.0}, 3000 * (2 + 3 * 7)),
        (pointwise(1000, Strided(3000, 1, 5)), {"elements": 0.5, "tensor": 7.0}, 3000 * (2 + 3 * 7)),
        (pointwise(1000, Strided(3000, 1, 2, 6.0)), {"elements": 0.5, "waste": 7.0}, 3000 * (2 + 6 * 7)),
        (pointwise(1000, Strided(9000, 1, 2, 0.0, True)), {"elements": 0.5, "cast": 7.0}, 9000 * (2 + 7)),
        (pointwise(1000, Windows(3000, 9.0)), {"elements": 0.5, "position": 7.0}, 3000 * (2 + 9 * 7)),
        (pointwise(1000, work=6000), {"work": 0.5}, 6000 * 2),
    ],
)
def test_cycles_of_elements(kernel: Kernel, rates: dict[str, float], cycles: float) -> None:
    known = with_rates("elementwise", {**TRAFFIC, **rates}, clock_hz=1e6, bandwidth=1e15)
    assert seconds(kernel, known) == pytest.approx(cycles / 4e6, rel=1e-3)


def test_rows_are_started_by_their_warps() -> None:
    rows = {**TRAFFIC, "row": 1e6, "column": 1e6}  # milliseconds
    for family, share in (("softmax", 3 / 32), ("scan", 1)):  # of a warp that a row takes
        known = with_rates(family, rates=rows, bandwidth=1e15)
        found = seconds(pointwise(8, Rows(40, 3), family=family), known)
        assert found == pytest.approx(40 * share / 4 * 1e-3 + 3 * 1e-3)
    known = with_rates("reduction", rows, bandwidth=1e15)
    # rows of 8 elements share warps of 32; each thread of a warp adds up one element of 32 columns or fewer
    short = Kernel("reduction", "float32", 0, 0, 4, 4, Rows(40, 8))
    assert seconds(short, known) == pytest.approx(40 * 8 / 32 / 4 * 1e-3 + 8 * 1e-3)
    outer = Kernel("reduction", "float32", 0, 0, 4, 4, Rows(64, 8, False))
    assert seconds(outer, known) == pytest.approx(64 / 32 / 4 * 1e-3 + 8 * 1e-3)
    long = Kernel("reduction", "float32", 0, 0, 4, 4, Rows(64, 5000, False))
    assert seconds(long, known) == pytest.approx(64 / 32 / 4 * 1e-3 + 4096 * 1e-3)


def test_chunks_wait_for_the_longest() -> None:
    known = with_rates("optimizer", {**TRAFFIC, "column": 1e6, "memory": 1.0})
    kernel = Kernel("optimizer", "float32", 0, 0, 10**6, 10**6, Chunks(8, 2))
    assert seconds(kernel, known) == pytest.approx((2e-3**1.5 + 2e-3**1.5) ** (1 / 1.5))


def test_batch_norms_wait_for_memory_one_load_after_another() -> None:
    """Half as fast where it answers as where the cache does."""
    rates = {**TRAFFIC, "load": 1e6}
    kernel = Kernel("normalization", "float32", 0, 0, 500, 500, Rows(4, 5), variant="batch_norm")
    known = with_rates("normalization.batch_norm", rates, bandwidth=1e15)
    assert seconds(kernel, known) == pytest.approx(2 * 5e-3)
    cached = replace(known, l2_bytes=10**6)
    assert seconds(kernel, cached) == pytest.approx(5e-3)
    # three tensors around the kernel share 0.6 of the cache
    half = replace(known, l2_bytes=1250)
    assert seconds(kernel, half) == pytest.approx((2 - 0.6 * 1250 / (3 * 500)) * 5e-3)


def test_threads_of_a_softmax_along_an_outer_axis_take_turns() -> None:
    """A third as fast where each load goes to memory; two blocks of 1,024 threads run at once on each of 4 processors."""
    known = with_rates("softmax.outer", {**TRAFFIC, "chain": 1e6}, bandwidth=1e15)
    kernel = Kernel("softmax", "float32", 0, 0, 500, 500, Rows(8, 5, False), variant="outer")
    assert seconds(kernel, known) == pytest.approx(3 * 5e-3)
    assert seconds(kernel, replace(known, l2_bytes=10**6)) == pytest.approx(5e-3)
    assert seconds(replace(kernel, sizes=Rows(12, 5, False)), known) == pytest.approx(1.5 * 3 * 5e-3)


@pytest.mark.parametrize("variant", ["batch_norm_moments", "batch_norm_backward", "batch_norm_training_once"])
def test_blocks_of_channels_wait_too(variant: str) -> None:
    """What a block does one turn after the other is the longest part, or none."""
    rates = {**TRAFFIC, "load": 1e6, "row": 1e6}
    kernel = Kernel("normalization", "float32", 0, 0, 500, 0, Rows(4, 5, False), variant=variant)
    known = with_rates(f"normalization.{variant}", rates, bandwidth=1e15, l2_bytes=10**6)
    assert seconds(kernel, known) == pytest.approx((1e-3**3 + 5e-3**3) ** (1 / 3))


def depthwise(phase: Any = "forward", last: bool = False, side: int = 7, stride: int = 1) -> Kernel:
    image, result, filter_ = (8, 8), (8 // stride, 8 // stride), (side, side)
    sizes = Convolution(2, 16, 16, image, result, filter_, 16, last, False, phase)
    return Kernel("convolution", "bfloat16", 1000, 0, 4, 4, sizes)


def test_depthwise_convolutions_have_a_thread_for_each_result() -> None:
    """Of 3 taps at 8 places 2 + 6 * 3 + 2 = 22 are inside of the image, of 7 taps 4 + 5 + 6 + 7 twice."""
    rates = {**TRAFFIC, "elements": 0.5, "position": 3.0}
    known = with_rates("convolution.depthwise", rates, clock_hz=1e6, bandwidth=1e15)
    results = 2 * 16 * 8 * 8
    taps = (2 * (4 + 5 + 6 + 7) / 8) ** 2
    assert seconds(depthwise(), known) == pytest.approx(results * (2 + taps * 3) / 4e6, rel=1e-3)
    taps = (22 / 8) ** 2
    assert seconds(depthwise(side=3), known) == pytest.approx(results * (2 + taps * 3) / 4e6, rel=1e-3)
    own = with_rates("convolution.depthwise", {**rates, "own": 2.0}, clock_hz=1e6, bandwidth=1e15)
    assert seconds(depthwise(side=3), own) == pytest.approx(results * (2 + taps * 2) / 4e6, rel=1e-3)
    assert seconds(depthwise(), own) == seconds(depthwise(), known)
    crowded = with_rates("convolution.depthwise", {**rates, "crowded": 5.0}, clock_hz=1e6, bandwidth=1e15)
    assert seconds(depthwise(), crowded) == seconds(
        depthwise(), known
    )  # 16 channels fill a quarter of a line
    line, taps = depthwise(), (2 * (4 + 5 + 6 + 7) / 8) ** 2
    line = replace(line, sizes=replace(line.sizes, channels=64, filters=64, groups=64))
    assert seconds(line, crowded) == pytest.approx(4 * results * (2 + taps * 5) / 4e6, rel=1e-3)
    taps = ((3 + 3 + 3 + 2) / 4) ** 2  # two apart, from the first position on
    found = seconds(depthwise(side=3, stride=2), known)
    assert found == pytest.approx(2 * 16 * 4 * 4 * (2 + taps * 3) / 4e6, rel=1e-3)
    taps = (22 / 8) ** 2
    gradient = seconds(depthwise("input_gradient", side=3), known)
    assert gradient == pytest.approx(results * (2 + taps * 3) / 4e6, rel=1e-3)


def test_a_kernel_of_tiles_goes_over_the_image_where_that_is_faster() -> None:
    """At each of 8 x 8 places all 9 taps for half a cycle, after 64 cycles, whatever the stride."""
    rates = {**TRAFFIC, "elements": 0.5, "position": 3.0, "tiles": 64.0, "tiled": 0.5}
    known = with_rates("convolution.depthwise", rates, clock_hz=1e6, bandwidth=1e15)
    tiled = (64 + 2 * 16 * 64 * 9 * 0.5) / 4e6
    assert seconds(depthwise(side=3), known) == pytest.approx(tiled, rel=1e-3)
    direct = 2 * 16 * 2 * 2 * (2 + 9 * 3) / 4e6  # of few windows
    assert seconds(depthwise(side=3, stride=4), known) == pytest.approx(direct, rel=1e-3)
    kernel = depthwise(side=3)
    dilated = replace(kernel, sizes=replace(kernel.sizes, is_dilated=True))
    assert seconds(dilated, known) == pytest.approx(2 * 16 * 64 * (2 + (22 / 8) ** 2 * 3) / 4e6, rel=1e-3)
    assert seconds(depthwise(side=7), known) > 5 * tiled  # no such kernel


def test_gradients_of_depthwise_convolutions_repeat_work() -> None:
    """The input's tries every tap at every position of the image; the weight's goes by warps, two more for an image."""
    known = with_rates("convolution.depthwise", {**TRAFFIC, "work": 1.0}, clock_hz=1e6, bandwidth=1e15)
    assert seconds(depthwise(), known) == pytest.approx(1000 / 4e6)
    assert seconds(depthwise("input_gradient", stride=2), known) == pytest.approx(4 * 1000 / 4e6)
    assert seconds(depthwise("weight_gradient"), known) == pytest.approx((2 + 2) * 32 / 64 * 1000 / 4e6)
    assert seconds(depthwise("weight_gradient", stride=2), known) == pytest.approx(3 * 32 / 16 * 1000 / 4e6)
    assert seconds(depthwise("weight_gradient", last=True), known) == pytest.approx(1000 / 4e6)


ATTENTION = {
    "floor": 1e-9,
    "matrix": 1.0,
    "memory": FAST,
    "start": 1e-9,
    "block": 1e-9,
    "width": 1e-9,
    "mix": 1.0,
    "spread": 2.0,
}


def attention(
    queries: int, keys: int, heads: int = 4, kv_heads: int = 4, width: int = 128, **more: Any
) -> Kernel:
    sizes = Attention(2, heads, kv_heads, queries, keys, width, **more)
    return Kernel("attention", "bfloat16", 0, 0, 10**6, 10**6, sizes)


def flash(**changed: float) -> Device:
    return with_rates("attention.flash", {**ATTENTION, **changed})


def test_attention_multiplies_whole_tiles_at_the_peak() -> None:
    pairs = 2 * 4 * 256 * 256
    assert seconds(attention(256, 256), flash()) == pytest.approx(4 * pairs * 128 / 4e9)
    assert seconds(attention(256, 256, phase="backward"), flash()) == pytest.approx(10 * pairs * 128 / 4e9)
    assert seconds(attention(200, 200), flash()) == pytest.approx(4 * pairs * 128 / 4e9)
    assert seconds(attention(256, 256, width=100), flash()) == pytest.approx(4 * pairs * 128 / 4e9)
    # Four rounds of blocks of 1 and of 2 tiles, and half of the longest, which begins late.
    assert seconds(attention(256, 256, computed=0.75), flash()) == pytest.approx(3.5 * pairs * 128 / 4e9)
    assert seconds(attention(256, 256), flash(matrix=0.5)) == pytest.approx(8 * pairs * 128 / 4e9)
    assert seconds(attention(256, 256), flash(width=128.0)) == pytest.approx(8 * pairs * 128 / 4e9)


def test_queries_of_heads_with_the_same_keys_share_blocks() -> None:
    """64 queries of four heads are 256 of one: two blocks instead of four."""
    shared, apart = attention(64, 256, 4, 1), attention(64, 256, 4, 4)
    four, two = (pytest.approx(4 * 2 * blocks * 128 * 256 * 128 / 4e9) for blocks in (4, 2))
    assert seconds(apart, flash(packed=1.0)) == four
    assert seconds(shared, flash(packed=1.0)) == two
    assert seconds(shared, flash()) == four  # of a kernel that keeps heads apart


def test_attention_is_no_faster_than_its_longest_block() -> None:
    """One block, of two images, on four multiprocessors: each has one of them."""
    kernel = attention(128, 512, heads=1, kv_heads=1)
    each = 4 * 128 * 512 * 128 / 1e9
    assert seconds(kernel, flash()) == pytest.approx(each)
    half = attention(128, 512, heads=1, kv_heads=1, computed=0.25)
    assert seconds(half, flash()) == pytest.approx(each / 4)
    assert seconds(kernel, flash(block=1000.0)) == pytest.approx(each + 1e-3)
    assert seconds(kernel, flash(start=1000.0)) == pytest.approx(each + 1e-3)
    many = attention(128, 512)  # 8 blocks in two turns
    assert seconds(many, flash(block=1000.0)) == pytest.approx(2 * each + 2e-3)
    assert seconds(kernel, flash(floor=1000.0)) == pytest.approx(each + 1e-3)


def test_traffic_of_attention() -> None:
    each = 4 * 128 * 512 * 128 / 1e9
    kernel = attention(128, 512, heads=1, kv_heads=1)
    assert seconds(kernel, flash(memory=0.5)) == pytest.approx(each + 2e6 / 0.5e9)
    assert seconds(kernel, flash(memory=0.5, mix=2.0)) == pytest.approx((each**2 + 4e-3**2) ** 0.5)


def test_one_query_goes_through_all_keys() -> None:
    """Eight blocks, two for each multiprocessor, of 1 ms and 2 ms for each of four tiles of keys."""
    decoding = {"decoding_block": 1000.0, "decoding_tile": 2e6, "join": FAST}
    kernel = attention(1, 512)
    assert seconds(kernel, flash(**decoding)) == pytest.approx(2 * (1e-3 + 4 * 2e-3))
    beside = flash(**decoding, beside=0.5)
    assert seconds(kernel, beside) == pytest.approx(1.5 * (1e-3 + 4 * 2e-3))
    alone = attention(1, 512, heads=1, kv_heads=1)  # two blocks, each alone
    assert seconds(alone, flash(**decoding)) == pytest.approx(1e-3 + 4 * 2e-3)
    assert seconds(alone, beside) == pytest.approx(1e-3 + 4 * 2e-3)
    joined = flash(**{**decoding, "join": 500.0})  # split into two parts: four blocks, of two tiles each
    assert seconds(alone, joined) == pytest.approx(1e-3 + 2 * 2e-3 + 0.5e-3)
    many = attention(
        1, 512, heads=3, kv_heads=3
    )  # six blocks leave none idle: they are not split, into three rounds of two tiles
    assert seconds(many, flash(**{**decoding, "join": 0.0})) == pytest.approx(2 * (1e-3 + 4 * 2e-3))
    shared = attention(1, 512, heads=4, kv_heads=1)
    assert seconds(shared, flash(**decoding)) == pytest.approx(1e-3 + 4 * 2e-3)
    narrow = attention(1, 512, heads=1, kv_heads=1, width=64)
    assert seconds(narrow, flash(**decoding)) == pytest.approx((1e-3 + 4 * 2e-3) / 2)
    assert seconds(narrow, flash(**decoding, narrowest=96.0)) == pytest.approx((1e-3 + 4 * 2e-3) * 0.75)


def test_exchanges_take_the_faster_protocol() -> None:
    links = (Link("fast", 1e9), Link("slow", 1e6))
    kernel = Kernel("collective", "float32", 0, 0, 4, 4, Exchange(10**6))
    guessed = device(links=links)
    assert seconds(kernel, guessed) == pytest.approx(15e-6 + 1e6 / 0.6e9)
    assert seconds(kernel, device()) == pytest.approx(15e-6 + 1e6 / (0.6 * 16e9))
    rates = {
        "floor": 100.0,
        "step": 10.0,
        "small": 0.1,
        "setup": 5000.0,
        "knee": 1.0,
        "link": 1.0,
        "fewer": 1.0,
    }
    known = with_rates("collective.all_reduce", {**rates, "enter": 7.0, "spread": 2.0}, links=links)
    # of a setup of 5 ms half is hidden by a message of 1 MB; between two devices half of the link's bytes pass
    assert seconds(kernel, known) == pytest.approx(107e-6 + 5e-3 / 2 + 1e6 / 0.5e9)
    small = Kernel("collective", "float32", 0, 0, 4, 4, Exchange(1000))
    found = predict(small, known)
    assert found.seconds == pytest.approx(107e-6 + 2e-6 + 5e-6, rel=1e-3)
    assert (found.low, found.high) == pytest.approx((7e-6 + 107e-6 / 2, 7e-6 + 107e-6 * 2), rel=1e-3)
    assert found.bound == "latency"
    alone = Kernel("collective", "float32", 0, 0, 4, 4, Exchange(1000, devices=1))
    free = with_rates("collective.all_reduce", {**rates, "enter": 0.0, "spread": 2.0}, links=links)
    assert seconds(alone, known) == seconds(alone, free)  # enters no group
    four = Kernel("collective", "float32", 0, 0, 4, 4, Exchange(1000, devices=4))
    assert seconds(four, known) == pytest.approx(127e-6 + 1000 * (1 / 0.75e9 + 5e-9), rel=1e-3)
    assert predict(Kernel("collective", "float32", 0, 0, 4, 4, Exchange(10**9)), known).bound == "link"
    borrowed = predict(small, replace(known, rates_of="other"))
    assert borrowed.high == pytest.approx(7e-6 + 107e-6 * 2 * 1.3, rel=1e-3)


def test_a_device_without_constants_is_timed_by_shares_of_its_ceilings() -> None:
    known = device(vector=1e9)
    for kernel, bound, expected in (
        (Kernel("other", "bfloat16", 30_000, 0, 10, 10), "matrix", 30_000 / (0.75 * 4e9)),
        (Kernel("other", "float32", 0, 3000, 10, 10), "vector", 3000 / 0.75e9),
        (Kernel("other", "float32", 0, 0, 10_000, 6000), "memory", 16_000 / 0.8e9),
        (Kernel("other", "float32", 0, 0, 800, 0), "latency", 800 / 0.8e9),
    ):
        found = predict(kernel, known)
        assert (found.seconds, found.bound) == (pytest.approx(2e-6 + expected), bound)
        assert (found.low, found.high) == pytest.approx((found.seconds / 2, found.seconds * 2))


def test_intervals_ratios_and_what_limits_a_kernel() -> None:
    kernel = pointwise(1_000_000)
    known = with_rates("elementwise", {**TRAFFIC, "memory": 1.0})
    found = predict(kernel, known)
    assert astuple(found) == (pytest.approx(8e-3), pytest.approx(4e-3), pytest.approx(16e-3), "memory")
    borrowed = predict(kernel, replace(known, rates_of="other"))
    assert borrowed.high == pytest.approx(2.6 * 8e-3)
    for name, ratio in (("elementwise", 3.0), ("other", 2.0)):
        assert predict(kernel, replace(known, family_ratios={name: ratio})).seconds == pytest.approx(
            ratio * 8e-3
        )
    both = replace(known, family_ratios={"elementwise": 3.0, "other": 2.0})
    assert predict(kernel, both).seconds == pytest.approx(3 * 8e-3)
    busy = with_rates("elementwise", {**TRAFFIC, "work": 1.0}, clock_hz=1e6, bandwidth=1e15)
    assert predict(pointwise(1000, work=4000), busy).bound == "vector"
    slow = with_rates("elementwise", {**TRAFFIC, "floor": 1e6})
    assert predict(kernel, slow).bound == "latency"


def test_float32_convolutions_multiply_as_tf32() -> None:
    sizes = Convolution(4, 64, 64, (16, 16), (16, 16), (1, 1))
    for dtype, peak in (("float32", 1e9), ("bfloat16", 4e9)):
        kernel = Kernel("convolution", dtype, 2 * 4 * 256 * 64 * 64, 0, 4, 4, sizes)
        known = with_rates("convolution.dense", MATMUL)
        assert seconds(kernel, known) == pytest.approx(kernel.flops / peak, rel=1e-3)
        assert seconds(kernel, device()) == pytest.approx(2e-6 + kernel.flops / (0.75 * peak))


def test_a_kernel_that_starts_for_two_thirds_of_its_time_is_bound_by_latency() -> None:
    """8 ms of traffic behind a floor, and the same of a message on a link."""
    kernel = pointwise(1_000_000)
    for floor, bound in ((15e3, "memory"), (17e3, "latency")):  # microseconds
        known = with_rates("elementwise", {**TRAFFIC, "floor": floor})
        assert predict(kernel, known).bound == bound
    # a link of 1 GB/s takes 15 us, and 5/3 ns a byte: a third of it are 11,250 bytes
    linked = device(links=(Link("fast", 1e9),))
    for size, limit in ((11_200, "latency"), (11_300, "link")):
        assert predict(Kernel("collective", "float32", sizes=Exchange(size)), linked).bound == limit
