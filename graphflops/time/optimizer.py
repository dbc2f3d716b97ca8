"""Kernels of an optimizer step: many parameters in one kernel each pass (foreach), all in one (fused), or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.passes.optimizer import trained
from graphflops.time.kernel import Kernel
from graphflops.time.launches import Launches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.passes.program import PricedProgram
    from graphflops.time.concrete import Sizes

_MOST_IN_ONE = 48  # tensors of one multi-tensor kernel, about: its arguments must fit in 4 kB
# Reads and writes of each pass over all parameters, in tensors of their size (torch/optim: adam.py, sgd.py, _adafactor.py).
_ADAM = ((2, 1), (1, 1), (3, 1), (1, 1), (1, 1), (1, 1), (1, 1), (3, 1))
_PASSES = {
    "sgd": ((2, 1),),
    "momentum": ((1, 1), (2, 1), (2, 1)),
    "adam": _ADAM,
    "adamw": ((1, 1), *_ADAM),
    "adafactor": ((1, 0), (1, 0), (1, 0), (0, 1), (1, 1), (1, 1), (1, 1), (2, 1), (1, 0), (1, 1), (2, 1)),
}
_FUSED = {"sgd": (2, 1), "momentum": (3, 2), "adam": (4, 3), "adamw": (4, 3)}


def optimizer_launches(program: PricedProgram, sizes: Sizes, costs: Mapping[str, float]) -> list[Launches]:
    """One step over all trained parameters as PyTorch runs it. That of Muon is not known: its products are in no profile."""
    training = program.training
    if training is None or training.optimizer == "none":
        return []
    if training.optimizer == "muon":
        return [Launches(-1, None, 0.0)]
    by_dtype: dict[str, list[int]] = {}
    for parameter in trained(program):
        by_dtype.setdefault(parameter.type.dtype.name, []).append(sizes(parameter.type.nbytes))
    passes = _PASSES[training.optimizer]
    if training.implementation == "fused":
        passes = (_FUSED[training.optimizer],)
    one_by_one = training.implementation == "single"
    return [
        launch
        for dtype, group in by_dtype.items()
        for each in passes
        for launch in (_singly if one_by_one else _together)(dtype, group, each, costs)
    ]


def _together(
    dtype: str, group: Sequence[int], passed: tuple[int, int], costs: Mapping[str, float]
) -> list[Launches]:
    """One pass over all parameters. group: their bytes. passed: tensors read and written."""
    kernels = max(1, -(-len(group) // _MOST_IN_ONE))
    read, written = (tensors * sum(group) // kernels for tensors in passed)
    each = Kernel("optimizer", dtype, 0, 0, read, written)
    return [Launches(-1, (each,) * kernels, costs["optimizer.call"] + len(group) * costs["optimizer.tensor"])]


def _singly(
    dtype: str, group: Sequence[int], passed: tuple[int, int], costs: Mapping[str, float]
) -> list[Launches]:
    """The same pass, one call for each parameter."""
    read, written = passed
    return [
        Launches(
            -1, (Kernel("optimizer", dtype, 0, 0, read * size, written * size),), costs["optimizer.single"]
        )
        for size in group
    ]
