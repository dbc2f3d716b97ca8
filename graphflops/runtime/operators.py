"""Finds the function of torch or Python behind the spelling of an operator.

A program read from a file can only run operators that graphflops prices: no other attribute of a module is looked up by a
name from a file, and operators that read files, reach other machines or write outside of their tensors are refused.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import predispatch

from graphflops.errors import ModelError, shown
from graphflops.ops import Op
from graphflops.ops import operator as spelled
from graphflops.rules.registry import find
from graphflops.runtime.unsafe import checked, reason_to_refuse

_REFUSED = {
    "aten.from_file": "it reads a file that the program names",
    "aten._debug_has_internal_overlap": "it is an internal test of torch",
}
_NAMESPACES = frozenset(
    (
        "aten",
        "prims",
        "quantized",
        "quantized_decomposed",
        "torchvision",
        "torchao",
        "transformers",
        "rngprims",
        "profiler",
        "torch_attn",
        "torch_nn",
    )
)
# Namespaces whose operators exist only once a library's module is imported.
_REGISTERED_BY = {
    "transformers": "transformers.integrations.moe",
    "torchvision": "torchvision",
    "torchao": "torchao",
    "fsdp": "torch.distributed.fsdp",
    "_dtensor": "torch.distributed.tensor",
    "_c10d_functional_autograd": "torch.distributed._functional_collectives",
}
_MODULES: dict[str, Any] = {
    "_operator": operator,
    "math": math,
    "builtins": builtins,
    "torch": torch,
    "torch._functorch.predispatch": predispatch,
}


@functools.cache
def resolve(op: str, trusted: bool = False) -> Callable[..., Any]:
    """The function behind `aten.add.Tensor`, `_operator.mul` or `torch.sym_max`.

    trusted: True for a program in memory, whose operators the user's own code registered.
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
        return _of_module(_MODULES[called.dialect], called.word, op)
    if not trusted and called.dialect not in _NAMESPACES:
        raise ModelError(
            f"{shown(op)} is not run: operators of {shown(called.dialect)} are not run from a file"
        )
    found = overload_of(called)
    if found is None:
        version = torch.__version__.partition("+")[0]
        raise ModelError(
            f"torch {version} has no operator {shown(op)}: import the library that registers it, or update torch"
        )
    chosen: Callable[..., Any] = _SUBSTITUTES.get(op, found)
    return chosen if trusted else checked(called, chosen)


def overload_of(op: Op) -> torch._ops.OpOverload | None:
    """The overload of torch.ops behind an operator; None if this torch has none."""
    packet = _packet(op.dialect, op.word)
    found = getattr(packet, op.variant or "default", None)
    is_overload = isinstance(packet, torch._ops.OpOverloadPacket) and isinstance(found, torch._ops.OpOverload)
    return found if is_overload else None


def _packet(namespace: str, word: str) -> Any:
    """All overloads of an operator, whose library is imported if it is installed; None where there is no such operator."""
    if not hasattr(getattr(torch.ops, namespace, None), word) and namespace in _REGISTERED_BY:
        with contextlib.suppress(ImportError):
            importlib.import_module(_REGISTERED_BY[namespace])
    return getattr(getattr(torch.ops, namespace, None), word, None)


def _of_module(module: Any, name: str, op: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"this torch or Python has no {shown(op)}")
    # Files of torch before 2.7 name every operand; functions of Python take them by position.
    return lambda *args, **kwargs: function(*args, *kwargs.values())


def _reshaped(self: torch.Tensor, size: Any) -> torch.Tensor:
    """Reshapes instead of viewing: strides may differ from those of the machine that exported the program."""
    return self.reshape(size)


def _split(self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0) -> Any:
    """Moves the indices to the CPU, where torch requires them wherever the tensor is."""
    return torch.ops.aten.tensor_split.tensor_indices_or_sections(self, tensor_indices_or_sections.cpu(), dim)


_SUBSTITUTES: dict[str, Callable[..., Any]] = {
    "aten.view.default": _reshaped,
    "aten._unsafe_view.default": _reshaped,
    "aten.tensor_split.tensor_indices_or_sections": _split,
}
