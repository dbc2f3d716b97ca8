"""Traces score and mask functions, and their derivatives, to Graphs of scalars, and generates Triton functions from them."""

from __future__ import annotations

import functools
import hashlib
import keyword
import linecache
import math
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from graphflops.base.record import Record, replace
from graphflops.errors import ModelError, shown
from graphflops.exporters.live import from_graph_module
from graphflops.graph import Argument, Graph, Node, Ref
from graphflops.runtime.flex import library
from graphflops.runtime.flex.lowering import Value, literal, lowered, passes
from graphflops.tensor import TensorType

SCORE = ("score", "b", "h", "q", "kv")
MASK = SCORE[1:]
GRADIENT = (*SCORE, "grad")
_INDICES = frozenset(MASK)
_HELPERS = ("floor_divide", "remainder", "float_remainder", "trunc", "round_half_even", "sign", "tanh")
_TAKEN = frozenset({*GRADIENT, *_HELPERS, "expm1", "log1p", "power", "buffers", "tl", "triton", "float"})
_LONG = 2**31  # elements: an offset in a larger buffer needs 64 bits


def _gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the gradient of a score function's input from the gradient of its output."""

    def gradient(score: Tensor, *rest: Tensor) -> Tensor:
        b, h, q, kv, grad, *captured = rest
        score = score.detach().requires_grad_()
        with torch.enable_grad():
            out = function(score, b, h, q, kv, *captured)
        if not out.requires_grad:
            return torch.zeros_like(grad)
        (result,) = torch.autograd.grad(out, score, grad.to(out.dtype), allow_unused=True)
        return torch.zeros_like(grad) if result is None else result

    return gradient


class _Indexing(TorchFunctionMode):  # type: ignore[misc]
    """Keeps indexing by scalar tensors as an operator, because torch would read their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            source, key = args
            keys = key if isinstance(key, tuple) else (key,)
            if isinstance(source, torch.Tensor) and all(isinstance(k, (torch.Tensor, int)) for k in keys):
                indices: list[Tensor] = []
                for each in keys:
                    if isinstance(each, torch.Tensor):
                        indices.append(each)
                    else:
                        source = torch.ops.aten.select.int(source, len(indices), int(each))
                return torch.ops.aten.index.Tensor(source, indices) if indices else source
        return func(*args, **(kwargs or {}))


def _traced(
    function: Callable[..., Any], inputs: Sequence[Tensor], tensors: Sequence[Tensor]
) -> tuple[Graph, tuple[Tensor, ...]]:
    """A function of scalars as a Graph, and the tensors that it captures, in the order of the Graph's last inputs."""

    def indexing(*values: Tensor) -> Any:
        with _Indexing():
            return function(*values)

    module = make_fx(indexing, decomposition_table=_decompositions())(*inputs, *tensors)
    schemas = [getattr(node.target, "_schema", None) for node in module.graph.nodes]
    if any(getattr(schema, "is_mutable", False) for schema in schemas):
        module = make_fx(torch.func.functionalize(module))(*inputs, *tensors)
    module.graph.eliminate_dead_code()
    module.recompile()
    graph = from_graph_module(module, "function")
    constants = [attrgetter(entry.target)(module) for entry in graph.inputs if entry.role == "constant"]
    if any(tensor.requires_grad for tensor in (*tensors, *constants)):
        raise ModelError("gradients of tensors that a score function captures are not computed: detach them")
    result = graph.outputs[0].value
    known = graph.types.get(result.name) if isinstance(result, Ref) else None
    if isinstance(known, TensorType) and known.shape:
        what = f"a tensor of shape {list(known.shape)}, not a number"
        raise ModelError(f"a score or mask function returns {what}")
    return graph, (*tensors, *constants)


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """Decompositions of operators that Triton does not have into operators that it has."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    of_the_core = get_decompositions((aten.gelu, aten.leaky_relu, aten.elu, aten.hardtanh))
    return {**core_aten_decompositions(), **of_the_core}


_HEAD = '"""Score and mask functions of one attention, generated from its graph."""\n\n'


class KernelFunctions(Record, frozen=True):
    """The functions that a kernel calls for each tile of scores; None if there is none."""

    source: str  # the Python text that `--show-kernel` prints
    score: Any
    gradient: Any
    mask: Any


_known: dict[str, KernelFunctions] = {}


def written(
    score: Callable[..., Any] | None, mask: Callable[..., Any] | None, dtype: torch.dtype,
    device: torch.device, score_tensors: Sequence[Tensor] = (), mask_tensors: Sequence[Tensor] = (),
) -> tuple[str, tuple[Tensor, ...]]:  # fmt: skip
    """Trace, translate and register the functions of one attention. Returns their key and the tensors that kernels index.

    dtype: the scores' element type as the functions see it. Raises ModelError for an operator without a translation.
    """
    places = [torch.zeros((), dtype=torch.int32, device=device) for _ in MASK]
    number, grad = (fill((), dtype=dtype, device=device) for fill in (torch.zeros, torch.ones))
    tried: list[tuple[str, Sequence[str], Graph, tuple[Tensor, ...]]] = []
    if score is not None:
        given = [number, *places]
        graph, tensors = _traced(score, given, score_tensors)
        if len(graph.nodes) or graph.outputs[0].value != Ref(graph.inputs[0].name):  # not the score as it is
            tried.append(("score_mod", SCORE, graph, tensors))
            detached = [tensor.detach() for tensor in score_tensors]
            tried.append(("score_grad", GRADIENT, *_traced(_gradient(score), [*given, grad], detached)))
    if mask is not None:
        tried.append(("mask_mod", MASK, *_traced(mask, places, mask_tensors)))
    buffers: list[Tensor] = []
    parts = [
        _Writer(graph, name, parameters, _placed(tensors, buffers)).source()
        for name, parameters, graph, tensors in tried
    ]
    source = _HEAD + "\n\n".join(parts)
    key = hashlib.sha256(source.encode()).hexdigest()[:16]
    if key not in _known:
        name = f"<graphflops attention {key}>"
        space = {word: value for word, value in vars(library).items() if not word.startswith("_")}
        space |= {"triton": triton, "tl": tl, "__name__": f"graphflops_attention_{key}"}
        # Triton and tracebacks look up the source of a function by its file name.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), space)
        _known[key] = KernelFunctions(source, *map(space.get, ("score_mod", "score_grad", "mask_mod")))
    # in the form that a kernel reads: on the device, booleans as bytes
    moved = (tensor if tensor.device == device else tensor.to(device) for tensor in buffers)
    return key, tuple(x.view(torch.uint8) if x.dtype == torch.bool else x for x in moved)


def functions(key: str) -> KernelFunctions:
    """The functions registered under a key; raises ModelError if this process has not registered them."""
    if key not in _known:
        raise ModelError(f"attention functions {key} are not of this process; prepare them again")
    return _known[key]


def _placed(tensors: Sequence[Tensor], buffers: list[Tensor]) -> list[Buffer]:
    """The buffers of a function's captured tensors. A tensor that several functions capture is passed once."""
    placed = []
    for tensor in tensors:
        views = [(x.dtype, x.device, x.data_ptr(), x.shape, x.stride()) for x in (*buffers, tensor)]
        place = views.index(views[-1])  # of the same view of the same memory
        if place == len(buffers):
            buffers.append(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        placed.append(Buffer(place, tuple(tensor.shape), tuple(tensor.stride()), dtype))
    return placed


# From a Graph to source


class Buffer(Record, frozen=True):
    """A captured tensor: its index among the kernel's buffers, sizes and strides in elements, and element type."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class _View(Record, frozen=True):
    """Part of a buffer: the indices applied so far, as text, and the remaining axes."""

    name: str
    buffer: Buffer
    terms: tuple[str, ...]
    axes: tuple[int, ...]


def result_of(node: Node) -> str:
    """Name of the first result that somebody wants."""
    return next((name for name in node.outputs if name is not None), node.name)


class _Writer:
    """Writes the source of one `@triton.jit` function that computes the only result of a Graph of scalars.

    Every value is a scalar of the function and a tile of the kernel. Query indices are a column and key indices a row. So a
    value that depends on only one of them is computed and loaded once for each row or column, not for each score.

    parameters: what the graph's first inputs are called; the rest are the buffers, in order.
    Raises ModelError for an operator without a translation.
    """

    def __init__(self, graph: Graph, name: str, parameters: Sequence[str], buffers: Sequence[Buffer]) -> None:
        self.graph, self.name, self.parameters = graph, name, tuple(parameters)
        self.known: dict[str, Value | _View] = {}
        self.lines: list[str] = []
        inputs = [entry.name for entry in graph.inputs]
        if len(inputs) != len(parameters) + len(buffers):
            taken = f"{len(parameters)} and {len(buffers)} buffers"
            raise ModelError(f"{shown(name)} takes {len(inputs)} values, not {taken}")
        for given, parameter in zip(inputs, parameters, strict=False):
            natural = parameter in _INDICES
            self.known[given] = Value(parameter, "tl.int32" if natural else self.type_of(given), natural)
        for given, buffer in zip(inputs[len(parameters) :], buffers, strict=True):
            name = f"buffer{buffer.place}"
            self.lines.append(f"{name} = buffers[{buffer.place}]")
            self.known[given] = _View(name, buffer, (), tuple(range(len(buffer.shape))))

    def source(self) -> str:
        for node in self.graph.nodes:
            self.node(node)
        (output,) = self.graph.outputs
        result = self.operand(output.value)
        if self.parameters == MASK:
            text = result.tensor("tl.int1").cast("tl.int1")
        else:  # in the type that scores are computed in
            text = result.tensor("tl.float32").cast(self.operand(Ref(self.graph.inputs[0].name)).type)
        kept: list[str] = []
        wanted = set(re.findall(r"\w+", text))
        for line in reversed(self.lines):  # only those that the result needs
            target, _, made = line.partition(" = ")
            if target in wanted:
                wanted.update(re.findall(r"\w+", made))
                kept.insert(0, line)
        head = f"def {self.name}({', '.join(self.parameters)}, buffers):"
        return "\n".join(["@triton.jit", head, *(f"    {line}" for line in kept), f"    return {text}", ""])

    def type_of(self, name: str) -> str:
        known = self.graph.types.get(name)
        if not isinstance(known, TensorType):
            raise ModelError(f"{self.name}: the type of {shown(name)} is not known")
        if known.dtype.name not in _TYPES:
            raise ModelError(f"{self.name}: no translation of values of type {shown(known.dtype.name)}")
        return _TYPES[known.dtype.name]

    def operand(self, argument: Argument) -> Value:
        if isinstance(argument, Ref):
            known = self.known[argument.name]
            return self.loaded(argument.name, known) if isinstance(known, _View) else known
        if isinstance(argument, (bool, int, float)):
            return Value(literal(argument), "", not isinstance(argument, float) and argument >= 0)
        raise ModelError(f"{self.name}: {shown(str(argument))} is no number")

    def loaded(self, name: str, view: _View) -> Value:
        if any(view.buffer.shape[axis] != 1 for axis in view.axes):
            raise ModelError(
                f"{self.name}: a captured tensor of shape {list(view.buffer.shape)} is used whole; "
                "index it by batch, head, query or key"
            )
        place = " + ".join(view.terms) or "0"
        dtype = view.buffer.dtype
        text = f"tl.load({view.name} + {place})"
        if dtype == "bool":
            value = Value(self.assign(f"{name}_value", f"{text} != 0"), "tl.int1", True)
        else:
            kind = _TYPES[dtype]
            cast = f".to({kind})" if dtype in ("float16", "bfloat16") else ""
            value = Value(self.assign(f"{name}_value", text + cast), kind)
        self.known[name] = value
        return value

    def assign(self, name: str, text: str) -> str:
        name = name if name.isidentifier() and not keyword.iskeyword(name) else f"value{len(self.lines)}"
        name = f"{name}_" if name in _TAKEN else name
        self.lines.append(f"{name} = {text}")
        return name

    def node(self, node: Node) -> None:
        op, arguments = node.operator, node.arguments()
        name, view = result_of(node), self.view(arguments.get("x"))
        if op.name == "index":
            self.known[name] = self.indexed(arguments["x"], arguments["index"])
        elif op.name == "select":
            self.known[name] = self.selected(node)
        elif isinstance(view, _View) and (order := op.turned(arguments, len(view.axes))) is not None:
            self.known[name] = replace(view, axes=tuple([view.axes[axis] for axis in order]))
        elif passes(op) and isinstance(view, _View):
            self.known[name] = self.viewed(node)
        else:
            value = lowered(node, self.type_of(name), self.operand)
            if value is None:
                raise self.unknown(node)
            plain = passes(op) and value.text.isidentifier()
            text = value.text if plain else self.assign(name, value.text)
            self.known[name] = Value(text, value.type, value.natural)

    def unknown(self, node: Node) -> ModelError:
        return ModelError(f"{self.name}: no translation of {shown(node.op)} to the attention kernel")

    def view(self, argument: Argument) -> Value | _View | None:
        return self.known.get(argument.name) if isinstance(argument, Ref) else None

    def viewed(self, node: Node) -> Value | _View:
        """A captured tensor without change; a scalar may also be cast."""
        view = self.view(node.arguments()["x"])
        assert isinstance(view, _View)
        name = result_of(node)
        known = self.graph.types.get(name)
        if view.axes and isinstance(known, TensorType) and len(known.shape) == len(view.axes):
            if known.dtype.name != view.buffer.dtype:
                raise self.unknown(node)
            return view
        value = self.loaded(f"{name}_whole", view)
        kind = self.type_of(name)
        return Value(self.assign(name, value.cast(kind)), kind, value.natural)

    def indexed(self, source: Argument, indices: Argument) -> Value | _View:
        view = self.view(source)
        if not isinstance(view, _View) or not isinstance(indices, tuple):
            raise ModelError(f"{self.name}: only captured tensors can be indexed")
        terms, axes = list(view.terms), []
        for place, axis in enumerate(view.axes):
            index = indices[place] if place < len(indices) else None
            if index is None:
                axes.append(axis)
            else:
                terms.append(self.term(view.buffer, axis, self.operand(index)))
        return replace(view, terms=tuple(terms), axes=tuple(axes))

    def selected(self, node: Node) -> Value | _View:
        arguments = node.arguments()
        view, axis = self.view(arguments["x"]), arguments["axis"]
        if not isinstance(view, _View) or not isinstance(axis, int):
            raise self.unknown(node)
        before = (None,) * (axis % len(view.axes))
        return self.indexed(arguments["x"], (*before, arguments["index"]))

    def term(self, buffer: Buffer, axis: int, index: Value) -> str:
        """The offset in memory of one index; a negative index counts from the end."""
        size, stride = buffer.shape[axis], buffer.strides[axis]
        text = index.text
        if not index.natural:
            text = f"tl.where({text} < 0, {text} + {size}, {text})" if index.type else f"({text} + {size})"
        if index.type and math.prod(buffer.shape) >= _LONG:
            text = f"{text}.to(tl.int64)"
        return text if stride == 1 else f"{text} * {stride}"


# Triton's type for computing with values of an element type; half precision is computed in single.
_TYPES = {
    "bool": "tl.int1", "uint8": "tl.uint8", "int8": "tl.int8", "int16": "tl.int16", "int32": "tl.int32",
    "int64": "tl.int64", "float16": "tl.float32", "bfloat16": "tl.float32", "float32": "tl.float32",
    "float64": "tl.float64",
}  # fmt: skip
