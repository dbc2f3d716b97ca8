"""Makes torch dispatch the calls of a GPU on fake CPU tensors, for which it would choose other calls.

Operators that choose by device (scaled_dot_product_attention, rms_norm, dropout) get a kernel for the key AutogradCPU that
chooses as on a GPU, wherever they are called. torch.autocast has another list of operators there, and recurrent layers are
one call of cuDNN for all layers and steps, and one for their gradients.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from graphflops.attention.kernel import Operand, Problem, attention_kernel
from graphflops.devices import HOPPER
from graphflops.kernels.products import reserve_bytes
from graphflops.ops import operator
from graphflops.rules.added_calls import Treatment, autocast
from graphflops.rules.recurrent import KINDS
from graphflops.tensor import DTYPES, TensorType

_ATEN = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_WITH_STATISTICS = frozenset({"layer_norm", "batch_norm"})


@contextlib.contextmanager
def gpu_functions() -> Iterator[None]:
    """Within this context, calls are those of a GPU, and a device that is named `cuda` is the CPU."""
    OnCpu.names_gpu = False
    functions: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": _attention,
        "dropout": _dropout,
        "softmax.int": partial(_wide, _ATEN._softmax.default),
        "log_softmax.int": partial(_wide, _ATEN._log_softmax.default),
        **{f"{name}.input": partial(_run, name) for name in _CELLS},
    }
    if hasattr(_ATEN, "_fused_rms_norm_backward"):  # since PyTorch 2.9
        functions["rms_norm"] = _rms_norm
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, function in functions.items():
            library.impl(name, function, "AutogradCPU")
        for name, function in (  # torch has no meta functions for them
            ("_cudnn_rnn_backward", gradients),
            ("batch_norm_stats", _like_channels),
            ("batch_norm_gather_stats_with_counts", lambda x, mean, *_: _like_channels(x)),
            ("batch_norm_elemt", lambda x, *_: torch.empty_like(x)),
            ("batch_norm_backward_reduce", _sums),
            ("batch_norm_backward_elemt", lambda gradient, x, *_: torch.empty_like(x)),
        ):
            library.impl(name, function, "Meta")
        # A mode is off while it handles `backward`, but the forwards that checkpoints recompute there need it.
        run_backward = OnCpu().around(torch.autograd._engine_run_backward)
        with mock.patch.object(torch.autograd, "_engine_run_backward", run_backward), OnCpu():
            yield


def gpu_results(call: Any, args: Any, results: Any) -> Any:
    """The results as a GPU has them: statistics of 16-bit norms in float32, no gradient that the call's mask leaves out."""
    mask = args[-1] if args and isinstance(args[-1], list) else []
    if isinstance(results, tuple) and [*map(type, mask)] == [bool] * len(results):
        return tuple([x if on or isinstance(x, list) else None for x, on in zip(results, mask, strict=True)])
    if not isinstance(results, tuple) or operator(str(call)).name not in _WITH_STATISTICS:
        return results
    return (results[0], *[each.float() if each.dtype in _HALF else each for each in results[1:]])


class Around(TorchFunctionMode):  # type: ignore[misc]
    """A mode that a function can turn on again where torch has turned it off."""

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return called


_PLACING = (torch.Tensor.to, torch._C._nn._parse_to)  # the second is what `Module.to` calls


class OnCpu(Around):
    """Puts tensors on the CPU that a factory puts on a GPU. names_gpu: whether the factory has named one."""

    names_gpu = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if given:
            given = {name: value for name, value in given.items() if name != "pin_memory"}
            if "device" in given:
                given["device"] = _on_cpu(given["device"])
        if func is torch.Tensor.cuda:
            OnCpu.names_gpu = True
            return args[0].to("cpu")
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.device and type(args[0]) is int:  # a number means an accelerator, which is not there
            return _on_cpu(*args)
        if func is torch.Tensor.__deepcopy__:  # torch's own copies data
            tensor, made = args
            made[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            return made[id(tensor)]
        return func(*(map(_on_cpu, args) if func in _PLACING else args), **given)


def _on_cpu(value: Any) -> Any:
    is_device = isinstance(value, (str, torch.device)) and str(value).startswith("cuda")
    OnCpu.names_gpu |= is_device
    return torch.device("cpu") if is_device or type(value) is int else value


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Calls the kernel that PyTorch chooses on an H200. The predicted time of another device uses that device's choice."""
    mask = attn_mask
    laid_mask = None if mask is None else _operand(mask)
    are_trained = [x is not None and x.requires_grad for x in (query, key, value, mask)]
    wants_gradient = torch.is_grad_enabled() and any(are_trained)
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
    dtype = DTYPES[str(x.dtype).removeprefix("torch.")]
    return Operand(TensorType(tuple(map(int, x.shape)), dtype), tuple(map(int, x.stride())))


def _dropout(x: Any, p: float, train: bool) -> Any:
    if not train or p == 0:
        return _ATEN.alias.default(x)
    return _ATEN.native_dropout.default(x, p, train)[0] if p < 1 else x * 0.0


def _wide(call: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    """A softmax that converts a 16-bit operand to float32 within its own call, as on a GPU."""
    is_wider = x.dtype in _HALF and dtype == torch.float32
    return call(x if is_wider or dtype is None else x.to(dtype), dim, is_wider)


def _rms_norm(x: Any, normalized_shape: list[int], weight: Any = None, eps: float | None = None) -> Any:
    """The norm in one call; decomposed if the weight has another element type, or x is complex."""
    if (weight is not None and weight.dtype != x.dtype) or x.is_complex():
        return _ATEN.rms_norm.default.decompose(x, normalized_shape, weight, eps)
    return _FusedRmsNorm.apply(x, list(normalized_shape), weight, eps)


class _FusedRmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """The norm as one call forward and one backward. On a CPU, torch registers no derivative for that call."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: list[int], weight: Any, eps: float | None) -> Any:
        """The norm over the last axes; saves x, the weight and the inverse root mean square of each row."""
        with torch._C._AutoDispatchBelowAutograd():
            out, roots = _ATEN._fused_rms_norm.default(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, roots)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, roots = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        call = _ATEN._fused_rms_norm_backward.default
        with torch._C._AutoDispatchBelowAutograd():
            of_x, of_weight = call(gradient, x, ctx.shape, roots, weight, wanted)
        return of_x, None, of_weight, None


def _like_channels(x: Any, *_: Any) -> Any:
    """Two vectors with a number for each channel, in float32 if x has 16 bits."""
    made = x.new_empty(x.shape[1], dtype=torch.float32 if x.dtype in _HALF else x.dtype)
    return made, torch.empty_like(made)


def _sums(gradient: Any, x: Any, mean: Any, invstd: Any, weight: Any, *wants: bool) -> Any:
    """The two sums for a batch norm's gradient, and the gradients of its weight and bias; None where not wanted."""
    for_x, *of_parameters = wants
    sums = [torch.empty_like(mean) if for_x else None for _ in range(2)]
    return *sums, *[torch.empty_like(weight) if each else None for each in of_parameters]


def at_most(call: Any, args: Any) -> Any:
    """Results of the largest size that a call with data-dependent sizes can return; None if no limit is known."""
    x, name = args[0], call._schema.name.removeprefix("aten::")
    if name == "nonzero":
        return x.new_empty((x.numel(), x.dim()), dtype=torch.int64)
    if name == "masked_select":
        return x.new_empty(torch.broadcast_shapes(x.shape, args[1].shape).numel())
    if name in ("index_put_", "_index_put_impl_"):
        return x
    if name == "index":
        return call(x, [number for index in args[1] for number in _numbers(index)])
    if name == "_ctc_loss":
        steps, batch, _ = x.shape
        return x.new_empty(batch), x.new_empty((batch, steps, 2 * args[1].shape[-1] + 1))
    return None


def _numbers(index: Any) -> list[Any]:
    """The index, with a mask replaced by vectors of indices, one for each of its axes, as if it selected every element."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [index.new_empty(index.numel(), dtype=torch.int64) for _ in index.shape]


_KEY = "AutocastCPU"
_CONVERTED = (torch.float16, torch.bfloat16, torch.float32)
_has = torch._C._dispatch_has_kernel_for_dispatch_key
_Autocast = torch.amp.autocast_mode.autocast


@contextlib.contextmanager
def gpu_autocast() -> Iterator[None]:
    """Within this context, `torch.autocast("cuda")` applies to tensors on the CPU, for the operators of a GPU's list."""
    init = _Autocast.__init__

    def of_cpu(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":  # its default type is float16, the CPU's bfloat16
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        init(self, device_type, dtype, *args, **kwargs)

    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():  # torch warns that the CPU's own kernels are replaced, as intended
            warnings.simplefilter("ignore")
            for overload in _overloads():
                is_treated, has_own = (_has(overload.name(), key) for key in ("AutocastCUDA", _KEY))
                treatment = autocast(operator(str(overload))) if is_treated else None
                # For "lower", the CPU's own kernel does the same, and also caches converted weights.
                if treatment is not None and not (treatment == "lower" and has_own):
                    library.impl(overload, _as_treated(overload, treatment), _KEY)
                elif has_own and not is_treated:
                    library.impl(overload, torch.library.fallthrough_kernel, _KEY)
        with mock.patch.object(_Autocast, "__init__", of_cpu):
            yield


@lru_cache(maxsize=1)
def _overloads() -> list[Any]:
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::") and (_has(name, _KEY) or _has(name, "AutocastCUDA")):
            word, _, variant = name.removeprefix("aten::").partition(".")
            found.append(getattr(getattr(torch.ops.aten, word), variant or "default"))
    return found


def _as_treated(overload: Any, treatment: Treatment) -> Callable[..., Any]:
    """A kernel that converts the operator's operands, or sets the type of its result, as autocast does on a GPU."""
    has_type = any(argument.name == "dtype" for argument in overload._schema.arguments)

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            types = {x.dtype for x in tree_leaves((args, kwargs)) if _is_converted(x)}
            if treatment == "single result":
                is_said = any(isinstance(x, torch.dtype) for x in (*args, *kwargs.values()))
                if has_type and not is_said and types & {torch.float16, torch.bfloat16}:
                    kwargs["dtype"] = torch.float32
                return overload(*args, **kwargs)
            if treatment == "widest" and torch.float32 not in types:
                return overload(*args, **kwargs)
            wanted = torch.get_autocast_dtype("cpu") if treatment == "lower" else torch.float32
            args, kwargs = tree_map(lambda x: x.to(wanted) if _is_converted(x) else x, (args, kwargs))
            return overload(*args, **kwargs)

    return called


def _is_converted(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _CONVERTED


_LSTM = "lstm"
_CELLS = (_LSTM, "gru")  # recurrent layers for which the size of cuDNN's reserve is known


def gradients(x: Any, weight: Any, stride0: int, buffer: Any, hx: Any, cx: Any, *rest: Any) -> Any:
    """The results of `_cudnn_rnn_backward` on meta tensors: torch has no meta function for it."""
    *wanted, wants_weights = rest[-1]
    found = zip((x, hx, cx), wanted, strict=True)
    single = [torch.empty_like(each) if each is not None and is_wanted else None for each, is_wanted in found]
    return *single, [torch.empty_like(each) for each in weight if wants_weights]


def _run(
    name: str, x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """The operator as on a GPU: one call of cuDNN. Layers with projections are decomposed as on a CPU."""
    states = hx if name == _LSTM else [hx]
    hidden = states[0].shape[-1]
    each = len(params) // max(num_layers * (2 if bidirectional else 1), 1)
    if each != (4 if has_biases else 2):
        given = has_biases, num_layers, dropout, train, bidirectional, batch_first
        return getattr(_ATEN, name).input.decompose(x, hx, params, *given)
    options: dict[str, Any] = {"mode": [*KINDS].index(name), "hidden_size": hidden, "proj_size": 0}
    options |= {"num_layers": num_layers, "batch_first": batch_first, "dropout": dropout, "train": train}
    options |= {"bidirectional": bidirectional, "batch_sizes": (), "dropout_state": None}
    cell = states[1] if name == _LSTM else None
    out, *final = _Layers.apply(name, options, each, x, states[0], cell, *params)
    return (out, *final[: len(states)])


class _Layers(torch.autograd.Function):  # type: ignore[misc]
    """All layers in one call forward and one backward. The backward reads intermediate results from cuDNN's reserve."""

    @staticmethod
    def forward(
        ctx: Any, name: str, options: dict[str, Any], each: int, x: Any, hx: Any, cx: Any, *params: Any
    ) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            made = _ATEN._cudnn_rnn.default(x, params, each, None, hx, cx, **options)
            copied = sum(weight.nbytes for weight in params) if x.dtype == torch.bfloat16 else 0
            of_result = name, made[0].nbytes, options["num_layers"]
            size = reserve_bytes(*of_result, copied, is_training=options["train"])
            reserve = torch.empty(size, dtype=torch.uint8)
        ctx.save_for_backward(x, hx, cx, made[0], reserve, *params)
        ctx.options, ctx.each = options, each
        return made[:3]

    @staticmethod
    def backward(ctx: Any, of_out: Any, of_hy: Any, of_cy: Any) -> Any:
        x, hx, cx, out, reserve, *params = ctx.saved_tensors
        needs = ctx.needs_input_grad
        mask = [*needs[3:6], any(needs[6:])]
        of_cy = of_cy if cx is not None else None
        with torch._C._AutoDispatchBelowAutograd():
            of_x, of_hx, of_cx, of_params = _ATEN._cudnn_rnn_backward.default(
                *(x, params, ctx.each, params[0], hx, cx, out, of_out, of_hy, of_cy),
                **ctx.options, reserve=reserve, output_mask=mask,
            )  # fmt: skip
        return None, None, None, of_x, of_hx, of_cx, *(of_params or [None] * len(params))
