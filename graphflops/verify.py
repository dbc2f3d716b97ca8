"""Checks that a graph is well formed: what every reader promises and every analysis relies on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from graphflops.dims import Expr
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, InputRole, Node, Opaque, OutputRole
from graphflops.tensor import OptionalType, SequenceType, TensorType, UnknownType, sizes_in
from graphflops.view import nested_graphs

_TYPES = (TensorType, SequenceType, OptionalType, UnknownType, Opaque, Expr, int, float, complex, str)
_MOST_SHOWN = 20
_TARGETED = ("gradient", "mutation")


def verify(graph: Graph) -> None:
    """Raise ModelError, one line for each defect, unless the graph is well formed."""
    found = defects(graph)
    if found:
        more = [f"and {len(found) - _MOST_SHOWN} more defects"] if len(found) > _MOST_SHOWN else []
        raise ModelError("\n".join([*found[:_MOST_SHOWN], *more]))


def defects(graph: Graph) -> list[str]:
    """What is wrong with a graph and the graphs nested in it, one line each; empty for a well-formed one."""
    checker = _Checker(recorded=graph.declared is None, symbols=graph.symbols)
    checker.check(graph, "")
    return [*checker.found, *_bad_ranges(graph)]


@dataclass(slots=True)
class _Checker:
    """The defects found so far. recorded: whether the file records the type of every value."""

    recorded: bool
    symbols: Mapping[str, Any]
    found: list[str] = field(default_factory=list)

    def check(self, graph: Graph, place: str) -> None:
        """One graph. place: prefix of its names in messages."""
        defined = set(graph.captures)
        for entry in graph.inputs:
            if entry.role not in get_args(InputRole):
                self._say(place, [f"input {shown(entry.name)} has the unknown role {shown(entry.role)}"])
            self._define(entry.name, defined, place)
        self._check_aliases(graph, place)
        nodes: set[str] = set()
        for node in graph.nodes:
            if node.name in nodes:
                self._say(place, [f"two calls have the name {shown(node.name)}"])
            nodes.add(node.name)
            self._check_call(node, place, defined)
        self._check_outputs(graph, place, defined)
        self._check_types(graph, place, defined)

    def _check_call(self, node: Node, place: str, defined: set[str]) -> None:
        here = f"{place}{shown(node.name)}: "
        for slot, name in node.uses():  # values that a nested graph captures included
            if name not in defined:
                self._say(here, [f"operand {slot} is {shown(name)}, which is not defined before"])
        for nested in nested_graphs(node):
            self.check(nested, f"{place}{shown(node.name)}/{shown(nested.name)}: ")
        for result in node.outputs:
            if result is not None:
                self._define(result, defined, place)

    def _define(self, name: str, defined: set[str], place: str) -> None:
        if name in defined:
            self._say(place, [f"{shown(name)} is defined twice"])
        defined.add(name)

    def _check_aliases(self, graph: Graph, place: str) -> None:
        targets = {entry.target for entry in graph.inputs}
        for entry in graph.inputs:
            if entry.alias_of and entry.alias_of not in targets:
                text = (
                    f"input {shown(entry.name)} shares memory with {shown(entry.alias_of)}, which is no input"
                )
                self._say(place, [text])

    def _check_outputs(self, graph: Graph, place: str, defined: set[str]) -> None:
        for index, output in enumerate(graph.outputs):
            undefined = [name for _, name in output.uses() if name not in defined]
            self._say(place, [f"output {index} is {shown(name)}, which is not defined" for name in undefined])
            if output.role not in get_args(OutputRole):
                self._say(place, [f"output {index} has the unknown role {shown(output.role)}"])
            if output.role in _TARGETED and not output.target:
                self._say(place, [f"output {index} is a {output.role} of nothing"])

    def _check_types(self, graph: Graph, place: str, defined: set[str]) -> None:
        named = [entry.name for entry in graph.inputs] if self.recorded or not place else []
        if self.recorded:
            named += [name for node in graph.nodes for name in node.outputs if name is not None]
        for name in named:
            if name not in graph.types:
                self._say(place, [f"{shown(name)} has no type"])
                continue
            typed: object = graph.types[name]
            if typed is not None and not isinstance(typed, _TYPES):
                self._say(place, [f"{shown(name)} has the type {type(typed).__name__}, which is none"])
            unknown = {
                name for size in sizes_in(typed) if isinstance(size, Expr) for name in size.symbols
            } - self.symbols.keys()
            if unknown:
                self._say(place, [f"the type of {shown(name)} has the unknown size {shown(min(unknown))}"])

    def _say(self, place: str, texts: Iterable[str]) -> None:
        self.found.extend(f"{place}{text}" for text in texts)


def _bad_ranges(graph: Graph) -> list[str]:
    return [
        f"size {shown(name)} has the empty range {entry.minimum}..{entry.maximum}"
        for name, entry in graph.symbols.items()
        if entry.minimum is not None and entry.maximum is not None and entry.minimum > entry.maximum
    ]
