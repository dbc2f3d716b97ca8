"""Kernels of an optimizer step: each pass in kernels over many parameters (foreach), in one pass (fused), or one by one."""

from collections.abc import Sequence

from graphflops.base.record import replace
from graphflops.kernels.call import Sizes
from graphflops.kernels.foreach import MOST_ELEMENTS, Pass, together
from graphflops.kernels.kernel import Kernel
from graphflops.passes.optimizer import trained
from graphflops.passes.program import PricedProgram
from graphflops.tensor import FLOAT32, DType, grouped
from graphflops.time.exchanges import Launches
from graphflops.time.schedule import Costs

# Passes over tensors of the parameters' sizes; bytes are counted in elements until the type is known.
_SCALE = Pass(1, 1, 1)  # by a scalar
_ADD = Pass(2, 2, 1)
_DIVIDE = Pass(1, 1, 1, "division", has_scalars=True)
_QUOTIENT = Pass(3, 3, 1, "quotient", has_scalars=True)
_ROOT = Pass(2, 1, 1, "root")
_SQUARE = Pass(3, 2, 1)  # a square, added to another tensor
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
_FUSED_ADAM = Pass(4, 4, 3, "fused")
_FUSED = {"sgd": _ADD, "momentum": Pass(3, 3, 2, "fused"), "adam": _FUSED_ADAM, "adamw": _FUSED_ADAM}
# If fused, their step counters are on the device: one number for each parameter.
_COUNTS_STEPS = frozenset({"adam", "adamw"})


def optimizer_launches(program: PricedProgram, sizes: Sizes, costs: Costs) -> list[Launches]:
    """One step over all trained parameters as PyTorch runs it. Muon's is unknown: no profile has its products."""
    training = program.training
    if training is None or training.optimizer == "none":
        return []
    found = [(each.type.dtype, sizes.known(each.type)) for each in trained(program)]
    by_dtype = grouped((dtype, x.numel) for dtype, x in found if x is not None)
    is_open = any(x is None for _, x in found) or sum(map(sum, by_dtype.values())) > MOST_ELEMENTS
    if is_open or training.optimizer == "muon":
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
        once = {each: run(dtype, group, each, costs) for each in dict.fromkeys(passes)}
        launches += [launch for each in passes for launch in once[each]]
    return launches


def _together(dtype: DType, group: Sequence[int], passed: Pass, costs: Costs) -> list[Launches]:
    """One pass over all parameters. group: their elements."""
    width = dtype.bits // 8
    passed = replace(passed, read=passed.read * width, written=passed.written * width)
    seconds = costs["optimizer.call"] + len(group) * passed.tensors * costs["optimizer.tensor"]
    return [Launches(-1, tuple(together(dtype.name, group, passed)), seconds)]


def _singly(dtype: DType, group: Sequence[int], passed: Pass, costs: Costs) -> list[Launches]:
    """The same pass, as one call for each parameter."""
    read, written = (round(moved * dtype.bits / 8) for moved in (passed.read, passed.written))
    kernels = [Kernel("elementwise", dtype.name, 0, 0, read * size, written * size) for size in group]
    return [Launches(-1, (kernel,), costs["optimizer.single"]) for kernel in kernels]
