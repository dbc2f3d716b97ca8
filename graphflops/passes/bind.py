"""Binds the sizes that the user gives to symbols, or to inputs of a program without symbols."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphflops.diagnostics import diagnostic
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.errors import ModelError, shown
from graphflops.passes.assume import LARGEST_SIZE, assumed_sizes
from graphflops.report import SymbolInfo
from graphflops.size_names import span
from graphflops.tensor import TensorType, UnknownType, with_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.cost import Cost, Value
    from graphflops.graph import Graph, Symbol
    from graphflops.report import Diagnostic

_AXIS = re.compile(r"(.+)\[(\d{1,4})\]")
_NUMBERED = re.compile(r"[A-Za-z]\w*_\d{1,6}")  # as the analysis names sizes that depend on data: `nonzero_0`


@dataclass
class Binding:
    """The sizes of this analysis: given, assumed and recorded.

    given: value of each bound symbol. inputs: program inputs whose recorded shape the user replaced.
    awaited: sizes given under names that the analysis may create later, and the error if it does not.
    learned: data-dependent sizes of the file that the program computes from other sizes.
    hints: examples of the export. assumed: values of sizes that have neither an example nor a given value.
    """

    given: dict[str, int] = field(default_factory=dict)
    awaited: dict[str, tuple[int, str]] = field(default_factory=dict)
    learned: dict[str, Dim] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    assumed: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, TensorType] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    _settled: dict[int, Value] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether recorded shapes no longer hold, so that derived ones count."""
        return bool(self.inputs)

    def value(self, graph: Graph, name: str) -> Value:
        """What the file records of a value, at the sizes given; None where it records nothing."""
        if name in self.inputs and any(entry.name == name for entry in graph.inputs):
            return self.inputs[name]
        recorded = graph.types.get(name)
        if not (self.given or self.learned) or recorded is None:
            return recorded  # type: ignore[return-value]
        known = self._settled.get(id(recorded))
        if known is None:
            known = self._settled[id(recorded)] = self._substituted(recorded)  # type: ignore[arg-type]
        return known

    def _substituted(self, value: Value) -> Value:
        if isinstance(value, Expr):
            return self.bound(value)
        if isinstance(value, TensorType):
            return replace(value, shape=tuple(self.bound(size) for size in value.shape))
        return value

    def bound(self, dim: Dim) -> Dim:
        """A size with what is known of its symbols put in."""
        known = {**self.learned, **self.given}
        return dim.substitute(known) if isinstance(dim, Expr) and known else dim

    def learn(self, symbol: str, size: Dim) -> None:
        """From here on, recorded sizes say `size` instead of `symbol`."""
        self.learned[symbol] = size
        self._settled.clear()

    def told(self, size: Dim) -> Dim:
        """A size that the analysis has just named, or what the user gives for it."""
        value, _ = self.awaited.pop(str(size), (None, ""))
        if value is None:
            return size
        self.given[str(size)] = value
        return value

    def refuse_awaited(self) -> None:
        """Raise ModelError for a given size that the analysis never used."""
        for _, message in self.awaited.values():
            raise ModelError(message)

    @property
    def examples(self) -> dict[str, int]:
        """The values of the symbols that the user does not give: those of the export, else the assumed ones."""
        return {**self.assumed, **self.hints}

    def _info(self, name: str, entry: Symbol) -> SymbolInfo:
        """A symbol of the program with its value and who gave it."""
        limits = entry.minimum, entry.maximum, entry.where
        if name in self.given:
            return SymbolInfo(self.given[name], "user", *limits)
        value = self.hints.get(name)
        if value is None and name in self.learned:
            value = evaluate(self.learned[name], {**self.hints, **self.given})
        if value is not None:
            return SymbolInfo(value, "hint", *limits)
        if name in self.learned:
            value = evaluate(self.learned[name], {**self.examples, **self.given})
        value = self.assumed.get(name) if value is None else value
        return SymbolInfo(value, None if value is None else "assumption", *limits)

    def describe(self, graph: Graph, costs: Sequence[Cost]) -> dict[str, SymbolInfo]:
        """All symbols of the program and of the costs, those that the analysis itself named last."""
        infos = {name: self._info(name, entry) for name, entry in graph.symbols.items()}
        told = {name: SymbolInfo(value, "user") for name, value in self.given.items() if name not in infos}
        infos.update(told)
        for cost in costs:
            for quantity in (cost.matrix_flops, cost.vector_flops, cost.read_bytes, cost.written_bytes):
                for name in sorted(quantity.symbols) if isinstance(quantity, Expr) else ():
                    infos.setdefault(name, SymbolInfo(None, None))
        return infos


def bind(
    graph: Graph, dims: Mapping[str, int], inputs: Mapping[str, Sequence[int]], *, assume: bool = True
) -> Binding:
    """Solve the sizes given for the program's symbols, and assume those that have no example, unless `assume` is False.

    dims: by symbol, by scalar input, or by input axis `ids[1]`. inputs: whole shapes. A size that differs from a number the
    program fixes replaces the input's shape; everything behind it is then derived again.
    Raises ModelError for names the program lacks, for sizes that contradict one another, and for wrong ranks.
    """
    binding = Binding(hints={name: s.hint for name, s in graph.symbols.items() if s.hint is not None})
    recorded = {entry.name: graph.types.get(entry.name) for entry in graph.inputs if entry.role == "user"}
    axes = {**_axes_of_dims(binding, graph, recorded, dims), **_axes_of_inputs(binding, recorded, inputs)}
    fixed = _bind_axes(binding, recorded, axes)  # type: ignore[arg-type]
    for (name, index), value in fixed.items():
        tensor = binding.inputs.get(name) or recorded[name]
        assert isinstance(tensor, TensorType)
        changed = (*tensor.shape[:index], value, *tensor.shape[index + 1 :])
        binding.inputs[name] = replace(tensor, shape=changed)
    binding.inputs = {
        name: replace(tensor, shape=tuple(binding.bound(size) for size in tensor.shape))
        for name, tensor in binding.inputs.items()
    }
    if assume:
        binding.assumed = assumed_sizes(graph, {*binding.given, *binding.hints})
    _say_ranges(binding, graph)
    return binding


def _axes_of_dims(
    binding: Binding, graph: Graph, recorded: Mapping[str, object], dims: Mapping[str, int]
) -> dict[tuple[str, int], int]:
    """Bind the sizes given by symbol or by scalar input; return those given by input axis."""
    axes: dict[tuple[str, int], int] = {}
    for name, value in dims.items():
        axis = _AXIS.fullmatch(name)
        size = recorded.get(name)
        if name in graph.symbols:
            _assign(binding, name, value)
        elif isinstance(size, Expr):
            _solve(binding, size, value, name)
        elif axis and isinstance(tensor := recorded.get(axis[1]), TensorType):
            index = int(axis[2])
            if index >= tensor.rank:
                text = f"--dim {shown(name)}: {shown(axis[1])} has {tensor.rank} axes, counted from 0"
                raise ModelError(text)
            axes[axis[1], index] = value
        else:
            message = f"--dim {shown(name)}: no such size; the program has {_choices(graph, recorded)}"
            if not _NUMBERED.fullmatch(name) or not 0 <= value <= LARGEST_SIZE:
                raise ModelError(message)
            binding.awaited[name] = (value, message)
    return axes


def _axes_of_inputs(
    binding: Binding, recorded: Mapping[str, object], inputs: Mapping[str, Sequence[int]]
) -> dict[tuple[str, int], int]:
    """The axes of the inputs whose shapes are given; an input of unknown rank takes its shape as it is."""
    axes: dict[tuple[str, int], int] = {}
    for name, shape in inputs.items():
        tensor = recorded.get(name)
        if isinstance(tensor, UnknownType) and tensor.dtype is not None:
            binding.inputs[name] = TensorType(tuple(shape), tensor.dtype)
            continue
        if not isinstance(tensor, TensorType):
            names = ", ".join(shown(n) for n, t in recorded.items() if isinstance(t, TensorType)) or "none"
            raise ModelError(f"--input {shown(name)}: no such input; the program has {names}")
        if len(shape) != tensor.rank:
            text = f"{len(shape)} sizes given for {tensor}, which has {tensor.rank}"
            raise ModelError(f"--input {shown(name)}: {text}")
        axes.update({(name, index): size for index, size in enumerate(shape)})
    return axes


def _bind_axes(
    binding: Binding, recorded: Mapping[str, TensorType], axes: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """Bind symbols from axis sizes, bare ones first: others may follow. Returns the axes where a fixed size is changed."""
    fixed: dict[tuple[str, int], int] = {}
    sizes = {axis: recorded[axis[0]].shape[axis[1]] for axis in axes}
    for axis in sorted(axes, key=lambda axis: (len(str(sizes[axis])), axis)):
        value, size = axes[axis], binding.bound(sizes[axis])
        if not 0 <= value <= LARGEST_SIZE:
            raise ModelError(f"{shown(axis[0])}[{axis[1]}]: {value} is no size")
        if isinstance(size, Expr):
            _solve(binding, size, value, f"{axis[0]}[{axis[1]}]")
        elif size != value:
            if isinstance(sizes[axis], Expr):
                raise ModelError(
                    f"{shown(axis[0])}[{axis[1]}] is {sizes[axis]} = {size} at the sizes given, not {value}"
                )
            fixed[axis] = value
    return fixed


def _assign(binding: Binding, symbol: str, value: int) -> None:
    if not 0 <= value <= LARGEST_SIZE:
        raise ModelError(f"{shown(symbol)}: {value} is no size")
    if binding.given.setdefault(symbol, value) != value:
        raise ModelError(f"{shown(symbol)} is given as {binding.given[symbol]} and as {value}")


def _solve(binding: Binding, size: Expr, value: int, where: str) -> None:
    """Bind the one symbol left in a size that is linear in it."""
    if len(size.symbols) != 1:
        raise ModelError(
            f"{shown(where)} is {size}: bind {', '.join(sorted(size.symbols))} with --dim instead"
        )
    (symbol,) = size.symbols
    zero, one = (evaluate(size, {symbol: point}) for point in (0, 1))
    slope = 0 if zero is None or one is None else one - zero
    solution = 0 if slope == 0 else (value - (zero or 0)) // slope
    if evaluate(size, {symbol: solution}) != value or size.degree(symbol) != 1:
        raise ModelError(
            f"{shown(where)} is {size}, which {value} does not solve: bind {symbol} with --dim instead"
        )
    _assign(binding, symbol, solution)


def _choices(graph: Graph, recorded: Mapping[str, object]) -> str:
    tensors = {name: value for name, value in recorded.items() if isinstance(value, TensorType)}
    axes = [f"{name}[{index}]" for name, tensor in tensors.items() for index in range(tensor.rank)]
    names = [shown(name) for name in (*graph.symbols, *axes)]
    return (
        ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        if names
        else "none"
    )


def _say_ranges(binding: Binding, graph: Graph) -> None:
    for name, value in binding.given.items():
        entry = graph.symbols.get(name)
        if entry is None:
            continue
        below = entry.minimum is not None and value < entry.minimum
        above = entry.maximum is not None and value > entry.maximum
        if below or above:
            text = f"{name} = {value}, but the program was exported for {span(entry.minimum, entry.maximum)}"
            binding.diagnostics.append(diagnostic("GF106", "", text))


# Sizes that prove to be equal: symbols among them that follow from others are replaced.


def merge_equal(
    graph: Graph,
    equalities: Iterable[tuple[Dim, Dim]],
    dims: Mapping[str, int],
    inputs: Mapping[str, Sequence[int]],
    given: Mapping[str, int],
    *,
    assume: bool = True,
) -> tuple[Graph, Binding] | None:
    """The graph with one symbol for sizes that operators require to be equal, bound again; None if there are none.

    equalities: pairs of sizes that must be equal. dims, inputs: as the user gives sizes. given: the symbols that they bind.
    """
    merged, found = _merged(graph, equalities, given)
    if not found:
        return None
    binding = bind(merged, _renamed(dims, found, graph), inputs, assume=assume)
    equal = ", ".join(f"{shown(name)} = {size}" for name, size in found.items())
    text = f"operators require equal sizes, from which follows {equal}"
    binding.diagnostics.append(diagnostic("GF112", "", text))
    return merged, binding


def _merged(
    graph: Graph, pairs: Iterable[tuple[Dim, Dim]], given: Mapping[str, int]
) -> tuple[Graph, dict[str, Dim]]:
    """The program without the symbols that follow from others, and the size that replaces each of them.

    pairs: sizes that some operator requires to be equal. given: sizes that the user gives; they win over an equality.
    """
    order = {name: place for place, name in enumerate(graph.symbols)}
    found: dict[str, Dim] = {}
    for a, b in pairs:
        gone, size = _solved(_put_in(a, found) - _put_in(b, found), order)
        if not gone or (gone in given and evaluate(size, given) not in (None, given[gone])):
            continue
        found = {**{name: _put_in(known, {gone: size}) for name, known in found.items()}, gone: size}
    if not found:
        return graph, {}
    symbols = {}
    for name, entry in graph.symbols.items():
        if name in found:
            continue
        alike = [entry, *(graph.symbols[gone] for gone, size in found.items() if size is symbol(name))]
        lows = [e.minimum for e in alike if e.minimum is not None]
        highs = [e.maximum for e in alike if e.maximum is not None]
        where = tuple(dict.fromkeys(place for e in alike for place in e.where))
        symbols[name] = replace(
            entry, minimum=max(lows, default=None), maximum=min(highs, default=None), where=where
        )
    types = {name: with_sizes(value, lambda dim: _put_in(dim, found)) for name, value in graph.types.items()}
    return replace(graph, types=types, symbols=symbols), found


def _renamed(given: Mapping[str, int], found: Mapping[str, Dim], graph: Graph) -> dict[str, int]:
    """The sizes that the user gives, by their names after some symbols are replaced.

    One replaced by a sum, as `total` by `past + new`, is given by the input axis where it stands.
    """
    sizes = {}
    for name, value in given.items():
        size = found.get(name)
        if isinstance(size, Expr):
            name = next((kept for kept in size.symbols if size is symbol(kept)), graph.symbols[name].where[0])
        sizes[name] = value
    return sizes


def _solved(difference: Dim, order: Mapping[str, int]) -> tuple[str, Dim]:
    """The last of the symbols that is a sum of others if the difference is 0, and that sum; "" if there is none."""
    if isinstance(difference, int) or any(name not in order for name in difference.symbols):
        return "", 0
    candidates = []
    for monomial, coefficient in difference.terms.items():
        if len(monomial) != 1 or monomial[0].kind != "symbol" or abs(coefficient) != 1:
            continue
        name = monomial[0].name
        sum_of = symbol(name) - difference * coefficient
        if not isinstance(sum_of, Expr) or name in sum_of.symbols or min(sum_of.terms.values()) < 0:
            continue
        if all(len(m) < 2 and all(atom.kind == "symbol" for atom in m) for m in sum_of.terms):
            candidates.append((order[name], name, sum_of))
    if not candidates:
        return "", 0
    _, name, size = max(candidates, key=lambda candidate: candidate[0])
    return name, size


def _put_in(dim: Any, names: Mapping[str, Dim]) -> Any:
    return dim.substitute(names) if isinstance(dim, Expr) else dim
