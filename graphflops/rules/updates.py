"""Writes of chosen elements: what a functional operator copies around them, an in-place one leaves alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.rules.registry import rule

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from graphflops.dims import Dim
    from graphflops.tensor import TensorType


@dataclass(frozen=True, slots=True)
class Update:
    """One write of chosen elements.

    target: the tensor written into.
    part: what is written of it.
    operands: what is read besides: the new values and where they go.
    flops: operations in all.
    combines: the old values of the part are read too.
    """

    target: TensorType
    part: TensorType
    operands: tuple[TensorType, ...]
    flops: Dim = 0
    combines: bool = False


def combined(x: TensorType, part: TensorType, operands: tuple[TensorType, ...], reduce: str | None) -> Update:
    """A part written, and combined with what is there where a reduction is named."""
    return Update(x, part, operands, reduction(reduce, part, x), reduce is not None)


def reduction(reduce: str | None, source: TensorType, target: TensorType) -> Dim:
    """Operations of combining every element of a source with what is there."""
    if reduce is None:
        return 0
    return 2 * source.numel + target.numel if reduce == "mean" else source.numel


def functional(done: Update) -> Estimate:
    """The update of a copy: the tensor is read and the result written in full."""
    return Estimate((done.target.like(),), vector_flops=done.flops, reads=(done.target, *done.operands))


@dataclass(frozen=True)
class Functional:
    """The rule of an update into a copy: the tensor is read and the result written in full."""

    update: Callable[..., Update]

    @property
    def __code__(self) -> CodeType:
        """Where the table of rules finds the parameters' names."""
        return self.update.__code__

    def __call__(self, *args: object, **kwargs: object) -> Estimate:
        return functional(self.update(*args, **kwargs))


@dataclass(frozen=True)
class InPlace:
    """The rule of an update in place: only the part that changes is touched."""

    update: Callable[..., Update]

    @property
    def __code__(self) -> CodeType:
        """Where the table of rules finds the parameters' names."""
        return self.update.__code__

    def __call__(self, *args: object, **kwargs: object) -> Estimate:
        done = self.update(*args, **kwargs)
        return Estimate(
            (done.target.view(done.target.shape),),
            vector_flops=done.flops,
            reads=(*done.operands, done.part) if done.combines else done.operands,
            writes=(done.part,),
            alias=True,
        )


def update(*names: str) -> Callable[[Callable[..., Update]], Callable[..., Update]]:
    """Register an update as the rule of each functional operator named and of its in-place twin."""

    def register(function: Callable[..., Update]) -> Callable[..., Update]:
        for name in names:
            base, dot, overload = name.partition(".")
            rule(f"aten.{name}")(Functional(function))
            rule(f"aten.{base}_{dot}{overload}")(InPlace(function))
        return function

    return register
