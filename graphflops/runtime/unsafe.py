"""Operators that a program from a file must not run as they are: torch trusts their operands and may write elsewhere.

Some are refused. Gradients that index by what the forward saved are run after their indices are checked, because every
training step of a network with pooling has them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphflops.errors import ModelError, RunError, shown
from graphflops.graph import Graph, Opaque
from graphflops.ops import operator
from graphflops.view import flat

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from graphflops.ops import Op

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
_REFUSED = {word: reason for reason, words in _REASONS.items() for word in words.split()}


def refuse_unsafe(graph: Graph) -> None:
    """Raise ModelError if the program or a graph nested in it calls an operator that is not run from a file."""
    for node in graph.nodes:
        if reason := reason_to_refuse(node.operator):
            raise ModelError(f"{shown(node.name)}: {shown(node.op)} is not run from a file: {reason}")
        for value in flat((node.args, tuple([item for _, item in node.kwargs]))):
            if isinstance(value, Graph):
                refuse_unsafe(value)
            elif (
                isinstance(value, Opaque) and "." in value.what
            ):  # the operator that a higher-order operator wraps
                wrapped = operator(value.what.removeprefix("torch.ops."))
                if reason := reason_to_refuse(wrapped):
                    raise ModelError(
                        f"{shown(node.name)}: {shown(value.what)} is not run from a file: {reason}"
                    )


def reason_to_refuse(op: Op) -> str:
    """Why a program from a file must not run an operator; "" if it may."""
    if op.dialect not in ("aten", "prims"):
        return ""
    return _OUTSIDE if op.word.endswith("_unsafe") else _REFUSED.get(op.word, "")


_POOLINGS = {
    "max_pool2d_with_indices_backward": (7, 2),
    "max_pool3d_with_indices_backward": (7, 3),
    "adaptive_max_pool2d_backward": (2, 2),
    "adaptive_max_pool3d_backward": (2, 3),
    "fractional_max_pool2d_backward": (4, 2),
    "fractional_max_pool3d_backward": (4, 3),
}  # by operator: the place of its indices, and the axes of the image that they index
# Operators whose first list torch takes not to be empty.
_NOT_EMPTY = ("_stack", "_foreach_copy", "_foreach_copy_")
_OPTIONS = ("dtype", "layout", "memory_format")
_LOSSES = ("nll_loss_backward", "nll_loss2d_backward")


def checked(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an operator of torch, with what torch takes on trust from compiled code checked first."""
    return (
        _with_checked_indices(op, _with_checked_arguments(op, function)) if op.dialect == "aten" else function
    )


def _with_checked_arguments(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose lists are as long as its schema says, and whose options are no numbers."""
    schema = getattr(function, "_schema", None)
    arguments = () if schema is None else schema.arguments
    lengths = {arg.name: arg.N for arg in arguments if (arg.N or 0) > 1 and arg.default_value != []}
    options = {arg.name for arg in arguments if arg.name in _OPTIONS}
    if not lengths and not options and op.word not in _NOT_EMPTY:
        return function

    def run(*args: Any, **named: Any) -> Any:
        given = dict(zip((arg.name for arg in arguments), args, strict=False)) | named
        for name, value in given.items():
            wrong = isinstance(value, (list, tuple)) and len(value) not in (1, lengths.get(name, len(value)))
            if wrong and not value and name == "stride" and op.word in _POOLINGS:
                continue  # a pooling then steps by its kernel
            if wrong or (name in options and isinstance(value, int)):
                raise RunError(f"{shown(op.spelling)}: {shown(name)} is not what its schema says")
        if op.word in _NOT_EMPTY and not next(iter(given.values()), None):
            raise RunError(f"{shown(op.spelling)}: a list is empty")
        return function(*args, **named)

    return run


def _with_checked_indices(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or for a gradient that indexes by a saved tensor a function that checks the indices first."""
    if op.word in _POOLINGS:
        place, axes = _POOLINGS[op.word]

        def pooled(*args: Any, **named: Any) -> Any:
            indices = named["indices"] if "indices" in named else args[place]
            image = named["self"] if "self" in named else args[1]
            if image.dim() not in (axes + 1, axes + 2):
                raise RunError(f"{shown(op.spelling)}: an image of {image.dim()} axes")
            _within(op, indices, prod(image.shape[-axes:]))
            return function(*args, **named)

        return pooled
    if op.word in _LOSSES:

        def loss(*args: Any, **named: Any) -> Any:
            scores, target, ignored = (
                named[name] if name in named else args[place]
                for name, place in (("self", 1), ("target", 2), ("ignore_index", 5))
            )
            _within(op, target[target != ignored], scores.shape[min(1, scores.dim() - 1)])
            return function(*args, **named)

        return loss
    return function


def _within(op: Op, indices: torch.Tensor, below: int) -> None:
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < below:
        raise RunError(f"{shown(op.spelling)}: an index is not within the {below:,} places that it indexes")
