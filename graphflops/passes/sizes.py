"""The sizes of a program by name: the user's names for them, and their least values; no size may be negative."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from graphflops.base.record import replace
from graphflops.cost import QUANTITIES
from graphflops.dims import Dim, Expr, Meeting, at_least, broadcast, compare, dim_max, evaluate
from graphflops.dims.solving import LARGEST_SIZE, first_from
from graphflops.errors import DimError, ModelError, shown
from graphflops.graph import Graph
from graphflops.open_sizes import axes_of, is_computed, of_described
from graphflops.ops import operator
from graphflops.passes.bind import known_sizes, open_sizes, refuse_broken
from graphflops.passes.program import PricedProgram
from graphflops.report import Named, Row, SymbolInfo, known_values, without_assumed
from graphflops.report.size_names import called, in_prose
from graphflops.tensor import TensorType

_MOST_CONDITIONS = 500  # more are omitted, as they only serve to refuse sizes
_TRIED = 512  # sizes tried beyond an assumed one


def labels_of(graph: Graph, names: Mapping[str, str]) -> dict[str, str]:
    """The label of each named size: by symbol and by each axis of that size, or by the axis if it is an expression.

    names: by label, the symbol or input axis. An axis of fixed size has nothing to name. Raises ModelError for an axis that
    the program lacks, for an expression of several sizes, and for a label that another size has.
    """
    labels: dict[str, str] = {}
    sizes = open_sizes(graph)
    for label, place in names.items():
        try:
            ((found, size), *others) = sizes.sizes_of(place).items()
        except ModelError as error:
            raise ModelError(f"--name {shown(label)}={error}") from None
        if isinstance(size, int):
            continue
        (name, *more) = sorted(size.symbols)
        if others or more:
            told = f"{size}; name {' or '.join((name, *more))} instead"
            told = f"{len(others) + 1} sizes" if others else told
            raise ModelError(f"--name {shown(label)}={shown(place)}: this is {told}")
        name = found if is_computed(size) else name
        if label != name and label in graph.symbols:
            raise ModelError(f"--name {shown(label)}: the program has another size of that name")
        where = graph.symbols[name].where if name in graph.symbols else ()
        labels.update(dict.fromkeys((name, *(axis for axis in where if axis not in sizes.computed)), label))
    return labels


def with_sizes(program: PricedProgram, labels: Mapping[str, str]) -> PricedProgram:
    """The program with its sizes by name, with lower bounds and labels. Raises ModelError if a size is negative."""
    main = program.main
    users = [entry.name for entry in program.graph.inputs if entry.role == "user"]
    typed = [(name, program.operands[name]) for name in users]
    passed = tuple([Named(name, value.like()) for name, value in typed if isinstance(value, TensorType)])
    raised = program.binding.describe(program.graph, (main.cost, main.backward))
    named = [*passed, *(output for row in main.rows for output in row.outputs)]
    for _, size in _open(named):
        if isinstance(size, int) or len(size.symbols) != 1:
            continue
        (name,) = size.symbols
        if (info := raised.get(name)) is None:
            continue
        first = max(info.minimum or 0, 1)
        if (least := _least(size, name, first)) is not None:
            info = raised[name] = replace(info, minimum=least)
        if info.given_by == "assumption" and isinstance(more := size - 1, Expr):
            some = _least(more, name, first) or first
            raised[name] = replace(info, value=max(info.value or 0, some))
    conditions = _conditions(program.equalities, raised)
    symbols = _labelled(without_impossible(_at_which_hold(conditions, raised), named), labels)
    refuse_impossible(symbols, passed, main.rows)
    if program.graph.guards:
        recorded = known_sizes(open_sizes(program.graph).axes, program.binding.hints)
        sizes = known_sizes(axes_of(dict(passed)), known_values(without_assumed(symbols)))
        refuse_broken(program.graph.guards, recorded, sizes)
    names = of_described(symbols, passed).names if conditions else {}
    required = {called(text, names): condition for text, condition in conditions.items()}
    return replace(program, symbols=symbols, passed=passed, guards={**required, **program.graph.guards})


def _conditions(met: Mapping[Meeting, bool], symbols: Mapping[str, SymbolInfo]) -> dict[str, Expr]:
    """What operators require of input sizes without proof: by text, an expression that is 0 or 1."""
    sizes = {name for name, info in symbols.items() if info.where}
    found: dict[str, Expr] = {}
    for a, b, is_broadcast in [pair for pair, is_sure in met.items() if is_sure]:
        with suppress(DimError):  # a condition that grows too large
            holds, text = compare("==", a, b), f"{a} == {b}"
            if is_broadcast:
                other = b if broadcast((a,), (b,)) == (a,) else a  # the one that is broadcast to the result
                holds, text = dim_max(holds, compare("==", other, 1)), f"{text}, or {other} == 1"
            if isinstance(holds, Expr) and holds.symbols <= sizes and len(found) < _MOST_CONDITIONS:
                found[text] = holds
    return found


def _at_which_hold(
    conditions: Mapping[str, Expr], symbols: Mapping[str, SymbolInfo]
) -> Mapping[str, SymbolInfo]:
    """The symbols, where assumed ones have a nearby size that satisfies the operators, or none if there is no such size."""
    found, known = dict(symbols), known_values(symbols)
    for condition in conditions.values():
        assumed = [name for name in sorted(condition.symbols) if found[name].given_by == "assumption"]
        if not assumed or evaluate(condition, known) != 0:
            continue
        sizes = {name: _first_taken(name, found[name], conditions.values(), known) for name in assumed}
        moves = [(abs(size - known[name]), name) for name, size in sizes.items() if size is not None]
        for name in [min(moves)[1]] if moves else assumed:
            found[name] = replace(found[name], value=sizes[name], given_by="assumption" if moves else None)
        known = known_values(found)
    return found


def _first_taken(
    name: str, info: SymbolInfo, conditions: Iterable[Expr], known: Mapping[str, int]
) -> int | None:
    """The first value of a symbol, upwards from its own, then downwards, that breaks no condition; None if none is near."""
    own = [condition for condition in conditions if name in condition.symbols]
    first, least = info.value or 1, max(info.minimum or 1, 1)
    last = first + _TRIED if info.maximum is None else min(first + _TRIED, info.maximum)
    values = (*range(first, last + 1), *range(first - 1, max(least, first - _TRIED) - 1, -1))
    return next((v for v in values if all(evaluate(one, {**known, name: v}) != 0 for one in own)), None)


def _labelled(symbols: Mapping[str, SymbolInfo], labels: Mapping[str, str]) -> Mapping[str, SymbolInfo]:
    found = dict(symbols)
    for name, info in symbols.items():
        place = next((place for place in (name, *info.where) if place in labels), "")
        if place:
            axis = place if place in info.computed else ""
            found[name] = replace(info, label=labels[place], label_axis=axis)
    return found


def without_impossible(symbols: Mapping[str, SymbolInfo], values: Sequence[Named]) -> dict[str, SymbolInfo]:
    """The symbols without assumed values at which a tensor's size would be negative; those sizes stay open."""
    kept, known = dict(symbols), known_values(symbols)
    for _, size in _open(values):
        if isinstance(size, Expr) and (evaluate(size, known) or 0) < 0:
            assumed = [name for name in size.symbols if kept[name].given_by == "assumption"]
            if not assumed:
                break
            for name in assumed:
                kept[name] = replace(kept[name], value=None, given_by=None)
                del known[name]
    return kept


def refuse_impossible(
    symbols: Mapping[str, SymbolInfo],
    inputs: Sequence[Named],
    rows: Sequence[Row],
    values: Mapping[str, int] | None = None,
) -> None:
    """Raise ModelError if a size or cost is negative. values: of the symbols; by default their own."""
    at = known_values(symbols) if values is None else values
    for name, size in _open([*inputs, *(output for row in rows for output in row.outputs)]):
        value = evaluate(size, at)
        if value is None or value >= 0:
            continue
        names = of_described(symbols, inputs).names
        used = sorted(at.keys() & size.symbols) if isinstance(size, Expr) else list(at)
        given = ", ".join(f"{shown(names.get(one, one))} = {at[one]}" for one in used)
        where = f"at {given} " if given else ""
        formula = f"{in_prose(str(size), names)} = " if isinstance(size, Expr) else ""
        raise ModelError(f"{where}a size of {shown(name)} would be {formula}{value}: give larger sizes")
    for row in {id(row.cost): row for row in rows}.values():
        is_window = bool(row.outputs) and operator(row.op).kind in ("convolution", "pooling")
        places = row.outputs[0].type.shape[2:] if is_window else ()  # positions of the window along each axis
        if any(isinstance(size, Expr) and evaluate(size, at) == 0 for size in places):
            raise ModelError(f"{shown(row.node)} has a window larger than its input: give larger sizes")
        for quantity in QUANTITIES:
            cost = getattr(row.cost, quantity)
            if isinstance(cost, Expr) and not at_least(cost, 0) and (evaluate(cost, at) or 0) < 0:
                told = in_prose(str(cost), of_described(symbols, inputs).names)
                what = f"{quantity} of {shown(row.node)} would be negative, {told}"
                raise ModelError(f"{what}: give larger sizes")


def _open(named: Iterable[Named]) -> Iterator[tuple[str, Dim]]:
    """Each size of a tensor that may be negative, once, with the tensor's name."""
    seen: set[Dim] = set()
    for tensor in named:
        for size in tensor.type.shape:
            if size not in seen:
                seen.add(size)
                if not at_least(size, 0):
                    yield tensor.name, size


def _least(size: Expr, name: str, first: int) -> int | None:
    """The least value, from `first` on, at which a growing size is not negative; None if it is `first` or unknown."""
    least = first_from(first, LARGEST_SIZE, lambda value: (evaluate(size, {name: value}) or 0) >= 0)
    return least if first < least < LARGEST_SIZE else None
