"""The CPU's time for a call in eager execution: Python, the dispatcher, autograd, and the launches.

The host section of a device's profile has the seconds of one call by the operator or its kind. A program of small kernels
runs at the speed of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.tensor import TensorType
from graphflops.time.kernel import Recurrence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphflops.ops import Op
    from graphflops.time.kernel import Kernel

    Costs = Mapping[str, float]

_NOTHING = frozenset({"size", "sequence", "control"})


def waits(operator: Op, operands: Iterable[object]) -> bool:
    """Whether the CPU waits for the GPU: it reads a number, or how many elements the result has."""
    if operator.is_read_by_cpu:
        return True
    return operator.name in ("index", "index_put") and any(
        isinstance(each, TensorType) and each.dtype.name == "bool" for each in tuple(operands)[1:]
    )


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
    return sum([costs.get(f"forward.module.{library}", costs["forward.module"]) for library in modules])


def backward_seconds(costs: Costs, operator: Op, kernels: Sequence[Kernel], parameters: int) -> float:
    """CPU time of the gradients of a call, some of which are those of parameters. kernels: with sums of gradients."""
    own = _launching(costs, "backward", operator, kernels) if kernels else costs["backward.without_kernel"]
    return own + parameters * costs["backward.parameter"]


def _launching(costs: Costs, phase: str, operator: Op, kernels: Sequence[Kernel]) -> float:
    """Of a call that launches kernels: by operator where it has a cost of its own, else by kind, else as any call."""
    steps = recurrent_steps(kernels)
    if steps:
        return steps * costs["recurrent_step"]
    if operator.kind == "attention" and all(kernel.family != "attention" for kernel in kernels):
        return len(kernels) * costs[f"{phase}.inside"]  # unfused, by one operator that calls the others
    names = [f"{phase}.{name}" for name in (operator.name, operator.kind, "call")]
    own = next(costs[name] for name in names if name in costs)
    return own + (len(kernels) - 1) * costs[f"{phase}.further_kernel"]


def recurrent_steps(kernels: Sequence[Kernel]) -> int:
    """Steps of recurrent layers, each of which launches kernels of its own."""
    found = [kernel.sizes for kernel in kernels if isinstance(kernel.sizes, Recurrence)]
    return sum(sizes.steps * sizes.layers * sizes.directions for sizes in found)
