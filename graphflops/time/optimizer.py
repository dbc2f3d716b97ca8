"""Kernels of an optimizer step: many parameters in one kernel each pass (foreach), all in one (fused), or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.time.kernel import Kernel
from graphflops.time.launches import Launches

if TYPE_CHECKING:
    from graphflops.passes.program import PricedProgram
    from graphflops.tensor import TensorType
    from graphflops.time.concrete import Sizes

_MOST_IN_ONE = 48  # tensors of one multi-tensor kernel, about: its arguments must fit in 4 kB
_HOST_EACH = 1.2e-6  # CPU seconds of a parameter in one foreach call
_HOST_CALL = 12e-6
# Reads and writes of each pass of AdamW over all parameters, in tensors (torch/optim/adamw.py, _multi_tensor_adamw).
_ADAMW_PASSES = ((1, 1), (2, 1), (1, 1), (3, 1), (1, 1), (1, 1), (1, 1), (1, 1), (3, 1))


def optimizer_launches(program: PricedProgram, sizes: Sizes) -> list[Launches]:
    """One AdamW step over all trained parameters as PyTorch's foreach implementation runs it."""
    trained = [value for _, value in program.typed_inputs("parameter") if value.requires_grad]
    by_dtype: dict[str, list[TensorType]] = {}
    for value in trained:
        by_dtype.setdefault(value.dtype.name, []).append(value)
    launches = []
    for dtype, group in by_dtype.items():
        nbytes = sum(sizes(value.nbytes) for value in group)
        kernels = max(1, -(-len(group) // _MOST_IN_ONE))
        for read, written in _ADAMW_PASSES:
            each = Kernel(*("optimizer", dtype), 0, 0, read * nbytes // kernels, written * nbytes // kernels)
            host = _HOST_CALL + len(group) * _HOST_EACH
            launches.append(Launches(-1, (each,) * kernels, host))
    return launches
