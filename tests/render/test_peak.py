"""What is held at the peak, as a table: parameters together, equal results of layers on one line."""

from __future__ import annotations

import torch

import graphflops
from graphflops.render.ledger import Ledger
from graphflops.render.tables import tables

WIDE, BATCH, LAYERS = 256, 4096, 5


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(WIDE, WIDE, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Squares(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x * x


def lines(*, training: bool) -> list[list[str]]:
    model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
    program = torch.export.export(model, (torch.zeros(BATCH, WIDE),))
    report = graphflops.analyze(program, device="h200", training=training)
    (found,) = [grid for grid in tables(report, Ledger(report)) if grid.heads[0] == "held"]
    return [list(entry.cells) for entry in found.entries]


def test_parameters_are_one_line() -> None:
    """Ten matrices of 256 x 256 floats; activations of 4096 x 256 are larger, and come first."""
    held = lines(training=False)
    assert ["parameters", "", "", "2.621 MB"] in held  # 10 * 256 * 256 * 4
    assert not [name for name, *_ in held if name.endswith(".weight")]
    activations = [size for _, kind, _, size in held if kind == "result"]
    assert activations
    assert {*activations} == {"4.194 MB"}  # 4096 * 256 * 4


def test_equal_results_of_layers_are_one_line() -> None:
    """Each layer keeps the result of its relu for the second product's gradient."""
    held = {(name, where): size for name, _, where, size in lines(training=True)}
    assert held[("relu and 4 more", "0-4")] == "20.97 MB"  # 5 * 4096 * 256 * 4


def test_a_call_outside_of_modules_is_named_once() -> None:
    program = torch.export.export(Squares(), (torch.zeros(BATCH, WIDE),))
    report = graphflops.analyze(program, device="h200")
    (title,) = [grid.title for grid in tables(report, Ledger(report)) if grid.heads[0] == "held"]
    name = report.memory_use[-1].peak_node
    assert title.count(name) == 1
