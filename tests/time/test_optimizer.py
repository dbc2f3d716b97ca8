"""Kernels of an optimizer step: how many, and what each moves."""

from __future__ import annotations

import pytest

import graphflops
from graphflops.devices import device
from graphflops.tensor import BFLOAT16
from graphflops.time.kernel import Chunks
from graphflops.time.optimizer import Pass, _together

_CHUNK = 65536
_MODEL, _PARAMETERS = "samples/gqa_transformer.pt2", 35
_COSTS = {"optimizer.call": 1e-5, "optimizer.tensor": 1e-6}


def sizes(group: list[int], passed: Pass) -> list[Chunks | None]:
    """The chunks of each kernel."""
    (launch,) = _together(BFLOAT16, group, passed, _COSTS)
    assert launch.kernels is not None
    return [kernel.sizes for kernel in launch.kernels]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("group", "passed", "expected"),
    [
        ([10], Pass(1, 1, 1), [Chunks(1, 10)]),
        ([_CHUNK + 1], Pass(1, 1, 1), [Chunks(2, _CHUNK)]),
        ([321 * _CHUNK], Pass(1, 1, 1), [Chunks(320, _CHUNK), Chunks(1, _CHUNK)]),
        # a kernel takes 110 tensors, 96 with a number for each, and 48 parameters of which it reads three tensors
        ([8] * 111, Pass(1, 1, 1), [Chunks(110, 8), Chunks(1, 8)]),
        ([8] * 111, Pass(1, 1, 1, has_scalars=True), [Chunks(96, 8), Chunks(15, 8)]),
        ([8] * 96, Pass(3, 3, 1), [Chunks(48, 8), Chunks(48, 8)]),
    ],
)
def test_parameters_are_packed_as_torch_packs_them(
    group: list[int], passed: Pass, expected: list[Chunks]
) -> None:
    assert sizes(group, passed) == expected


def test_each_kernel_moves_the_elements_of_its_chunks() -> None:
    (launch,) = _together(BFLOAT16, [320 * _CHUNK, 100], Pass(2, 2, 1), _COSTS)
    assert [(kernel.read_bytes, kernel.written_bytes) for kernel in launch.kernels or ()] == [
        (2 * 2 * 320 * _CHUNK, 2 * 320 * _CHUNK),
        (2 * 2 * 100, 2 * 100),
    ]


def test_the_cpu_takes_time_for_each_tensor_that_a_pass_works_on() -> None:
    (launch,) = _together(BFLOAT16, [10] * 7, Pass(3, 2, 1), _COSTS)
    assert launch.host_seconds == pytest.approx(1e-5 + 7 * 3 * 1e-6)


@pytest.mark.parametrize(
    ("optimizer", "implementation", "passes", "tensors"),
    [
        ("adamw", "foreach", 8, 14),
        ("adamw", "fused", 2, 1 + 4),  # counts its steps on the device, then updates
        ("momentum", "foreach", 3, 5),
        ("momentum", "fused", 1, 3),
    ],
)
def test_the_cpu_takes_time_for_each_pass_over_all_parameters(
    optimizer: str, implementation: str, passes: int, tensors: int
) -> None:
    training = graphflops.Training(optimizer=optimizer, implementation=implementation)  # type: ignore[arg-type]
    report = graphflops.analyze(_MODEL, device="h200", execution="eager", training=training)
    host = device("h200").host
    assert host is not None
    each = host.seconds["optimizer.parameter"] + tensors * host.seconds["optimizer.tensor"]
    seconds = host.seconds["optimizer.start"] + passes * host.seconds["optimizer.call"] + _PARAMETERS * each
    assert report.optimizer is not None
    assert report.optimizer.time is not None
    assert report.optimizer.time.seconds == pytest.approx(
        seconds, rel=0.05
    )  # the last kernels run behind the CPU
