"""Batch normalisation by every operator that ATen and its backends have for it."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.errors import ShapeError
from tests.support import price, shapes, t

# 60 elements in 6 channels. Training: mean, centre, square, sum, normalise, weight, bias on each; two running statistics
# are mixed with the batch's by three operations per channel. Inference: one scale and one shift.
X, C = t(2, 6, 5), t(6)
RUNNING = (C, C)
TRAINING, UPDATES, INFERENCE = 7 * 60, 2 * 3 * 6, 2 * 60
KEPT = [(6,), (6,)]
MORE = [*KEPT, (0,), *KEPT]  # memory that only cuDNN reserves, new running statistics


@pytest.mark.parametrize(
    ("op", "arguments", "flops", "roots", "results"),
    [
        ("_native_batch_norm_legit.no_stats", (C, C, True, 0.1, 1e-5), TRAINING, 6, KEPT),
        ("_batch_norm_with_update_functional.default", (C, C, *RUNNING, 0.1, 1e-5), TRAINING + UPDATES, 6, MORE),
        ("_batch_norm_impl_index.default", (C, C, *RUNNING, True, 0.1, 1e-5, True), TRAINING + UPDATES, 6, [*KEPT, (0,)]),
        ("miopen_batch_norm.default", (C, C, *RUNNING, True, 0.1, 1e-5), TRAINING + UPDATES, 6, KEPT),
        ("miopen_batch_norm.default", (C, C, *RUNNING, False, 0.1, 1e-5), INFERENCE, 6, [(0,), (0,)]),
        ("cudnn_batch_norm.default", (C, C, *RUNNING, True, 0.1, 1e-5), TRAINING + UPDATES, 6, [*KEPT, (0,)]),
    ],
)  # fmt: skip
def test_work_and_results(
    op: str, arguments: tuple[Any, ...], flops: int, roots: int, results: list[tuple[int, ...]]
) -> None:
    estimate = price(f"aten.{op}", X, *arguments)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, roots)
    assert shapes(estimate) == [(2, 6, 5), *results]


def test_without_an_update_nothing_is_written_but_the_result() -> None:
    estimate = price("aten._batch_norm_no_update.default", X, C, C, *RUNNING, 0.1, 1e-5)
    assert (estimate.vector_flops, estimate.cost.written_bytes) == (INFERENCE, 4 * 60)


def test_the_implementation_that_runs_is_atens_own() -> None:
    assert price("aten._batch_norm_impl_index.default", X, C, C, *RUNNING, True, 0.1, 1e-5, True).out[-1] == 0


def test_statistics_by_themselves() -> None:
    mixed = price("aten.batch_norm_update_stats.default", X, *RUNNING, 0.1)
    assert (mixed.vector_flops, shapes(mixed)) == (4 * 60 + UPDATES, KEPT)
    assert mixed.cost.written_bytes == 4 * 4 * 6


def test_statistics_of_several_devices_are_combined_per_channel() -> None:
    three_devices = t(3, 6)
    operands = (X, three_devices, three_devices, *RUNNING, 0.1, 1e-5)
    for op, counts in (("batch_norm_gather_stats", 20), ("batch_norm_gather_stats_with_counts", t(3))):
        estimate = price(f"aten.{op}.default", *operands, counts)
        assert shapes(estimate) == KEPT
        # A merge of two counts: the new mean 4, the new squared distance 4, for 6 channels of 3 devices.
        assert (estimate.vector_flops, estimate.transcendentals) == (8 * 3 * 6 + UPDATES, 6)


ALL = (True, True, True)


@pytest.mark.parametrize(
    ("op", "arguments", "flops"),
    [
        ("_batch_norm_impl_index_backward", (0, X, X, C, *RUNNING, *RUNNING, True, 1e-5, ALL, t(0)), 8 * 60),
        ("cudnn_batch_norm_backward", (X, X, C, *RUNNING, *RUNNING, 1e-5, t(0)), 8 * 60),
        ("miopen_batch_norm_backward", (X, X, C, *RUNNING, *RUNNING, 1e-5), 8 * 60),
    ],
)
def test_all_three_gradients_are_eight_operations_per_element(
    op: str, arguments: tuple[Any, ...], flops: int
) -> None:
    estimate = price(f"aten.{op}.default", *arguments)
    assert estimate.vector_flops == flops
    assert shapes(estimate) == [(2, 6, 5), (6,), (6,)]


def test_gradients_in_two_steps_with_a_reduction_over_devices_between() -> None:
    sums = price("aten.batch_norm_backward_reduce.default", X, X, C, C, C, *ALL)
    assert shapes(sums) == [(6,)] * 4
    each = price("aten.batch_norm_backward_elemt.default", X, X, C, C, C, C, C, t(1, dtype="int32"))
    assert shapes(each) == [(2, 6, 5)]
    # Centre, product and two sums; centre, two products, subtract twice: centring is done in both steps.
    assert (sums.vector_flops, each.vector_flops) == (4 * 60, 5 * 60)


def test_a_vector_is_a_batch_of_one_channel_each_and_a_number_is_none() -> None:
    arguments = (C, C, *RUNNING, False, 0.1, 1e-5, True)
    assert price("aten.batch_norm.default", C, *arguments).vector_flops == 2 * 6
    with pytest.raises(ShapeError, match="needs a channel axis"):
        price("aten.batch_norm.default", t(), *arguments)
