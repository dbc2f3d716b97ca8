"""Lookups in a priced program: which call makes a value, which calls use it, what type it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from graphflops.base.record import field
from graphflops.dims import Dim, Expr
from graphflops.graph import Graph, Input, Node, Ref
from graphflops.tensor import TensorType, flat, grouped

if TYPE_CHECKING:
    from graphflops.cost import Cost
    from graphflops.ops import Op
    from graphflops.report import Row
    from graphflops.rules.flex import Seen


class Step(Struct, eq=False, dict=True):
    """A call of a graph, before it is priced."""

    node: Node
    uses: tuple[str, ...]  # the names of the values it reads in order
    place: int  # index of the call in program order

    @property
    def is_priced(self) -> bool:
        """Whether it has a rule; true where that is not known."""
        return True

    @property
    def may_share(self) -> bool:
        """Whether its result may share memory with its first operand."""
        return self.operator.shares_memory

    @property
    def writes(self) -> bool:
        """Whether it writes to its first operand, and that is no view."""
        return self.operator.mutates and bool(self.uses) and self.operator.kind not in ("view", "identity")

    @property
    def operator(self) -> Op:
        return self.node.operator

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return self.node.arguments()

    def argument(self, name: str, otherwise: Any = None) -> Any:
        """An argument by its canonical name; `otherwise` where it is left out."""
        found = self.arguments.get(name)
        return otherwise if found is None else found

    @property
    def result(self) -> str:
        """Name of the first result; "" if it is not used."""
        return (self.node.outputs and self.node.outputs[0]) or ""


class Call(Step, eq=False, dict=True):
    """A call of the program, or of a graph nested in it."""

    row: Row

    @property
    def is_priced(self) -> bool:
        return self.row.state != "unknown"

    @property
    def may_share(self) -> bool:
        return self.row.state == "free" and self.operator.shares_memory

    @property
    def name(self) -> str:
        """The row's name: `cond/mm` for a call in a graph nested in `cond`."""
        return self.row.node

    def value(self, name: str) -> str:
        """Name of the value given as an argument, by the argument's canonical name; "" if the argument is not a value."""
        argument = self.argument(name)
        return argument.name if isinstance(argument, Ref) else ""

    @property
    def cost(self) -> Cost:
        return self.row.cost

    @property
    def bytes(self) -> Dim:
        return self.cost.moved_bytes

    @property
    def flops(self) -> Dim:
        return self.cost.flops

    def operand(self, place: int) -> str:
        """Name of the value at that position; "" if there is none."""
        return dict(enumerate(self.operands)).get(place, "")

    @property
    def operands(self) -> list[str]:
        """Names of the values at all positions; "" for one that is left out."""
        # Files of torch before 2.7 name all of them, in the operator's order.
        given = self.node.args or [value for _, value in self.node.kwargs]
        return [argument.name if isinstance(argument, Ref) else "" for argument in given]

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        return dict(self.node.kwargs).get(name, otherwise)


class View(Struct, eq=False, dict=True):
    """A program and the rows of its report; names of values are unique in it, nested graphs included."""

    graph: Graph
    rows: Sequence[Row]
    # Sizes that the user gave, by name; None if the recorded sizes no longer hold.
    given: Mapping[str, int] | None = field(default_factory=dict)
    # Visible pairs of the attentions with score or mask functions of their own.
    flexible: Mapping[Node, Seen] = field(default_factory=dict)

    @cached_property
    def calls(self) -> list[Call]:
        """Every call, in program order, those of nested graphs after the call that runs them."""
        found = _calls(self.graph, "", {row.node: row for row in self.rows})
        return [Call(node, uses, place, row) for place, (node, uses, row) in enumerate(found)]

    @cached_property
    def types(self) -> dict[str, TensorType]:
        found = {name: typed for name, typed in self.graph.types.items() if isinstance(typed, TensorType)}
        for call in self.calls:
            found.update(call.row.inputs)
            found.update(call.row.outputs)
        return found

    @cached_property
    def makers(self) -> dict[str, Call]:
        """The call that makes a value, by the value's name."""
        return {name: call for call in self.calls for name in call.node.outputs if name}

    @cached_property
    def users(self) -> dict[str, list[Call]]:
        """The calls that use a value, by its name; once for each use."""
        return grouped((name, call) for call in self.calls for name in call.uses)

    @cached_property
    def returned(self) -> set[str]:
        """Names of the values that the program, or a graph nested in it, returns."""
        graphs = [self.graph, *(inner for call in self.calls for inner in nested_graphs(call.node))]
        return {name for graph in graphs for output in graph.outputs for _, name in output.uses()}

    @cached_property
    def stored(self) -> dict[str, Input]:
        """Values that the file stores, by name."""
        return {entry.name: entry for entry in self.graph.inputs if entry.role != "user"}

    def size(self, name: str) -> Dim | None:
        """The size that a scalar value stands for; None if it is not a size, or not known."""
        recorded = self.graph.types.get(name)
        if self.given is None or isinstance(recorded, bool) or not isinstance(recorded, (int, Expr)):
            return None
        return recorded.substitute(self.given) if isinstance(recorded, Expr) else recorded

    def only_user(self, name: str) -> Call | None:
        """The one call that uses a value which the program does not return; None where there are others."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.returned else None


def _calls(graph: Graph, prefix: str, rows: Mapping[str, Row]) -> Iterator[tuple[Node, tuple[str, ...], Row]]:
    for node, uses in zip(graph.nodes, graph.operands, strict=True):
        row = rows.get(prefix + node.name)
        if row is None:  # a graph that an operator without a rule holds is in no report
            continue
        yield node, uses, row
        if row.regions:
            for inner in nested_graphs(node):
                yield from _calls(inner, f"{row.node}/", rows)


def nested_graphs(node: Node) -> Iterator[Graph]:
    """The graphs among the arguments of a call."""
    arguments = flat((*node.args, *[value for _, value in node.kwargs]))
    return (argument for argument in arguments if isinstance(argument, Graph))


def first_of(call: Call) -> str:
    """Name of the first value that a call uses; "" where there is none."""
    return call.uses[0] if call.uses else ""


def is_mask(name: str, view: View) -> bool:
    """True if a value has more than one element, so that it may differ from score to score."""
    typed = view.types.get(name)
    return typed is not None and typed.numel != 1


def axis_along(call: Call, view: View) -> int | None:
    """The one axis that a softmax or a reduction goes along, counted from the end; None where it is not one."""
    op, typed = call.operator, view.types.get(first_of(call))
    given = call.argument("axis", call.argument("axes"))
    if isinstance(given, Ref):
        given = view.types[given.name].value if given.name in view.types else None
    if given is None and op.kind == "softmax":
        given = 1 if op.is_onnx and op.version < 13 else -1
    axis = given[0] if isinstance(given, tuple) and len(given) == 1 else given
    if typed is None or not typed.rank or not isinstance(axis, int):
        return None
    axis = axis % typed.rank - typed.rank
    is_flat = op.is_onnx and op.kind == "softmax" and op.version < 13  # along all axes from that one on
    return None if is_flat and axis != -1 else axis
