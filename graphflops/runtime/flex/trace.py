"""Traces score and mask functions, given in Python or as Graphs, to Graphs of plain operators; also their derivatives.

Generated source compiled to Triton functions, registered by the digest of the source.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from graphflops.errors import ModelError, shown
from graphflops.exporters.live import from_graph_module
from graphflops.graph import Graph, Opaque, Ref
from graphflops.ops import Op
from graphflops.runtime.flex import library
from graphflops.runtime.flex.codegen import GRADIENT, MASK, SCORE, Buffer, triton_function
from graphflops.runtime.operators import overload_of
from graphflops.tensor import DType, TensorType


@dataclass(frozen=True)
class Traced:
    """A function of scalars as a Graph, and the tensors it captures, in the order of the Graph's last inputs."""

    graph: Graph
    tensors: tuple[torch.Tensor, ...]


def trace_mask(function: Callable[..., Any], tensors: Sequence[torch.Tensor], device: torch.device) -> Traced:
    """`mask_mod(b, h, q_idx, kv_idx, *tensors)`."""
    return _traced(function, [_index(device) for _ in MASK], tensors)


def trace_score(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device
) -> Traced:
    """`score_mod(score, b, h, q_idx, kv_idx, *tensors)`, of scores of an element type."""
    return _traced(function, _score_inputs(dtype, device), tensors)


def trace_gradient(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], dtype: torch.dtype, device: torch.device
) -> Traced:
    """The gradient of a score function's input, given the gradient of its output."""

    def gradient(score: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        b, h, q, kv, grad, *captured = rest
        score = score.detach().requires_grad_()
        with torch.enable_grad():
            out = function(score, b, h, q, kv, *captured)
        if not out.requires_grad:
            return torch.zeros_like(grad)
        (result,) = torch.autograd.grad(out, score, grad.to(out.dtype), allow_unused=True)
        return torch.zeros_like(grad) if result is None else result

    inputs = [*_score_inputs(dtype, device), torch.ones((), dtype=dtype, device=device)]
    assert len(inputs) == len(GRADIENT)
    return _traced(gradient, inputs, [tensor.detach() for tensor in tensors])


def function_of(graph: Graph) -> Callable[..., Any]:
    """A graph of scalars as a function of tensors, to be traced again."""

    def run(*inputs: torch.Tensor) -> Any:
        values: dict[str, Any] = {
            entry.name: value for entry, value in zip(graph.inputs, inputs, strict=True)
        }
        for node in graph.nodes:
            arguments = [_argument(argument, values) for argument in node.args]
            result = _call(node.operator, arguments, dict(node.kwargs), values)
            name = next((name for name in node.outputs if name is not None), node.name)
            values[name] = result
        return _argument(graph.outputs[0].value, values)

    return run


def _call(op: Op, args: list[Any], kwargs: dict[str, Any], values: dict[str, Any]) -> Any:
    if op.name == "flat_apply" and len(args) > 4 and str(args[2]).endswith("ModIndex"):
        return torch.ops.aten.index.Tensor(args[3], args[4:])
    if op.dialect not in ("aten", "prims"):
        raise ModelError(f"no translation of {shown(op.spelling)} to the attention kernel")
    function = overload_of(op)
    if function is None:
        raise ModelError(f"torch has no operator {shown(op.spelling)}")
    named = {key: _argument(value, values) for key, value in kwargs.items()}
    return function(*args, **{key: value for key, value in named.items() if not isinstance(value, Opaque)})


def _argument(argument: Any, values: dict[str, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, tuple):
        return [_argument(item, values) for item in argument]
    if isinstance(argument, DType):
        return getattr(torch, argument.name)
    return argument


class _Indexing(TorchFunctionMode):  # type: ignore[misc]
    """Keeps indexing by scalar tensors as an operator; torch would read their values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            source, key = args
            keys = key if isinstance(key, tuple) else (key,)
            if isinstance(source, torch.Tensor) and all(isinstance(k, (torch.Tensor, int)) for k in keys):
                return _gathered(source, keys)
        return func(*args, **(kwargs or {}))


def _gathered(source: torch.Tensor, keys: Sequence[Any]) -> torch.Tensor:
    axis = 0
    for key in keys:
        if isinstance(key, torch.Tensor):
            axis += 1
        else:
            source = torch.ops.aten.select.int(source, axis, int(key))
    indices = [key for key in keys if isinstance(key, torch.Tensor)]
    gathered: torch.Tensor = torch.ops.aten.index.Tensor(source, indices) if indices else source
    return gathered


def _index(device: torch.device) -> torch.Tensor:
    return torch.zeros((), dtype=torch.int32, device=device)


def _score_inputs(dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    return [torch.zeros((), dtype=dtype, device=device), *(_index(device) for _ in SCORE[1:])]


def _traced(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
) -> Traced:
    def indexing(*values: torch.Tensor) -> Any:
        with _Indexing():
            return function(*values)

    module = make_fx(indexing, decomposition_table=_decompositions())(*inputs, *tensors)
    schemas = [getattr(node.target, "_schema", None) for node in module.graph.nodes]
    if any(getattr(schema, "is_mutable", False) for schema in schemas):
        module = make_fx(torch.func.functionalize(module))(*inputs, *tensors)
    module.graph.eliminate_dead_code()
    module.recompile()
    graph = from_graph_module(module, "function")
    constants = [_attribute(module, entry.target) for entry in graph.inputs if entry.role == "constant"]
    if any(tensor.requires_grad for tensor in (*tensors, *constants)):
        raise ModelError("gradients of tensors that a score function captures are not computed: detach them")
    result = graph.outputs[0].value
    known = graph.types.get(result.name) if isinstance(result, Ref) else None
    if isinstance(known, TensorType) and known.shape:
        what = f"a tensor of shape {list(known.shape)}, not a number"
        raise ModelError(f"a score or mask function returns {what}")
    return Traced(graph, (*tensors, *constants))


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """Decompositions of operators that Triton does not have into operators that it has."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    activations = (
        *(aten.gelu, aten.gelu_backward, aten.leaky_relu, aten.leaky_relu_backward),
        *(aten.elu, aten.elu_backward),
        *(aten.hardtanh, aten.hardtanh_backward, aten.softplus, aten.softplus_backward, aten.mish),
        *(aten.hardswish, aten.hardswish_backward, aten.hardsigmoid, aten.hardsigmoid_backward, aten.silu),
        *(aten.threshold_backward, aten.sigmoid_backward, aten.tanh_backward, aten.log_sigmoid_forward),
        *(aten.log_sigmoid_backward, aten.mish_backward, aten.silu_backward, aten.relu6, aten.logit),
    )
    return {**core_aten_decompositions(), **get_decompositions(activations)}


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


_HEAD = '"""Score and mask functions of one attention, generated from its graph."""\n\n'


@dataclass(frozen=True)
class KernelFunctions:
    """The functions that a kernel calls for each tile of scores; None for an absent function."""

    source: str  # the Python text that `--show-kernel` prints
    score: Any
    gradient: Any
    mask: Any


@dataclass(frozen=True)
class Written:
    """Key of registered functions, and the tensors that they index, in the order of the kernels."""

    key: str
    buffers: tuple[torch.Tensor, ...]


_known: dict[str, KernelFunctions] = {}


def written(
    score: Callable[..., Any] | None, mask: Callable[..., Any] | None, dtype: torch.dtype,
    device: torch.device, score_tensors: Sequence[torch.Tensor] = (),
    mask_tensors: Sequence[torch.Tensor] = (),
) -> Written:  # fmt: skip
    """Trace, translate and register the functions of one attention.

    dtype: the scores' element type as the functions see it. Raises ModelError for an operator without a translation.
    """
    buffers: list[torch.Tensor] = []
    parts = []
    if score is not None:
        forward = trace_score(score, score_tensors, dtype, device)
        if len(forward.graph.nodes) or not _identity(forward):
            gradient = trace_gradient(score, score_tensors, dtype, device)
            parts.append(triton_function(forward.graph, "score_mod", SCORE, _placed(forward, buffers)))
            parts.append(triton_function(gradient.graph, "score_grad", GRADIENT, _placed(gradient, buffers)))
    if mask is not None:
        traced = trace_mask(mask, mask_tensors, device)
        parts.append(triton_function(traced.graph, "mask_mod", MASK, _placed(traced, buffers)))
    source = _HEAD + "\n\n".join(parts)
    key = hashlib.sha256(source.encode()).hexdigest()[:16]
    if key not in _known:
        _known[key] = _compiled(source, key)
    return Written(key, tuple(_plain(tensor, device) for tensor in buffers))


def functions(key: str) -> KernelFunctions:
    """The functions registered under a key; raises ModelError if this process has not registered them."""
    try:
        return _known[key]
    except KeyError:
        raise ModelError(f"attention functions {key} are not of this process; prepare them again") from None


def _identity(traced: Traced) -> bool:
    output = traced.graph.outputs[0].value
    return getattr(output, "name", None) == traced.graph.inputs[0].name


def _placed(traced: Traced, buffers: list[torch.Tensor]) -> list[Buffer]:
    """Indices of a function's captured tensors among all; a tensor of several functions is passed once."""
    placed = []
    for tensor in traced.tensors:
        same = (i for i, other in enumerate(buffers) if _same(other, tensor))
        place = next(same, len(buffers))
        if place == len(buffers):
            buffers.append(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        placed.append(Buffer(place, tuple(tensor.shape), tuple(tensor.stride()), dtype))
    return placed


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors are the same view of the same memory."""
    first, second = ((x.dtype, x.device, x.data_ptr(), x.shape, x.stride()) for x in (a, b))
    return first == second


def _plain(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor in the form that a kernel reads: on the device, booleans as bytes."""
    moved = tensor if tensor.device == device else tensor.to(device)
    return moved.view(torch.uint8) if moved.dtype == torch.bool else moved


def _compiled(source: str, key: str) -> KernelFunctions:
    name = f"<graphflops attention {key}>"
    helpers = {word: value for word, value in vars(library).items() if not word.startswith("_")}
    space: dict[str, Any] = {**helpers, "triton": triton, "tl": tl, "__name__": f"graphflops_attention_{key}"}
    # Triton and tracebacks read the source of a function by its file name.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)
    return KernelFunctions(source, space.get("score_mod"), space.get("score_grad"), space.get("mask_mod"))
