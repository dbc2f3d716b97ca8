"""The CPU's time for a call in eager execution: Python, the dispatcher, autograd, and the launches.

The host section of a device's profile has the seconds of one call by the operator or its kind. A program of small kernels
runs at the speed of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.kernels.kernel import Recurrence
from graphflops.tensor import TensorType
from graphflops.time.predict_recurrences import is_resident

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.kernels.kernel import Kernel
    from graphflops.ops import Op

    Costs = Mapping[str, float]

_NOTHING = frozenset({"size", "sequence", "control"})


def waits(operator: Op, operands: Iterable[object]) -> bool:
    """Whether the CPU waits for the GPU: it reads a number, or how many elements the result has."""
    if operator.is_read_by_cpu:
        return True
    return operator.name in ("index", "index_put") and any(
        isinstance(each, TensorType) and each.dtype.name == "bool" for each in tuple(operands)[1:]
    )


def start_seconds(costs: Costs, stacks: Iterable[str]) -> float:
    """CPU time of a forward outside of its calls. stacks: of modules; some libraries wrap the forwards of their models."""
    libraries = {library(entry) for stack in set(stacks) if stack for entry in stack.split(";")}
    return costs["forward.start"] + sum(costs.get(f"forward.start.{name}", 0.0) for name in sorted(libraries))


def library(entry: str) -> str:
    """The library that the class of a module is from, of an entry of a stack of modules."""
    return entry.rpartition(",")[2].partition(".")[0]


def forward_seconds(
    costs: Costs, operator: Op, kernels: Sequence[Kernel], *, records: bool, modules: Sequence[str]
) -> float:
    """CPU time of a call. records: whether autograd keeps it. modules: the libraries of those entered."""
    entered = entering_seconds(costs, modules)
    if operator.kind in _NOTHING:
        return entered + operator.is_read_by_cpu * costs["forward.call"]
    if not kernels:
        own = costs["forward.skipped" if operator.kind in ("dropout", "cast") else "forward.without_kernel"]
    else:
        own = _launching(costs, "forward", operator, kernels)
    return own + records * costs["forward.recording"] + entered


def entering_seconds(costs: Costs, modules: Sequence[str]) -> float:
    """CPU time of entering modules. modules: the library of each."""
    return sum([costs.get(f"forward.module.{name}", costs["forward.module"]) for name in modules])


def backward_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], parameters: int) -> float:
    """CPU time of the gradients of a call, some of which are those of parameters. kernels: with sums of gradients."""
    own = _launching(costs, "backward", operator, kernels) if kernels else costs["backward.without_kernel"]
    return own + parameters * costs["backward.parameter"]


def _launching(costs: Costs, phase: str, operator: Op, kernels: Sequence[Kernel]) -> float:
    """Of a call that launches kernels: by operator where it has a cost of its own, else by kind, else as any call."""
    if recurrent := recurrent_seconds(costs, kernels):
        return recurrent
    if operator.kind == "attention" and all(kernel.family != "attention" for kernel in kernels):
        return len(kernels) * costs[f"{phase}.inside"]  # unfused, by one operator that calls the others
    names = [f"{phase}.{name}" for name in (operator.name, operator.kind, "call")]
    own = next(costs[name] for name in names if name in costs)
    return own + (len(kernels) - 1) * costs[f"{phase}.further_kernel"]


def recurrent_seconds(costs: Costs, kernels: Sequence[Kernel]) -> float:
    """CPU time of recurrent layers: of the call, of each layer and direction, and of each step unless one kernel has all."""
    seconds = 0.0
    for kernel in kernels:
        sizes = kernel.sizes
        if isinstance(sizes, Recurrence):
            layers = sizes.layers * sizes.directions
            steps = 0 if is_resident(sizes, kernel.dtype) else sizes.steps * layers
            seconds += (
                costs["recurrent.call"] + layers * costs["recurrent.layer"] + steps * costs["recurrent.step"]
            )
    return seconds
