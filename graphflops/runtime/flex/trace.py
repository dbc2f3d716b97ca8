"""Traces score and mask functions, and their derivatives, to Graphs of plain operators.

The source generated from them is compiled to Triton functions, which are registered by the digest of the source.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from graphflops.base.record import Record
from graphflops.errors import ModelError
from graphflops.exporters.live import from_graph_module
from graphflops.graph import Graph, Ref
from graphflops.runtime.flex import library
from graphflops.runtime.flex.codegen import GRADIENT, MASK, SCORE, Buffer, triton_function
from graphflops.tensor import TensorType


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
        triton_function(graph, name, parameters, _placed(tensors, buffers))
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
