"""The CPU's time for a call in eager execution: Python, the dispatcher, autograd, and the launches.

Microseconds of one call by the kind of its operator, fitted to the host times of half of 87 models with PyTorch 2.11 beside
an H200; for the other half they err by 13 % (mean) and 10 % (median), as much as two runs of one program differ. A
program of small kernels runs at the speed of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.time.kernel import Recurrence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.ops import Op
    from graphflops.time.kernel import Kernel

_MICROSECOND = 1e-6
_VIEW = 4.1  # a call that launches nothing
_SKIPPED = 3.8  # a dropout outside of training, a cast to the same type
_CALL = 15.3  # any other call
_CALL_OF_KIND = {
    "attention": 29.9,
    "convolution": 23.7,
    "normalisation": 15.3,
    "creation": 7.6,
    "gather": 14.2,
    "scatter": 14.2,
    "movement": 14.8,
    "view": 14.8,
    "identity": 14.8,
    "pooling": 18.8,
    "resampling": 18.8,
    "product": 19.2,
    "reduction": 16.6,
    "softmax": 16.6,
    "scan": 16.6,
    "sort": 28.0,
    "collective": 125.0,
}
_BATCH_NORM = 23.2
_RECURRENT_STEP = 8.0  # of each step of each layer
_NOTHING = frozenset({"size", "sequence", "control"})
_MODULE = 2.4  # entering a module and leaving it
_RECORDING = 11.0  # keeping a node of the autograd graph
_BACKWARD_CALL = 14.5
_BACKWARD_VIEW = 9.5
_BACKWARD_OF_KIND = {
    "attention": 45.0,
    "convolution": 45.0,
    "normalisation": 27.0,
    "gather": 26.0,
    "movement": 11.0,
    "pooling": 21.0,
    "product": 31.5,
    "reduction": 14.0,
}
_PARAMETER = 11.0  # storing the gradient of a parameter


def forward_seconds(operator: Op, kernels: Sequence[Kernel], *, records: bool, modules: int) -> float:
    """CPU time of a call. records: whether autograd keeps it for the backward. modules: those that are entered for it."""
    if operator.kind in _NOTHING:
        return 0.0
    return (_call(operator, kernels) + records * _RECORDING + modules * _MODULE) * _MICROSECOND


def _call(operator: Op, kernels: Sequence[Kernel]) -> float:
    if not kernels:
        return _SKIPPED if operator.kind in ("dropout", "cast") else _VIEW
    if operator.name == "batch_norm":
        return _BATCH_NORM
    if (steps := _steps(kernels)) > 0:
        return steps * _RECURRENT_STEP
    return _CALL_OF_KIND.get(operator.kind, _CALL)


def _steps(kernels: Sequence[Kernel]) -> int:
    """Steps of recurrent layers, each of which launches kernels of its own."""
    found = [kernel.sizes for kernel in kernels if isinstance(kernel.sizes, Recurrence)]
    return sum(sizes.steps * sizes.layers * sizes.directions for sizes in found)


def backward_seconds(operator: Op, kernels: Sequence[Kernel], parameters: int) -> float:
    """CPU time of the gradients of a call, some of which are those of parameters."""
    own = _BACKWARD_OF_KIND.get(operator.kind, _BACKWARD_CALL) if kernels else _BACKWARD_VIEW
    own = max(own, _steps(kernels) * _RECURRENT_STEP)
    return (own + parameters * _PARAMETER) * _MICROSECOND
