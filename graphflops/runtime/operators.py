"""Finds the function of torch or Python behind the spelling of an operator, and runs higher-order operators.

A program from a file can only run operators that graphflops prices. No other attribute of a module is looked up by a name
from a file. Operators that read files, reach other machines or write outside of their tensors are refused.
"""

import builtins
import contextlib
import functools
import importlib
import math
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch._functorch import predispatch

from graphflops.errors import ModelError, RunError, shown
from graphflops.graph import Graph, Opaque
from graphflops.ops import Op, operator as spelled
from graphflops.rules.registry import find
from graphflops.tensor import dtype_named, flat

_REFUSED = {
    "aten.from_file": "it reads a file that the program names",
    "aten._debug_has_internal_overlap": "it is an internal test of torch",
}
_NAMESPACES = (
    "aten", "prims", "quantized", "quantized_decomposed", "torchvision", "torchao", "transformers", "rngprims",
    "profiler", "torch_attn", "torch_nn",
)  # fmt: skip
# Namespaces whose operators exist only after a library's module is imported.
_REGISTERED_BY = {
    "transformers": "transformers.integrations.moe",
    "torchvision": "torchvision",
    "torchao": "torchao",
    "fsdp": "torch.distributed.fsdp",
    "_dtensor": "torch.distributed.tensor",
    "_c10d_functional_autograd": "torch.distributed._functional_collectives",
}
_MODULES: dict[str, Any] = {
    "_operator": operator, "math": math, "builtins": builtins, "torch": torch,
    "torch._functorch.predispatch": predispatch,
}  # fmt: skip


@functools.cache
def resolve(op: str, trusted: bool = False) -> Callable[..., Any]:
    """The function behind `aten.add.Tensor`, `_operator.mul` or `torch.sym_max`.

    trusted: True for a program in memory: the user's own code has registered its operators.
    Raises ModelError for an operator that must not run, or that this torch does not have.
    """
    called = spelled(op)
    if called.base in _REFUSED:
        raise ModelError(f"{shown(op)} is not run: {_REFUSED[called.base]}")
    if not trusted and (reason := reason_to_refuse(called)):
        raise ModelError(f"{shown(op)} is not run from a file: {reason}")
    if (not trusted or called.dialect in _MODULES) and find(op) is None:
        raise ModelError(f"{shown(op)} is not run: graphflops has no rule for it")
    if called.dialect in _MODULES:
        function = getattr(_MODULES[called.dialect], called.word, None)
        if not callable(function):
            raise ModelError(f"this torch or Python has no {shown(op)}")
        # Files of torch before 2.7 name every operand, but functions of Python take them by position.
        return lambda *args, **kwargs: function(*args, *kwargs.values())
    if not trusted and called.dialect not in _NAMESPACES:
        whose = f"operators of {shown(called.dialect)}"
        raise ModelError(f"{shown(op)} is not run: {whose} are not run from a file")
    found = overload_of(called)
    if found is None:
        version = torch.__version__.partition("+")[0]
        advice = "import the library that registers it, or update torch"
        raise ModelError(f"torch {version} has no operator {shown(op)}: {advice}")
    chosen: Callable[..., Any] = _SUBSTITUTES.get(op, found)
    return chosen if trusted else checked(called, chosen)


def overload_of(op: Op) -> torch._ops.OpOverload | None:
    """The overload of torch.ops behind an operator; None if this torch has none."""
    # Import the library that registers the operator, if it is installed.
    if not hasattr(getattr(torch.ops, op.dialect, None), op.word) and op.dialect in _REGISTERED_BY:
        with contextlib.suppress(ImportError):
            importlib.import_module(_REGISTERED_BY[op.dialect])
    packet = getattr(getattr(torch.ops, op.dialect, None), op.word, None)
    found = getattr(packet, op.variant or "default", None)
    is_overload = isinstance(packet, torch._ops.OpOverloadPacket) and isinstance(found, torch._ops.OpOverload)
    return found if is_overload else None


_SUBSTITUTES: dict[str, Callable[..., Any]] = {
    # Strides may differ here from those on the machine that exported the program.
    **dict.fromkeys(
        ("aten.view.default", "aten._unsafe_view.default"), lambda self, size: self.reshape(size)
    ),
    # torch requires the indices on the CPU, wherever the tensor is.
    "aten.tensor_split.tensor_indices_or_sections": lambda self, tensor_indices_or_sections, dim=0: (
        torch.ops.aten.tensor_split.tensor_indices_or_sections(self, tensor_indices_or_sections.cpu(), dim)
    ),
}


_OUTSIDE = "it can write outside of its tensors"
_STORAGE = "it gives a tensor other memory"
_UNCHECKED = "torch does not check its indices"
_REASONS = {
    "it prints what the program says": "_print",
    _STORAGE: """
        set_ set_data resize resize_ resize_as resize_as_ _resize_output _resize_output_ _reshape_alias _reshape_alias_copy
        sparse_resize_ sparse_resize_and_clear_ _copy_from_and_resize as_strided_
    """,
    _UNCHECKED: """
        _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _sparse_coo_tensor_with_dims_and_tensors
        segment_reduce _segment_reduce_backward _nested_view_from_buffer _sobol_engine_draw _jagged_to_padded_dense_forward
        _padded_dense_to_jagged_forward _ctc_loss_backward _embedding_bag_backward _embedding_bag_dense_backward
        _embedding_bag_per_sample_weights_backward multilabel_margin_loss_backward _slow_conv2d_backward
        _nnpack_spatial_convolution mkldnn_rnn_layer mkldnn_rnn_layer_backward
    """,
    "its packed operands hold addresses of memory": """
        fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation quantized_lstm_cell quantized_gru_cell
        quantized_rnn_relu_cell quantized_rnn_tanh_cell _weight_int4pack_mm_for_cpu
    """,
}
_UNSAFE = {word: reason for reason, words in _REASONS.items() for word in words.split()}


def refuse_unsafe(graph: Graph) -> None:
    """Raise ModelError if the program or a graph nested in it calls an operator that is not run from a file."""
    for node in graph.nodes:
        if reason := reason_to_refuse(node.operator):
            raise ModelError(f"{shown(node.name)}: {shown(node.op)} is not run from a file: {reason}")
        for value in flat((node.args, tuple([item for _, item in node.kwargs]))):
            if isinstance(value, Graph):
                refuse_unsafe(value)
                continue
            # The operator that a higher-order operator wraps.
            wrapped = value.what if isinstance(value, Opaque) and "." in value.what else ""
            if wrapped and (reason := reason_to_refuse(spelled(wrapped.removeprefix("torch.ops.")))):
                raise ModelError(f"{shown(node.name)}: {shown(wrapped)} is not run from a file: {reason}")


def reason_to_refuse(op: Op) -> str:
    """Why a program from a file must not run an operator; "" if it may."""
    if op.dialect not in ("aten", "prims"):
        return ""
    return _OUTSIDE if op.word.endswith("_unsafe") else _UNSAFE.get(op.word, "")


# By operator: the number of image axes that its indices refer to.
_POOLINGS = {
    "max_pool2d_with_indices_backward": 2, "max_pool3d_with_indices_backward": 3,
    "adaptive_max_pool2d_backward": 2, "adaptive_max_pool3d_backward": 3,
    "fractional_max_pool2d_backward": 2, "fractional_max_pool3d_backward": 3,
}  # fmt: skip
# Operators for which torch assumes that the first list is not empty.
_NOT_EMPTY = ("_stack", "_foreach_copy", "_foreach_copy_")
_OPTIONS = ("dtype", "layout", "memory_format")
_LOSSES = ("nll_loss_backward", "nll_loss2d_backward")


def checked(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch operator's function, with checks that torch lacks: of lists' lengths, options, and indices' bounds."""
    schema = getattr(function, "_schema", None)
    arguments = () if schema is None or op.dialect != "aten" else schema.arguments
    lengths = {arg.name: arg.N for arg in arguments if (arg.N or 0) > 1 and arg.default_value != []}
    options = {arg.name for arg in arguments if arg.name in _OPTIONS}
    if not arguments or not (lengths or options or op.word in (*_NOT_EMPTY, *_POOLINGS, *_LOSSES)):
        return function

    def run(*args: Any, **named: Any) -> Any:
        given = dict(zip((arg.name for arg in arguments), args, strict=False)) | named
        _require_indices(op, given)
        for name, value in given.items():
            wrong = isinstance(value, (list, tuple)) and len(value) not in (1, lengths.get(name, len(value)))
            if wrong and not value and name == "stride" and op.word in _POOLINGS:
                continue  # the stride of a pooling is then its kernel size
            if wrong or (name in options and isinstance(value, int)):
                raise RunError(f"{shown(op.spelling)}: {shown(name)} is not what its schema says")
        if op.word in _NOT_EMPTY and not next(iter(given.values()), None):
            raise RunError(f"{shown(op.spelling)}: a list is empty")
        return function(*args, **named)

    return run


def _require_indices(op: Op, given: Mapping[str, Any]) -> None:
    """Raise RunError for a gradient with saved indices outside of the tensor that they index."""
    if op.word in _POOLINGS:
        image, axes = given["self"], _POOLINGS[op.word]
        if image.dim() not in (axes + 1, axes + 2):
            raise RunError(f"{shown(op.spelling)}: an image of {image.dim()} axes")
        indices, below = given["indices"], prod(image.shape[-axes:])
    elif op.word in _LOSSES:
        scores, target = given["self"], given["target"]
        indices, below = target[target != given["ignore_index"]], scores.shape[min(1, scores.dim() - 1)]
    else:
        return
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < below:
        raise RunError(f"{shown(op.spelling)}: an index is not within the {below:,} places that it indexes")


# Higher-order operators are run by their definitions. The graphs among their operands are Python functions here.


def _turns(
    condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Iterator[Any]:
    """The carried values after each iteration of a `while_loop`."""
    while bool(condition(*carried, *additional)[0]):
        carried = body(*carried, *additional)
        yield carried


def _while_loop(condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    last = deque(_turns(condition, body, carried, additional), maxlen=1)
    return last[0] if last else tuple(carried)


def _scan(
    combine: Any, init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()
) -> Any:
    carried, turns = tuple(init), []
    for x in zip(*xs, strict=True):
        found = combine(*carried, *x, *additional)
        carried = found[: len(init)]
        turns.append(found[len(init) :])
    return (*carried, *_stacked(turns))


def _associative_scan(combine: Any, xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()) -> Any:
    return _stacked([*accumulate(zip(*xs, strict=True), lambda done, x: combine(*done, *x, *additional))])


def _stacked(turns: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    if not turns:
        raise RunError("a loop without iterations has no results, and their types are unknown")
    return tuple([torch.stack(values) for values in zip(*turns, strict=True)])


def _autocast(device_type: str, dtype: Any, enabled: bool, cache: Any, region: Any, *operands: Any) -> Any:
    device = next((x.device.type for x in operands if isinstance(x, torch.Tensor)), device_type)
    active = bool(enabled) and _makes(region.graph, dtype)
    with torch.autocast(device, dtype=dtype, enabled=active, cache_enabled=cache):
        return region(*operands)


def _makes(graph: Graph, dtype: torch.dtype) -> bool:
    """True if a call has a recorded result of this type. If none has, autocast did nothing when the program was exported."""
    recorded = [graph.types.get(name) for node in graph.nodes for name in node.outputs if name]
    nested = (value for node in graph.nodes for value in (*node.args, *(item for _, item in node.kwargs)))
    return any(getattr(typed, "dtype", None) == dtype_named(str(dtype)[6:]) for typed in recorded) or any(
        _makes(value, dtype) for value in nested if isinstance(value, Graph)
    )


def _with_effects(token: Any, called: Any, *operands: Any, **keywords: Any) -> Any:
    found = called(*operands, **keywords)
    return (token, *(found if isinstance(found, (tuple, list)) else (found,)))


def _flat_apply(function: None, operands: None, name: str, *rest: torch.Tensor) -> Any:
    if not name.endswith(".ModIndex"):  # torch's tracer records indexing inside a score function so
        raise ModelError(f"{shown(name)} is no function of an attention")
    return torch.ops.aten.index.Tensor(rest[0], rest[1:])


# Higher-order operators, by their own word.
RUN: dict[str, Callable[..., Any]] = {
    "cond": lambda predicate, true, false, operands=(): (true if bool(predicate) else false)(*operands),
    "switch": lambda index, branches, operands=(): branches[min(max(int(index), 0), len(branches) - 1)](
        *operands
    ),
    "while_loop": _while_loop,
    "while_loop_stack_output": lambda *given: _stacked([*_turns(*given)]),
    "scan": _scan,
    "associative_scan": _associative_scan,
    **dict.fromkeys(("map_impl", "map"), lambda body, xs, operands=(): _scan(body, (), xs, operands)),
    "wrap_with_autocast": _autocast,
    "wrap_with_set_grad_enabled": lambda enabled, region, *operands: region(*operands),
    **dict.fromkeys(
        ("wrap", "wrap_activation_checkpoint", "tag_activation_checkpoint", "local_map_hop"),
        lambda region, *operands, **keywords: region(*operands),
    ),
    "invoke_subgraph": lambda region, identifier, *operands, **keywords: region(*operands),
    **dict.fromkeys(
        ("hints_wrapper", "strict_mode", "foreach_map"),
        lambda region, operands, *rest, **keywords: region(*operands),
    ),
    "with_effects": _with_effects,
    "flat_apply": _flat_apply,
    "auto_functionalized_v2": lambda *given, **named: torch.ops.higher_order.auto_functionalized_v2(
        *given, **named
    ),
    "out_dtype": lambda *operands: torch.ops.higher_order.out_dtype(*operands),
    **dict.fromkeys(("print", "_export_tracepoint"), lambda *operands, **keywords: operands),
}
