"""An operator by the name that a program gives it, as a function to call.

A program read from a file chooses among operators that graphflops prices, nothing else: no attribute of a module is
looked up by a name from a file, and operators that touch files or other machines are refused.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import predispatch

from graphflops.errors import ModelError, shown
from graphflops.rules.registry import find

if TYPE_CHECKING:
    from collections.abc import Callable

_REFUSED = {
    "aten.from_file": "it reads a file that the program names",
    "aten._debug_has_internal_overlap": "it is of no use outside of torch",
}
_NAMESPACES = frozenset(
    (
        "aten",
        "prims",
        "quantized",
        "quantized_decomposed",
        "torchvision",
        "torchao",
        "rngprims",
        "profiler",
        "torch_attn",
        "torch_nn",
    )
)
_MODULES: dict[str, Any] = {
    "_operator": operator,
    "math": math,
    "builtins": builtins,
    "torch": torch,
    "torch._functorch.predispatch": predispatch,
}


@functools.cache
def resolve(op: str, trusted: bool = False) -> Callable[..., Any]:
    """The function behind `aten.add.Tensor`, `_operator.mul`, `torch.sym_max`.

    trusted: for a program in memory, whose operators the user's own code registered.
    Raises ModelError for what must not run, or what this torch does not have.
    """
    base = op.rpartition(".")[0] if op.count(".") > 1 else op
    for name, reason in _REFUSED.items():
        if name in (op, base):
            raise ModelError(f"{shown(op)} is not run: {reason}")
    module, _, function = op.rpartition(".")
    if module in _MODULES:
        if find(op) is None:
            raise ModelError(f"{shown(op)} is not run: no rule of graphflops knows it")
        return _of_module(_MODULES[module], function, op)
    namespace, _, rest = op.partition(".")
    if not trusted:
        if find(op) is None:
            raise ModelError(f"{shown(op)} is not run: no rule of graphflops knows it")
        if namespace not in _NAMESPACES:
            raise ModelError(
                f"{shown(op)} is not run: operators of {shown(namespace)} are not taken from a file"
            )
    word, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), word, None)
    found = (
        getattr(packet, overload or "default", None)
        if isinstance(packet, torch._ops.OpOverloadPacket)
        else None
    )
    if not isinstance(found, torch._ops.OpOverload):
        version = torch.__version__.partition("+")[0]
        raise ModelError(
            f"torch {version} has no operator {shown(op)}: import the library that registers it, or update torch"
        )
    chosen: Callable[..., Any] = _HERE.get(op, found)
    return chosen


def _of_module(module: Any, name: str, op: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"this torch or Python has no {shown(op)}")
    # Files of torch before 2.7 name every operand, and functions of Python take theirs by place.
    return lambda *args, **kwargs: function(*args, *kwargs.values())


def _reshaped(self: torch.Tensor, size: Any) -> torch.Tensor:
    """A view where the memory allows: strides may differ from those of the machine that exported the program."""
    return self.reshape(size)


def _split(self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, dim: int = 0) -> Any:
    """Torch wants the places in the machine's own memory, wherever the tensor is."""
    return torch.ops.aten.tensor_split.tensor_indices_or_sections(self, tensor_indices_or_sections.cpu(), dim)


_HERE: dict[str, Callable[..., Any]] = {
    "aten.view.default": _reshaped,
    "aten._unsafe_view.default": _reshaped,
    "aten.tensor_split.tensor_indices_or_sections": _split,
}
