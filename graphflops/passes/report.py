"""Puts a report together from a priced program and its memory use; checks that no size is negative."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import QUANTITIES
from graphflops.dims import Expr, at_least, evaluate
from graphflops.errors import ModelError, shown
from graphflops.report import Coverage, Named, Report, Totals
from graphflops.report.diagnostics import diagnostic
from graphflops.report.size_names import in_prose
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphflops.dims import Dim
    from graphflops.passes.program import MemoryUse, PricedProgram
    from graphflops.report import Execution, Row, SymbolInfo


_LARGEST = 2**48  # no size by name is larger


def tensors(rows: Iterable[Row], inputs: Iterable[Named]) -> list[Named]:
    """What a caller passes in, and the results of all calls."""
    return [*inputs, *(output for row in rows for output in row.outputs)]


def with_lower_bounds(symbols: Mapping[str, SymbolInfo], values: Iterable[Named]) -> dict[str, SymbolInfo]:
    """The symbols, each with the least value at which no size of a tensor is negative.

    An assumed value is raised until no size of a tensor is zero either: a program without elements has no percentages.
    """
    raised = dict(symbols)
    for _, size in _open(values):
        if isinstance(size, int) or len(size.symbols) != 1:
            continue
        (name,) = size.symbols
        info = raised.get(name)
        if info is None:
            continue
        first = max(info.minimum or 0, 1)
        least = _least(size, name, first)
        if least is not None:
            info = raised[name] = replace(info, minimum=least)
        if info.given_by == "assumption" and isinstance(more := size - 1, Expr):
            some = _least(more, name, first) or first
            raised[name] = replace(info, value=max(info.value or 0, some))
    return raised


def without_impossible(symbols: Mapping[str, SymbolInfo], values: Sequence[Named]) -> dict[str, SymbolInfo]:
    """The symbols, without the assumed values at which a size of a tensor would be negative: these sizes stay open."""
    kept = dict(symbols)
    while (found := _negative(values, _values(kept))) is not None:
        _, size, _ = found
        used = sorted(size.symbols) if isinstance(size, Expr) else []
        assumed = [name for name in used if kept[name].given_by == "assumption"]
        if not assumed:
            break
        kept.update({name: replace(kept[name], value=None, given_by=None) for name in assumed})
    return kept


def _values(symbols: Mapping[str, SymbolInfo]) -> dict[str, int]:
    return {name: info.value for name, info in symbols.items() if info.value is not None}


def refuse_impossible(report: Report, values: Mapping[str, int] | None = None) -> None:
    """Raise ModelError where a size or a cost is negative. values: of the symbols; by default those of the report."""
    at = report.values if values is None else values
    found = _negative(tensors(report.rows, report.inputs), at)
    if found is not None:
        name, size, value = found
        used = sorted(at.keys() & size.symbols) if isinstance(size, Expr) else list(at)
        given = ", ".join(f"{shown(report.names.get(one, one))} = {at[one]}" for one in used)
        where = f"at {given} " if given else ""
        formula = f"{in_prose(str(size), report.names)} = " if isinstance(size, Expr) else ""
        raise ModelError(f"{where}a size of {shown(name)} would be {formula}{value}: give larger sizes")
    for row in {id(row.cost): row for row in report.rows}.values():
        for quantity in QUANTITIES:
            cost = getattr(row.cost, quantity)
            if isinstance(cost, Expr) and not at_least(cost, 0) and (evaluate(cost, at) or 0) < 0:
                told = in_prose(str(cost), report.names)
                raise ModelError(
                    f"{quantity} of {shown(row.node)} would be negative, {told}: give larger sizes"
                )


def _negative(named: Iterable[Named], values: Mapping[str, int]) -> tuple[str, Dim, int] | None:
    """The first size of a tensor that is negative at these values, with the tensor's name; None if there is none."""
    for name, size in _open(named):
        value = evaluate(size, values)
        if value is not None and value < 0:
            return name, size, value
    return None


def _open(named: Iterable[Named]) -> Iterator[tuple[str, Dim]]:
    """Each size of a tensor that is not provably positive or zero, once, with the tensor's name."""
    seen: set[Dim] = set()
    for tensor in named:
        for size in tensor.type.shape:
            if size not in seen:
                seen.add(size)
                if not at_least(size, 0):
                    yield tensor.name, size


def _least(size: Expr, name: str, first: int) -> int | None:
    """The least value from `first` on at which a growing size is not negative; None where that is `first`, or not known."""

    def is_negative(value: int) -> bool:
        return (evaluate(size, {name: value}) or 0) < 0

    if not is_negative(first):
        return None
    low, high = first, 2 * first
    while is_negative(high):
        if high > _LARGEST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_negative(middle) else (low, middle)
    return high


def report(program: PricedProgram, memory: MemoryUse, execution: Execution = "graph") -> Report:
    """The report of a program, in a training analysis with its gradients and one optimizer step.

    Raises ModelError where a size is negative.
    """
    found = _report(program, memory, execution)
    refuse_impossible(found)
    return found


def _report(program: PricedProgram, memory: MemoryUse, execution: Execution) -> Report:
    graph, main, binding = program.graph, program.main, program.binding
    parameters = program.typed_inputs("parameter")
    buffers = program.typed_inputs("buffer", "constant")
    by_module: Counter[str] = Counter()
    by_dtype: Counter[str] = Counter()
    for target, value in parameters:
        by_module[target.rpartition(".")[0]] += _number(value.numel)
        by_dtype[value.dtype.name] += _number(value.nbytes)
    if program.training:
        _say_untrained(program)
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
        optimizer=_update(program),
        memory=memory.timeline,
        inputs=_passed(program),
        outputs=tuple(dict.fromkeys(name for output in graph.outputs for _, name in output.uses())),
        attentions=program.attentions,
        execution=execution,
        training=program.training,
    )


def _update(program: PricedProgram) -> Totals | None:
    """The step of the optimizer; None outside of training."""
    if program.training is None:
        return None
    from graphflops.passes.optimizer import trained, update

    return Totals(update(program.training, trained(program)).cost)


def _symbols(program: PricedProgram) -> dict[str, SymbolInfo]:
    """The sizes by name with their lower bounds."""
    main = program.main
    named = tensors(main.rows, _passed(program))
    described = program.binding.describe(program.graph, (main.cost, main.backward))
    return without_impossible(with_lower_bounds(described, named), named)


def _say_untrained(program: PricedProgram) -> None:
    """Say that no call has a backward."""
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
