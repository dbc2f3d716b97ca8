"""Kernels of an optimizer step: many parameters in one kernel each pass (foreach), all in one (fused), or one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from graphflops.kernels.call import OpenSizeError, Sizes
from graphflops.kernels.kernel import Chunks, Kernel
from graphflops.passes.optimizer import trained
from graphflops.passes.program import PricedProgram
from graphflops.tensor import FLOAT32, DType
from graphflops.time.schedule import Launches

_CHUNK = 65536  # elements that a thread block works through (MultiTensorApply.cuh of ATen)
_MOST_BLOCKS = 320  # of one kernel
_MOST_ELEMENTS = 2**44  # more than any device holds: their kernels are not listed
# Of one kernel, by how many of each parameter it works on.
_MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_MOST_WITH_SCALARS = 96  # where it works on one, with a factor for each


class Pass(NamedTuple):
    """One operator over all parameters. read, written: tensors of their size. variant: arithmetic that takes longer.

    tensors: how many of each parameter the kernel works on. has_scalars: whether each parameter has a factor of its own.
    """

    tensors: int
    read: int
    written: int
    variant: str = ""
    has_scalars: bool = False


_SCALE = Pass(1, 1, 1)  # by one number
_ADD = Pass(2, 2, 1)
_DIVIDE = Pass(1, 1, 1, "division", has_scalars=True)
_QUOTIENT = Pass(3, 3, 1, "quotient", has_scalars=True)
_ROOT = Pass(2, 1, 1, "root")
_SQUARE = Pass(3, 2, 1)  # added to another tensor
# torch/optim: adam.py, sgd.py, _adafactor.py
_ADAM = (_ADD, _SCALE, _SQUARE, _ROOT, _DIVIDE, _SCALE, _QUOTIENT)
_PASSES = {
    "sgd": (_ADD,),
    "momentum": (_SCALE, _ADD, _ADD),
    "adam": _ADAM,
    "adamw": (_SCALE, *_ADAM),
    "adafactor": tuple(
        Pass(max(moved), *moved)
        for moved in (*((1, 0),) * 3, (0, 1), *((1, 1),) * 3, (2, 1), (1, 0), (1, 1), (2, 1))
    ),
}
_FUSED = {
    "sgd": _ADD,
    "momentum": Pass(3, 3, 2, "fused"),
    "adam": Pass(4, 4, 3, "fused"),
    "adamw": Pass(4, 4, 3, "fused"),
}
# On the device, where they are fused: one number for each parameter.
_COUNTS_STEPS = frozenset({"adam", "adamw"})


def optimizer_launches(program: PricedProgram, sizes: Sizes, costs: Mapping[str, float]) -> list[Launches]:
    """One step over all trained parameters as PyTorch runs it. That of Muon is not known: its products are in no profile."""
    training = program.training
    if training is None or training.optimizer == "none":
        return []
    if training.optimizer == "muon":
        return [Launches(-1, None, 0.0)]
    by_dtype: dict[DType, list[int]] = {}
    try:
        for parameter in trained(program):
            by_dtype.setdefault(parameter.type.dtype, []).append(sizes(parameter.type.numel))
    except OpenSizeError:
        return [Launches(-1, None, 0.0)]
    if sum(map(sum, by_dtype.values())) > _MOST_ELEMENTS:
        return [Launches(-1, None, 0.0)]
    passes = _PASSES[training.optimizer]
    if training.implementation == "fused":
        passes = (_FUSED[training.optimizer],)
    run = _singly if training.implementation == "single" else _together
    tensors = sum(map(len, by_dtype.values()))
    launches = [Launches(-1, (), costs["optimizer.start"] + tensors * costs["optimizer.parameter"])]
    if training.implementation == "fused" and training.optimizer in _COUNTS_STEPS:
        launches += _together(FLOAT32, [1] * tensors, _SCALE, costs)
    for dtype, group in by_dtype.items():
        found = {each: run(dtype, group, each, costs) for each in dict.fromkeys(passes)}
        launches += [launch for each in passes for launch in found[each]]
    return launches


def _together(dtype: DType, group: Sequence[int], passed: Pass, costs: Mapping[str, float]) -> list[Launches]:
    """One pass over all parameters. group: their elements."""
    moved = [tensors * dtype.bits // 8 for tensors in (passed.read, passed.written)]
    kernels: list[Kernel] = []
    known: dict[_Packed, Kernel] = {}
    for packed, times in _packed(group, passed):
        if packed not in known:
            read, written = (size * packed.elements for size in moved)
            sizes = Chunks(packed.chunks, packed.largest)
            known[packed] = Kernel(
                "optimizer", dtype.name, 0, 0, read, written, sizes, variant=passed.variant
            )
        kernels += [known[packed]] * times
    seconds = costs["optimizer.call"] + len(group) * passed.tensors * costs["optimizer.tensor"]
    return [Launches(-1, tuple(kernels), seconds)]


class _Packed(NamedTuple):
    """What one kernel works on: chunks, elements in all, and those of the largest chunk."""

    chunks: int = 0
    elements: int = 0
    largest: int = 0


def _packed(group: Sequence[int], passed: Pass) -> Iterator[tuple[_Packed, int]]:
    """The kernels in order, each with how many equal ones follow: as many chunks as the arguments of a kernel can hold."""
    most = _MOST_TENSORS[passed.tensors]
    if passed.has_scalars:
        most = min(most, _MOST_WITH_SCALARS)
    packed, tensors = _Packed(), 0
    for size in filter(None, group):
        tensors += 1
        left = size
        while left:
            full = left // (_MOST_BLOCKS * _CHUNK) if not packed.chunks else 0
            if full:
                yield _Packed(_MOST_BLOCKS, _MOST_BLOCKS * _CHUNK, _CHUNK), full
                left -= full * _MOST_BLOCKS * _CHUNK
                tensors = 1 if left else 0
                continue
            taken = min(left, (_MOST_BLOCKS - packed.chunks) * _CHUNK)
            packed = _Packed(
                packed.chunks + -(-taken // _CHUNK),
                packed.elements + taken,
                max(packed.largest, min(left, _CHUNK)),
            )
            left -= taken
            if packed.chunks == _MOST_BLOCKS or (tensors == most and not left):
                yield packed, 1
                packed, tensors = _Packed(), 1 if left else 0
    if packed.chunks:
        yield packed, 1


def _singly(dtype: DType, group: Sequence[int], passed: Pass, costs: Mapping[str, float]) -> list[Launches]:
    """The same pass, one call for each parameter."""
    width = dtype.bits // 8
    kernels = [
        Kernel("elementwise", dtype.name, 0, 0, passed.read * width * size, passed.written * width * size)
        for size in group
    ]
    return [Launches(-1, (kernel,), costs["optimizer.single"]) for kernel in kernels]
