"""The CPU's time for a call in eager execution: Python, the dispatcher, autograd, and the launches.

Seconds of one call by the kind of its operator, on the host of the device's profile. A kernel is launched some microseconds
after the call before has returned, so a program of small kernels runs at the speed of the CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphflops.ops import Op

_MICROSECOND = 1e-6
_VIEW = 1.6  # microseconds of a call that launches nothing
_LAUNCH = 2.6  # of each kernel
_CALL = 3.0  # of a call beside its launches
_CALL_OF_KIND = {
    "product": 5.0,
    "convolution": 14.0,
    "normalisation": 6.0,
    "attention": 14.0,
    "reduction": 4.5,
    "gather": 5.0,
    "movement": 5.0,
    "recurrent": 60.0,
    "sort": 10.0,
}
_NOTHING = frozenset({"size", "sequence"})
_MODULE = 1.3  # entering a module and leaving it
_RECORDING = 1.3  # keeping a node of the autograd graph
_BACKWARD_CALL = 4.0
_BACKWARD_OF_KIND = {
    "view": 1.5,
    "identity": 1.5,
    "product": 6.0,
    "convolution": 20.0,
    "attention": 18.0,
    "normalisation": 9.0,
}


def forward_seconds(operator: Op, kernels: int, *, records: bool, modules: int) -> float:
    """CPU time of a call. records: whether autograd keeps it for the backward. modules: those that are entered for it."""
    if operator.kind in _NOTHING:
        return 0.0
    own = _CALL_OF_KIND.get(operator.kind, _CALL) if kernels else _VIEW
    return (own + kernels * _LAUNCH + records * _RECORDING + modules * _MODULE) * _MICROSECOND


def backward_seconds(operator: Op, kernels: int) -> float:
    """CPU time of the gradients of a call."""
    return (_BACKWARD_OF_KIND.get(operator.kind, _BACKWARD_CALL) + kernels * _LAUNCH) * _MICROSECOND
