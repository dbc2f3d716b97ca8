"""Queries of sizes and types, and assertions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Value, data_dependent, free
from graphflops.dims import Dim, Expr, differ, prod, same
from graphflops.rules.axes import axis
from graphflops.rules.registry import rule
from graphflops.rules.scalar import number
from graphflops.tensor import FLOAT32, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Sizes.


def strides(x: TensorType) -> tuple[Dim, ...]:
    """Steps in memory from one position of each axis to the next, in a tensor without gaps."""
    return tuple(prod(x.shape[place + 1 :]) for place in range(x.rank))


@rule("aten.sym_size", "aten.size")
def size(x: TensorType, dim: int | None = None) -> Estimate:
    """The length of an axis, or of all."""
    return number(*x.shape) if dim is None else number(x.shape[axis(dim, x.rank)])


@rule("aten.sym_stride", "aten.stride")
def stride(x: TensorType, dim: int | None = None) -> Estimate:
    """The step in memory along an axis, or along all, as if the tensor had no gaps."""
    return number(*strides(x)) if dim is None else number(strides(x)[axis(dim, x.rank)])


@rule("aten.sym_numel", "aten.numel")
def numel(x: TensorType) -> Estimate:
    """How many elements there are."""
    return number(x.numel)


@rule("aten.dim")
def dim(x: TensorType) -> Estimate:
    """How many axes there are."""
    return number(x.rank)


# Answered by the type; questions about memory are answered for a contiguous tensor.
_ANSWERS: dict[str, Callable[[TensorType], Value]] = {
    "is_complex": lambda x: x.dtype.kind == "complex",
    "is_floating_point": lambda x: x.dtype.kind == "float",
    "is_signed": lambda x: x.dtype.kind not in ("uint", "bool"),
    "sym_storage_offset": lambda x: data_dependent("storage_offset"),  # the storage offset of a view
    "storage_offset": lambda x: data_dependent("storage_offset"),
    "sym_is_contiguous": lambda x: True,
    "is_contiguous": lambda x: True,
    "is_conj": lambda x: False,
    "is_neg": lambda x: False,
    "is_inference": lambda x: False,
    "is_pinned": lambda x: False,
    "is_distributed": lambda x: False,
    "is_coalesced": lambda x: False,
    "_is_zerotensor": lambda x: False,
    "retains_grad": lambda x: False,
    "is_leaf": lambda x: not x.requires_grad,
    "output_nr": lambda x: 0,
    "_version": lambda x: 0,
    "_debug_has_internal_overlap": lambda x: 0 if x.stored is None else 1,
}


def _register_answer(name: str, answer: Callable[[TensorType], Value]) -> None:
    @rule(f"aten.{name}")
    def ask(x: TensorType, *unused: Value) -> Estimate:
        """Free: the answer follows from the tensor's type."""
        return number(answer(x))


for _name, _answer in _ANSWERS.items():
    _register_answer(_name, _answer)


@rule("aten.is_same_size")
def is_same_size(a: TensorType, b: TensorType) -> Estimate:
    """True if two shapes are equal; no value if that depends on unknown sizes."""
    if a.rank != b.rank or any(map(differ, a.shape, b.shape)):
        return number(False)
    return number(True if all(map(same, a.shape, b.shape)) else None)


# Reads of single elements.


@rule("aten.item", "aten._local_scalar_dense")
def item(x: TensorType) -> Estimate:
    """Reads the only element, unless its value is known."""
    if isinstance(x.value, (int, Expr)):
        return number(x.value)
    return Estimate((data_dependent("item"),), reads=(x,), writes=())


@rule("aten.is_nonzero")
def is_nonzero(x: TensorType) -> Estimate:
    """Reads and compares the only element, unless its value is known."""
    if isinstance(x.value, int):
        return number(x.value != 0)
    return Estimate((data_dependent("is_nonzero"),), vector_flops=1, reads=(x,), writes=())


# Assertions: no work; a few return a token that orders them.


@rule("aten._assert_scalar", "aten.sym_constrain_range", "aten.sym_constrain_range_for_size", "aten._print")
def promise(condition: Value, assert_msg: Value = None, *, min: Value = None, max: Value = None) -> Estimate:
    """Nothing."""
    return free(alias=False)


@rule("aten._functional_assert_scalar")
def functional_assert_scalar(condition: Value, assert_msg: Value, dep_token: TensorType) -> Estimate:
    """Nothing."""
    return free(dep_token)


@rule("aten._functional_sym_constrain_range", "aten._functional_sym_constrain_range_for_size")
def functional_constrain_range(size: Value, min: Value, max: Value, dep_token: TensorType) -> Estimate:
    """Nothing."""
    return free(dep_token)


@rule("aten._assert_tensor_metadata")
def assert_tensor_metadata(
    a: TensorType,
    size: Sequence[Dim] | None = None,
    stride: Sequence[Dim] | None = None,
    dtype: object = None,
) -> Estimate:
    """Nothing."""
    return free(alias=False)


@rule("aten._assert_async")
def assert_async(x: TensorType, assert_msg: str = "") -> Estimate:
    """Reads the only element."""
    return Estimate(reads=(x,))


@rule("aten._functional_assert_async")
def functional_assert_async(x: TensorType, assert_msg: str, dep_token: TensorType) -> Estimate:
    """Reads the only element."""
    return Estimate((dep_token,), reads=(x,), writes=())


@rule("aten._make_dep_token")
def make_dep_token(*, dtype: object = None) -> Estimate:
    """An empty token."""
    return free(TensorType((), FLOAT32), alias=False)


# Hints for profilers, debuggers and the caching allocator.


@rule("profiler._record_function_enter", "profiler._record_function_enter_new")
def record_function_enter(name: str, args: str | None = None) -> Estimate:
    """Free: the result is a handle."""
    return free(None, alias=False)


@rule("profiler._record_function_exit", "aten.record_stream", "aten.retain_grad", "aten._propagate_xla_data")
def note(*unused: Value) -> Estimate:
    """Nothing."""
    return free(alias=False)
