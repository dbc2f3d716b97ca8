"""Times of kernels: limits that a reader can work out, and order where no exact number is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import analyze
from graphflops.devices import device, names
from graphflops.kernels.call import Tensor
from graphflops.kernels.kernel import Convolution, Kernel, Product, Rows
from graphflops.kernels.products import multiplied
from graphflops.render import render
from graphflops.report import Report
from graphflops.time.predict import matrix_peak, predict

H200 = device("h200")


def product(m: int, n: int, k: int, dtype: str = "bfloat16", width: int = 2) -> Kernel:
    sizes = Product(m, n, k)
    return Kernel("matmul", dtype, 2 * m * n * k, 0, width * k * (m + n), width * m * n, sizes)


@pytest.mark.parametrize("name", names())
def test_no_kernel_is_faster_than_the_ceilings(name):
    known = device(name)
    for kernel in (product(8192, 8192, 8192), product(1, 8192, 8192)):
        found = predict(kernel, known)
        peak = matrix_peak("bfloat16", known)
        assert peak is None or found.seconds >= kernel.flops / peak
        assert found.seconds >= 0.9 * (kernel.read_bytes + kernel.written_bytes) / known.bandwidth
        assert found.low <= found.seconds <= found.high


def test_what_limits_a_kernel():
    assert predict(product(8192, 8192, 8192), H200).bound == "matrix"
    assert predict(product(1, 8192, 8192), H200).bound == "memory"
    assert predict(product(16, 16, 16), H200).bound == "latency"


@pytest.mark.parametrize(
    ("dtype", "peak"), [("float8_e4m3fn", "float8"), ("uint8", "int8"), ("complex64", "float32")]
)
def test_element_types_share_peaks(dtype, peak):
    assert matrix_peak(dtype, H200) == H200.matrix[peak]


def test_an_element_type_without_a_published_peak_has_none():
    assert matrix_peak("float64", device("l4")) is None


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (product(512, 512, 512), product(1024, 512, 512)),
        (product(4096, 4096, 1024), product(4096, 4096, 2048)),
        (product(4096, 50256, 1024), product(4096, 50257, 1024)),  # rows of an odd size have slow kernels
    ],
)
def test_more_work_takes_longer(smaller, larger):
    assert predict(smaller, H200).seconds < predict(larger, H200).seconds


@pytest.mark.parametrize(
    ("m", "n", "k", "microseconds"),
    [  # torch 2.11 on an H200, by its profiler
        (4096, 3072, 768, 31.1),
        (4096, 768, 3072, 27.5),
        (2048, 768, 768, 7.1),
        (25216, 1536, 384, 54.5),
        (4096, 32000, 1024, 365.6),
        (4096, 50257, 1024, 4370.7),
    ],
)
def test_products_of_models(m, n, k, microseconds):
    assert predict(product(m, n, k), H200).seconds == pytest.approx(microseconds * 1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("n", "k", "microseconds"), [(2304, 768, 47.1), (3072, 768, 47.8), (768, 3072, 60.0)]
)
def test_products_in_float32_of_gpt2(n, k, microseconds):
    """256 rows, weights k x n and a bias, to which sums are added whole."""
    like = Tensor((256, k), "float32", 32, (k, 1), 4 * 256 * k)
    kernel = multiplied(Product(256, n, k, 1, "nn"), like, with_bias=True)
    assert predict(kernel, H200).seconds == pytest.approx(microseconds * 1e-6, rel=0.25)


def reduction(rows: int, columns: int, *, is_inner: bool) -> Kernel:
    read, written = 4 * rows * columns, 4 * rows
    variant = "" if is_inner else "outer"
    return Kernel(
        "reduction",
        "float32",
        0,
        rows * columns,
        read,
        written,
        Rows(rows, columns, is_inner),
        variant=variant,
    )


@pytest.mark.parametrize(
    ("kernel", "microseconds"),
    [
        # sums in a forward of Mamba-2 and Mixtral, as the profiler timed them on an H200
        (reduction(2 * 2 * 256 * 256 * 16, 64, is_inner=True), 988),
        (reduction(1024 * 512, 2, is_inner=False), 6.7),
        (reduction(2 * 2 * 256 * 16 * 64, 256, is_inner=False), 250),
    ],
)
def test_reductions_take_about_as_long_as_measured(kernel, microseconds):
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(microseconds, rel=0.35)


@pytest.mark.parametrize(
    ("images", "positions", "microseconds"),
    # bilinear interpolation in DeepLab and FCN, as the profiler timed it: each thread loops over the images of a position
    [(4 * 256, 32 * 32, 152.1), (4 * 21, 256 * 256, 21.2), (2 * 21, 256 * 256, 11.6)],
)
def test_interpolation_is_a_loop_over_images(images, positions, microseconds):
    written = 2 * images * positions
    kernel = Kernel(
        "pool",
        "bfloat16",
        0,
        9 * images * positions,
        written,
        written,
        Rows(positions, images, False),
        variant="linear",
    )
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(microseconds, rel=0.4)


@pytest.mark.parametrize(
    ("batch", "channels", "size", "filter_", "last", "phase", "microseconds"),
    [
        # gradients in a step of EfficientNet-B0, MobileNet-V2 and ConvNeXt-T, as the profiler timed them on an H200
        (32, 1152, 7, 3, False, "weight_gradient", 77.4),
        (32, 1152, 7, 5, False, "weight_gradient", 209.2),
        (32, 144, 28, 5, False, "weight_gradient", 144.8),
        (16, 96, 56, 3, False, "weight_gradient", 79.3),
        (16, 96, 56, 7, True, "weight_gradient", 36.2 + 3.9),
        (16, 768, 7, 7, True, "weight_gradient", 7.2 + 2.6),
        (16, 96, 56, 7, True, "input_gradient", 81.2),
        (16, 384, 14, 7, True, "input_gradient", 23.6),
    ],
)
def test_gradients_of_depthwise_convolutions(batch, channels, size, filter_, last, phase, microseconds):
    image, taps = (size, size), (filter_, filter_)
    sizes = Convolution(batch, channels, channels, image, image, taps, channels, last, False, phase)
    moved = 2 * batch * channels * size * size
    flops = 2 * batch * channels * size * size * filter_ * filter_
    kernel = Kernel("convolution", "bfloat16", flops, 0, 2 * moved, moved, sizes)
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(microseconds, rel=0.5)


def test_a_report_has_the_errors_of_the_profile_on_kernels_held_out():
    sample = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"
    measured = analyze(sample, device="h200")
    for one in device("h200").calibration:
        assert measured.profile_errors[one.family] >= one.error[0]
    assert Report.from_json(measured.to_json()).profile_errors == measured.profile_errors
    assert "median error of kernels that measured points correct, on points held out: matmul" in render(
        measured, "table"
    )
    datasheet = analyze(sample, device="l4")
    assert datasheet.profile_errors == {}
    assert "no kernel of this device was measured" in render(datasheet, "table")


def test_an_element_type_without_a_published_peak_is_timed_by_its_traffic():
    """Integers are multiplied outside of the matrix units: 3 x 8 x 4096 x 4096 bytes at 4.8 TB/s are 84 us."""
    found = predict(product(4096, 4096, 4096, "int64", 8), H200)
    assert found.bound == "memory"
    assert found.seconds > 84e-6


@pytest.mark.parametrize("written", [0, 2])
def test_a_product_without_results_is_not_launched(written):
    assert Kernel("matmul", "bfloat16", 0, 0, 64, written, Product(0, 8, 8)).is_launched == bool(written)


def test_what_is_reached_of_a_peak_that_nobody_publishes_is_not_known() -> None:
    """A TPU has no peak for float32."""
    sample = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"
    unknown, known = (analyze(sample, device=name).totals.time for name in ("tpu-v5e", "h200"))
    assert unknown is not None
    assert known is not None
    assert unknown.matrix_utilization is None
    assert known.matrix_utilization is not None


@pytest.mark.parametrize("family", ["matmul", "convolution", "attention"])
def test_matrix_work_of_unknown_sizes_is_timed_by_its_ceilings(family):
    """4.8 TB/s move 4.8 MB in a microsecond."""
    found = predict(Kernel(family, "float32", 8, 0, 4_800_000, 4_800_000), H200)
    assert found.seconds > 2e-6


def test_a_gradient_of_an_empty_batch_has_the_time_of_a_launch():
    sizes = Convolution(0, 16, 32, (16, 16), (16, 16), (1, 1), phase="weight_gradient")
    found = predict(Kernel("convolution", "float32", 0, 0, 0, 2048, sizes), H200)
    assert 0 < found.seconds < 1e-3


def test_groups_with_long_windows_keep_the_model_of_their_own():
    """wav2vec 2.0's position embedding: 16 groups of 48 channels and 128 taps, 690 us each, in eight streams."""
    sizes = Convolution(2, 768, 768, (99,), (99,), (128,), groups=16, algorithm="long")
    flops = 2 * 2 * 99 * 48 * 128 * 768
    kernel = Kernel("convolution", "bfloat16", flops, 0, 9_741_312, 304_128, sizes)
    assert predict(kernel, H200).seconds * 1e6 == pytest.approx(2 * 690, rel=0.1)
