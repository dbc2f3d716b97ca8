"""Rules made of other functions: they take the same arguments and change the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from graphflops.cost import Estimate


@dataclass(frozen=True)
class Derived:
    """A rule with the parameters of `base` that returns `change` of what `base` returns."""

    base: Callable[..., Any]
    change: Callable[[Any], Estimate]

    @property
    def __code__(self) -> CodeType:
        """Where the table of rules finds the parameters' names."""
        return self.base.__code__

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Where its description is found."""
        return self.base

    def __call__(self, *args: object, **kwargs: object) -> Estimate:
        return self.change(self.base(*args, **kwargs))
