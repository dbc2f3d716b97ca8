"""Sizes of a program as they turn out when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.dims import evaluate, symbol
from graphflops.runtime.validation import CheckResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.dims import Dim
    from graphflops.tensor import TensorType


@dataclass
class RunSizes:
    """What is known of a program's symbols; those that only data tell are added as they are met."""

    known: dict[str, int]

    def meet(self, size: Dim, real: int) -> int | None:
        """What a size is by all that is known; an open one is what it turns out to be. None where it stays open."""
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
        """A derived type against that of a tensor: `equal` or `different`."""
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
    """`float32[2, 8]`; `?` for a size that nobody knows."""
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"
