"""One fx graph of an `ExportedProgram` as a Graph: its inputs, calls and results."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from graphflops.errors import ModelError, shown
from graphflops.exporters.live_values import attribute_of, described, dtype_of, operator_name
from graphflops.exporters.types import memory_order, sparse, storage
from graphflops.graph import Argument, Graph, Input, Node, Opaque, Output, Ref
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphflops.exporters.live_values import Program


class Scope:
    """One fx graph being read."""

    def __init__(self, program: Program, module: fx.GraphModule) -> None:
        self.program = program
        self.module = module
        self.types: dict[str, Any] = {}
        self.orders: dict[str, tuple[int, ...]] = {}  # of inputs that do not lie in row-major order
        self.constants: list[Input] = []
        self.tensors: dict[str, Any] = {}  # what the constants hold
        self._refs: dict[str, Ref] = {}
        self._same: dict[str, str] = {}  # by name of a repeated getitem: the first of the same result

    def region(self, name: str) -> Graph:
        """The graph, read as one nested in another."""
        inputs = []
        for node in self.module.graph.find_nodes(op="placeholder"):
            self.types[node.name] = self.program.value(node.name, node.meta.get("val"))
            inputs.append(Input(node.name, "user"))
        nodes = self.nodes()
        outputs = tuple([Output(value) for value in self.results()])
        return Graph(
            nodes,
            self.types,
            (*inputs, *self.constants),
            outputs,
            name=name,
            contents=self.program.contents(self.tensors),
        )

    def type_input(self, entry: Input, node: fx.Node) -> None:
        """Records an input's type; for a parameter, also whether it is trained."""
        value = node.meta.get("val")
        if entry.role in ("token", "object") and not isinstance(value, torch.Tensor):
            return
        known = self.program.value(entry.name, value)
        if isinstance(known, TensorType) and isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            plain = [stride if isinstance(stride, int) else None for stride in strides]
            stored = storage(known.shape, plain) if 0 in plain else None
            if (order := memory_order(known.shape, plain)) is not None:
                self.orders[entry.name] = order
            known = self.program.types.variant(
                known, value.requires_grad and entry.role == "parameter", stored
            )
            if str(value.layout).startswith("torch.sparse"):
                known = sparse(known, entry.name)
        self.types[entry.name] = known

    def nodes(self) -> tuple[Node, ...]:
        """All calls in program order; `getitem` of results is folded into the call, as in a saved program."""
        return tuple([self.call(node) for node in self.module.graph.nodes if self.is_call(node)])

    def is_call(self, node: fx.Node) -> bool:
        if node.op == "get_attr":
            self.constant(node)
        if node.op not in ("placeholder", "output", "get_attr", "call_function"):
            raise ModelError(f"node {shown(node.name)} is a {node.op}: not a program of torch.export")
        return node.op == "call_function" and node.target is not operator.getitem

    def constant(self, node: fx.Node) -> None:
        """Makes a tensor that the graph refers to by attribute an input of role `constant`."""
        held = attribute_of(self.module, str(node.target))
        value = node.meta.get("val")
        value = held if value is None else value
        if isinstance(value, torch.Tensor):
            self.types[node.name] = self.program.value(node.name, value)
            self.constants.append(Input(node.name, "constant", str(node.target)))
            self.tensors[node.name] = held

    def call(self, node: fx.Node) -> Node:
        op = operator_name(node.target)
        outputs = tuple(self.outputs(node))
        args = tuple([self.argument(arg) for arg in node.args])
        kwargs = tuple([(name, self.argument(node.kwargs[name])) for name in _ordered(node)])
        sources = self.program.sources
        stacks = (
            sources.shared(node.meta.get("stack_trace") or ""),
            sources.shared(_stack(node.meta.get("nn_module_stack"))),
        )
        module, module_type = sources.place(stacks[1])
        return Node(
            node.name, op, args, kwargs, outputs, module, module_type, sources.line(stacks[0]), *stacks
        )

    # Results

    def outputs(self, node: fx.Node) -> Iterable[str | None]:
        """Names of the results, flat, as a saved program has them: a `getitem`'s, else `NAME_unused_1`."""
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            yield from self.unpacked(node, node.name, enumerate(value))
        elif isinstance(value, dict):
            yield from self.unpacked(node, node.name, value.items())
        elif not _returns_nothing(node.target):
            yield self.recorded(node.name, value)

    def unpacked(
        self, node: fx.Node | None, name: str, values: Iterable[tuple[Any, Any]]
    ) -> Iterable[str | None]:
        users = self.users(node)
        for key, value in values:
            user = users.get(key)
            name_here = f"{name}_unused_{key}" if user is None else user.name
            if isinstance(value, (tuple, list)):
                # The items of a list that is used are named by their own getitems.
                yield from self.unpacked(
                    user, name_here, [(k, v) for k, v in enumerate(value) if v is not None]
                )
            else:
                yield self.recorded(name_here, value)

    def users(self, node: fx.Node | None) -> dict[Any, fx.Node]:
        """The first `getitem` of each result."""
        first: dict[Any, fx.Node] = {}
        for user in node.users if node is not None else ():
            if user.target is operator.getitem:
                kept = first.setdefault(user.args[1], user)
                if kept is not user:
                    self._same[user.name] = kept.name
        return first

    def recorded(self, name: str, value: Any) -> str | None:
        """Records a result's type; None for a result that does not exist."""
        if value is None:
            return None
        self.types[name] = self.program.value(name, value)
        return name

    def results(self) -> list[Argument]:
        """What the graph returns."""
        (output,) = self.module.graph.find_nodes(op="output")
        returned = output.args[0]
        return [
            self.argument(value)
            for value in (returned if isinstance(returned, (tuple, list)) else (returned,))
        ]

    # Arguments

    def argument(self, arg: Any) -> Argument:
        """One operand."""
        if isinstance(arg, fx.Node):
            return self.reference(arg)
        if arg is None or isinstance(arg, (bool, int, float, complex, str)):
            return arg
        if isinstance(arg, (tuple, list)):
            return tuple([self.argument(item) for item in arg])
        if isinstance(arg, dict):
            return tuple([(str(key), self.argument(item)) for key, item in arg.items()])
        if isinstance(arg, torch.dtype):
            return dtype_of(arg, "")
        if isinstance(arg, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            found: Argument = self.program.value("", arg)
            return found
        return Opaque(described(arg))

    def reference(self, node: fx.Node) -> Argument:
        if node.op == "get_attr":
            value = attribute_of(self.module, str(node.target))
            if isinstance(value, fx.GraphModule):
                return self.nested(str(node.target))
            if not isinstance(value, torch.Tensor):
                return Opaque(type(value).__name__)
        kind = getattr(node.meta.get("val"), "class_fqn", None)
        if isinstance(kind, str):
            return Opaque(kind)
        name = self._same.get(node.name, node.name)
        known = self._refs.get(name)
        if known is None:
            known = self._refs[name] = Ref(name)
        return known

    def nested(self, target: str) -> Graph:
        """A graph that is an argument; the same attribute is the same Graph each time."""
        key = (id(self.module), target)
        known = self.program.graphs.get(key)
        if known is None:
            known = self.program.graphs[key] = Scope(self.program, attribute_of(self.module, target)).region(
                target
            )
        return known


def _returns_nothing(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and not target._schema.returns


def _ordered(node: fx.Node) -> list[str]:
    """Keywords in the order of the operator's schema, which is that of a saved program."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(node.kwargs)
    known = [argument.name for argument in schema.arguments if argument.name in node.kwargs]
    return known + [name for name in node.kwargs if name not in known]


def _stack(stack: Any) -> str:
    """The module stack as a saved program spells it."""
    if not stack:
        return ""
    entries = []
    for key, (path, kind) in stack.items():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        entries.append(f"{key},{path},{name}")
    return ";".join(entries)
