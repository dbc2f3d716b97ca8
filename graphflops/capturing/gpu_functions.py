"""What torch runs on a GPU, on tensors that pretend to lie on a CPU, where torch would run other calls.

Operators that choose by device (scaled_dot_product_attention, rms_norm, dropout) get a choice of their own below autograd's
dispatch, so that it holds wherever they are called from: a module, a checkpoint that runs again, another operator.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from graphflops.attention.kernel import Operand, Problem, attention_kernel
from graphflops.capturing import gpu_recurrent
from graphflops.devices.device import HOPPER
from graphflops.ops import operator
from graphflops.tensor import DTYPES, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_WITH_STATISTICS = frozenset({"layer_norm", "batch_norm"})


@contextlib.contextmanager
def gpu_functions() -> Iterator[None]:
    """Within it, calls are those of a GPU, and a GPU that is named is the CPU."""
    library = torch.library.Library("aten", "IMPL")
    functions: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": _attention,
        "dropout": _dropout,
        "softmax.int": _softmax,
        "log_softmax.int": _log_softmax,
    }
    if hasattr(_ATEN, "_fused_rms_norm_backward"):  # since PyTorch 2.9
        functions["rms_norm"] = _rms_norm
    for name, function in {**functions, **gpu_recurrent.functions()}.items():
        library.impl(name, function, "AutogradCPU")
    library.impl("_cudnn_rnn_backward", gpu_recurrent.gradients, "Meta")
    # A mode is off while it handles `backward`; what checkpoints run again needs it.
    run_backward = _OnCpu().around(torch.autograd._engine_run_backward)
    try:
        with mock.patch.object(torch.autograd, "_engine_run_backward", run_backward), _OnCpu():
            yield
    finally:
        library._destroy()


def gpu_results(call: Any, results: Any) -> Any:
    """What a call gives on a GPU: norms of 16 bits keep means and variances in float32."""
    if not isinstance(results, tuple) or operator(str(call)).name not in _WITH_STATISTICS:
        return results
    return (results[0], *[each.float() if each.dtype in _HALF else each for each in results[1:]])


class _OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Places on the CPU what a factory places on a GPU."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, within the mode."""

        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return called

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            name: _on_cpu(value) if name == "device" else value for name, value in (kwargs or {}).items()
        }
        if func is torch.Tensor.cuda:
            return args[0].to("cpu")
        return func(*(args if func is not torch.Tensor.to else map(_on_cpu, args)), **given)


def _on_cpu(value: Any) -> Any:
    is_device = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    return torch.device("cpu") if is_device or type(value) is int else value


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """The kernel that PyTorch chooses on an H200. Another device may choose another, which a program's time follows."""
    mask = attn_mask
    laid_mask = None if mask is None else _operand(mask)
    wants_gradient = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (query, key, value, mask)
    )
    operands = (_operand(query), _operand(key), _operand(value), laid_mask)
    problem = Problem(*operands, dropout_p, is_causal, enable_gqa, wants_gradient)
    kernel = attention_kernel(problem, HOPPER).kernel
    if kernel == "math":
        math = _ATEN._scaled_dot_product_attention_math.default
        made = math(query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)
        return made[0]
    if kernel == "flash":
        flash = _ATEN._scaled_dot_product_flash_attention.default
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    given = (query, key, value, mask, wants_gradient, dropout_p, is_causal)
    if kernel == "cudnn":
        return _ATEN._scaled_dot_product_cudnn_attention.default(*given, scale=scale)[0]
    return _ATEN._scaled_dot_product_efficient_attention.default(*given, scale=scale)[0]


def _operand(x: Any) -> Operand:
    """A tensor as it lies in memory."""
    dtype = DTYPES[str(x.dtype).removeprefix("torch.")]
    return Operand(TensorType(tuple(map(int, x.shape)), dtype), tuple(map(int, x.stride())))


def _dropout(x: Any, p: float, train: bool) -> Any:
    """One call for the numbers and the product, but where nothing or everything is dropped."""
    if not train or p == 0:
        return _ATEN.alias.default(x)
    return _ATEN.native_dropout.default(x, p, train)[0] if p < 1 else x * 0.0


def _softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Of 16 bits to float32 in one call."""
    return _wide(_ATEN._softmax.default, x, dim, dtype)


def _log_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    """Of 16 bits to float32 in one call."""
    return _wide(_ATEN._log_softmax.default, x, dim, dtype)


def _wide(call: Any, x: Any, dim: int, dtype: Any) -> Any:
    is_wider = x.dtype in _HALF and dtype == torch.float32
    return call(x if is_wider or dtype is None else x.to(dtype), dim, is_wider)


def _rms_norm(x: Any, normalized_shape: list[int], weight: Any = None, eps: float | None = None) -> Any:
    """One call, but the parts where the weight has another element type."""
    if (weight is not None and weight.dtype != x.dtype) or x.is_complex():
        return _ATEN.rms_norm.default.decompose(x, normalized_shape, weight, eps)
    return _FusedRmsNorm.apply(x, list(normalized_shape), weight, eps)


class _FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """The norm in one call, forward and backward, which has no derivative of its own on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: list[int], weight: Any, eps: float | None) -> Any:
        """The norm over the last axes; keeps x, the weight and the roots by row."""
        with torch._C._AutoDispatchBelowAutograd():
            out, roots = _ATEN._fused_rms_norm.default(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, roots)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Gradients of x and of the weight, where they are wanted."""
        x, weight, roots = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        call = _ATEN._fused_rms_norm_backward.default
        with torch._C._AutoDispatchBelowAutograd():
            of_x, of_weight = call(gradient, x, ctx.shape, roots, weight, wanted)
        return of_x, None, of_weight, None
