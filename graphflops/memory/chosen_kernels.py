"""Says of each attention which kernel runs it, and what unfused attention costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.attention.kernel import last_refusal, remedy
from graphflops.base.units import memory
from graphflops.dims import evaluate
from graphflops.memory.on_gpu import OnGpu

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.execution.runs import Runs
    from graphflops.passes.program import PricedProgram


def with_kernels(program: PricedProgram, runs: Runs) -> tuple[PricedProgram, Mapping[str, list[Dim]]]:
    """The program whose attentions say which kernel runs them; by its reason, bytes of the scores of each unfused one."""
    execution = OnGpu(program.main, program.training is not None, runs)
    first = {use.calls[0] for use in program.attentions}
    calls = [call for call in execution.calls if call.node.name in first]
    chosen = {call.node.name: found for call in calls if (found := execution.attention(call))}
    unfused: dict[str, list[Dim]] = {}
    uses = []
    for use in program.attentions:
        found = chosen.get(use.calls[0])
        if found is not None:
            use = replace(use, kernel=found.choice.kernel, kernel_reason=found.choice.reason)
            if not found.is_fused:
                unfused.setdefault(found.choice.reason, []).append(found.scores)
        uses.append(use)
    return replace(program, attentions=tuple(uses)), unfused


def say_unfused(
    program: PricedProgram, reason: str, scores: Sequence[Dim], slowdowns: Mapping[str, float]
) -> None:
    """Keep a note of attentions that run unfused for one reason. slowdowns: of the times of a program."""
    sizes = [evaluate(size, program.binding.examples) for size in scores]
    known = [size for size in sizes if size is not None]
    cost = f", up to {memory(max(known))} at a time" if known else ""
    if program.training is not None and known:
        cost = f", {memory(sum(known))} of them kept for the gradients"
    why = last_refusal(reason)
    if why in slowdowns:
        cost += f" and about {slowdowns[why]:.2g} x the time of a fused kernel"
    advice = remedy(why)
    runs = "1 attention runs unfused and stores its" if len(scores) == 1 else ""
    runs = runs or f"{len(scores)} attentions run unfused and store their"
    text = f"{runs} scores in float32{cost}: {why}{'; ' + advice if advice else ''}"
    program.notes.say("GF122", "", text, reason)
