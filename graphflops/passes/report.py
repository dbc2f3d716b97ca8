"""Puts a report together from a priced program and its memory use."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graphflops.diagnostics import diagnostic
from graphflops.passes.gradients import adamw
from graphflops.possible import refuse_negative, with_lower_bounds, without_impossible
from graphflops.report import Coverage, Named, Report, Totals
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.dims import Dim
    from graphflops.passes.memory import MemoryUse
    from graphflops.passes.program import PricedProgram
    from graphflops.report import Execution, Row, SymbolInfo


def report(program: PricedProgram, memory: MemoryUse, execution: Execution = "graph") -> Report:
    """The report of a program, in a training analysis with its gradients and one optimizer step."""
    graph, main, binding = program.graph, program.main, program.binding
    parameters = program.typed_inputs("parameter")
    buffers = program.typed_inputs("buffer", "constant")
    by_module: Counter[str] = Counter()
    by_dtype: Counter[str] = Counter()
    for target, value in parameters:
        by_module[target.rpartition(".")[0]] += _number(value.numel)
        by_dtype[value.dtype.name] += _number(value.nbytes)
    trainable = [value for _, value in parameters if value.requires_grad]
    if program.training:
        _say_untrained(program, bool(trainable))
    peak = memory.training
    return Report(
        origin=graph.origin,
        symbols=_symbols(program),
        totals=Totals(main.cost, memory.forward.bytes, memory.forward.node),
        parameters=sum(by_module.values()),
        parameter_bytes=sum(by_dtype.values()),
        buffer_bytes=sum(_number(value.nbytes) for _, value in buffers),
        coverage=_coverage(main.rows),
        rows=main.rows,
        diagnostics=(
            *(diagnostic(note.code, note.node, note.message) for note in graph.notes),
            *binding.diagnostics,
            *program.notes.found.values(),
            *program.type_sources,
        ),
        modules=graph.modules,
        parameter_modules=dict(by_module),
        parameter_dtypes=dict(by_dtype),
        backward=None if peak is None else Totals(main.backward, peak.bytes, peak.node),
        optimizer=Totals(adamw(trainable)) if program.training else None,
        memory=memory.timeline,
        inputs=_passed(program),
        attentions=program.attentions,
        execution=execution,
    )


def _symbols(program: PricedProgram) -> dict[str, SymbolInfo]:
    """The sizes by name with their lower bounds; raises ModelError where a result has a negative size at their values."""
    main = program.main
    described = program.binding.describe(program.graph, (main.cost, main.backward))
    symbols = without_impossible(with_lower_bounds(described, main.rows), main.rows)
    refuse_negative(main.rows, {name: info.value for name, info in symbols.items() if info.value is not None})
    return symbols


def _say_untrained(program: PricedProgram, has_trainable: bool) -> None:
    """Say which parameters are taken to be trained where the file does not, and that no call has a backward."""
    if has_trainable and program.binding.all_trainable:
        text = "the file does not record which parameters are trained: all are taken to be"
        program.notes.say("GF107", "", text)
    if all(row.backward is None for row in program.main.rows):
        text = "no result of the program depends on a trained parameter: a training step has no backward"
        program.notes.say("GF109", "", text)


def _passed(program: PricedProgram) -> tuple[Named, ...]:
    """The tensors that a caller passes in."""
    names = [entry.name for entry in program.graph.inputs if entry.role == "user"]
    values = [(name, program.operands[name]) for name in names]
    return tuple([Named(name, value.like()) for name, value in values if isinstance(value, TensorType)])


def _coverage(rows: Sequence[Row]) -> Coverage:
    states = Counter(row.state for row in rows)
    unknown = Counter(row.op for row in rows if row.state == "unknown")
    return Coverage(states["counted"], states["free"], states["unknown"], dict(unknown.most_common()))


def _number(dim: Dim) -> int:
    """Sizes of parameters are numbers in every exported program; one that is not counts at its lower bound."""
    return dim if isinstance(dim, int) else (dim.bounds()[0] or 0)
