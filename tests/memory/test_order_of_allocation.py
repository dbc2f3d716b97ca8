"""The order in which a kernel's results and buffers are allocated: which gaps the allocator is left with follows from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphflops
from graphflops.fitting.varied_size import below_limit
from graphflops.memory.allocator import MIB, Allocator, OutOfMemory, repeat, replay
from graphflops.report import Held, Report, Timeline
from graphflops.training import Loss


class Called(nn.Module):
    """A function of its operand."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x * self.scale)


def analyzed(module: nn.Module, x: torch.Tensor, loss: Loss = "given") -> Report:
    program = graphflops.capture(module.to("meta"), (x,))
    training = graphflops.Training(optimizer="none", loss=loss)
    return graphflops.analyze(program, execution="eager", training=training)


def found(report: Report, name: str, kind: str) -> list[Held]:
    return found_in(report.memory.held, name, kind)


def found_in(all_held: Iterable[Held], name: str, kind: str) -> list[Held]:
    return [held for held in all_held if (held.name, held.kind) == (name, kind)]


def test_a_result_is_allocated_before_the_buffer_of_its_kernel() -> None:
    allocator = Allocator()
    held = (Held("conv", "workspace", 0, 0, 20 * MIB), Held("conv", "value", 0, 1, 12 * MIB))
    replay(Timeline((0, 1), held), [one.bytes for one in held], allocator)
    assert [*allocator.segments.values()] == [12 * MIB, 20 * MIB]


def test_the_operand_of_a_convolution_gets_its_gradient_before_the_weight() -> None:
    x = torch.empty(8, 32, 56, 56, device="meta", dtype=torch.bfloat16)
    scaled = Called(functional.silu)
    report = analyzed(nn.Sequential(scaled, nn.Conv2d(32, 64, 3, padding=1, bias=False)).bfloat16(), x)
    turn = report.memory.gradients_from or 0
    first, second = (held for held in found(report, "conv2d", "workspace") if held.first >= turn)
    (gradient,) = found(report, "p_1_weight", "gradient")
    assert first.last < gradient.first == second.first
    copies = (x.numel() + 64 * 32 * 9 + 8 * 64 * 56 * 56) * 2  # operand, weight and result with channels last
    assert first.bytes == copies


def test_a_copy_of_an_operand_is_made_before_the_result() -> None:
    x = torch.empty(4, 32, 28, 28, device="meta").to(memory_format=torch.channels_last)
    report = analyzed(Called(lambda x: torch.softmax(x, 1)), x)
    (copy,) = (
        held
        for held in found(report, "softmax", "workspace")
        if held.first < (report.memory.gradients_from or 0)
    )
    (result,) = found(report, "softmax", "value")
    assert copy.bytes == x.nbytes
    assert copy.first < result.first == copy.last


def test_the_positions_of_a_max_pooling_are_allocated_once() -> None:
    x = torch.empty(2, 8, 16, 16, device="meta")
    report = analyzed(Called(lambda x: functional.max_pool2d(x, 2)), x)
    positions = 2 * 8 * 8 * 8 * 8  # an int64 for each result
    assert [held.bytes for held in report.memory.held if held.bytes == positions] == [positions]


def test_tensors_of_a_formula_are_allocated_one_by_one_before_the_gradient() -> None:
    x = torch.empty(64, 64, device="meta")
    report = analyzed(Called(lambda x: x.pow(3.0)), x)
    buffers = found(report, "pow_1", "workspace")  # `gradient * (3 * x.pow(2))`: the power and three times it
    assert [held.bytes for held in buffers] == [x.nbytes, x.nbytes]


@pytest.mark.parametrize(
    ("has_bias", "order"), [(False, ["weight", "operand"]), (True, ["operand", "weight"])]
)
def test_each_product_of_a_repeated_gradient_copies_it(has_bias: bool, order: list[str]) -> None:
    # mm(x, weight.t()) computes the gradient of `mat2` before that of `self`; addmm that of `mat1` before that of `mat2`
    x = torch.empty(64, 32, device="meta")
    module = nn.Sequential(Called(functional.silu), nn.Linear(32, 48, bias=has_bias))
    report = analyzed(module, x, loss="sum")
    copies = sorted(held.first for held in found(report, "linear", "workspace") if held.bytes == 64 * 48 * 4)
    starts = {
        "weight": found(report, "p_1_weight", "gradient")[0].first,
        "operand": found(report, "silu", "gradient")[0].first,
    }
    assert copies == [starts[order[0]], starts[order[1]]]


def test_a_run_needs_what_is_alive_at_once_below_a_limit() -> None:
    held = (
        Held("a", "value", 0, 1, 40 * MIB),
        Held("b", "value", 1, 2, 30 * MIB),
        Held("c", "value", 2, 2, 20 * MIB),
    )
    sizes, timeline = [one.bytes for one in held], Timeline((0, 1, 2), held)
    allocator = Allocator(70 * MIB)
    repeat(timeline, sizes, allocator)  # `c` takes a part of what `a` had
    assert allocator.peak_reserved == 70 * MIB
    with pytest.raises(OutOfMemory):
        repeat(timeline, sizes, Allocator(69 * MIB))


def test_a_workspace_that_is_not_got_is_left_out() -> None:
    held = (Held("conv", "value", 0, 1, 20 * MIB), Held("conv", "workspace", 0, 0, 50 * MIB))
    sizes, timeline = [one.bytes for one in held], Timeline((0, 1), held)
    assert repeat(timeline, sizes, Allocator(70 * MIB), {1}) == set()
    assert repeat(timeline, sizes, Allocator(69 * MIB), {1}) == {1}
    with pytest.raises(OutOfMemory):
        repeat(timeline, sizes, Allocator(69 * MIB))


def test_a_checkpoint_lets_go_what_it_made_again_before_a_bias_is_added_up() -> None:
    x = torch.empty(4096, 64, device="meta", dtype=torch.bfloat16)
    layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(2)]
    program = graphflops.capture(nn.Sequential(*layers).bfloat16().to("meta"), (x,))
    operands = {}
    for recompute in ((), ("1",)):
        training = graphflops.Training(optimizer="none", loss="given", recompute=recompute)
        held = graphflops.analyze(program, execution="eager", training=training).memory.held
        last = max(one.last for one in held if (one.name, one.kind) == ("linear_3", "workspace"))
        operands[recompute] = [
            one.name for one in held if (one.name, one.kind) == ("gelu_1", "value") and one.last >= last
        ]
    assert operands == {(): ["gelu_1"], ("1",): []}


def test_a_phase_fits_only_if_it_runs_with_and_without_workspaces_of_convolutions() -> None:
    x = torch.empty(64, 32, 224, 224, device="meta", dtype=torch.bfloat16)
    module = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.SiLU()).bfloat16().to("meta")
    report = graphflops.analyze(graphflops.capture(module, (x,)), execution="eager", device="h200")
    entry = report.memory_use[0]
    workspace = sum(held.bytes for held in found_in(entry.timeline.held, "conv2d", "workspace"))
    assert isinstance(workspace, int)
    assert isinstance(entry.requested_peak, int)
    enough = entry.requested_peak + 64 * MIB
    assert below_limit(entry, {}, enough, report.rows) is entry
    less = below_limit(entry, {}, enough - workspace // 4, report.rows)
    assert less.requested_peak < entry.requested_peak
