"""Writes of chosen elements: a functional operator copies the tensor around them, an in-place one touches only them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.rules.arrangement import Update, functional
from graphflops.rules.derived import Derived
from graphflops.rules.registry import rule

if TYPE_CHECKING:
    from collections.abc import Callable


def in_place(done: Update) -> Estimate:
    """The update in place: only the part that changes is touched."""
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
            rule(f"aten.{name}")(Derived(function, functional))
            rule(f"aten.{base}_{dot}{overload}")(Derived(function, in_place))
        return function

    return register
