"""Values of a traced torch program as graphflops describes them: types, sizes, contents, operators' names."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from graphflops.errors import DimError, FileError, shown
from graphflops.exporters.sources import Sources
from graphflops.exporters.types import Types
from graphflops.graph import Graph, Stored
from graphflops.tensor import DType, dtype_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphflops.dims import Dim


class Program:
    """What the graphs of one traced program share."""

    def __init__(self) -> None:
        self.types = Types()
        self.sources = Sources()
        self._dims: dict[Any, Dim] = {}
        self.graphs: dict[tuple[int, str], Graph] = {}
        self._memories: dict[int, memoryview] = {}

    def contents(self, tensors: Mapping[str, Any]) -> Callable[[str], Stored | None]:
        """A function from an input's name to its contents; `tensors` are by input name."""

        def contents(name: str) -> Stored | None:
            tensor = tensors.get(name)
            if tensor is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                return None  # a fake tensor, or a subclass that wraps others
            has_memory = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized
            return self.stored(tensor) if has_memory else None

        return contents

    def stored(self, tensor: torch.Tensor) -> Stored:
        """A tensor with its memory; a tensor on a device is copied to the host."""
        storage = tensor.untyped_storage()
        known = self._memories.get(storage._cdata)
        if known is None:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            known = self._memories[storage._cdata] = memoryview(flat.cpu().numpy())
        shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return Stored(dtype_of(tensor.dtype, ""), shape, strides, int(tensor.storage_offset()), known)

    def value(self, name: str, value: Any) -> Any:
        """The recorded form of a traced value: a tensor's type, a size, or a literal."""
        if isinstance(value, torch.Tensor):
            shape = tuple([self.dim(size) for size in value.shape])
            return self.types.tensor(shape, dtype_of(value.dtype, name))
        if isinstance(value, (torch.SymInt, torch.SymBool)):
            return self.symbolic(value)
        if isinstance(value, torch.SymFloat):
            hint = _hint(value)
            return float("nan") if hint is None else float(hint)
        return value if isinstance(value, (bool, int, float, complex, str)) else None

    def symbolic(self, value: torch.SymInt | torch.SymBool) -> Any:
        """A symbolic size or truth value; None for a comparison of values that are not sizes."""
        try:
            dim = self.dim(value)
        except DimError:
            if isinstance(value, torch.SymBool):
                return None
            raise
        return bool(dim) if isinstance(value, torch.SymBool) and isinstance(dim, int) else dim

    def dim(self, size: Any) -> Dim:
        """A size, concrete or not."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        known = self._dims.get(expression)
        if known is None:
            hint = _hint(size)
            known = self._dims[expression] = self.types.dim(
                _text(expression), hint if type(hint) is int else None
            )
        return known


def operator_name(target: Callable[..., Any] | str) -> str:
    """The operator as a saved program spells it, without `torch.ops.`: `aten.add.Tensor`, `_operator.mul`."""
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", type(target).__name__)
    if module.startswith("torch._ops"):
        module = module.replace("torch._ops", "torch.ops", 1)
    return f"{module}.{name}".removeprefix("torch.ops.")


def _hint(value: Any) -> Any:
    """Example value of a symbolic scalar; None for one that depends on data."""
    node = value.node
    return node.hint if node.has_hint() else None


def _text(expression: Any) -> str:
    import sympy

    return str(expression) if expression.is_Symbol else str(sympy.srepr(expression))


def bound_of(limit: Any) -> int | None:
    """One end of a range; None for infinity."""
    try:
        return int(limit)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def dtype_of(dtype: torch.dtype, name: str) -> DType:
    """The element type; raises FileError, which names the value, for an unknown one."""
    try:
        return dtype_named(str(dtype).removeprefix("torch."))
    except DimError as error:
        raise FileError(f"value {shown(name)}: {error}") from None


def described(arg: Any) -> str:
    """The placeholder for an operand that is not read, as in a saved program."""
    if isinstance(arg, (torch.memory_format, torch.layout)):
        return str(arg).removeprefix("torch.")
    if isinstance(arg, torch.device):
        return str(arg)
    if isinstance(arg, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return operator_name(arg)
    if inspect.isclass(arg) or callable(arg):
        return getattr(arg, "__qualname__", type(arg).__name__)
    return type(arg).__name__


def attribute_of(module: Any, path: str) -> Any:
    """The attribute at a dotted path; None where there is none."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module
