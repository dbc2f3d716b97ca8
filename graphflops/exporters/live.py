"""An `ExportedProgram` in memory as a Graph, the same as its saved file gives; and exporting a module.

This is the only reader that imports torch, from 2.6 on. It walks the fx graph itself rather than torch's
serializer, so programs that torch cannot save (flex attention with a block mask, scalars carried by a loop)
are read as well.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from graphflops.errors import DimError, FileError, ModelError, shown
from graphflops.exporters import symbols
from graphflops.exporters.joint import with_modules
from graphflops.exporters.nested import with_nested_modules
from graphflops.exporters.sources import Sources
from graphflops.exporters.types import Types, sparse, storage
from graphflops.graph import (
    Argument,
    Graph,
    Input,
    InputRole,
    Node,
    Opaque,
    Origin,
    Output,
    OutputRole,
    Ref,
    Stored,
)
from graphflops.tensor import DType, TensorType, dtype_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from graphflops.dims import Dim

_INPUT_ROLES: dict[str, InputRole] = {
    "USER_INPUT": "user",
    "PARAMETER": "parameter",
    "BUFFER": "buffer",
    "CONSTANT_TENSOR": "constant",
    "CUSTOM_OBJ": "object",
    "TOKEN": "token",
}
_OUTPUT_ROLES: dict[str, OutputRole] = {
    "USER_OUTPUT": "user",
    "LOSS_OUTPUT": "loss",
    "GRADIENT_TO_PARAMETER": "gradient",
    "GRADIENT_TO_USER_INPUT": "gradient",
    "BUFFER_MUTATION": "mutation",
    "PARAMETER_MUTATION": "mutation",
    "USER_INPUT_MUTATION": "mutation",
    "TOKEN": "token",
}


def capture(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    strict: bool = False,
) -> torch.export.ExportedProgram:
    """Export a module with `torch.export`, whatever its tensors are: real, fake, or on the meta device.

    args, kwargs: example inputs. dynamic_shapes: as `torch.export.export` takes it.
    Inputs are made fake, or moved to the meta device, where the parameters are.
    """
    inputs = (tuple(args), dict(kwargs or {}))
    mode = _fake_mode((*module.parameters(), *module.buffers(), *torch.utils._pytree.tree_leaves(inputs)))
    with contextlib.ExitStack() as stack:
        if mode is not None:
            inputs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: _faked(x, mode), inputs)
            stack.enter_context(mode)
        elif any(weight.is_meta for weight in (*module.parameters(), *module.buffers())):
            inputs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), inputs)
            stack.enter_context(torch.device("meta"))  # constants that the module makes join its parameters
        return torch.export.export(module, inputs[0], inputs[1], dynamic_shapes=dynamic_shapes, strict=strict)


def from_exported_program(program: torch.export.ExportedProgram) -> Graph:
    """The program as a Graph."""
    return _Live().graph(program)


def from_graph_module(module: fx.GraphModule, name: str) -> Graph:
    """A traced function as a Graph; tensors that it holds are its last inputs."""
    return _Scope(_Live(), module).region(name)


def _fake_mode(tensors: Iterable[Any]) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)


def _faked(tensor: torch.Tensor, mode: Any) -> torch.Tensor:
    fake: torch.Tensor = mode.from_tensor(tensor)
    return fake


class _Live:
    """One program and what its graphs share."""

    def __init__(self) -> None:
        self.types = Types()
        self.sources = Sources()
        self._dims: dict[Any, Dim] = {}
        self._graphs: dict[tuple[int, str], Graph] = {}
        self._memories: dict[int, memoryview] = {}

    def graph(self, program: torch.export.ExportedProgram) -> Graph:
        signature = program.graph_signature
        scope = _Scope(self, program.graph_module)
        placeholders = {node.name: node for node in program.graph_module.graph.find_nodes(op="placeholder")}
        shared = _shared_weights(program)
        inputs = tuple([_input(spec, shared) for spec in signature.input_specs])
        for entry in inputs:
            scope.type_input(entry, placeholders[entry.name])
        nodes = scope.nodes()
        results = scope.results()
        outputs = tuple(
            [
                Output(value, _OUTPUT_ROLES[spec.kind.name], spec.target or "")
                for spec, value in zip(signature.output_specs, results, strict=True)
            ]
        )
        inputs = (*inputs, *scope.constants)
        return Graph(
            nodes=with_nested_modules(with_modules(nodes, inputs, outputs), inputs),
            types=scope.types,
            inputs=inputs,
            outputs=outputs,
            symbols=symbols.collect(
                {
                    str(name): (_bound(r.lower), _bound(r.upper))
                    for name, r in program.range_constraints.items()
                },
                self.types.hints,
                inputs,
                scope.types,
                self.types.sizes(),
            ),
            modules=self.sources.modules,
            origin=Origin(format="live", producer=f"torch {torch.__version__.partition('+')[0]}"),
            contents=self.contents({**_held(program), **scope.tensors}),
        )

    def contents(self, tensors: Mapping[str, Any]) -> Callable[[str], Stored | None]:
        """What inputs hold, given the tensors by the inputs' names."""

        def contents(name: str) -> Stored | None:
            tensor = tensors.get(name)
            if tensor is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                return None  # a fake tensor, or one that is made of others
            has_memory = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized
            return self.stored(tensor) if has_memory else None

        return contents

    def stored(self, tensor: torch.Tensor) -> Stored:
        """A tensor as it lies in memory; one on a device is copied from there."""
        storage = tensor.untyped_storage()
        known = self._memories.get(storage._cdata)
        if known is None:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            known = self._memories[storage._cdata] = memoryview(flat.cpu().numpy())
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return Stored(_dtype(tensor.dtype, ""), shape, strides, int(tensor.storage_offset()), known)

    def nested(self, owner: fx.GraphModule, target: str) -> Graph:
        """A graph that is an argument; the same attribute is the same Graph each time."""
        key = (id(owner), target)
        known = self._graphs.get(key)
        if known is None:
            known = self._graphs[key] = _Scope(self, _attribute(owner, target)).region(target)
        return known

    def value(self, name: str, value: Any) -> Any:
        """What is known of a traced value: a tensor's type, a size, a literal."""
        if isinstance(value, torch.Tensor):
            shape = tuple([self.dim(size) for size in value.shape])
            return self.types.tensor(shape, _dtype(value.dtype, name))
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            return self.symbolic(value)
        if isinstance(value, torch.SymFloat):
            hint = _hint(value)
            return float("nan") if hint is None else float(hint)
        return value if isinstance(value, (bool, int, float, complex, str)) else None

    def symbolic(self, value: torch.SymInt | torch.SymBool) -> Any:
        """A symbolic size or truth value; None for a truth value that compares what is no size."""
        try:
            dim = self.dim(value)
        except DimError:
            if isinstance(value, torch.SymBool):
                return None
            raise
        return bool(dim) if isinstance(value, torch.SymBool) and isinstance(dim, int) else dim

    def dim(self, size: Any) -> Dim:
        """A size, concrete or not."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        known = self._dims.get(expression)
        if known is None:
            hint = _hint(size)
            known = self._dims[expression] = self.types.dim(
                _text(expression), hint if type(hint) is int else None
            )
        return known


class _Scope:
    """One fx graph being read."""

    def __init__(self, live: _Live, module: fx.GraphModule) -> None:
        self.live = live
        self.module = module
        self.types: dict[str, Any] = {}
        self.constants: list[Input] = []
        self.tensors: dict[str, Any] = {}  # what the constants hold
        self._refs: dict[str, Ref] = {}
        self._same: dict[str, str] = {}  # a second getitem of one result stands for the first

    def region(self, name: str) -> Graph:
        """The graph as one nested in another."""
        inputs = []
        for node in self.module.graph.find_nodes(op="placeholder"):
            self.types[node.name] = self.live.value(node.name, node.meta.get("val"))
            inputs.append(Input(node.name, "user"))
        nodes = self.nodes()
        outputs = tuple([Output(value) for value in self.results()])
        return Graph(
            nodes,
            self.types,
            (*inputs, *self.constants),
            outputs,
            name=name,
            contents=self.live.contents(self.tensors),
        )

    def type_input(self, entry: Input, node: fx.Node) -> None:
        """Record an input's type, a parameter's with whether it is trained."""
        value = node.meta.get("val")
        if entry.role in ("token", "object") and not isinstance(value, torch.Tensor):
            return
        known = self.live.value(entry.name, value)
        if isinstance(known, TensorType) and isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            plain = [stride if isinstance(stride, int) else None for stride in strides]
            stored = storage(known.shape, plain) if 0 in plain else None
            known = self.live.types.variant(known, value.requires_grad and entry.role == "parameter", stored)
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
        """A tensor that the graph refers to by attribute is an input that no caller passes."""
        held = _attribute(self.module, str(node.target))
        value = node.meta.get("val")
        value = held if value is None else value
        if isinstance(value, torch.Tensor):
            self.types[node.name] = self.live.value(node.name, value)
            self.constants.append(Input(node.name, "constant", str(node.target)))
            self.tensors[node.name] = held

    def call(self, node: fx.Node) -> Node:
        op = operator_name(node.target)
        outputs = tuple(self.outputs(node))
        args = tuple([self.argument(arg) for arg in node.args])
        kwargs = tuple([(name, self.argument(node.kwargs[name])) for name in _ordered(node)])
        module, module_type = self.live.sources.place(_stack(node.meta.get("nn_module_stack")))
        line = self.live.sources.line(node.meta.get("stack_trace") or "")
        return Node(node.name, op, args, kwargs, outputs, module, module_type, line)

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
                # One that is used bears the names of its own items' getitems.
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
        """Keep a result's type; None for a result that does not exist."""
        if value is None:
            return None
        self.types[name] = self.live.value(name, value)
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
            return _dtype(arg, "")
        if isinstance(arg, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            found: Argument = self.live.value("", arg)
            return found
        return Opaque(_described(arg))

    def reference(self, node: fx.Node) -> Argument:
        if node.op == "get_attr":
            value = _attribute(self.module, str(node.target))
            if isinstance(value, fx.GraphModule):
                return self.live.nested(self.module, str(node.target))
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


def operator_name(target: Callable[..., Any] | str) -> str:
    """The operator as a saved program spells it, without `torch.ops.`: `aten.add.Tensor`, `_operator.mul`."""
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", type(target).__name__)
    if module.startswith("torch._ops"):
        module = module.replace("torch._ops", "torch.ops", 1)
    return f"{module}.{name}".removeprefix("torch.ops.")


def _input(spec: Any, shared: Mapping[str, str]) -> Input:
    target = spec.target or ""
    return Input(spec.arg.name, _INPUT_ROLES[spec.kind.name], target, shared.get(target, ""))


def _held(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """The tensors of parameters, buffers and constants, by the names of the inputs that they are."""
    tensors = {**program.constants, **program.state_dict}
    return {
        spec.arg.name: tensors.get(spec.target) for spec in program.graph_signature.input_specs if spec.target
    }


def _shared_weights(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Parameters and buffers that share memory with an earlier one, by qualified name: that one's name."""
    first: dict[Any, str] = {}
    shared: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        weight = program.state_dict.get(spec.target) if spec.target else None
        if not isinstance(weight, torch.Tensor) or weight.layout is not torch.strided:
            continue
        try:
            storage_id = weight.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            continue  # a tensor subclass without memory of its own
        key = (storage_id, weight.dtype, tuple(weight.shape), weight.stride(), weight.storage_offset())
        earlier = first.setdefault(key, spec.target)
        if earlier != spec.target:
            shared[spec.target] = earlier
    return shared


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


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


def _hint(value: Any) -> Any:
    """Example value of a symbolic scalar; None for one that only data can tell."""
    node = value.node
    return node.hint if node.has_hint() else None


def _text(expression: Any) -> str:
    import sympy

    return str(expression) if expression.is_Symbol else str(sympy.srepr(expression))


def _bound(limit: Any) -> int | None:
    """One end of a range; None for infinity."""
    try:
        return int(limit)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def _dtype(dtype: torch.dtype, name: str) -> DType:
    try:
        return dtype_named(str(dtype).removeprefix("torch."))
    except DimError as error:
        raise FileError(f"value {shown(name)}: {error}") from None


def _described(arg: Any) -> str:
    """The word for an operand that is passed along unread, as a saved program has it."""
    if isinstance(arg, (torch.memory_format, torch.layout)):
        return str(arg).removeprefix("torch.")
    if isinstance(arg, torch.device):
        return str(arg)
    if isinstance(arg, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return operator_name(arg)
    if inspect.isclass(arg) or callable(arg):
        return getattr(arg, "__qualname__", type(arg).__name__)
    return type(arg).__name__
