"""One call as Python runs it on a GPU: what it allocates beside its results, and what its gradients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.devices import HOPPER
from graphflops.execution.runs import Runs
from graphflops.memory.on_gpu import Eager
from tests.one_call import program_of

if TYPE_CHECKING:
    from graphflops.passes.program import PricedCall


def eager(
    op: str, *args: Any, lies: dict[str, tuple[int, ...]] | None = None, **more: Any
) -> tuple[Eager, PricedCall]:
    """The execution and its call. lies: strides by name of operands that are not in order, `x0` first."""
    program = program_of(op, *args, **more)
    execution = Eager(program.main, program.training is not None, Runs((), HOPPER, is_eager=True))
    execution.layouts.known.update(lies or {})
    (call,) = execution.calls
    return execution, call
