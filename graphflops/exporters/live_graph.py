"""One fx graph of an `ExportedProgram` as a Graph: inputs, calls and results, with types, sizes, contents and names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import fx

from graphflops.dims import Dim
from graphflops.errors import DimError, FileError, ModelError, shown
from graphflops.exporters.sources import Sources
from graphflops.exporters.types import Types
from graphflops.graph import Argument, Graph, Input, Node, Opaque, Output, Ref, Stored
from graphflops.tensor import DType, TensorType, dtype_named


class Program:
    """What the graphs of one traced program share."""

    def __init__(self) -> None:
        self.types = Types()
        self.sources = Sources()
        self._dims: dict[Any, Dim] = {}
        self.graphs: dict[tuple[int, str], Graph] = {}
        self._memories: dict[int, memoryview] = {}

    def contents(self, tensors: Mapping[str, Any]) -> Callable[[str], Stored | None]:
        """A function from an input's name to its contents; `tensors` are by input name."""

        def contents(name: str) -> Stored | None:
            tensor = tensors.get(name)
            if tensor is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                return None  # a fake tensor, or a subclass that wraps others
            has_memory = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized
            return self.stored(tensor) if has_memory else None

        return contents

    def stored(self, tensor: torch.Tensor) -> Stored:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._memories:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._memories[storage._cdata] = memoryview(flat.cpu().numpy())
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        offset, memory = int(tensor.storage_offset()), self._memories[storage._cdata]
        return Stored(dtype_of(tensor.dtype, ""), shape, strides, offset, memory)

    def value(self, name: str, value: Any) -> Any:
        """The recorded form of a traced value: a tensor's type, a size, or a literal."""
        if isinstance(value, torch.Tensor):
            shape = tuple([self.dim(size) for size in value.shape])
            return self.types.once(TensorType(shape, dtype_of(value.dtype, name)))
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            try:
                dim = self.dim(value)
            except DimError:
                if isinstance(value, torch.SymBool):
                    return None  # a comparison of values that are not sizes
                raise
            return bool(dim) if isinstance(value, torch.SymBool) and isinstance(dim, int) else dim
        if isinstance(value, torch.SymFloat):
            hint = _hint(value)
            return float("nan") if hint is None else float(hint)
        return value if isinstance(value, (bool, int, float, complex, str)) else None

    def dim(self, size: Any) -> Dim:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._dims:
            hint = _hint(size)
            text = str(expression) if expression.is_Symbol else str(sympy.srepr(expression))
            self._dims[expression] = self.types.dim(text, hint if type(hint) is int else None)
        return self._dims[expression]


def operator_name(target: Callable[..., Any] | str) -> str:
    """The operator as a saved program spells it, without `torch.ops.`: `aten.add.Tensor`, `_operator.mul`."""
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", type(target).__name__)
    if module.startswith("torch._ops"):
        module = module.replace("torch._ops", "torch.ops", 1)
    return f"{module}.{name}".removeprefix("torch.ops.")


def _hint(value: Any) -> Any:
    """Example value of a symbolic scalar; None for one that depends on data."""
    node = value.node
    return node.hint if node.has_hint() else None


def bound_of(limit: Any) -> int | None:
    """One end of a range; None for infinity."""
    try:
        return int(limit)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def dtype_of(dtype: torch.dtype, name: str) -> DType:
    """The element type; raises FileError, which names the value, for an unknown one."""
    try:
        return dtype_named(str(dtype).removeprefix("torch."))
    except DimError as error:
        raise FileError(f"value {shown(name)}: {error}") from None


def attribute_of(module: Any, path: str) -> Any:
    """The attribute at a dotted path; None if there is none."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


class Scope:
    """One fx graph being read."""

    def __init__(self, program: Program, module: fx.GraphModule) -> None:
        self.program = program
        self.module = module
        self.types: dict[str, Any] = {}

        self.constants: list[Input] = []
        self.tensors: dict[str, Any] = {}  # what the constants hold
        self._refs: dict[str, Ref] = {}
        self._same: dict[str, str] = {}  # by name of a repeated getitem: the first of the same result

    def region(self, name: str) -> Graph:
        inputs = []
        for node in self.module.graph.find_nodes(op="placeholder"):
            self.types[node.name] = self.program.value(node.name, node.meta.get("val"))
            inputs.append(Input(node.name, "user"))
        nodes = self.nodes()
        outputs = tuple([Output(value) for value in self.results()])
        contents = self.program.contents(self.tensors)
        return Graph(nodes, self.types, (*inputs, *self.constants), outputs, name=name, contents=contents)

    def type_input(self, entry: Input, node: fx.Node) -> None:
        value = node.meta.get("val")
        if entry.role in ("token", "object") and not isinstance(value, torch.Tensor):
            return
        known = self.program.value(entry.name, value)
        if isinstance(known, TensorType) and isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            plain = [stride if isinstance(stride, int) else None for stride in strides]
            is_sparse = str(value.layout).startswith("torch.sparse")
            known = self.program.types.of_input(entry, known, plain, value.requires_grad, is_sparse)
        self.types[entry.name] = known

    def nodes(self) -> tuple[Node, ...]:
        """All calls in program order; a `getitem` of results is folded into its call, as in a saved program."""
        calls = []
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                self.constant(node)
            elif node.op not in ("placeholder", "output", "call_function"):
                raise ModelError(f"node {shown(node.name)} is a {node.op}: not a program of torch.export")
            elif node.op == "call_function" and node.target is not operator.getitem:
                calls.append(self.call(node))
        return tuple(calls)

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
        is_void = isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.returns
        outputs = () if is_void else tuple(self.outputs(node, node.name, node.meta.get("val")))
        args = tuple([self.argument(arg) for arg in node.args])
        # Keywords in the order of the operator's schema, as in a saved program.
        schema = getattr(node.target, "_schema", None)
        known = () if schema is None else [x.name for x in schema.arguments if x.name in node.kwargs]
        order = dict.fromkeys((*known, *node.kwargs))
        kwargs = tuple([(name, self.argument(node.kwargs[name])) for name in order])
        entries = []  # of the module stack, spelled as in a saved program
        for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
            name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            entries.append(f"{key},{path},{name}")
        sources = self.program.sources.of(node.meta.get("stack_trace") or "", ";".join(entries))
        return Node(node.name, op, args, kwargs, outputs, *sources)

    # Results

    def outputs(self, node: fx.Node | None, name: str, value: Any) -> Iterable[str | None]:
        """Names of results, flat, as in a saved program: that of a `getitem`, else `NAME_unused_1`.

        node: what gives them, a call or a `getitem` of one; None for a list that nothing uses.
        """
        if not isinstance(value, (tuple, list, dict)):
            if value is not None:
                self.types[name] = self.program.value(name, value)
            yield None if value is None else name
            return
        is_inner = node is None or node.target is operator.getitem
        users = self.users(node)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if item is not None or not is_inner:
                user = users.get(key)
                yield from self.outputs(user, f"{name}_unused_{key}" if user is None else user.name, item)

    def users(self, node: fx.Node | None) -> dict[Any, fx.Node]:
        """The first `getitem` of each result."""
        first: dict[Any, fx.Node] = {}
        for user in node.users if node is not None else ():
            if user.target is operator.getitem:
                kept = first.setdefault(user.args[1], user)
                if kept is not user:
                    self._same[user.name] = kept.name
        return first

    def results(self) -> list[Argument]:
        (output,) = self.module.graph.find_nodes(op="output")
        returned = output.args[0]
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        return [self.argument(value) for value in values]

    # Arguments

    def argument(self, arg: Any) -> Argument:
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
        if isinstance(arg, (torch.memory_format, torch.layout, torch.device)):
            return Opaque(str(arg).removeprefix("torch."))
        if isinstance(arg, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            return Opaque(operator_name(arg))
        name = type(arg).__name__
        return Opaque(getattr(arg, "__qualname__", name) if callable(arg) else name)

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
        return self._refs.setdefault(name, Ref(name))

    def nested(self, target: str) -> Graph:
        """A graph that is an argument; the same attribute is the same Graph each time."""
        key, graphs = (id(self.module), target), self.program.graphs
        if key not in graphs:
            graphs[key] = Scope(self.program, attribute_of(self.module, target)).region(target)
        return graphs[key]
