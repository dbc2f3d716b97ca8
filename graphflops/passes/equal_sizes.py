"""Sizes that are proved equal: they get one symbol, and no symbol follows from others."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from graphflops.base.record import replace
from graphflops.dims import Dim, Expr, Meeting, evaluate, symbol
from graphflops.errors import DimError, shown
from graphflops.graph import Graph, Node, Symbol, tensor_type
from graphflops.ops import Op
from graphflops.passes.bind import Binding, open_sizes
from graphflops.passes.price import Fact, FindFact
from graphflops.passes.price_call import put_in
from graphflops.report.contradictions import diagnostic
from graphflops.report.size_names import collapsed, named
from graphflops.tensor import grouped
from graphflops.view import nested_graphs

Bind = Callable[[Graph, Mapping[str, int]], Binding]  # binds the sizes that the user gives
_MOST_EQUAL = 12  # equal sizes in one diagnostic


def merge_equal(
    graph: Graph, equalities: Iterable[Meeting], dims: Mapping[str, int], given: Mapping[str, int], bind: Bind
) -> tuple[Graph, Binding] | None:
    """The graph with one symbol for sizes that operators require to be equal, bound again; None if there are no such sizes.

    equalities: pairs of sizes that must be equal. dims: sizes as the user gives them. given: the symbols that are bound.
    """
    equalities = [*equalities]
    try:
        merged, found = _merged(graph, _forced(equalities, graph), given)
        merged = _likely(merged, equalities, given)
    except DimError:  # substituted into one another, sizes grow too large to compute with: none are merged
        return None
    if merged is graph:
        return None
    sizes = {}
    for name, value in dims.items():
        size = found.get(name)
        if isinstance(size, int):
            continue
        if size is not None:
            name = next((kept for kept in size.symbols if size is symbol(kept)), graph.symbols[name].where[0])
        sizes[name] = value
    binding = bind(merged, sizes)
    if not found:
        return merged, binding
    binding.learned = {name: binding.bound(size) for name, size in found.items()}  # in nested graphs too
    text = f"operators require equal sizes, from which follows {_equal(found, graph, merged)}"
    binding.diagnostics.append(diagnostic("GF112", "", text))
    return merged, binding


def _forced(met: Iterable[Meeting], graph: Graph) -> Iterator[tuple[Dim, Dim]]:
    """The pairs that are equal whenever the program runs; if it has examples, the pairs that are equal there and not 1."""
    hints = {name: entry.hint for name, entry in graph.symbols.items() if entry.hint is not None}
    for a, b, is_broadcast in met:
        if graph.declared is None:
            sizes = evaluate(a, hints), evaluate(b, hints)
            if sizes[0] == sizes[1] and (sizes[0] or 0) > 1:
                yield a, b
        elif not is_broadcast or not (isinstance(a, int) or isinstance(b, int)):
            yield a, b


def _likely(graph: Graph, met: Iterable[Meeting], given: Mapping[str, int]) -> Graph:
    """The program with an assumed number for each size that is broadcast with that number: only it and 1 can run."""
    pairs = [(a, b) for a, b, is_broadcast in met if is_broadcast and 1 not in (a, b)]
    numbers = _followed(pairs, {name: place for place, name in enumerate(graph.symbols)}, given)
    likely = {name: size for name, size in numbers.items() if isinstance(size, int)}
    changed = {name: replace(graph.symbols[name], assumed=size) for name, size in likely.items()}
    return replace(graph, symbols={**graph.symbols, **changed}) if changed else graph


def _equal(found: Mapping[str, Dim], graph: Graph, merged: Graph) -> str:
    """What follows, in names that people read: `past_*[2] = past_0[2], total = past + new`."""
    before, after = open_sizes(graph).stated, open_sizes(merged).names
    gone = grouped((size, before[name].name) for name, size in found.items())
    equal = [(name, size) for size, names in gone.items() for name in collapsed(names)]
    said = [f"{shown(name)} = {shown(named(str(size), after))}" for name, size in equal[:_MOST_EQUAL]]
    more = f" and {len(equal) - _MOST_EQUAL} more" if len(equal) > _MOST_EQUAL else ""
    return ", ".join(said) + more


def _merged(
    graph: Graph, pairs: Iterable[tuple[Dim, Dim]], given: Mapping[str, int]
) -> tuple[Graph, dict[str, Dim]]:
    """The program without the symbols that follow from others, and the size that replaces each of them.

    pairs: sizes that some operator requires to be equal. given: sizes that the user gives; they win over an equality.
    """
    found = _followed(pairs, {name: place for place, name in enumerate(graph.symbols)}, given)
    if not found:
        return graph, {}
    sizes = [(name, size) for name, size in found.items() if isinstance(size, Expr)]
    gone = grouped((kept, name) for name, size in sizes for kept in size.symbols)  # computed from each symbol
    # A symbol has the ranges of symbols that equal it, and the places of all that are computed from it.
    symbols = {}
    for name, entry in graph.symbols.items():
        if name not in found:
            others = [graph.symbols[each] for each in gone.get(name, ())]
            alike = [entry, *(x for x in others if found[x.name] is symbol(name))]
            low = max([x.minimum for x in alike if x.minimum is not None], default=None)
            high = min([x.maximum for x in alike if x.maximum is not None], default=None)
            where = tuple(dict.fromkeys((*entry.where, *(place for x in others for place in x.where))))
            symbols[name] = replace(entry, minimum=low, maximum=high, where=where)
    types = {name: put_in(value, found) for name, value in graph.types.items()}
    return replace(graph, types=types, symbols=symbols), found


def _followed(
    pairs: Iterable[tuple[Dim, Dim]], order: Mapping[str, int], given: Mapping[str, int]
) -> dict[str, Dim]:
    """The symbols that follow from others, each with the size that replaces it.

    A size found early may contain symbols that are found later. Those are substituted when the size is needed, and at the
    end from the last to the first: a size changes a few times, not with each pair. order: places of the program's symbols.
    """
    found: dict[str, Dim] = {}
    places: dict[str, int] = {}
    for a, b in pairs:
        with suppress(DimError):  # a size that grows too large stays apart from its equal
            gone, size = _solved(_settled(a, found, places) - _settled(b, found, places), order)
            if gone and (gone not in given or evaluate(size, given) in (None, given[gone])):
                found[gone], places[gone] = size, len(places)
    for name in [*reversed(found)]:
        try:
            found[name] = put_in(found[name], found)
        except DimError:
            del found[name]
    return found


def _settled(dim: Dim, found: dict[str, Dim], places: Mapping[str, int]) -> Dim:
    """A size in which all found symbols are replaced; the found sizes that it needs are updated too."""
    reached = set[str]()
    pending = [dim]
    while pending:
        size = pending.pop()
        names = (size.symbols & found.keys()) - reached if isinstance(size, Expr) else ()
        reached.update(names)
        pending += [found[name] for name in names]
    for name in sorted(reached, key=places.__getitem__, reverse=True):
        found[name] = put_in(found[name], found)
    return put_in(dim, found)  # type: ignore[no-any-return]


def _solved(difference: Dim, order: Mapping[str, int]) -> tuple[str, Dim]:
    """If the difference is 0: the last symbol that is a sum of others, of parts of others, or of a number; "" if none is."""
    if isinstance(difference, int) or any(name not in order for name in difference.symbols):
        return "", 0
    signs = [coefficient > 0 for coefficient in difference.terms.values()]
    alone = {sign for sign in (True, False) if signs.count(sign) == 1}
    candidates = {
        monomial[0].name: coefficient
        for monomial, coefficient in difference.terms.items()
        if (coefficient > 0) in alone and abs(coefficient) == 1  # else a term of the sum is negative
        if len(monomial) == 1 and monomial[0].kind == "symbol"
    }
    for name in sorted(candidates, key=order.__getitem__, reverse=True):
        sum_of = symbol(name) - difference * candidates[name]
        is_sum = isinstance(sum_of, int) and sum_of > 0
        if isinstance(sum_of, Expr) and name not in sum_of.symbols and min(sum_of.terms.values()) >= 0:
            simple = (len(m) < 2 and all(x.kind in ("symbol", "//") for x in m) for m in sum_of.terms)
            is_sum = all(simple)
        if is_sum:
            return name, sum_of
    return "", 0


Types = Mapping[str, object]

FEWEST = 2  # devices of a group of unknown size
_PREFIX = "group_"
_SPLITS = ("input_split_sizes", "output_split_sizes")


def with_groups(graph: Graph) -> Graph:
    """The program with a symbol for each group of devices whose size no collective shows."""
    symbols = dict(graph.symbols)
    for name, size in group_sizes(graph).items():
        if not isinstance(size, int):
            own, where = symbol_of(name), (f"devices of group {name}",)
            symbols[own] = Symbol(own, 1, where=where, assumed=FEWEST)
    return replace(graph, symbols=symbols)


def facts_of(graph: Graph) -> FindFact:
    """What some collectives' rules need beyond their operands: the number of devices of the group.

    For slices of uneven lengths it is the recorded rank's place among them.
    """
    sizes = cache(partial(group_sizes, graph))

    def devices(graph: Graph, node: Node, arguments: tuple[Any, ...]) -> Fact | None:
        if not _has_size(node.operator) or "group_size" in node.operator.parameters:
            return None
        mesh = None if graph.step is None else graph.step.mesh
        splits = node.arguments().get(_SPLITS[0])
        group = None if mesh is None else mesh.groups.get(node.group)
        if mesh is None or group is None or not isinstance(splits, tuple) or len(splits) != len(group.ranks):
            return Fact("devices", sizes().get(node.group))
        return Fact("place", group.ranks.index(mesh.rank))  # the place of its own slice among those it sends

    return devices


def group_sizes(graph: Graph) -> Mapping[str, Dim]:
    """The number of devices of each group: the mesh's, or else what collectives show, or else a symbol."""
    mesh = graph.step.mesh if graph.step is not None else None
    sizes = {} if mesh is None else {name: len(group.ranks) for name, group in mesh.groups.items()}
    found: dict[str, Dim] = {**sizes}
    for node, types in _exchanges(graph):
        name, told = node.group, _told(node, types)
        if name not in sizes and (told is not None or name not in found):
            found[name] = symbol(symbol_of(name)) if told is None else told
    return found


def _has_size(op: Op) -> bool:
    return op.is_exchange and "to_one" not in op.facts


def symbol_of(name: str) -> str:
    """The name of the symbol for the size of a group."""
    return _PREFIX + re.sub(r"\W", "_", name)


def _told(node: Node, types: Types) -> int | None:
    """The number of devices that a collective shows by an argument, its splits or its shapes; None if none of these do.

    Shapes show it by how many times longer or shorter an axis of the result is than that of the operand. The last axis is
    ignored, because a product that is fused with a collective changes it.
    """
    arguments = node.arguments()
    size = arguments.get("group_size")
    if isinstance(size, int):
        return size
    for name in _SPLITS:
        if isinstance(given := arguments.get(name), tuple) and given:
            return len(given)
    before, after = (tensor_type(x, types) for x in (arguments.get("x"), (node.outputs or (None,))[-1]))
    if before is None or after is None or before.rank != after.rank:
        return None
    for old, new in zip(before.shape[:-1] or before.shape, after.shape, strict=False):
        if isinstance(old, int) and isinstance(new, int) and min(old, new) > 0 and old != new:
            return None if max(old, new) % min(old, new) else max(old, new) // min(old, new)
    return None


def _exchanges(graph: Graph) -> Iterator[tuple[Node, Types]]:
    """The collectives of a graph and its nested graphs, without waits, each with the types of its graph."""
    for node in graph.nodes:
        if _has_size(node.operator):
            yield node, graph.types
        for nested in nested_graphs(node):
            yield from _exchanges(nested)
