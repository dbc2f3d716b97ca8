"""Times of matrix products on a device of round numbers: each expected time is a sum that a reader can work out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from graphflops.devices import device as published
from graphflops.kernels.kernel import Convolution, Kernel, Product
from graphflops.time.predict import predict
from graphflops.time.predict_products import Problem, convolution_kind, of_convolution
from tests.time.toy_device import FAST, MATMUL, device, seconds, with_rates

if TYPE_CHECKING:
    from graphflops.devices import Device


def product(m: int, n: int, k: int, batch: int = 1, layout: Any = "tn", dtype: str = "bfloat16") -> Kernel:
    width = 2 if dtype == "bfloat16" else 4
    moved = width * batch * k * (m + n), width * batch * m * n
    return Kernel("matmul", dtype, 2 * batch * m * n * k, 0, *moved, Product(m, n, k, batch, layout))


def matmul(**changed: float) -> Device:
    return with_rates("matmul", {**MATMUL, **changed})


def test_arithmetic_of_whole_tiles_runs_at_the_peak() -> None:
    """1024 x 512 are 4 waves of 4 tiles, or of more smaller ones."""
    kernel = product(1024, 512, 64)
    assert seconds(kernel, matmul()) == pytest.approx(kernel.flops / 4e9)
    assert seconds(kernel, matmul(matrix=0.5)) == pytest.approx(2 * kernel.flops / 4e9)


def test_the_last_wave_takes_as_long_as_any() -> None:
    """5 x 256 x 256 tiles on 4 multiprocessors: 64 x 16 is the smallest tile, of which 1280 x 16 make 20, in 5 waves."""
    known = matmul()
    each = 2 * 64 * 16 * 64 / (4e9 / 4)
    assert seconds(product(5 * 64, 16, 64), known) == pytest.approx(2 * each)
    assert seconds(product(8 * 64, 16, 64), known) == pytest.approx(2 * each)
    assert seconds(product(9 * 64, 16, 64), known) == pytest.approx(3 * each)
    assert seconds(product(4 * 64, 16, 64, batch=3), known) == pytest.approx(3 * each)
    assert seconds(product(5, 16, 64, batch=5), known) == pytest.approx(2 * each / 4 * 4)


def test_the_edges_of_tiles_take_time() -> None:
    """`half` is what loading a row or column of a tile takes, in elements of the product: large tiles have fewer."""
    found = seconds(product(256, 256, 64), matmul(half=8.0))
    assert found == pytest.approx(2 * (128 * 128 + 8 * (128 + 128)) * 64 / 1e9)


def test_each_tile_has_an_epilogue_and_each_step_along_k_a_latency() -> None:
    kernel = product(256, 256, 192)
    base = kernel.flops / 4e9
    assert seconds(kernel, matmul(epilogue=1000.0)) == pytest.approx(base + 1e-3)  # four tiles, one wave
    assert seconds(kernel, matmul(latency=1e6)) == pytest.approx(base + 3 * 1e-3)  # 192 / 64 steps
    assert seconds(kernel, matmul(floor=1000.0)) == pytest.approx(base + 1e-3)
    assert seconds(product(256, 256, 136), matmul(latency=1e6)) == pytest.approx(base + 3 * 1e-3)


def test_traffic_runs_at_the_bandwidth_that_busy_multiprocessors_reach() -> None:
    kernel = product(256, 256, 64)
    moved = kernel.read_bytes + kernel.written_bytes
    base = kernel.flops / 4e9
    assert seconds(kernel, matmul(memory=0.5)) == pytest.approx(base + moved / (1e9 * 0.5))
    one_tile = product(16, 16, 64)  # reaches 1.5 / 4 of it
    moved = one_tile.read_bytes + one_tile.written_bytes
    each = 2 * 64 * 16 * 64 / 1e9
    assert seconds(one_tile, matmul(memory=0.5)) == pytest.approx(each + moved / (1e9 * 0.5 * 1.5 / 4))


def test_parts_are_mixed_by_their_powers() -> None:
    kernel = product(256, 256, 64)
    moved = kernel.read_bytes + kernel.written_bytes
    arithmetic, traffic = kernel.flops / 4e9, moved / (1e9 * 0.01)
    found = seconds(kernel, matmul(memory=0.01, mix=2.0))
    assert found == pytest.approx((arithmetic**2 + traffic**2) ** 0.5)


def test_few_tiles_are_split_along_k() -> None:
    """One tile of 64 x 16: four multiprocessors take a quarter of k each, and a second kernel adds up float32 parts."""
    kernel = product(64, 16, 1024)
    whole = kernel.flops / 1e9
    added = 8 * 4 * 64 * 16 / (2 * 1e9)
    assert seconds(kernel, matmul(split=1e-9)) == pytest.approx(whole / 4 + added)
    assert seconds(kernel, matmul(split=100.0)) == pytest.approx(whole / 4 + added + 1e-4)
    assert seconds(kernel, matmul()) == pytest.approx(whole)


def test_no_split_leaves_a_part_empty() -> None:
    """Of 128 elements along k in steps of 64 there are two parts, however cheap splits are."""
    kernel = product(64, 16, 128)
    added = 8 * 2 * 64 * 16 / (2 * 1e9)
    assert seconds(kernel, matmul(split=1e-9, memory=FAST)) == pytest.approx(kernel.flops / 2e9 + added)


@pytest.mark.parametrize(
    ("m", "n", "k", "layout", "slowdown"),
    [
        (256, 256, 64, "tn", 1),
        (256, 256, 68, "tn", 2),  # rows of 136 bytes
        (256, 256, 66, "tn", 3),
        (256, 256, 65, "tn", 5),
        (256, 255, 64, "tn", 5),  # of the result
        (255, 256, 64, "tn", 1),
        (256, 252, 64, "nn", 2),
        (254, 256, 64, "nt", 3),
        (256, 256, 65, "nt", 1),
        (254, 256, 64, "tt", 3),
        (256, 256, 66, "tt", 3),
        (256, 252, 64, "tt", 2),
    ],
)
def test_rows_that_do_not_align_are_slower(m: int, n: int, k: int, layout: str, slowdown: float) -> None:
    depth = -(-k // 64) * 64  # whole steps
    found = seconds(product(m, n, k, layout=layout), matmul())
    assert found == pytest.approx(slowdown * 2 * 256 * 256 * depth / 4e9)


def test_a_matrix_vector_product_of_wide_numbers_computes_no_rows_that_are_not_there() -> None:
    known = matmul()
    narrow, wide = product(1, 256, 64), product(1, 256, 64, dtype="float32")
    assert seconds(narrow, known) == pytest.approx(2 * 16 * 256 * 64 / 4e9)
    assert seconds(wide, known) == pytest.approx(2 * 1 * 256 * 64 / 2e9)
    assert seconds(product(1, 256, 64, batch=2, dtype="float32"), known) > 10 * seconds(wide, known)


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (product(129, 64, 64), ["matmul.tn.16", "matmul.tn", "matmul"]),
        (product(128, 64, 64), ["matmul.skinny.16", "matmul.skinny", "matmul.tn"]),
        (product(128, 64, 64, layout="nn"), ["matmul.skinny", "matmul.nn"]),
        (product(128, 64, 64, layout="nt"), ["matmul.nt", "matmul"]),
        (product(16, 64, 64, batch=2), ["matmul.batched.skinny", "matmul.batched", "matmul"]),
        (product(17, 64, 64, batch=2), ["matmul.batched", "matmul"]),
        (product(1, 64, 64, dtype="float32"), ["matmul.gemv.32", "matmul.gemv", "matmul.skinny.32", "matmul.tn"]),
        (product(1, 64, 64), ["matmul.skinny", "matmul.tn"]),
        (replace(product(129, 64, 64), is_alone=True), ["matmul.alone.16", "matmul.alone", "matmul"]),
    ],
)  # fmt: skip
def test_which_constants_a_product_has(kernel: Kernel, names: list[str]) -> None:
    """Each table is used where those before it are missing."""
    for place, name in enumerate(names):
        rates = {later: {**MATMUL, "floor": 1e6} for later in names[place + 1 :]}
        rates[name] = {**MATMUL, "floor": 5e6}
        assert seconds(kernel, device(rates=rates)) == pytest.approx(5, rel=1e-3)


def conv(phase: Any = "forward", side: int = 6, **changed: Any) -> Convolution:
    sizes = Convolution(4, 64, 32, (side, side), (side, side), (1, 1), phase=phase)
    return replace(sizes, **changed)


STRIDED = {"batch": 2, "channels": 16, "image": (8, 8), "result": (4, 4), "filter": (3, 3)}
GROUPS = {**STRIDED, "image": (4, 4), "channels": 128, "filters": 256}
LOOPED = {"batch": 2, "channels": 80, "filters": 160, "groups": 10, "algorithm": "long", "filter": (3,)}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [  # rows, columns, what is summed, products, bytes that rows are a multiple of, bytes more, turns
        (
            conv(),
            (36, 32, 64, 4, 8, 0, 1),
        ),  # a product for each image, whose rows have 36 elements of 2 bytes
        (conv("input_gradient"), (36, 64, 32, 4, 8, 0, 1)),
        # in float32, written and read
        (conv("weight_gradient"), (32, 64, 36, 4, 8, 2 * 4 * 4 * 32 * 64, 1)),
        (conv("weight_gradient", 5), (32, 64, 25, 4, 2, 0, 1)),
        (conv("weight_gradient", batch=1), (32, 64, 36, 1, 8, 0, 1)),
        (conv(channels_last=True), (4 * 36, 32, 64, 1, 16, 0, 1)),
        (conv(**STRIDED), (2 * 16, 32, 16 * 9, 1, 16, 0, 1)),
        (conv("input_gradient", **STRIDED), (2 * 64, 16, 32 * 9 // 4, 1, 16, 0, 1)),
        (conv("weight_gradient", **STRIDED), (32, 16 * 9, 2 * 16, 1, 16, 0, 1)),
        # tiles hold 64 channels of one position, of windows of up to 32
        (conv("weight_gradient", **{**STRIDED, "channels": 24}), (32, 64 * 9, 2 * 16, 1, 16, 0, 1)),
        (
            conv("weight_gradient", **{**STRIDED, "channels": 24, "filter": (3, 11)}),
            (32, 24 * 33, 2 * 16, 1, 16, 0, 1),
        ),
        (conv(**{**STRIDED, "channels": 12}), (2 * 16, 32, 12 * 9, 1, 8, 0, 1)),
        # groups of 4 channels: 16 of 32 make one product of 64 channels, and 128 results
        (conv(**GROUPS, groups=32), (2 * 16, 128, 64 * 9, 2, 16, 0, 1)),
        (conv(**GROUPS, groups=8), (2 * 16, 128, 64 * 9, 2, 16, 0, 1)),
        (conv(**GROUPS, groups=1), (2 * 16, 256, 128 * 9, 1, 16, 0, 1)),
        # ten kernels on eight streams, one after the other with more than 128 positions of an image
        (conv(**LOOPED, image=(128,), result=(128,)), (256, 16, 8 * 3, 8, 16, 0, 2)),
        (conv(**LOOPED, image=(129,), result=(129,)), (258, 16, 8 * 3, 1, 16, 0, 10)),
    ],
)
def test_the_product_that_a_convolution_is(sizes: Convolution, expected: tuple[int, ...]) -> None:
    *shape, alignment, more, turns = expected
    found = of_convolution(sizes, 2, 1e9, 100)
    is_whole = shape[3] == 4  # a product for each image of `conv`
    assert found == Problem(*shape, 2, alignment, 100 + more, 1e9, turns, found.recent, is_whole)


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        (conv(), "pointwise"),
        (conv(side=5), "pointwise_odd"),
        (conv(side=1), "pointwise"),
        (conv(channels=32), "pointwise_uneven"),
        (conv(channels=32, side=8), "pointwise"),
        (conv(channels=12), "pointwise_unaligned"),
        (conv(channels_last=True), "pointwise_last"),
        (conv(result=(3, 3)), "pointwise_strided"),
        (conv(filter=(3, 3)), "dense"),
        (conv(filter=(4, 8)), "dense"),
        (conv(filter=(3, 11)), "wide"),  # more than 32 positions
        (conv(filter=(1, 1, 3)), "volume"),
        (conv(channels=3, filter=(3, 3)), "stem"),
        (conv(channels=3, filter=(3, 3), channels_last=True), "stem_last"),
        (conv(channels=3, filter=(6, 6), is_patches=True), "patches"),
        (conv(groups=8), "grouped"),
        (conv(groups=8, algorithm="long"), "looped_long"),
        (conv(groups=64), "depthwise"),
        (conv(groups=64, filter=(9, 9)), "depthwise"),
        (conv(groups=64, filter=(7, 7), channels_last=True, batch=8), "depthwise_last"),
        (conv(groups=64, filter=(7, 7), channels_last=True, batch=7), "depthwise_few"),
        (conv("input_gradient", groups=64, filter=(7, 7), channels_last=True, batch=7), "depthwise_last"),
        (conv(groups=64, filter=(1, 8), channels_last=True), "depthwise_direct"),
    ],
)
def test_the_kind_of_a_convolution(sizes: Convolution, kind: str) -> None:
    assert convolution_kind(sizes) == kind


def test_pixels_that_are_not_read_are_none_of_filled_up_channels() -> None:
    """Of ten channels as sixteen, skipped pixels would be more bytes than the operand has: what is written remains."""
    sizes = conv(channels=16, filters=9, image=(98,), result=(20,), filter=(1,), channels_last=True)
    assert of_convolution(sizes, 2, 1e9, 4 * 98 * 10 * 2).moved == 4 * 20 * 9 * 2


def test_four_wide_channels_are_loaded_together() -> None:
    """16 bytes are 8 channels of 16 bits, 4 of float32; up to 8 are padded."""
    kinds = [convolution_kind(conv(channels=count, filter=(3, 3)), 4) for count in (4, 12, 14, 16)]
    assert kinds == ["stem", "dense", "stem", "dense"]


@pytest.mark.parametrize(("layout", "turned"), [("tn", "tn"), ("nn", "tn"), ("nt", "nn"), ("tt", "nn")])
def test_a_column_is_a_row_times_the_other_matrix(layout: Any, turned: Any) -> None:
    """Rows of the matrix are those of a weight; columns that lie together are those of a row-major matrix."""
    column, row = product(512, 1, 256, 1, layout), product(512, 1, 256)
    row = replace(row, sizes=Product(1, 512, 256, 1, turned))
    assert predict(column, published("h200")) == predict(row, published("h200"))


def test_a_bias_is_loaded_after_a_short_product() -> None:
    plain = Kernel("matmul", "float16", 2 * 1600 * 1600, 0, 2 * 1600 * 1601, 3200, Product(1, 1600, 1600))
    biased, long = replace(plain, vector_flops=1600), replace(plain, sizes=Product(512, 1600, 1600))
    h200 = published("h200")
    # 6.31 and 6.82 us in CUDA graphs on an H100, of weights that the cache does not hold
    assert predict(biased, h200).seconds - predict(plain, h200).seconds == pytest.approx(0.45e-6, rel=0.05)
    assert predict(replace(long, vector_flops=1600), h200) == predict(long, h200)
