"""Kernels of an optimizer step: how many, and what each moves."""

from __future__ import annotations

from types import SimpleNamespace as Space
from typing import Any

import pytest

import graphflops
from graphflops.devices import device
from graphflops.kernels.call import Sizes
from graphflops.kernels.kernel import Chunks
from graphflops.tensor import BFLOAT16
from graphflops.time import optimizer
from graphflops.time.exchanges import Launches
from graphflops.time.optimizer import _FUSED, _PASSES, Pass, _singly, _together
from tests.support import t

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


@pytest.mark.parametrize(
    ("tensors", "most"), [(1, 110), (2, 64), (3, 48), (4, 36), (5, 30)]
)  # depth_to_max_tensors in MultiTensorApply.cuh of ATen
def test_a_kernel_has_arguments_for_so_many_tensors(tensors: int, most: int) -> None:
    passed = Pass(tensors, tensors, 1)
    assert sizes([8] * most, passed) == [Chunks(most, 8)]
    assert sizes([8] * (most + 1), passed) == [Chunks(most, 8), Chunks(1, 8)]


@pytest.mark.parametrize(
    ("optimizer", "tensors"),
    # by pass, tensors of a parameter's size that are read and written, as torch/optim calls torch._foreach_...
    [
        ("sgd", [(2, 1)]),
        ("momentum", [(1, 1), (2, 1), (2, 1)]),
        ("adam", [(2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)]),
        ("adamw", [(1, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 1), (1, 1), (3, 1)]),
        ("adafactor", [*[(1, 0)] * 3, (0, 1), *[(1, 1)] * 3, (2, 1), (1, 0), (1, 1), (2, 1)]),
    ],
)
def test_tensors_that_each_pass_moves(optimizer: str, tensors: list[tuple[int, int]]) -> None:
    found = []
    for passed in _PASSES[optimizer]:
        (launch,) = _together(BFLOAT16, [100], passed, _COSTS)
        found += [(kernel.read_bytes // 200, kernel.written_bytes // 200) for kernel in launch.kernels or ()]
    assert found == tensors


def test_lists_that_each_pass_of_adam_is_given() -> None:
    """lerp_, mul_, addcmul_ of a gradient twice, sqrt into new tensors, div_ and add_ by numbers, addcdiv_."""
    assert [passed.tensors for passed in _PASSES["adam"]] == [2, 1, 3, 2, 1, 1, 3]


@pytest.mark.parametrize(
    ("name", "states"),
    [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)],  # of a parameter's size
)
def test_a_fused_pass_moves_each_tensor_once(name: str, states: int) -> None:
    """It reads the gradient beside what it writes."""
    passed = _FUSED[name]
    assert (passed.tensors, passed.read, passed.written) == (2 + states, 2 + states, 1 + states)


def test_one_parameter_after_another_has_a_kernel_for_each_pass() -> None:
    first, second = _singly(BFLOAT16, [100, 7], Pass(2, 2, 1), {"optimizer.single": 3e-6})
    for launch, elements in ((first, 100), (second, 7)):
        (kernel,) = launch.kernels or ()
        assert (kernel.read_bytes, kernel.written_bytes) == (2 * 2 * elements, 2 * elements)
        assert launch.host_seconds == 3e-6


def test_a_large_parameter_among_small_ones() -> None:
    """Chunks that a kernel has no room for go to the next one, with what follows."""
    group = [5, 320 * _CHUNK + 7, 9]
    assert sizes(group, Pass(1, 1, 1)) == [Chunks(320, _CHUNK), Chunks(3, _CHUNK)]
    (launch,) = _together(BFLOAT16, group, Pass(1, 1, 1), _COSTS)
    read = [kernel.read_bytes // 2 for kernel in launch.kernels or ()]
    assert read == [5 + 319 * _CHUNK, _CHUNK + 7 + 9]


STEP = {
    "optimizer.start": 100.0,
    "optimizer.parameter": 7.0,
    "optimizer.call": 1e3,
    "optimizer.tensor": 0.5,
    "optimizer.single": 11.0,
}


def launches(monkeypatch: pytest.MonkeyPatch, *parameters: Any, **how: Any) -> list[Launches]:
    """Of a step over parameters of these types."""
    monkeypatch.setattr(optimizer, "trained", lambda _: [Space(type=each) for each in parameters])
    program: Any = Space(training=graphflops.Training(**how))
    return optimizer.optimizer_launches(program, Sizes({}), STEP)


@pytest.mark.parametrize(
    ("name", "implementation", "elements"),
    # what the kernels of a step read of 8 and 4 elements of 4 bytes
    [
        ("sgd", "fused", [2 * 12]),
        ("momentum", "fused", [3 * 12]),
        ("adam", "fused", [2, 4 * 12]),  # counts the steps of two parameters first
        ("adamw", "fused", [2, 4 * 12]),
        ("sgd", "foreach", [2 * 12]),
        ("momentum", "foreach", [12, 2 * 12, 2 * 12]),
        ("momentum", "single", [8, 4, 2 * 8, 2 * 4, 2 * 8, 2 * 4]),
    ],
)
def test_what_a_step_launches(
    monkeypatch: pytest.MonkeyPatch, name: str, implementation: str, elements: list[int]
) -> None:
    start, *rest = launches(monkeypatch, t(8), t(4), optimizer=name, implementation=implementation)
    assert (start.kernels, start.host_seconds) == ((), 100 + 2 * 7)
    assert [kernel.read_bytes for each in rest for kernel in each.kernels or ()] == [
        4 * of for of in elements
    ]
    assert {(each.row, len(each.kernels or ())) for each in rest} == {(-1, 1)}
    assert start.row == -1  # of no call


def test_each_type_of_parameters_has_passes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = t(8), t(4, dtype="bfloat16"), t(16)
    _, *rest = launches(monkeypatch, *given, optimizer="sgd", implementation="foreach")
    found = [(kernel.dtype, kernel.read_bytes) for each in rest for kernel in each.kernels or ()]
    assert found == [("float32", 2 * 4 * (8 + 16)), ("bfloat16", 2 * 2 * 4)]


def test_steps_that_are_not_known_and_steps_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = [Launches(-1, None, 0.0)]
    single = {"optimizer": "sgd", "implementation": "single"}
    assert launches(monkeypatch, t(8), optimizer="none") == []
    assert optimizer.optimizer_launches(Space(training=None), Sizes({}), STEP) == []  # type: ignore[arg-type]
    assert launches(monkeypatch, t(8), optimizer="muon") == unknown
    assert launches(monkeypatch, t("n"), **single) == unknown
    assert launches(monkeypatch, t(2**39), t(2**39 + 1), **single) == unknown  # no device holds them
    assert len(launches(monkeypatch, t(2**39), t(2**39), **single)) == 1 + 2
