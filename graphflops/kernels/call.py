"""One call with a number for each size, which kernels are launched with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from graphflops.base.record import replace
from graphflops.cost import Cost, Value
from graphflops.dims import Dim, evaluate
from graphflops.execution.strides import is_contiguous, row_major
from graphflops.graph import Ref
from graphflops.kernels.kernel import AttentionKernel
from graphflops.ops.operator import orders
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

# Kinds whose gradients read that of the result in order: if it repeats one number, it is copied to all elements first.
READING_IN_ORDER = frozenset(
    {"product", "convolution", "normalisation", "attention", "softmax", "pooling", "resampling", "recurrent"}
)
_MOST = 2**80  # bytes, elements or operations: far more than one call on any device has


class OpenSizeError(Exception):
    """A size of a call has no number, or has one that no device can hold."""


class Tensor(Struct, frozen=True):
    """A tensor of known sizes. strides: in elements, by axis. nbytes: each element of a broadcast view counts once."""

    shape: tuple[int, ...]
    dtype: str
    bits: int
    strides: tuple[int, ...]
    nbytes: int
    requires_grad: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def full_bytes(self) -> int:
        """Bytes of all elements, with those that a broadcast view repeats."""
        return self.numel * self.bits // 8

    def permuted(self, *order: int) -> Tensor:
        """The tensor with these axes in this order."""
        shape, strides = (tuple([each[axis] for axis in order]) for each in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    @property
    def is_repeated(self) -> bool:
        """Whether it is a broadcast view, several of whose elements share memory."""
        return any(size > 1 and not step for size, step in zip(self.shape, self.strides, strict=True))

    @property
    def is_transposed(self) -> bool:
        """Whether the last axis is not contiguous but the one before it is."""
        return self.rank > 1 and self.strides[-1] != 1 and self.strides[-2] == 1


class Sizes:
    """Turns sizes into numbers, given the values of the symbols."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values

    def __call__(self, dim: Dim) -> int:
        """The number of a size. Raises OpenSizeError if a symbol has no value."""
        number = dim if isinstance(dim, int) else evaluate(dim, self.values)
        if number is None or number > _MOST:
            raise OpenSizeError(str(dim))
        return number if number > 0 else 0

    def bound(self, value: Value) -> Value:
        """A tensor's type with numbers as sizes; other values unchanged."""
        if not isinstance(value, TensorType) or (shape := self.numbers(value.shape)) is value.shape:
            return value
        return replace(value, shape=shape, stored=None)

    def numbers(self, dims: tuple[Dim, ...]) -> tuple[int, ...]:
        """The numbers of sizes or strides; the same object if they are numbers."""
        return dims if {*map(type, dims)} <= {int} else tuple(map(self, dims))  # type: ignore[return-value]

    def tensor(self, value: TensorType, strides: tuple[Dim, ...] | None = None) -> Tensor:
        """A tensor with numbers as sizes; row-major unless strides are given."""
        shape, dtype = self.numbers(value.shape), value.dtype
        self(prod(shape))
        steps = row_major(shape) if strides is None else strides
        size = self(value.nbytes)
        return Tensor(shape, dtype.name, dtype.bits, self.numbers(steps), size, value.requires_grad)

    def known(self, value: TensorType, strides: tuple[Dim, ...] | None = None) -> Tensor | None:
        """The same; None if a size is open."""
        try:
            return self.tensor(value, strides)
        except OpenSizeError:
            return None


class ConcreteCall(Struct, eq=False, dict=True):
    """A call as it runs: operands by argument name; results and costs as numbers."""

    call: PricedCall
    values: Mapping[str, Value]
    strides: Mapping[str, tuple[Dim, ...]]
    sizes: Sizes
    is_copy: bool | None = None  # whether `reshape` or `contiguous` copies; None if the estimate decides
    attention_kernel: AttentionKernel | None = None  # that PyTorch chooses; None for other calls
    known: dict[
        str, Tensor | None
    ] = {}  # by name, what other calls with these values, strides and sizes have found
    is_repeated: bool = False  # whether the gradient of its result repeats one number, as that of a sum does

    def __post_init__(self) -> None:
        given = self.call
        self.operator, self.estimate, self.gradient = given.node.operator, given.estimate, given.gradient

    @property
    def gradients(self) -> Sequence[tuple[int, bool]]:
        """Places of the operands that get a gradient, each with whether the gradient has memory of its own."""
        return () if self.gradient is None else self.gradient.gradients

    @cached_property
    def own(self) -> dict[str, Any]:
        """Arguments by their names in torch's schema."""
        node = self.call.node
        names = next(iter(orders(node.op)), ())
        return {**dict(zip(names, node.args, strict=False)), **dict(node.kwargs)}

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments by canonical name."""
        return self.call.node.arguments()

    def typed(self, name: str) -> TensorType:
        """The type of a tensor, with numbers as sizes."""
        found = self.bound_types[name]
        assert isinstance(found, TensorType)
        return found

    def of(self, name: str) -> tuple[int, ...]:
        """The strides of a tensor."""
        found = self.named(name)
        assert found is not None
        return found.strides

    def named(self, name: str) -> Tensor | None:
        """The tensor of this name; None for other values."""
        if name not in self.known:
            value, strides = self.values.get(name), self.strides.get(name)
            self.known[name] = self.sizes.tensor(value, strides) if isinstance(value, TensorType) else None
        return self.known[name]

    def operand(self, *names: str) -> Tensor | None:
        """The first of these arguments that is a tensor."""
        for name in names:
            argument = self.arguments.get(name)
            if isinstance(argument, Ref) and (found := self.named(argument.name)) is not None:
                return found
        return None

    def wants(self, *names: str) -> bool:
        found = (self.operand(name) for name in names)
        return any(tensor is not None and tensor.requires_grad for tensor in found)

    @cached_property
    def bound_types(self) -> dict[str, Value]:
        """The types of operands and results, with numbers as sizes."""
        names = (*self.call.uses, *[name for name in self.call.node.outputs if name is not None])
        return {name: self.sizes.bound(self.values.get(name)) for name in names}

    @cached_property
    def operands(self) -> tuple[Tensor, ...]:
        found = (self.named(name) for name in self.call.uses)
        return tuple([tensor for tensor in found if tensor is not None])

    @cached_property
    def results(self) -> tuple[Tensor, ...]:
        """The results that are tensors, with their estimated types, and their strides where known."""
        names = (*self.call.node.outputs, *[None] * len(self.estimate.out))
        pairs = zip(self.estimate.out, names, strict=False)
        typed = [(x, name or "") for x, name in pairs if isinstance(x, TensorType)]
        known = [self.named(name) if self.values.get(name) is x else None for x, name in typed]
        made = zip(known, typed, strict=True)
        return tuple([tensor or self.sizes.tensor(x, self.strides.get(name)) for tensor, (x, name) in made])

    @property
    def out(self) -> Tensor | None:
        return self.results[0] if self.results else None

    @cached_property
    def cost(self) -> Work:
        """The forward's work and traffic."""
        return self._work(self.estimate.cost)

    @cached_property
    def backward_cost(self) -> Work:
        """The gradients' work and traffic; nothing if there are none."""
        return Work() if self.gradient is None else self._work(self.gradient.estimate.cost)

    def _work(self, cost: Cost) -> Work:
        dims = astuple(cost)
        known = [dim for dim in dims if isinstance(dim, int) and 0 <= dim <= _MOST]
        return Work(*(known if len(known) == len(dims) else map(self.sizes, dims)))


class Work(Struct, frozen=True):
    """Work and traffic of a call as numbers, in the order of `Cost`."""

    matrix_flops: int = 0
    vector_flops: int = 0
    transcendentals: int = 0
    masked_flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    link_bytes: int = 0

    @property
    def moved(self) -> tuple[int, int]:
        return self.read_bytes, self.written_bytes

    @property
    def arithmetic(self) -> int:
        """Operations outside of matrix units; a transcendental counts as one."""
        return self.vector_flops + self.transcendentals
