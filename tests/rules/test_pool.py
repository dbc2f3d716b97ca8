"""Pooling: output sizes, window elements, gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # which the decomposition of pools takes for imported
from torch._inductor.decomposition import select_decomp_table

from graphflops import analyze
from graphflops.dims import evaluate, symbol
from graphflops.errors import ShapeError
from graphflops.rules.conv import adaptive_windows, outputs
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

s = symbol("s")


@pytest.mark.parametrize(
    ("op", "arguments", "expected", "flops"),
    [
        ("aten.max_pool1d.default", (t(2, 3, 16), 3), [(2, 3, 5)], 2 * 3 * 5 * 3),
        ("aten.max_pool2d.default", (t(2, 3, 8, 8), (2, 2)), [(2, 3, 4, 4)], 96 * 4),
        ("aten.max_pool2d.default", (t(3, 8, 8), (3,), (2,), (1,)), [(3, 4, 4)], 48 * 9),
        ("aten.max_pool2d.default", (t(1, 1, 8, 8), (3, 3), (1, 1), (0, 0), (2, 2)), [(1, 1, 4, 4)], 16 * 9),
        ("aten.max_pool2d.default", (t(1, 1, 9, 9), (2, 2), (2, 2), 0, 1, True), [(1, 1, 5, 5)], 25 * 4),
        ("aten.max_pool3d.default", (t(1, 2, 4, 4, 4), 2), [(1, 2, 2, 2, 2)], 16 * 8),
        ("aten.max_pool2d_with_indices.default", (t(1, 1, 8, 8), (2, 2)), [(1, 1, 4, 4)] * 2, 16 * 4),
        (
            "prims._low_memory_max_pool_with_offsets.default",
            (t(1, 2, 8, 8), (3, 3), (2, 2), (1, 1), (1, 1), False),
            [(1, 2, 4, 4)] * 2,
            32 * 9,
        ),
        (
            "prims._low_memory_max_pool2d_with_offsets.default",
            (t(1, 2, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
            [(1, 2, 4, 4)] * 2,
            32 * 4,
        ),
        # i // 3, * 3 and - split the place in its window; per axis * and +; the two axes joined by * and +
        (
            "prims._low_memory_max_pool_offsets_to_indices.default",
            (t(1, 2, 4, 4, dtype="int8"), (3, 3), (8, 8), (2, 2), (1, 1), (1, 1)),
            [(1, 2, 4, 4)],
            32 * (3 + 2 * 2 + 2),
        ),
        (
            "prims._low_memory_max_pool2d_offsets_to_indices.default",
            (t(1, 2, 4, 4, dtype="int8"), 3, 8, (2, 2), (1, 1)),
            [(1, 2, 4, 4)],
            32 * (3 + 2 * 2 + 2),
        ),
        ("aten.avg_pool1d.default", (t(2, 3, 16), (4,)), [(2, 3, 4)], 24 * (4 + 1)),
        ("aten.avg_pool2d.default", (t("s", 3, 8, 8), (2, 2)), [(s, 3, 4, 4)], 48 * (4 + 1) * s),
        ("aten.avg_pool2d.default", (t(1, 1, 7, 7), 3, 2, 1), [(1, 1, 4, 4)], 16 * (9 + 1)),
        ("aten.adaptive_avg_pool2d.default", (t(2, 3, 8, 8), (1, 1)), [(2, 3, 1, 1)], 6 * (64 + 1)),
        ("aten._adaptive_avg_pool2d.default", (t(1, 1, 8, 8), (4, 2)), [(1, 1, 4, 2)], 64 + 8),
        # 10 elements into 4 windows: 0-2, 2-4, 5-7, 7-9, so 12; 7 into 2: 0-3, 3-6, so 8
        ("aten.adaptive_max_pool2d.default", (t(1, 1, 10, 7), (4, 2)), [(1, 1, 4, 2)] * 2, 12 * 8),
        ("aten.adaptive_max_pool1d.default", (t(3, 8), (4,)), [(3, 4)] * 2, 24),
        ("aten.adaptive_avg_pool3d.default", (t(1, 2, 4, 4, 4), (2, 2, 2)), [(1, 2, 2, 2, 2)], 128 + 16),
        (
            "aten.fractional_max_pool2d.default",
            (t(1, 3, 8, 8), (2, 2), (5, 5), t(1, 3, 2)),
            [(1, 3, 5, 5)] * 2,
            75 * 4,
        ),
        ("aten.max_unpool2d.default", (t(1, 3, 4, 4), t(1, 3, 4, 4), (8, 8)), [(1, 3, 8, 8)], 0),
        ("aten.max_unpool3d.default", (t(3, 2, 2, 2), t(3, 2, 2, 2), (4, 4, 4), 2, 0), [(3, 4, 4, 4)], 0),
        (
            "aten.max_pool2d_with_indices_backward.default",
            (t(1, 1, 4, 4), t(1, 1, 8, 8), (2, 2), (2, 2), 0, 1, False, t(1, 1, 4, 4, dtype="int64")),
            [(1, 1, 8, 8)],
            16,
        ),
        ("aten.max_pool2d_backward.default", (t(1, 1, 4, 4), t(1, 1, 8, 8), 2), [(1, 1, 8, 8)], 16 * (4 + 1)),
        (
            "aten.avg_pool2d_backward.default",
            (t(1, 1, 4, 4), t(1, 1, 8, 8), (2, 2), (2, 2), 0, False, True, None),
            [(1, 1, 8, 8)],
            16 * (4 + 1),
        ),
        ("aten._adaptive_avg_pool2d_backward.default", (t(1, 2, 2), t(1, 8, 8)), [(1, 8, 8)], 64 + 4),
        (
            "aten.adaptive_max_pool2d_backward.default",
            (t(1, 2, 2), t(1, 8, 8), t(1, 2, 2, dtype="int64")),
            [(1, 8, 8)],
            4,
        ),
    ],
)
def test_pooling(op: str, arguments: Any, expected: Any, flops: Any) -> None:
    priced = price(op, *arguments)
    assert shapes(priced) == expected
    assert priced.vector_flops == flops


def test_symbolic_sizes_stay_exact() -> None:
    (floored,) = shapes(price("aten.max_pool2d.default", t(1, 1, "s", "s"), 3, 2, 1))
    assert floored == (1, 1, (s - 1) // 2 + 1, (s - 1) // 2 + 1)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(2, 2, 0, 1), (3, 2, 1, 1), (2, 3, 1, 1), (3, 5, 1, 1), (2, 2, 1, 3), (1, 3, 0, 1)],
)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_positions_one_by_one(kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> None:
    formula = outputs(s, kernel, stride, padding, dilation, ceil_mode)
    for size in range(dilation * (kernel - 1) + 1, 20):
        reach = dilation * (kernel - 1) + 1
        starts = range(
            -padding, size, stride
        )  # rounding up, a window may hang over but not start in the padding
        end = size + padding
        fitting = [start for start in starts if start + reach <= end]
        expected = len(fitting)
        if ceil_mode and fitting[-1] + reach < end and fitting[-1] + stride < size:
            expected += 1
        assert evaluate(formula, {"s": size}) == expected
        assert outputs(size, kernel, stride, padding, dilation, ceil_mode) == expected


def test_adaptive_windows_one_by_one() -> None:
    for size, count in itertools.product(range(1, 14), range(1, 9)):
        starts = [i * size // count for i in range(count)]
        ends = [-(-(i + 1) * size // count) for i in range(count)]
        elements = sum(ends) - sum(starts)
        assert adaptive_windows((size,), (count,)) == elements
        assert evaluate(adaptive_windows((s,), (count,)), {"s": size}) == elements
        assert evaluate(adaptive_windows((size,), (s,)), {"s": count}) == elements
        assert evaluate(adaptive_windows((s,), (t("n").shape[0],)), {"s": size, "n": count}) == elements


def test_global_average_pooling_reads_every_element_once() -> None:
    priced = price("aten.adaptive_avg_pool2d.default", t("s", 3, "h", "w"), (1, 1))
    assert priced.vector_flops == 3 * s * symbol("h") * symbol("w") + 3 * s


def test_indices_are_written() -> None:
    cost = price("aten.max_pool2d_with_indices.default", t(1, 1, 8, 8), (2, 2)).cost
    assert (cost.read_bytes, cost.written_bytes) == (4 * 64, (4 + 8) * 16)


def test_a_window_larger_than_its_input() -> None:
    with pytest.raises(ShapeError, match="a window of 5 is larger than its input of 4"):
        price("aten.max_pool2d.default", t(1, 1, 4, 4), 5)


def test_rounding_up_a_window_may_be_larger_than_its_input() -> None:
    """As a global pooling that names the widest picture it may meet."""
    priced = price("aten.avg_pool2d.default", t(2, 3, 4, 7), 320, (), 0, True)
    assert shapes(priced) == [(2, 3, 1, 1)]
    assert priced.vector_flops == 2 * 3 * (4 * 7 + 1)


@pytest.mark.parametrize("op", ["aten.max_pool2d.default", "aten.max_pool2d_with_indices.default"])
def test_the_gradient_of_a_maximum_is_one_addition(op: str) -> None:
    given = {"x": t(1, 1, 8, 8), "kernel_size": (2, 2)}
    gradient = find_backward(op)
    assert gradient is not None
    priced = gradient(ForwardCall(price(op, *given.values()), given, frozenset({"x"})))
    assert shapes(priced) == [(1, 1, 8, 8)]
    assert priced.vector_flops == 16
    assert priced.cost.read_bytes == (4 + 8) * 16


def test_the_gradient_of_unpooling_is_picked_up() -> None:
    given = {"x": t(1, 4, 4), "indices": t(1, 4, 4, dtype="int64"), "output_size": (8, 8)}
    gradient = find_backward("aten.max_unpool2d.default")
    assert gradient is not None
    forward = price("aten.max_unpool2d.default", *given.values())
    priced = gradient(ForwardCall(forward, given, frozenset({"x"})))
    assert priced.cost.read_bytes == (4 + 8) * 16


def test_sizes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    choices = itertools.product((7, 10), (2, 3), (2, 3), (0, 1), (1, 2), (False, True))
    for size, kernel, stride, padding, dilation, ceil_mode in choices:
        if 2 * padding > kernel or size + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        settings = (kernel, stride, padding, dilation, ceil_mode)
        expected = torch.ops.aten.max_pool2d(torch.empty(1, 1, size, size, device="meta"), *settings)
        (out,) = price("aten.max_pool2d.default", t(1, 1, size, size), *settings).out
        assert isinstance(out, TensorType)
        assert out.shape == tuple(expected.shape)


def test_places_in_windows_are_bytes_until_they_are_indices() -> None:
    pooled = price(
        "prims._low_memory_max_pool_with_offsets", t(2, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False
    )
    assert [out.nbytes for out in pooled.out] == [2 * 16 * 4, 2 * 16]
    indices = price("prims._low_memory_max_pool_offsets_to_indices", pooled.out[1], (2, 2), (8, 8), (2, 2))
    assert indices.cost.written_bytes == 2 * 16 * 8


def test_a_pool_that_torch_compile_decomposes_is_known() -> None:
    program = torch.export.export(torch.nn.MaxPool2d(2), (torch.zeros(1, 2, 8, 8),))
    report = analyze(program.run_decompositions(select_decomp_table()))
    assert not report.coverage.unknown
    assert report.total().vector_flops == 2 * (4 * 4) * (2 * 2)
