"""The training phase of a linear layer by hand: what is alive in the forward, the backward and the optimizer's step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import graphflops
from graphflops.memory.allocator import OPTIMIZER
from graphflops.report import PhaseMemory

WEIGHT, BIAS, X, Y = 4 * 32 * 64, 4 * 32, 4 * 8 * 64, 4 * 8 * 32


@pytest.fixture(scope="module")
def program() -> Any:
    return graphflops.capture(nn.Linear(64, 32).to("meta"), (torch.empty(8, 64, device="meta"),))


def phase(program: Any, optimizer: str, implementation: str = "foreach", **more: Any) -> PhaseMemory:
    training = graphflops.Training(optimizer=optimizer, implementation=implementation, **more)  # type: ignore[arg-type]
    report = graphflops.analyze(program, training=training, execution="eager", device="h200")
    (found,) = [entry for entry in report.memory_use if entry.phase == "training"]
    return found


def held(entry: PhaseMemory, kind: str) -> list[tuple[str, int, int, int]]:
    return [
        (one.name, one.first, one.last, int(str(one.bytes)))
        for one in entry.timeline.held
        if one.kind == kind
    ]


def test_gradients_of_parameters_live_into_the_optimizers_step(program: Any) -> None:
    entry = phase(program, "sgd")
    *moments, last = entry.timeline.rows
    assert last == OPTIMIZER
    assert OPTIMIZER not in moments
    end = len(moments)
    found = {name: (first, last, size) for name, first, last, size in held(entry, "gradient")}
    assert {name: entry[1:] for name, entry in found.items() if name in ("weight", "bias")} == {
        "weight": (end, WEIGHT),
        "bias": (end, BIAS),
    }
    assert held(entry, "weight") == [("weight", 0, end, WEIGHT), ("bias", 0, end, BIAS)]
    # the input is the caller's until the end; the result is let go before the optimizer runs
    assert held(entry, "input") == [("input", 0, end, X)]
    ((_, first, gone, size),) = held(entry, "value")
    assert (first, gone, size) == (0, end - 1, Y)
    assert held(entry, "optimizer") == []


def test_adam_keeps_two_moments_of_each_parameter_from_the_start(program: Any) -> None:
    entry = phase(program, "adam")
    end = len(entry.timeline.rows) - 1
    state = held(entry, "optimizer")
    assert {(first, last) for _, first, last, _ in state} == {(0, end)}
    steps = sum(size for *_, size in state) - 2 * (WEIGHT + BIAS)
    assert 0 <= steps <= 2 * 4  # a count of steps for each parameter, where it is on the device


def test_the_optimizers_temporaries_live_in_its_step_alone(program: Any) -> None:
    """AdamW of one tensor after another makes the root of the second moment, of the largest: 4 bytes an element."""
    entry = phase(program, "adamw", "single")
    end = len(entry.timeline.rows) - 1
    made = held(entry, "temporary")
    assert {(first, last) for _, first, last, _ in made} == {(end, end)}
    sizes = [int(str(one.bytes)) for one in entry.timeline.held]
    alive = entry.timeline.live_bytes(sizes)[end]
    blas = sum(size for *_, size in held(entry, "library"))
    lasting = 3 * (WEIGHT + BIAS)  # the parameters and two moments
    steps = sum(size for *_, size in held(entry, "optimizer")) - 2 * (WEIGHT + BIAS)
    assert alive - blas == lasting + steps + (WEIGHT + BIAS) + X + sum(size for *_, size in made)


def test_products_of_the_backward_have_a_workspace_of_their_own_thread(program: Any) -> None:
    """cuBLAS has 32 MiB on an H200 for each thread, from its first product on; cuBLASLt 1 MiB for the bias."""
    entry = phase(program, "sgd")
    end, turn = len(entry.timeline.rows) - 1, entry.timeline.gradients_from
    assert sorted(held(entry, "library"), key=lambda one: (one[0], one[1])) == [
        ("cuBLAS", 0, end, 32 * 2**20),
        ("cuBLAS", turn, end, 32 * 2**20),
        ("cuBLASLt", 0, end, 2**20),
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_what_is_requested_is_the_most_that_is_alive(program: Any, optimizer: str) -> None:
    """But for the workspaces of libraries, which they take themselves."""
    entry = phase(program, optimizer, "single")
    own = [one for one in entry.timeline.held if one.kind != "library"]
    alive = replace(entry.timeline, held=tuple(own)).live_bytes([int(str(one.bytes)) for one in own])
    libraries = sum(size for *_, size in held(entry, "library"))
    assert entry.requested_peak == max(alive) + libraries


def test_further_products_share_the_workspaces_of_the_first() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32)).to("meta")
    entry = phase(graphflops.capture(module, (torch.empty(8, 64, device="meta"),)), "sgd")
    assert sorted(name for name, *_ in held(entry, "library")) == ["cuBLAS", "cuBLAS", "cuBLASLt"]
    moments, turn = entry.timeline.rows, entry.timeline.gradients_from
    assert [first for name, first, *_ in held(entry, "library") if name == "cuBLAS"] == [
        moments.index(0),
        turn,
    ]


def test_values_of_layers_are_held_once(program: Any) -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).to("meta")
    entry = phase(graphflops.capture(module, (torch.empty(8, 64, device="meta"),)), "sgd")
    values = held(entry, "value")
    assert len(values) > 1
    assert len({name for name, *_ in values}) == len(values)
