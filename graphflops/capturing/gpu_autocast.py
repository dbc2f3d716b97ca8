"""torch.autocast of a GPU on tensors that pretend to lie on a CPU, for which torch has another list of operators."""

from __future__ import annotations

import contextlib
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves, tree_map

from graphflops.ops import operator
from graphflops.rules.added_calls import autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphflops.rules.added_calls import Treatment

_KEY = "AutocastCPU"
_CONVERTED = (torch.float16, torch.bfloat16, torch.float32)
_has = torch._C._dispatch_has_kernel_for_dispatch_key
_Autocast = torch.amp.autocast_mode.autocast


@contextlib.contextmanager
def gpu_autocast() -> Iterator[None]:
    """Within it, `torch.autocast("cuda")` holds for tensors of the CPU, with the operators that it holds for on a GPU."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CPU's own kernels are replaced, which is meant
        for overload in _overloads():
            is_treated, has_own = (_has(overload.name(), key) for key in ("AutocastCUDA", _KEY))
            treatment = autocast(operator(str(overload))) if is_treated else None
            # Its own converts a weight once.
            if treatment is not None and not (treatment == "lower" and has_own):
                library.impl(overload, _as_treated(overload, treatment), _KEY)
            elif has_own and not is_treated:
                library.impl(overload, torch.library.fallthrough_kernel, _KEY)
    try:
        with mock.patch.object(_Autocast, "__init__", _of_cpu):
            yield
    finally:
        library._destroy()


def _of_cpu(
    self: Any, device_type: str, dtype: Any = None, *args: Any, _init: Any = _Autocast.__init__, **kwargs: Any
) -> None:
    """The context of the CPU; by default products are in float16, as on a GPU."""
    if device_type == "cuda":
        device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
    _init(self, device_type, dtype, *args, **kwargs)


@lru_cache(maxsize=1)
def _overloads() -> list[Any]:
    """The operators that autocast treats somewhere."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if name.startswith("aten::") and (_has(name, _KEY) or _has(name, "AutocastCUDA")):
            word, _, variant = name.removeprefix("aten::").partition(".")
            found.append(getattr(getattr(torch.ops.aten, word), variant or "default"))
    return found


def _as_treated(overload: Any, treatment: Treatment) -> Callable[..., Any]:
    """The call of an operator with its operands, or the type of its result, as autocast has them."""
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
