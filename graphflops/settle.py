"""Fixes the type of every result: what a rule derives against what the file records, and what there is to say of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphflops.calls import RANKLESS, is_same, named_by, placeholders_in, settled, substituted
from graphflops.derive import Guesses, mapped, outgrown, sizes_in
from graphflops.diagnostics import diagnostic
from graphflops.dims import Dim, Expr, differ, symbol
from graphflops.errors import ModelError, shown
from graphflops.tensor import TensorType, UnknownType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphflops.binding import Binding
    from graphflops.calls import Priced
    from graphflops.cost import Value
    from graphflops.graph import Graph, Node
    from graphflops.report import Diagnostic


class Settling:
    """What is known of the types of one program and of the graphs nested in it.

    derives: whether the file records no types that count. numbers: by origin, how many sizes have been named that only data
    can tell. contents: values whose contents are known. untold: names in the file of sizes that only data could tell while
    exporting. named: sizes that have grown too large to go on computing with, and the names they go by. met: sizes that met
    where only equal ones can. found: diagnostics, each of a kind and place once.
    """

    def __init__(self, graph: Graph, binding: Binding) -> None:
        self.graph = graph
        self.binding = binding
        self.derives = graph.declared is not None
        self.numbers: Counter[str] = Counter()
        self.contents: set[str] = set()
        self.untold = {
            name
            for name, entry in graph.symbols.items()
            if not entry.where and entry.hint is None and name not in binding.given
        }
        self.guesses = Guesses()
        self.named: dict[Expr, Dim] = {}
        self.met: dict[tuple[Dim, Dim], None] = {}
        self.found: dict[tuple[str, str], Diagnostic] = {}

    def numbered(self, node: Node, priced: Priced, graph: Graph) -> Priced:
        """Give each size that only data can tell its name: the recorded one where the file has one, else the next number."""
        names: dict[str, Dim] = {}
        for name, derived in zip(node.outputs, priced.estimate.out, strict=False):
            recorded = self.binding.value(graph, name) if name is not None else None
            if isinstance(derived, TensorType) and isinstance(recorded, TensorType):
                for size, known in zip(derived.shape, recorded.shape, strict=False):
                    names.update(named_by(size, known, priced.placeholders))
            elif isinstance(derived, Expr) and isinstance(recorded, (int, Expr)):
                names.update(named_by(derived, recorded, priced.placeholders))
        for placeholder in sorted(priced.placeholders - names.keys()):
            names[placeholder] = self.binding.told(self.fresh(placeholder))
        estimate = substituted(priced.estimate, names)
        back = priced.gradient
        if back is not None:
            back = replace(back, estimate=substituted(back.estimate, names))
        return replace(
            priced,
            estimate=estimate,
            cost=estimate.cost,
            gradient=back,
            gradient_cost=None if back is None else back.estimate.cost,
        )

    def fresh(self, placeholder: str) -> Dim:
        """The next size of that origin."""
        what = placeholder.rstrip("?")
        while f"{what}_{self.numbers[what]}" in self.graph.symbols:
            self.numbers[what] += 1
        self.numbers[what] += 1
        return symbol(f"{what}_{self.numbers[what] - 1}")

    def settle(
        self,
        node: Node,
        priced: Priced,
        values: dict[str, Value],
        graph: Graph,
        autocast: bool,
        resolve: Callable[[Any, Mapping[str, Value]], Any],
    ) -> None:
        """Fix the type of each result: the recorded one wins unless sizes were given anew, a disagreement is said.

        resolve: an argument as its rule sees it.
        """
        if problem := priced.estimate.unknown:
            if self.binding.moved and priced.code == "GF104":
                raise ModelError(
                    f"{_place(node)}: {problem}; a size is fixed in the program: export it with dynamic shapes"
                )
            self.say(priced.code, node, problem)
        if priced.estimate.hint:
            self.say("GF108", node, priced.estimate.hint)
        derived = priced.estimate.out
        if self.derives:
            self.settle_derived(node, priced, values, graph, resolve)
            return
        if priced.state != "unknown" and len(derived) != len(node.outputs):
            if self.binding.moved:
                raise ModelError(
                    f"{_place(node)}: it would give {len(derived)} results, the program takes {len(node.outputs)}; "
                    "a size is fixed in the program: export it with dynamic shapes"
                )
            self.say(
                "GF105", node, f"rule gives {len(derived)} results, the file records {len(node.outputs)}"
            )
        for index, name in enumerate(node.outputs):
            if name is None:
                continue
            ours = derived[index] if index < len(derived) else None
            recorded = self.binding.value(graph, name)
            if recorded is None or is_same(ours, recorded):
                values[name] = ours
            else:
                if self.untold and self.learns(ours, recorded):
                    recorded = self.binding.value(graph, name)
                values[name] = self.agreed(node, ours, recorded, autocast, name in graph.used)
            if isinstance(settled := values[name], TensorType) and settled.value is not None:
                self.contents.add(name)
        if self.contents and priced.state != "free" and node.operator.mutates:
            self.forget_contents(values)

    def settle_derived(
        self,
        node: Node,
        priced: Priced,
        values: dict[str, Value],
        graph: Graph,
        resolve: Callable[[Any, Mapping[str, Value]], Any],
    ) -> None:
        """Fix the type of each result where files record none: the derived one, else the best guess."""
        if priced.met:
            self.met.update(dict.fromkeys(priced.met))
        derived = priced.estimate.out
        guesses: dict[int, Value] | None = None
        for place, name in enumerate(node.outputs):
            if name is None:
                continue
            value = derived[place] if place < len(derived) else None
            if value is not None and not isinstance(value, UnknownType):
                self.guesses.compare(name, value, graph)
                if priced.outgrown:
                    value = self.cut(node, value)
            else:
                if guesses is None:
                    operands = [resolve(argument, values) for argument in node.args]
                    guesses = self.guesses.of(node, operands, derived, graph)
                names = {
                    n: self.binding.told(self.fresh(n)) for n in placeholders_in(sizes_in(guesses[place]))
                }
                value = settled(guesses[place], names)
            values[name] = value

    def cut(self, node: Node, value: Value) -> Value:
        """The value with names for those of its sizes that have grown too large to go on computing with."""
        for size in outgrown(value):
            if size not in self.named:
                self.named[size] = self.fresh("size?")
                self.say(
                    "GF116",
                    node,
                    f"a size whose expression grows too large goes by the name {self.named[size]}",
                )
        return mapped(value, lambda dim: self.named.get(dim, dim) if isinstance(dim, Expr) else dim)  # type: ignore[no-any-return]

    def forget_contents(self, values: dict[str, Value]) -> None:
        """After a write in place no contents are known any more: what else shares the memory is not tracked this finely."""
        for name in self.contents & values.keys():
            value = values[name]
            if isinstance(value, TensorType):
                values[name] = replace(value, value=None)
        self.contents.clear()

    def learns(self, ours: Value, recorded: Value) -> bool:
        """Whether a derived size tells what the file calls by a name because only data could tell it while exporting."""
        if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
            told = map(self.learns, ours.shape, recorded.shape) if ours.rank == recorded.rank else ()
            return sum(told) > 0  # every axis is looked at
        if not isinstance(recorded, Expr) or not isinstance(ours, (int, Expr)) or isinstance(ours, bool):
            return False
        name = str(recorded)
        used = ours.symbols if isinstance(ours, Expr) else frozenset()
        if (
            name not in self.untold
            or not self.untold.isdisjoint(used)
            or any(other.endswith("?") for other in used)
        ):
            return False
        self.untold.remove(name)
        self.binding.learn(name, ours)
        return True

    def agreed(self, node: Node, ours: Value, recorded: Value, autocast: bool, used: bool) -> Value:
        """Which of two types to go on with; the disagreement is said.

        But not of an element type where autocasting chose it, nor of a result that nobody uses: kernels of different devices
        keep different statistics and workspaces there.
        """
        if not isinstance(ours, TensorType) or not isinstance(recorded, TensorType):
            return ours if self.binding.moved and ours is not None else recorded
        if self.binding.moved:
            return ours
        if len(ours.shape) != len(recorded.shape) or any(map(differ, ours.shape, recorded.shape)):
            if used:
                self.say("GF102", node, f"derived {ours}, the file records {recorded}")
            return replace(recorded, requires_grad=ours.requires_grad)
        if ours.dtype is not recorded.dtype and used and not autocast:
            self.say("GF103", node, f"derived {ours}, the file records {recorded}")
        return replace(ours, shape=recorded.shape, dtype=recorded.dtype)

    def say(self, code: str, node: Node, message: str) -> None:
        """Keep a diagnostic; one per operator, or one for all, of the kinds that would repeat at every call."""
        where = node.op if code == "GF101" else "" if message == RANKLESS else node.name
        where = message if code == "GF117" else where
        self.found.setdefault((code, where), diagnostic(code, node.name, message))


def _place(node: Node) -> str:
    source = f" ({shown(node.source)})" if node.source else ""
    return f"{shown(node.name)}{source}, {shown(node.op)}"
