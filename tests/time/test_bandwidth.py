"""How fast bytes move, on a device of 18.4 GB/s through its multiprocessors, whose memory may be slower than these."""

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.devices import device as published
from graphflops.kernels.kernel import Attention, Convolution, Kernel, Product
from graphflops.time import bandwidth
from graphflops.time.predict import predict
from graphflops.time.predict_products import of_convolution, of_product
from tests.time.toy_device import FAST, MATMUL, device, with_rates

THROUGH = 18.4e9  # four multiprocessors of 250 MHz move 18.4 bytes a cycle each
FULL = device(clock_hz=2.5e8, bandwidth=THROUGH, l2_bytes=10**6)
SLOW = device(clock_hz=2.5e8, bandwidth=1e9, l2_bytes=10**6)


def test_multiprocessors_or_the_memory_limit() -> None:
    # half of what the multiprocessors move, on a device whose memory keeps up
    assert bandwidth.seconds(8e6, 0, 0.5, FULL) == pytest.approx(8e6 / (0.5 * THROUGH))
    # at most 0.905 of the bandwidth, or the share that was measured, where the memory is slower
    assert bandwidth.seconds(8e6, 0, 0.5, SLOW) == pytest.approx(8e6 / (0.905 * 1e9))
    assert bandwidth.seconds(8e6, 0, 0.95, SLOW) == pytest.approx(8e6 / (0.95 * 1e9))
    assert bandwidth.seconds(8e6, 0, 0.02, SLOW) == pytest.approx(8e6 / (0.02 * THROUGH))


def test_what_was_just_written_is_in_the_cache() -> None:
    held = 0.6 * 1e6
    expected = held / (0.5 * THROUGH) + (8e6 - held) / (0.905 * 1e9)
    assert bandwidth.seconds(8e6, 8e6, 0.5, SLOW) == pytest.approx(expected)
    assert bandwidth.seconds(8e6, 1000, 0.5, SLOW) == pytest.approx(
        1000 / (0.5 * THROUGH) + (8e6 - 1000) / (0.905 * 1e9)
    )


@pytest.mark.parametrize(
    ("product", "recent"),
    [
        (Product(256, 128, 64), 9000 - 2 * 64 * 128),  # a weight of 64 x 128 is in the memory
        (Product(256, 128, 64, layout="nn"), 9000 - 2 * 64 * 128),
        (Product(256, 128, 64, layout="nt"), 9000),  # of the gradient of a weight none is one
        (Product(256, 128, 64, batch=3), 9000),  # of activations neither
        (Product(16, 8, 64), 9000 - 2 * 64 * 8),  # few rows wait for the weight
        (Product(2, 128, 64, batch=3), 0),  # and for keys and values of tokens before
    ],
)
def test_weights_come_from_the_memory(product: Product, recent: int) -> None:
    assert of_product(product, 2, 1e12, 9000).recent == max(recent, 0)
    assert of_product(replace(product, is_alone=True), 2, 1e12, 9000).recent == 0


@pytest.mark.parametrize(
    ("groups", "more", "recent"),
    [
        (1, {}, 90_000 - 2 * 64 * 32 * 3 * 3),
        (4, {}, 90_000 - 2 * 64 * 8 * 3 * 3),
        (1, {"filter": (1, 1)}, 90_000 - 2 * 64 * 32),
        # one product an image, with 3 parts of the gradient in float32, written and read
        (1, {"filter": (1, 1), "phase": "weight_gradient"}, 90_000 + 2 * 4 * 3 * 64 * 32 - 2 * 64 * 32),
        # 1 of 4 pixels is read
        (1, {"filter": (1, 1), "result": (4, 4)}, 90_000 - 2 * 32 * 3 * (64 - 16) - 2 * 64 * 32),
    ],
)
def test_filters_come_from_the_memory(groups: int, more: dict[str, Any], recent: int) -> None:
    sizes = Convolution(3, 32, 64, (8, 8), **{"result": (8, 8), "filter": (3, 3), "groups": groups, **more})
    problem = of_convolution(sizes, 2, 1e12, 90_000)
    assert problem.recent == recent
    assert problem.moved - problem.recent == 2 * 64 * 32 // groups * sizes.filter[0] ** 2


def test_keys_of_tokens_before_come_from_the_memory() -> None:
    rates = {
        **dict.fromkeys(
            ("floor", "width", "start", "block", "join", "decoding_block", "decoding_tile"), 1e-9
        ),
        "matrix": FAST,
        "memory": 0.5,
        "mix": 1.0,
        "spread": 2.0,
    }
    known = with_rates("attention", rates, clock_hz=2.5e8, bandwidth=1e9, l2_bytes=10**9)

    def attention(queries: int) -> float:
        sizes = Attention(1, 1, 1, queries, 256, 64)
        return predict(Kernel("attention", "bfloat16", 0, 0, 9_200_000, 0, sizes), known).seconds

    assert attention(256) == pytest.approx(9.2e6 / (0.5 * THROUGH), rel=1e-3)
    assert attention(1) == pytest.approx(9.2e6 / (0.905 * 1e9), rel=1e-3)


def test_a_split_is_written_and_read_by_the_cache() -> None:
    # k of 8 x 64 in 8 parts: 8 bytes of each partial result, twice as fast as all multiprocessors move them
    rates = {**MATMUL, "memory": FAST, "split": 0.0, "latency": 1e9}
    known = with_rates("matmul", rates, clock_hz=2.5e8, bandwidth=1e6, l2_bytes=10**9)
    kernel = Kernel("matmul", "bfloat16", 0, 0, 0, 0, Product(256, 16, 512, layout="nt"))
    alone, parts = 8 * 1.0, 8  # steps of 64, a second each
    partial = 8 * parts * 256 * 16 / (2 * THROUGH)
    found = predict(kernel, known).seconds
    assert found == pytest.approx(alone / parts + partial, rel=1e-2)


def test_an_h100_has_the_points_of_an_h200_that_it_lacks() -> None:
    def names(name: str) -> set[tuple[str, str, str]]:
        return {(one.family, one.variant, one.dtype) for one in published(name).calibration}

    assert names("h100") == names("h200")
    own = next(one for one in published("h100").calibration if one.variant == "tn.alone")
    other = next(one for one in published("h200").calibration if one.variant == "tn.alone")
    assert own.points != other.points
    # of another generation only its own
    assert names("a100") < names("h200")
    assert ("matmul", "tn", "bfloat16") not in names("a100")
