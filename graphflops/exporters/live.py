"""Reads an `ExportedProgram` in memory, with the same result as from its saved file; and exports modules.

The only reader that imports torch, from 2.6 on. It walks the fx graph, not torch's serializer, so it also reads programs
that torch cannot save (flex attention with a block mask, scalars carried by a loop).
"""

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from graphflops.dims import Dim
from graphflops.errors import DimError, FileError, ModelError, shown
from graphflops.exporters.pt2_graph import OUTPUTS
from graphflops.exporters.sources import Sources, with_modules
from graphflops.exporters.types import Types, guards_of, with_parts
from graphflops.graph import Argument, Graph, Input, InputRole, Node, Opaque, Origin, Output, Ref, Stored
from graphflops.tensor import DType, TensorType, dtype_named

_DEFERS = "prefer_deferred_runtime_asserts_over_guards"
_INPUT_ROLES: dict[str, InputRole] = {
    "USER_INPUT": "user", "PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant",
    "CUSTOM_OBJ": "object", "TOKEN": "token",
}  # fmt: skip


def capture(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None, strict: bool = False, joint: bool = False, runtime_asserts: bool = False,
) -> torch.export.ExportedProgram:  # fmt: skip
    """Exports a module with `torch.export`. Its tensors may be real, fake, or on the meta device.

    args, kwargs: example inputs. dynamic_shapes: as `torch.export.export` takes it.
    joint: export forward and backward as one program of core operators. The loss is the module's result if that is one
        number, else the sum of its results.
    runtime_asserts: conditions on open axes that torch cannot prove become checks in the program, not errors (torch 2.8 on).
    If the parameters are fake, or on the meta device, the inputs are made so too.
    """
    if joint:
        from torch.export.experimental import _export_forward_backward

        with _returning_a_loss(module):
            program = capture(module, args, kwargs, dynamic_shapes, strict, runtime_asserts=runtime_asserts)
        return _export_forward_backward(program)
    inputs = (tuple(args), dict(kwargs or {}))
    tensors = (*module.parameters(), *module.buffers(), *torch.utils._pytree.tree_leaves(inputs))
    mode = next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None)
    with contextlib.ExitStack() as stack:
        if mode is not None:
            inputs = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, inputs)
            stack.enter_context(mode)
        elif any(weight.is_meta for weight in (*module.parameters(), *module.buffers())):
            inputs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), inputs)
            stack.enter_context(torch.device("meta"))  # constants that the module makes join its parameters
        given: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "strict": strict}
        if runtime_asserts and _DEFERS in inspect.signature(torch.export.export).parameters:
            given[_DEFERS] = True
        return torch.export.export(module, inputs[0], inputs[1], **given)


@contextlib.contextmanager
def _returning_a_loss(module: torch.nn.Module) -> Iterator[None]:
    own = module.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        leaves = torch.utils._pytree.tree_leaves(own(*args, **kwargs))
        results = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        if not results:
            raise ModelError("joint: no result of the module depends on a parameter that wants a gradient")
        if len(results) == 1 and results[0].dim() == 0:
            return results[0]
        return torch.stack([result.sum().float() for result in results]).sum()

    with mock.patch.object(module, "forward", forward):
        yield


def from_exported_program(exported: torch.export.ExportedProgram) -> Graph:
    """The program as a Graph."""
    program = Program()
    signature = exported.graph_signature
    scope = Scope(program, exported.graph_module)
    placeholders = {node.name: node for node in exported.graph_module.graph.find_nodes(op="placeholder")}
    shared = _shared_weights(exported)
    entries = [(x.arg.name, _INPUT_ROLES[x.kind.name], x.target or "") for x in signature.input_specs]
    inputs = tuple([Input(*entry, shared.get(entry[2], "")) for entry in entries])
    for entry in inputs:
        scope.type_input(entry, placeholders[entry.name])
    nodes = scope.nodes()
    pairs = zip(signature.output_specs, scope.results(), strict=True)
    outputs = tuple([Output(x, OUTPUTS[spec.kind.name.lower()][0], spec.target or "") for spec, x in pairs])
    nodes, inputs = with_parts(nodes, (*inputs, *scope.constants), outputs, scope.types)
    ranges = {str(x): (bound_of(r.lower), bound_of(r.upper)) for x, r in exported.range_constraints.items()}
    types, tensors = program.types, {**exported.constants, **exported.state_dict}
    held = {spec.arg.name: tensors.get(spec.target) for spec in signature.input_specs if spec.target}
    return Graph(
        nodes=with_modules(nodes, inputs, outputs),
        types=scope.types,
        inputs=inputs,
        outputs=outputs,
        symbols=types.symbols(ranges, inputs, scope.types),
        modules=program.sources.modules,
        origin=Origin(format="live", producer=f"torch {torch.__version__.partition('+')[0]}"),
        contents=program.contents({**held, **scope.tensors}),
        orders=types.orders,
        guards=guards_of(getattr(exported, "_guards_code", ()), inputs),  # from torch 2.9 on
    )


def from_graph_module(module: fx.GraphModule, name: str) -> Graph:
    """A traced function as a Graph. Tensors that it holds become inputs, after its own."""
    return Scope(Program(), module).region(name)


def _shared_weights(program: torch.export.ExportedProgram) -> dict[str, str]:
    """For each parameter or buffer that shares memory with an earlier one, the name of the earlier one."""
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


class Program:
    """What the graphs of one traced program share."""

    def __init__(self) -> None:
        self.types = Types()
        self.sources = Sources()
        self._dims: dict[Any, Dim] = {}
        self.graphs: dict[tuple[int, str], Graph] = {}
        self._memories: dict[int, memoryview] = {}

    def contents(self, tensors: Mapping[str, Any]) -> Callable[[str], Stored | None]:
        return lambda name: self.stored(tensors.get(name))

    def stored(self, tensor: Any) -> Stored | None:
        """The contents of a tensor; None if it is fake, wraps others, or has no plain memory."""
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not is_plain or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            return None
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
        if isinstance(value, torch.SymInt):
            return self.dim(value)
        if isinstance(value, torch.SymBool):
            try:
                dim = self.dim(value)
            except DimError:
                return None  # a comparison of values that are not sizes
            return bool(dim) if isinstance(dim, int) else dim
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
        self.program, self.module = program, module
        self.types: dict[str, Any] = {}
        self.constants: list[Input] = []
        self.tensors: dict[str, Any] = {}  # what the constants hold
        self._refs: dict[str, Ref] = {}
        self._same: dict[str, str] = {}  # by name of a getitem: the first one of the same result

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
        if isinstance(value, torch.Tensor):
            strides = value.stride() if value.layout is torch.strided else ()
            plain = [stride if isinstance(stride, int) else None for stride in strides]
            is_sparse = str(value.layout).startswith("torch.sparse")
            known = self.program.types.of_input(entry, known, plain, value.requires_grad, is_sparse)
        self.types[entry.name] = known

    def nodes(self) -> tuple[Node, ...]:
        """All calls in program order. A `getitem` is no call here: it names a result of its call, as in a saved program."""
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
        """Adds an input of role `constant` for a tensor that the graph reads as an attribute."""
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

    def outputs(self, node: fx.Node | None, name: str, value: Any) -> Iterable[str | None]:
        """Names of results, flat, as in a saved program: the name of the `getitem` that reads it, else `NAME_unused_1`.

        node: the call that returns them, or a `getitem` of a list that it returns; None for a list that nothing uses.
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
                self._same[user.name] = first.setdefault(user.args[1], user).name
        return first

    def results(self) -> list[Argument]:
        (output,) = self.module.graph.find_nodes(op="output")
        returned = output.args[0]
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        return [self.argument(value) for value in values]

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
        """A graph that is an argument. Each attribute is read once and gives one Graph."""
        key, graphs = (id(self.module), target), self.program.graphs
        if key not in graphs:
            graphs[key] = Scope(self.program, attribute_of(self.module, target)).region(target)
        return graphs[key]
