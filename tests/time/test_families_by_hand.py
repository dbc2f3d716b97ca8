"""Which constants and peaks a kernel has, what limits it, groups in streams, and how slow unfused attention is."""

from __future__ import annotations

from math import exp
from types import SimpleNamespace as Space
from typing import Any

import pytest
from msgspec.structs import replace

from graphflops import devices
from graphflops.devices import Calibration
from graphflops.kernels.choices import constants
from graphflops.kernels.kernel import Attention, Convolution, Kernel, Product, Recurrence, Rows
from graphflops.time.correction import names_of
from graphflops.time.predict import (
    fused_instead,
    matrix_peak,
    modelled,
    names_of_constants,
    predict,
    slowdowns,
)
from graphflops.time.predict_products import group_seconds
from tests.time.toy_device import MATMUL, TRAFFIC, device, with_rates

CONV = Convolution(2, 64, 32, (8, 8), (8, 8), (3, 3))


def kernel(family: Any, sizes: Any = None, dtype: str = "bfloat16", **fields: Any) -> Kernel:
    return Kernel(family, dtype, sizes=sizes, **fields)


DEPTHWISE, ONE_TAP = replace(CONV, batch=8, groups=64, channels_last=True), replace(CONV, filter=(1, 1))
FLASH_SIZES = Attention(2, 4, 4, 8, 8, 64)


@pytest.mark.parametrize(
    ("one", "names"),
    [
        (kernel("elementwise"), "elementwise elementwise"),
        (kernel("elementwise", variant="strided"), "elementwise.strided elementwise"),
        (kernel("normalization", Rows(4, 8), variant="batch_norm"), "normalization.batch_norm normalization"),
        (kernel("reduction", Rows(2, 8)), "reduction reduction"),
        (kernel("reduction", Rows(1, 8)), "reduction.whole reduction"),
        (kernel("reduction", Rows(1, 8), variant="pairs"), "reduction.pairs reduction"),
        # a convolution of a kind, of the kind without what follows, or dense; each for its phase first
        (kernel("convolution", CONV), "dense.forward dense " * 3),
        (kernel("convolution", replace(ONE_TAP, phase="weight_gradient")),
         "pointwise.weight_gradient pointwise " * 2 + "dense.weight_gradient dense"),
        (kernel("convolution", replace(ONE_TAP, channels_last=True)),
         "pointwise_last.forward pointwise_last pointwise.forward pointwise dense.forward dense"),
        (kernel("convolution", DEPTHWISE), "depthwise_last.forward depthwise_last depthwise.forward depthwise"),
        (kernel("attention", FLASH_SIZES), "flash.narrow.forward flash.forward flash attention"),
        (kernel("attention", replace(FLASH_SIZES, queries=1, masking="masked")),
         "flash.masked.narrow.decoding flash.masked.decoding flash.narrow.decoding flash.decoding flash attention"),
        (kernel("attention", replace(FLASH_SIZES, phase="backward", kernel="cudnn")),
         "cudnn.narrow.backward cudnn.backward cudnn attention"),
        (kernel("attention", replace(FLASH_SIZES, width=65)), "flash.forward flash attention"),
        (kernel("attention", replace(FLASH_SIZES, width=128)), "flash.forward flash attention"),
        (kernel("attention", replace(FLASH_SIZES, width=129)), "flash.wide.forward flash.forward flash attention"),
        (kernel("matmul", Product(200, 64, 64)), "tn tn matmul"),
        (kernel("matmul", Product(200, 64, 64, 2)), "batched batched matmul"),
        (kernel("matmul", Product(200, 64, 64, 2, algorithm="grouped")), "grouped batched batched matmul"),
        (kernel("matmul", Product(200, 64, 64, is_alone=True)), "alone matmul"),
        # Some rows begin at an odd element.
        (kernel("matmul", Product(8, 65, 64)), "by_2.tn by_2 tn matmul"),
        (kernel("matmul", Product(8, 66, 64)), "by_4.tn by_4 tn matmul"),
        (kernel("matmul", Product(129, 68, 64)), "by_8.tn by_8 tn matmul"),
        (kernel("matmul", Product(129, 72, 64)), "tn tn matmul"),
        (kernel("matmul", Product(1, 65, 64, 2)), "batched.vector batched matmul"),
        (kernel("matmul", Product(16, 65, 64, 2)), "batched.by_2 batched matmul"),
        (kernel("matmul", Product(17, 65, 64, 2)), "batched.by_2 batched matmul"),
        (kernel("matmul", Product(8, 65, 64), "float32"), "few skinny tn matmul"),
        (kernel("matmul", Product(1, 64, 64), "float32"), "gemv few skinny tn matmul"),
        (kernel("matmul", Product(4, 64, 64), "float32"), "few skinny tn matmul"),
        (kernel("matmul", Product(4, 64, 64)), "skinny tn matmul"),
    ],
)  # fmt: skip
def test_tables_of_constants_by_their_names(one: Kernel, names: str) -> None:
    """Each with the bits of an element first."""
    width = 4 if one.dtype == "float32" else 2
    found = names_of_constants(one, width)
    whole = ("elementwise", "normalization", "reduction", "attention", "matmul")
    spelled = [name if name.split(".")[0] in whole else f"{one.family}.{name}" for name in names.split()]
    assert found == [each for name in spelled for each in (f"{name}.{8 * width}", name)]


@pytest.mark.parametrize(
    ("dtype", "peak"),
    [
        ("bfloat16", 4),
        ("float8_e4m3fn", 8),
        ("float8_e5m2", 8),
        ("int8", 16),
        ("uint8", 16),
        ("int4", 16),
        ("int16", 2),
        ("complex64", 2),
        ("float64", None),
        ("complex128", None),
    ],
)
def test_peaks_by_element_type(dtype: str, peak: float | None) -> None:
    known = device(matrix={"bfloat16": 4.0, "float8": 8.0, "int8": 16.0, "float32": 2.0})
    assert matrix_peak(dtype, known) == peak


def test_own_peaks_come_first() -> None:
    known = device(matrix={"int8": 16.0, "uint8": 3.0, "float64": 5.0})
    assert (matrix_peak("uint8", known), matrix_peak("complex128", known)) == (3, 5)


def test_matrix_work_without_a_peak_or_sizes_is_timed_by_ceilings() -> None:
    rates = {"matmul": {**MATMUL, "floor": 1e6}}
    known = device(rates=rates)
    product = kernel("matmul", Product(256, 256, 64), flops=10**6, read_bytes=8, written_bytes=8)
    assert predict(product, known).seconds > 1
    assert modelled(product, known) == pytest.approx(predict(product, known).seconds)
    for other in (replace(product, dtype="float64"), replace(product, sizes=None)):
        assert predict(other, known).seconds < 1
        assert modelled(other, known) is None
    assert predict(replace(product, dtype="float64"), known).seconds == pytest.approx(2e-6 + 16 / 0.8e9)


def test_no_kernel_is_faster_than_the_peak() -> None:
    product = kernel("matmul", Product(256, 256, 64), flops=8 * 10**9, read_bytes=8, written_bytes=8)
    assert predict(product, with_rates("matmul", MATMUL)).seconds == pytest.approx(2)


@pytest.mark.parametrize(
    ("work", "moved", "floor", "bound"),
    [
        # Traffic of 3 ms; a third of the time is the least that may limit it.
        (0, 3 * 10**6, 5900.0, "memory"),
        (0, 3 * 10**6, 6100.0, "latency"),
        (4 * 10**6, 3 * 10**5, 1e-9, "vector"),
    ],
)
def test_what_limits_a_kernel(work: int, moved: int, floor: float, bound: str) -> None:
    known = with_rates("elementwise", {**TRAFFIC, "memory": 1.0, "floor": floor, "work": 1.0}, clock_hz=1e9)
    one = kernel("elementwise", dtype="float32", vector_flops=work * 4, read_bytes=moved, written_bytes=0)
    slow = replace(known, bandwidth=1e9)
    assert predict(one, slow).bound == bound


def test_a_correction_has_an_interval_of_its_own() -> None:
    """One point of ratio 1.5 is the mean of all: nine of ten times are within 1.645 of its deviations."""
    names = names_of("elementwise", 3)
    fields: dict[str, Any] = dict.fromkeys(("software", "data", "source"), "")
    point = Calibration("elementwise", "", "float32", columns=names, points=((100.0, 1.0, 1.5),), **fields)
    known = replace(with_rates("elementwise", {**TRAFFIC, "memory": 1.0}), calibration=(point,))
    one = kernel("elementwise", dtype="float32", read_bytes=50, written_bytes=50)
    found = predict(one, known)
    assert found.seconds == pytest.approx(1.5 * 100 / 1e9)
    assert found.high / found.seconds == pytest.approx(found.seconds / found.low)
    noise = 0.08 / 0.2
    deviation = 0.2 * (1 - 1 / (1 + noise**2) + noise**2) ** 0.5
    assert found.high / found.seconds == pytest.approx(exp(1.645 * deviation))


LOOPED = replace(
    CONV, channels=80, filters=40, groups=10, algorithm="one_by_one"
)  # of 8 and 4 channels a group


def grouped(sizes: Convolution, each: float, **fields: Any) -> tuple[float, list[Kernel]]:
    """Seconds of all groups where each kernel takes so long, and the kernels of one."""
    seen: list[Kernel] = []

    def took(one: Kernel) -> float:
        seen.append(one)
        return each

    moved = {"read_bytes": 10 * 2 * 1184, "written_bytes": 10 * 2 * 512, "flops": 10_000}
    found = group_seconds(
        kernel("convolution", sizes, **{**moved, **fields}), sizes, devices.device("h200"), took
    )
    return found, seen


GAP, STARTED = (
    2e-6,
    0.7e-6,
)  # seconds between two kernels of a stream, and until the next one of any stream starts


def test_kernels_of_further_groups_start_one_after_the_other() -> None:
    """The three kernels of the first, with a gap of 2 us, then 0.7 us for each."""
    found, seen = grouped(LOOPED, 1e-6)
    assert found == pytest.approx(3 * (1e-6 + GAP) + 9 * 3 * STARTED)
    assert len(seen) == 3


def test_groups_run_in_eight_streams() -> None:
    """Ten groups are two turns; what nothing fills runs beside one another."""
    found, _ = grouped(LOOPED, 1.0)
    assert found == pytest.approx(2 * 3 * (1.0 + GAP))
    found, _ = grouped(replace(LOOPED, groups=8, channels=64, filters=32), 1.0)
    assert found == pytest.approx(3 * (1.0 + GAP), rel=0.1)


def test_groups_that_fill_the_device_take_turns() -> None:
    """By the share of 132 * 16 KiB that each kernel moves, but no more than all; a copy reads and writes."""
    full = 132 * 16384
    moved = {"read_bytes": 10 * full // 4, "written_bytes": 10 * full // 8}
    found, _ = grouped(LOOPED, 1.0, **moved)
    assert found == pytest.approx(3 * (1.0 + GAP) + 9 * (3 / 8 + 2 / 4 + 2 / 8))
    much = {name: 100 * size for name, size in moved.items()}
    assert grouped(LOOPED, 1.0, **much)[0] == pytest.approx(3 * (1.0 + GAP) + 9 * 3)


def test_the_kernels_of_one_group() -> None:
    """A dense convolution, its channels filled up to 8, and copies of what it reads and writes."""
    _, (dense, read, written) = grouped(LOOPED, 1e-6)
    sizes = replace(LOOPED, channels=8, filters=8, groups=1, algorithm="", channels_last=True)
    assert dense == Kernel("convolution", "bfloat16", 1000, 0, 2 * 1184, 2 * 512, sizes)
    for one, size in ((read, 2 * 1184), (written, 2 * 512)):
        assert one == Kernel("copy", "bfloat16", 0, 0, size, size, variant="channels_last")
    _, (dense, *_) = grouped(replace(LOOPED, channels=10 * 33, filters=10 * 65), 1e-6)
    assert isinstance(dense.sizes, Convolution)
    assert (dense.sizes.channels, dense.sizes.filters) == (40, 72)


def test_groups_without_tensor_cores_take_the_time_of_their_sums() -> None:
    """A floor, and a time for each of 8 * 9 multiply-adds of a result; none of the other kernels."""
    found, seen = grouped(replace(LOOPED, algorithm="direct"), 1.0)
    floor, step, _ = constants("cudnn_9", "direct", "floor step multiplied")
    assert found == pytest.approx(2 * (floor + 8 * 9 * step + GAP))
    assert seen == []


def test_looped_groups_have_a_wide_interval() -> None:
    known = device(rates={"convolution.dense": {**MATMUL, "floor": 1e6}, "copy": {**TRAFFIC, "floor": 1e-9}})
    one = kernel("convolution", LOOPED, flops=10**6, read_bytes=10**4, written_bytes=10**4)
    found = predict(one, known)
    # two turns; each kernel moves 2,000 of four times 16,384 bytes
    assert found.seconds == pytest.approx(2, rel=1e-3)
    assert (found.low, found.high, found.bound) == (found.seconds / 2, found.seconds * 2, "latency")


def use(**changed: Any) -> Any:
    sizes = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 4,
        "queries": 128,
        "keys": 128,
        "width": 64,
        "value_width": 128,
    }
    work = {"flops": 10**6, "masked_flops": 0, "kv_bytes": 1000, "times": 3}
    why = {"calls": ("y", "z"), "kernel": "math", "kernel_reason": "flash: no mask"}
    return Space(**{**sizes, **work, **why, **changed})


def row(name: str, seconds: float | None) -> Any:
    return Space(node=name, matrix_dtype="bfloat16", time=None if seconds is None else Space(seconds=seconds))


FLASH = {
    **dict.fromkeys(("floor", "width", "start", "block", "join", "decoding_block", "decoding_tile"), 1e-9),
    "matrix": 1.0,
    "memory": 1e9,
    "mix": 1.0,
    "spread": 2.0,
}
TOY = with_rates("attention", FLASH)


def in_fused(one: Any, *timed: Any, dtype: str = "bfloat16", on: Any = TOY) -> float:
    """Seconds of a fused kernel in place of an attention of these calls."""
    rows = timed or (Space(node="y", matrix_dtype=dtype, time=None),)
    [(_, _, _, found)] = fused_instead([one], rows, {}, on)
    return found


def test_a_fused_kernel_on_the_same_operands() -> None:
    """Four products of the wider of both widths for each pair, as often as the attention runs."""
    each = 4 * 2 * 4 * 128 * 128 * 128 / 4e9
    assert in_fused(use()) == pytest.approx(3 * each)
    assert in_fused(use(masked_flops=10**6 // 2)) == pytest.approx(3 * each / 2)
    much = use(flops=8 * 10**9, masked_flops=4 * 10**9)  # a second at the peak, whatever tiles take
    assert in_fused(much) == pytest.approx(3)
    rows = [row("y", None), row("b", 0.0), row("c", 5.0), row("d", 7.0)]
    assert in_fused(use(), *rows) == pytest.approx(3 * 5)  # at least as long as the shortest call


def test_unfused_attention_is_so_many_times_slower() -> None:
    """By why the last kernel was refused: all calls of those attentions together."""
    timed = [row("y", 2.0), row("z", 1.0), row("w", 30.0), row("v", None)]
    uses = [use(), use(calls=("y", "v", "missing"))]
    assert [own for _, _, own, _ in fused_instead(uses, timed, {}, TOY)] == [3, 2]
    shortest = [row("y", 2.0), row("z", 1.0)]  # a fused kernel takes as long as the shortest call
    assert slowdowns([use(times=1)], shortest, {}, TOY) == {"no mask": (2 + 1) / 1}
    assert slowdowns([use(calls=("y",), times=1)], shortest, {}, TOY) == {"no mask": 2 / 1}
    both = [use(times=1), use(calls=("y",), times=1)]
    assert slowdowns(both, shortest, {}, TOY) == {"no mask": (3 + 2) / 2}
    other = use(calls=("y",), times=1, kernel_reason="cudnn: a width of 3")
    assert slowdowns([*both, other], shortest, {}, TOY) == {"no mask": 5 / 2, "a width of 3": 2}
    assert slowdowns([use(kernel="flash", times=1)], shortest, {}, TOY) == {}
    assert slowdowns([use(calls=("missing",))], shortest, {}, TOY) == {}
    assert slowdowns([use()], shortest, {}, TOY) == {}  # no slower: three times a second are as long


def test_a_fused_kernel_reads_keys_and_values_of_all_heads() -> None:
    """Operand and result of 2 * 4 * 128 * 128 elements of two bytes, and a thousand bytes of keys and values."""
    slow = with_rates("attention", {**FLASH, "matrix": 1e9, "memory": 1.0})
    moved = 2 * 2 * 4 * 128 * 128
    assert in_fused(use(flops=0), on=slow) == pytest.approx(3 * (2 * moved + 1000) / 1e9, rel=1e-4)
    single = in_fused(use(flops=0, times=1), dtype="float32", on=slow)
    assert single == pytest.approx((4 * moved + 1000) / 1e9, rel=1e-4)


def test_recurrent_layers_are_within_a_factor() -> None:
    """Nine of ten within 1.3."""
    layer = kernel("recurrence", Recurrence(8, 4, 16, 64, 4), "float32", read_bytes=4, written_bytes=4)
    found = predict(layer, with_rates("matmul", MATMUL))
    assert (found.low, found.high) == (pytest.approx(found.seconds / 1.3), pytest.approx(found.seconds * 1.3))
    assert found.bound == "latency"


@pytest.mark.parametrize(
    ("phase", "last", "results", "steps", "family"),
    [  # two images of 6 x 6 pixels, of which each third is kept; 8 groups of 4 channels and 2 filters
        ("forward", False, 2 * 2 * 2 * 16, 4 * 9, "forward"),
        ("forward", True, 2 * 2 * 2 * 16, 4 * 9, "forward_last"),
        ("input_gradient", False, 2 * 6 * 6 * 32, 2 * 9, "input_gradient"),
        ("weight_gradient", True, 16 * 4 * 9, 2 * 2 * 2, "weight_gradient_last"),
    ],
)
def test_one_kernel_of_all_groups_has_a_thread_for_each_result(
    phase: Any, last: bool, results: int, steps: int, family: str
) -> None:
    sizes = Convolution(2, 32, 16, (6, 6), (2, 2), (3, 3), 8, last, "grouped_direct", phase)
    floor, result, step = constants("cudnn_9", f"grouped_direct.{family}", "floor result step")
    found = predict(kernel("convolution", sizes, dtype="float32"), devices.device("h200")).seconds
    assert found == pytest.approx(floor + results * (result + steps * step) / (132 * 1.98e9))


def test_single_positions_of_one_kernel_have_constants_of_their_own() -> None:
    wide = Convolution(64, 2048, 2048, (24, 24), (24, 24), (1, 1), 64, algorithm="grouped_direct")
    found = predict(kernel("convolution", wide, dtype="float32"), devices.device("h200")).seconds
    assert found == pytest.approx(9.594e-3, rel=0.1)  # measured on an H200


def test_a_kernel_for_each_group_computes_32_filters_at_least() -> None:
    """128 groups with 2 filters of a channel, windows of 7 x 7 at each second pixel: as measured on an H200."""
    floor, step, multiplied = constants("cudnn_9", "direct", "floor step multiplied")
    sizes = Convolution(32, 128, 256, (56, 56), (28, 28), (7, 7), 128, True, "direct")
    found, _ = grouped(sizes, 0.0)
    assert found == pytest.approx(32 * 28 * 28 * 128 * 32 * 49 / (multiplied * 132 * 1.98e9))
    few = replace(sizes, batch=1, groups=16, channels=16, filters=32, image=(4, 4), result=(2, 2))
    assert grouped(few, 0.0)[0] == pytest.approx(floor + 49 * step + GAP + 15 * STARTED)


def test_groups_that_are_transposed_take_as_long_as_their_elements() -> None:
    """3 groups of 64 images of 56 x 56 pixels, from 112 channels to 56: an H200 transposes for 5,753 us."""
    floor, element = constants("cudnn_9", "transposition", "floor element")
    sizes = Convolution(
        *(64, 3 * 56, 3 * 112, (56, 56), (56, 56), (1, 1), 3), algorithm="transposed", phase="input_gradient"
    )
    found, seen = grouped(sizes, 0.0)
    each = [floor + 64 * channels * 56 * 56 * element / (132 * 1.98e9) for channels in (56, 112)]
    assert found == pytest.approx(3 * GAP + 3 * sum(each))
    assert len(seen) == 1
    assert 3 * sum(each) == pytest.approx(5753e-6, rel=0.2)
