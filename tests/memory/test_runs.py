"""What equal calls share: forms, and the runs that memory and time are found from."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphflops import analysis
from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.execution.strides import Forms, Laid
from graphflops.memory.on_gpu import Eager
from graphflops.passes.program import PricedCall, PricedProgram
from tests.one_call import g, program_of
from tests.support import t

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
    return analysis._priced(graph, {}, analysis.Asked({}, {}, None, {}, None, None), None)


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


def test_calls_of_one_form_are_told_apart_by_how_operands_lie_and_what_they_make() -> None:
    program = program_of("aten.relu.default", g(4, 64))
    (call,) = program.main.calls
    forms = Forms({"x0": t(4, 64), "y0": t(4, 64), "y1": t(64, 4), "y2": t(4, 64), "x1": t(4, 64)})
    kind = forms.kind("x0", (1, 4))
    assert kind == forms.kind("x0", (1, 4)) != forms.kind("x0", (64, 1))
    asked: list[str] = []

    def results(call: PricedCall) -> list[Laid | None]:
        asked.append(call.node.name)
        return []

    def number(name: str, operand: str = "x0", output: str | None = "y0", **changed: Any) -> int | None:
        node = replace(call.node, name=name, outputs=(output,))
        one = replace(call, node=node, uses=(operand,), **{"form": 7, **changed})
        forms.results(one, results)
        return forms.of(one)

    first = number("a")
    assert number("b", output="y2") == number("c", operand="x1") == first
    assert asked == ["a"]
    forms.kinds["x1"] = kind
    others = [number("d", output="y1"), number("e", operand="x1"), number("f", gradient=None)]
    others.append(number("g", output=None))
    assert len({first, *others}) == 5
    assert number("h", form=None) is None
    assert asked == ["a", "d", "e", "f", "g", "h"]


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


def test_only_the_operator_that_chooses_its_kernel_is_asked_for_one() -> None:
    heads = g(2, 4, 8, 16)
    attention = "_scaled_dot_product_flash_attention"
    calls = [
        program_of("aten.scaled_dot_product_attention.default", heads, heads, heads),
        program_of(f"aten.{attention}.default", heads, heads, heads, outputs=9),
        program_of("aten.relu.default", heads),
    ]
    executions = [Eager(program.main, True, Runs((), HOPPER, is_eager=True)) for program in calls]
    found = [execution.attention(execution.calls[0]) for execution in executions]
    assert [memory is not None for memory in found] == [True, False, False]


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
