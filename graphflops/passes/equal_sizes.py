"""Sizes of a program that prove to be equal: the symbols among them that follow from others are replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphflops.diagnostics import diagnostic
from graphflops.dims import Dim, Expr, evaluate, symbol
from graphflops.errors import shown
from graphflops.passes.bind import bind
from graphflops.tensor import with_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.graph import Graph
    from graphflops.passes.bind import Binding
    from graphflops.passes.program import PricedProgram


def merge_equal(
    program: PricedProgram,
    dims: Mapping[str, int],
    inputs: Mapping[str, Sequence[int]],
    given: Mapping[str, int],
) -> tuple[Graph, Binding] | None:
    """The graph with one symbol for sizes that operators require to be equal, bound again; None if there are none.

    dims, inputs: as the user gives sizes. given: the symbols that they bind.
    """
    if not program.equalities:
        return None
    graph, found = _merged(program.graph, program.equalities, given)
    if not found:
        return None
    binding = bind(graph, _renamed(dims, found, program.graph), inputs)
    equal = ", ".join(f"{shown(name)} = {size}" for name, size in found.items())
    text = f"operators require equal sizes, from which follows {equal}"
    binding.diagnostics.append(diagnostic("GF112", "", text))
    return graph, binding


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
