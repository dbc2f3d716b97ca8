"""Sizes of a program that are found when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphflops.dims import Dim, evaluate, symbol
from graphflops.runtime.validation import CheckResult
from graphflops.tensor import TensorType


@dataclass
class RunSizes:
    """Known values of a program's symbols; data-dependent sizes are added when a run reveals them."""

    known: dict[str, int]

    def meet(self, size: Dim, real: int) -> int | None:
        """The value of a size; a symbol without a value is bound to `real`. None if the size remains unknown."""
        if isinstance(size, int):
            return size
        value = evaluate(size, self.known)
        if value is None and len(size.symbols) == 1:
            (name,) = size.symbols
            if size is symbol(name):
                self.known[name] = real
                return real
        return value

    def check(self, typed: TensorType, dtype: str, shape: Sequence[int]) -> CheckResult:
        """Compare a derived type with that of a tensor: `equal` or `different`."""
        sizes = [self.meet(size, real) for size, real in zip(typed.shape, shape, strict=False)]
        ran = written(dtype, shape)
        same = len(typed.shape) == len(shape) and all(
            size is None or size == real for size, real in zip(sizes, shape, strict=True)
        )
        if same and typed.dtype.name == dtype:
            return CheckResult("type", "equal", ran, ran)
        missing = [None] * (len(typed.shape) - len(sizes))
        return CheckResult("type", "different", written(typed.dtype.name, [*sizes, *missing]), ran)


def written(dtype: str, shape: Sequence[int | None]) -> str:
    """`float32[2, 8]`; `?` for an unknown size."""
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"
