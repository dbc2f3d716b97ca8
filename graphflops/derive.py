"""Types where a file does not record them: what to go on with where no rule tells, and sizes that prove to be equal."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphflops.diagnostics import diagnostic
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.errors import shown
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphflops.cost import Estimate, Value
    from graphflops.graph import Graph, Node
    from graphflops.report import Diagnostic

_KNOWN = (TensorType, SequenceType, OptionalType)
_MOST_TERMS, _MOST_DEGREE, _MOST_DEPTH = 24, 8, 12  # of a size; past these it gets a name of its own
_LARGEST = 2**64  # number in a size
_MOST_NAMES = 3  # in one diagnostic
_SOURCES = {
    "inferred": "onnx's own shape inference",
    "declared": "what the file declares",
    "unknown": "nowhere",
}


class Guesses:
    """Result types of calls whose rule tells none: what onnx tells without sizes, or what the file declares, or nothing.

    sources: values by where their types come from. otherwise: values that the file declares to be something else.
    """

    def __init__(self) -> None:
        self.sources: dict[str, list[str]] = {}
        self.otherwise: list[str] = []

    def of(
        self, node: Node, operands: Sequence[Value], derived: Sequence[Value], graph: Graph
    ) -> dict[int, Value]:
        """What is best known of each wanted result that the rule does not tell, by its place.

        derived: what the rule tells, if only an element type.
        """
        infer = graph.fallback_types
        found = {} if infer is None else dict(enumerate(infer(node, operands)))
        types: dict[int, Value] = {}
        for place, name in enumerate(node.outputs):
            ours = derived[place] if place < len(derived) else None
            if name is None or isinstance(ours, _KNOWN):
                continue
            declared = (graph.declared or {}).get(name)
            guesses = {"inferred": found.get(place), "declared": declared}
            source = next(
                (source for source, guess in guesses.items() if isinstance(guess, _KNOWN)), "unknown"
            )
            vague = (*guesses.values(), ours)
            unknown = next(
                (guess for guess in vague if isinstance(guess, UnknownType) and guess.dtype is not None),
                UnknownType(),
            )
            types[place] = guesses.get(source, unknown)  # type: ignore[assignment]
            self.sources.setdefault(source, []).append(name)
        return types

    def compare(self, name: str, ours: Value, graph: Graph) -> None:
        """Keep what the file declares of a value if it is provably something else than what is derived."""
        if graph.declared is None or name not in graph.declared:
            return
        declared = graph.declared[name]
        if not isinstance(declared, TensorType) or not isinstance(ours, TensorType):
            return
        same_rank = len(declared.shape) == len(ours.shape)
        if declared.dtype is ours.dtype and same_rank and not any(map(_is_other, ours.shape, declared.shape)):
            return
        self.otherwise.append(f"{shown(name)} is {ours}, declared as {declared}")

    def diagnostics(self) -> list[Diagnostic]:
        """One for each source of types, and one for what is declared otherwise."""
        found = []
        for source, names in self.sources.items():
            known = f"known from {_SOURCES[source]} alone" if source != "unknown" else "not known"
            text = f"the types of {_listed(names)} are {known}"
            found.append(diagnostic("GF110", "", text))
        if self.otherwise:
            text = (
                f"what the file declares of {len(self.otherwise)} values is out of date: {self.otherwise[0]}"
            )
            found.append(diagnostic("GF111", "", text))
        return found


def _listed(names: list[str]) -> str:
    some = ", ".join(shown(name) for name in names[:_MOST_NAMES])
    rest = len(names) - _MOST_NAMES
    return f"{some} and {rest} more values" if rest > 0 else some


def _is_other(ours: Dim, declared: Dim) -> bool:
    return isinstance(declared, int) and isinstance(ours, int) and ours != declared


def trimmed(estimate: Estimate, wanted: Sequence[bool]) -> Estimate:
    """The estimate without the results that nobody wants."""
    out = tuple(
        [value if place < len(wanted) and wanted[place] else None for place, value in enumerate(estimate.out)]
    )
    return estimate if out == estimate.out else replace(estimate, out=out)


def merged(
    graph: Graph, pairs: Iterable[tuple[Dim, Dim]], given: Mapping[str, int]
) -> tuple[Graph, dict[str, Dim]]:
    """The program without those of its sizes that follow from others, and what each of them is.

    pairs: sizes that met where only equal ones can. given: sizes that the user gives, who may know better.
    """
    order = {name: place for place, name in enumerate(graph.symbols)}
    found: dict[str, Dim] = {}
    for a, b in pairs:
        gone, size = _solved(_settled(a, found) - _settled(b, found), order)
        if not gone or (gone in given and evaluate(size, given) not in (None, given[gone])):
            continue
        found = {**{name: _settled(known, {gone: size}) for name, known in found.items()}, gone: size}
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
    types = {name: mapped(value, lambda dim: _settled(dim, found)) for name, value in graph.types.items()}
    return replace(graph, types=types, symbols=symbols), found


def renamed(given: Mapping[str, int], found: Mapping[str, Dim], graph: Graph) -> dict[str, int]:
    """Sizes by name or by input axis, after some have become others: `total` that is `past + new` by where it stands."""
    sizes = {}
    for name, value in given.items():
        size = found.get(name)
        if isinstance(size, Expr):
            name = next((kept for kept in size.symbols if size is symbol(kept)), graph.symbols[name].where[0])
        sizes[name] = value
    return sizes


def _solved(difference: Dim, order: Mapping[str, int]) -> tuple[str, Dim]:
    """The last of the symbols that is a sum of others where the difference is 0, and that sum; "" where none is."""
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


def _settled(dim: Any, names: Mapping[str, Dim]) -> Any:
    return dim.substitute(names) if isinstance(dim, Expr) else dim


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with every size in it, and every size among its contents, changed."""
    if isinstance(value, Expr):
        return change(value)
    if isinstance(value, TensorType):
        shape = tuple([change(size) for size in value.shape])
        stored = None if value.stored is None else change(value.stored)
        contents = None if value.value is None else mapped(value.value, change)
        return replace(value, shape=shape, stored=stored, value=contents)
    if isinstance(value, SequenceType):
        length = None if value.length is None else change(value.length)
        return replace(
            value, element=mapped(value.element, change), length=length, items=mapped(value.items, change)
        )
    if isinstance(value, OptionalType):
        return replace(value, element=mapped(value.element, change))
    if isinstance(value, tuple):
        return tuple([mapped(part, change) for part in value])
    return value


def sizes_in(value: Any) -> list[Dim]:
    """Every size in a value, those among its contents too."""
    found: list[Dim] = []

    def keep(size: Any) -> Any:
        found.append(size)
        return size

    mapped(value, keep)
    return found


def outgrown(value: Any) -> list[Expr]:
    """Sizes in the value that are too large an expression to go on computing with."""
    return [size for size in sizes_in(value) if isinstance(size, Expr) and _is_outgrown(size)]


@lru_cache(maxsize=65_536)
def _is_outgrown(size: Expr) -> bool:
    degree = max(map(len, size.terms))
    return (
        max(map(abs, size.terms.values())) > _LARGEST
        or len(size.terms) > _MOST_TERMS
        or degree > _MOST_DEGREE
        or max(atom.depth for atom in size.atoms()) > _MOST_DEPTH
    )
