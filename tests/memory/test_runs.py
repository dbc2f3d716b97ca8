"""What equal calls share: forms, and the runs that memory and time are found from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from graphflops import analysis
from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.memory.on_gpu import Eager
from graphflops.passes.program import PricedProgram

SAMPLES = Path(__file__).parents[2] / "samples"


class Repeated(nn.Module):
    """Three equal layers, and copies of their result in two layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
        return x.clone(), x.clone(memory_format=torch.channels_last)


def priced(module: nn.Module, *inputs: torch.Tensor) -> PricedProgram:
    graph = analysis.as_graph(torch.export.export(module, inputs))
    return analysis._priced(graph, {}, {}, True, None, None)


def test_equal_layers_have_one_form_and_layouts_another() -> None:
    program = priced(Repeated(), torch.randn(2, 8, 16, 16))
    forms = Runs((), HOPPER, is_eager=True).of(program.main).layouts.forms
    calls = program.main.calls
    named = {
        word: [forms.of(call) for call in calls if word in call.node.op]
        for word in ("conv2d", "relu", "clone")
    }
    assert len(named["conv2d"]) == len(named["relu"]) == 3
    assert len(set(named["conv2d"])) == len(set(named["relu"])) == 1
    assert len(set(named["clone"])) == 2


def test_what_depends_on_a_form_is_computed_once_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    program = priced(Repeated(), torch.randn(2, 8, 16, 16))
    execution = Eager(program.main, False, Runs((), HOPPER, is_eager=True))
    asked: list[str] = []
    computed = Eager.operand_copies

    def spied(self: Eager, call: object) -> object:
        asked.append(call.node.name)  # type: ignore[attr-defined]
        return computed(self, call)  # type: ignore[arg-type]

    monkeypatch.setattr(Eager, "operand_copies", spied)
    found = {call.node.name: execution.forward_bytes(call, 0) for call in execution.calls}
    assert len(asked) == len({execution.forms.of(call) for call in execution.calls}) < len(found)
    convolutions = {size for name, size in found.items() if "conv" in name}
    assert len(convolutions) == 1


def test_inference_and_training_share_a_run_without_fast_paths() -> None:
    program = priced(Repeated(), torch.randn(2, 8, 16, 16))
    runs = Runs((), HOPPER, is_eager=True)
    assert runs.of(program.main, has_fast_paths=True) is runs.of(program.main)


def test_a_plain_analysis_imports_nothing_of_devices() -> None:
    script = (
        "import sys, graphflops; graphflops.analyze(sys.argv[1]);"
        "later = tuple('graphflops.' + room for room in ('memory', 'time', 'devices', 'kernels', 'execution'));"
        "print([name for name in sys.modules if name.startswith(later)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(SAMPLES / "gqa_transformer.pt2")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
