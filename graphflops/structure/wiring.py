"""Which call reads what another one makes, through nested graphs: the edges of a program, call by call."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import NamedTuple

from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.report import Report, Row
from graphflops.tensor import TensorType, flat
from graphflops.view import nested_graphs

Makers = ChainMap[str, tuple[str, ...]]  # by name of a value: the nodes that make it


class Use(NamedTuple):
    """A value on its way from the node that makes it to one that reads it. slot: the operand, `0` or `mask`."""

    maker: str
    user: str
    slot: str
    value: str
    type: TensorType | None


def wiring(report: Report) -> Wiring:
    """The wiring of a report's program; of a saved report that of its tensors, as far as its rows tell."""
    graph = program_of(report)
    walk = Wiring(report.rows)
    makers: Makers = ChainMap()
    for entry in graph.inputs:
        makers[entry.name] = (walk.input(entry.name, entry, graph),)
    for name, given in report.inputs:
        walk.types[name] = given
    walk.graph(graph, "", makers)
    for place, output in enumerate(graph.outputs):
        name = f"output {place}: {output.target}" if output.target else f"output {place}"
        node = walk.unique(name)
        walk.outputs[node] = output
        walk.use(node, list(output.uses()), makers)
    return walk


def program_of(report: Report) -> Graph:
    """The program that was analyzed. Of a saved report, a graph of the tensors that its rows name.

    There, weights have the names of values, sizes have no edges, and nothing tells which weights nobody reads.
    """
    if report.program is not None:
        return report.program
    made = {name for row in report.rows for name, _ in row.outputs}
    given = dict(report.inputs)
    read = dict.fromkeys(name for row in report.rows for name, _ in row.inputs)
    nodes = tuple([_as_node(row) for row in report.rows])
    inputs = [Input(name, "user" if name in given else "constant") for name in {**given, **read}]
    outputs = tuple([Output(Ref(name)) for name in report.outputs if name in made or name in given])
    return Graph(nodes, {}, tuple(one for one in inputs if one.name not in made), outputs)


def _as_node(row: Row) -> Node:
    args = tuple([Ref(name) for name, _ in row.inputs])
    return Node(row.node, row.op, args, (), tuple([name for name, _ in row.outputs]))


class Wiring:
    """Nodes and edges of a program, found by going through its calls as they stand in its report's rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.place = rows, 0
        # The row of each call by its name, which is unique; in an order in which values are made before they are read: a
        # call that runs nested graphs comes after their calls.
        self.calls: dict[str, int] = {}
        self.uses: list[Use] = []
        self.inputs: dict[str, Input] = {}  # by name of the node; constants of nested graphs are inputs
        self.outputs: dict[str, Output] = {}
        self.types: dict[str, TensorType] = {}
        self.taken: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """The name; numbered where it is taken, as `cond/linear (2)` in the other branch."""
        times = self.taken[name] = self.taken.get(name, 0) + 1
        return name if times == 1 else self.unique(f"{name} ({times})")

    def input(self, name: str, entry: Input, graph: Graph) -> str:
        node = self.unique(name)
        self.inputs[node] = entry
        recorded = graph.types.get(entry.name)
        if isinstance(recorded, TensorType):
            self.types.setdefault(entry.name, recorded)
        return node

    def use(self, user: str, uses: Sequence[tuple[str, str]], makers: Makers) -> None:
        for slot, value in uses:
            for maker in makers.get(value, ()):
                self.uses.append(Use(maker, user, slot, value, self.types.get(value)))

    def graph(self, graph: Graph, prefix: str, makers: Makers) -> None:
        """The calls of one graph. A call without a row is none: its operator has no rule, which its parent's row says."""
        for node in graph.nodes:
            if self.place < len(self.rows) and self.rows[self.place].node == prefix + node.name:
                self.call(node, makers)

    def call(self, node: Node, makers: Makers) -> None:
        place, row = self.place, self.rows[self.place]
        self.place += 1
        name = self.unique(row.node)
        for read, typed in (*row.inputs, *row.outputs):
            self.types[read] = typed
        uses = list(node.uses())
        if row.regions:
            uses = self.nested(node, row, name, uses, makers)
        self.use(name, uses, makers)
        self.calls[name] = place
        makers.update((output, (name,)) for output in node.outputs if output is not None)
        if node.operator.mutates and (written := node.reads()):
            makers[written[0]] = (name,)

    def nested(
        self, node: Node, row: Row, name: str, uses: list[tuple[str, str]], makers: Makers
    ) -> list[tuple[str, str]]:
        """The graphs that run in a call: they read its operands, and it reads what they return.

        Returns what else the call reads itself: the condition of a branch. A loop reads its operands, too: without a single
        run they are its results.
        """
        inside = f"{row.node}/"
        graphs = list(nested_graphs(node))
        passed: set[str] = {name for graph in graphs for name in graph.captures}
        for region in row.regions:
            ahead = self.rows[self.place].node if self.place < len(self.rows) else ""
            named = (one for one in graphs if one.name == region.name)
            graph = next((one for one in named if not one.nodes or ahead == inside + one.nodes[0].name), None)
            if graph is None:
                continue
            scope, operands = self.scope(node, graph, name, makers)
            if all(one.times in (0, 1) for one in row.regions):
                passed |= operands
            self.graph(graph, inside, scope)
            for place, value in enumerate(graph.returned):
                self.use(name, [(f"{graph.name}[{place}]", value)], scope)
        alone = makers.new_child()
        while self.place < len(self.rows) and self.rows[self.place].node.startswith(inside):
            self.call(_as_node(self.rows[self.place]), alone)  # of a graph that is not at hand
        return [(slot, value) for slot, value in uses if value not in passed]

    def scope(self, node: Node, graph: Graph, name: str, makers: Makers) -> tuple[Makers, set[str]]:
        """The makers of values inside a nested graph, and the operands of the call that are its inputs.

        Where operands cannot be told apart, each input is made by the makers of all of them.
        """
        scope = makers.new_child()
        own = [entry for entry in graph.inputs if entry.role == "constant"]
        for entry in own:
            scope[entry.name] = (self.input(f"{name}/{entry.name}", entry, graph),)
        given = [entry for entry in graph.inputs if entry.role != "constant"]
        # What a call hands to the graphs it runs: the arguments after them, else all; None for one that is no value.
        last = max((place for place, value in enumerate(node.args) if isinstance(value, Graph)), default=-1)
        values = (item for item in flat(node.args[last + 1 :]) if not isinstance(item, (str, Graph)))
        operands = [item.name if isinstance(item, Ref) else None for item in values]
        names = {operand for operand in operands if operand is not None}
        if len(operands) == len(given):
            for entry, operand in zip(given, operands, strict=True):
                scope[entry.name] = makers.get(operand, ()) if operand is not None else ()
        else:
            every = tuple(dict.fromkeys(maker for operand in names for maker in makers.get(operand, ())))
            scope.update((entry.name, every) for entry in given)
        return scope, names
