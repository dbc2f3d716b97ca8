"""Builds the report, once, from what the other passes found.

For a recorded step it also has the memory of each call, and what the step sends along each axis of its mesh.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from graphflops.dims import Dim, total
from graphflops.graph import Phase, Step
from graphflops.passes.optimizer import trained, update
from graphflops.passes.program import NO_TIME, MemoryUse, Peak, PricedProgram, ProgramTime
from graphflops.report import Diagnostic, Exchange, Execution, PhaseMemory, Report, Row, Totals
from graphflops.report.contradictions import diagnostic
from graphflops.report.timeline import CallTime, Held, Timeline


def step_memory(program: PricedProgram, step: Step, buffers: Sequence[Dim] = ()) -> MemoryUse:
    """The peak of a step beside what lasts throughout, and its timeline with one moment per call.

    buffers: bytes that each call's kernels need on a device beside operands and results, which the recording lacks.
    """
    calls, held = program.main.calls, list[Held]()
    for memory in sorted(step.storages, key=lambda memory: memory.last):
        if memory.bytes and (kind := memory.kind) != "host" and kind != "pinned":
            held_as = "workspace" if kind == "temporary" else kind
            held.append(Held(memory.name, held_as, max(memory.first, 0), memory.last, memory.bytes))
    for moment, needed in enumerate(buffers):
        if isinstance(needed, int) and needed:
            held.append(Held(calls[moment].node.name, "workspace", moment, moment, needed))
    turn = step.phases.index("backward") if step.is_training else None
    timeline = Timeline(tuple([call.row for call in calls]), tuple(held), turn)
    sizes = [one.bytes if isinstance(one.bytes, int) else 0 for one in timeline.own.held]
    live = timeline.own.live_bytes(sizes)
    peak = max(live)
    return MemoryUse(Peak(peak, calls[live.index(peak)].node.name), timeline)


def exchanges(program: PricedProgram, step: Step, rows: Sequence[Row]) -> tuple[Exchange, ...]:
    """What a step sends, by axis, operator, module and phase, in the order of first calls.

    rows: of the calls, with their times if a device is named.
    """
    groups = {} if step.mesh is None else step.mesh.groups
    found: dict[tuple[str, str, str, Phase], list[tuple[Dim, CallTime | None]]] = {}
    for call, phase in zip(program.main.calls, step.phases, strict=True):
        if call.node.operator.is_exchange:
            group = groups.get(call.node.group)
            key = ("" if group is None else group.axis, call.node.op, call.node.module, phase)
            found.setdefault(key, []).append((call.estimate.link_bytes, rows[call.row].time))
    summed = []
    for key, calls in found.items():
        times = [time for _, time in calls if time is not None]
        seconds, exposed = sum(time.collective for time in times), sum(time.exposed for time in times)
        summed.append(Exchange(*key, len(calls), total(sent for sent, _ in calls), seconds, exposed))
    return tuple(summed)


def report(
    program: PricedProgram, memory: MemoryUse, execution: Execution = "graph",
    ledger: tuple[PhaseMemory, ...] = (), kernels_of: str = "", time: ProgramTime = NO_TIME,
) -> Report:  # fmt: skip
    """The report of a program; in a training analysis with its gradients and one optimizer step. Only this builds one."""
    graph, main, peak, rows = program.graph, program.main, memory.training, time.rows or program.main.rows
    step, recorded = program.training, graph.step
    return Report(
        origin=graph.origin,
        symbols=program.symbols,
        totals=Totals(main.cost, memory.forward.bytes, memory.forward.node, time.forward),
        **_weights(program),
        buffer_bytes=sum(_number(value.nbytes) for _, value in program.typed_inputs("buffer", "constant")),
        coverage=program.coverage,
        rows=rows,
        diagnostics=_diagnostics(program),
        modules=graph.modules,
        backward=Totals(main.backward, peak.bytes, peak.node, time.backward) if peak else None,
        optimizer=Totals(update(step, trained(program)).cost, time=time.optimizer) if step else None,
        memory=memory.timeline,
        inputs=program.passed,
        outputs=tuple(dict.fromkeys(name for output in graph.outputs for _, name in output.uses())),
        attentions=program.attentions,
        execution=execution,
        training=program.training,
        memory_use=ledger,
        device=time.device,
        kernels_of=kernels_of,
        step_time=time.step,
        profile_errors=time.profile_errors,
        network=time.network,
        guards=program.guards,
        mesh=None if recorded is None else recorded.mesh,
        exchanges=() if recorded is None else exchanges(program, recorded, rows),
        program=graph,
    )


def _weights(program: PricedProgram) -> dict[str, Any]:
    modules: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for target, value in program.typed_inputs("parameter"):
        modules[target.rpartition(".")[0]] += _number(value.numel)
        dtypes[value.dtype.name] += _number(value.nbytes)
    sums = {"parameters": sum(modules.values()), "parameter_bytes": sum(dtypes.values())}
    return {**sums, "parameter_modules": dict(modules), "parameter_dtypes": dict(dtypes)}


def _diagnostics(program: PricedProgram) -> tuple[Diagnostic, ...]:
    """Diagnostics of the reader and the passes, and one if a training step has no backward."""
    if program.training and all(row.backward is None for row in program.main.rows):
        text = "no result of the program depends on a trained parameter: a training step has no backward"
        program.notes.say("GF109", "", text)
    return (
        *(diagnostic(note.code, note.node, note.message) for note in program.graph.notes),
        *program.binding.diagnostics,
        *program.notes.found.values(),
        *program.type_sources,
    )


def _number(dim: Dim) -> int:
    """A size of parameters, which is a number in every exported program; a symbolic size counts at its lower bound."""
    return dim if isinstance(dim, int) else (dim.bounds()[0] or 0)
