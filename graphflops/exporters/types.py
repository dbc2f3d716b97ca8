"""Types as readers build them: one object per distinct type, sizes parsed once, example values kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Dim, parse_dim, prod, symbol
from graphflops.tensor import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Types:
    """Distinct tensor types and sizes of one program.

    hints: example value of each size that is an expression, where the file has one.
    """

    def __init__(self) -> None:
        self.hints: dict[Dim, int] = {}
        self._tensors: dict[tuple[tuple[Dim, ...], DType], TensorType] = {}
        self._variants: dict[tuple[TensorType, bool, Dim | None], TensorType] = {}

    def tensor(self, shape: tuple[Dim, ...], dtype: DType) -> TensorType:
        """The type of that shape and element type."""
        key = (shape, dtype)
        known = self._tensors.get(key)
        if known is None:
            known = self._tensors[key] = TensorType(shape, dtype)
        return known

    def variant(self, tensor: TensorType, requires_grad: bool, stored: Dim | None) -> TensorType:
        """The same for an input that is trained, or that repeats its memory along an axis."""
        key = (tensor, requires_grad, stored)
        known = self._variants.get(key)
        if known is None:
            known = self._variants[key] = replace(tensor, requires_grad=requires_grad, stored=stored)
        return known

    def dim(self, text: str, hint: int | None) -> Dim:
        """A size from its text; raises DimError for what is none."""
        dim = parse_dim(text)
        if hint is not None:
            self.hints.setdefault(dim, hint)
        return dim

    def sizes(self) -> Iterator[Dim]:
        """Every size of every tensor type so far."""
        for tensor in self._tensors.values():
            yield from tensor.shape


def storage(shape: Sequence[Dim], strides: Sequence[int | None]) -> Dim | None:
    """Elements in memory where an axis of stride zero repeats them; None where each has its own place."""
    kept = [size for size, stride in zip(shape, strides, strict=False) if stride != 0 or size == 1]
    return None if len(kept) == len(shape) else prod(kept)


def sparse(tensor: TensorType, name: str) -> TensorType:
    """The type of an input that stores only some of its elements: how many goes by the input's name."""
    return replace(tensor, nonzeros=symbol(f"{name}_nnz" if name.isidentifier() else "nnz"))
