"""What counters said of kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Fused multiply-adds by element type. Half precision is left out: HFMA and HFMA2, which does two, count alike, and compilers
# move constants with them.
_FUSED = {"float32": "ffma", "float64": "dfma"}
_NOT_MATRIX = 64  # a kernel with less than this part of the largest kernel's FLOPs only accompanies it


@dataclass(frozen=True)
class KernelCount:
    """What one launch of a kernel did.

    name: the kernel's, demangled.
    tensor_flops: operations of the tensor cores by element type of their operands, tiles counted whole.
    instructions: arithmetic instructions outside of them by name (ffma, fadd, ...), one for each thread that executed it.
    grid: blocks launched along each axis.
    dram_read, dram_written: bytes, the caches emptied before the launch; what stays in them is not written.
    """

    name: str
    tensor_flops: Mapping[str, int]
    instructions: Mapping[str, int]
    grid: tuple[int, ...]
    dram_read: int
    dram_written: int

    @property
    def fma_flops(self) -> dict[str, int]:
        """FLOPs of fused multiply-adds outside of the tensor cores, by element type."""
        counts = {dtype: 2 * self.instructions.get(name, 0) for dtype, name in _FUSED.items()}
        return {dtype: flops for dtype, flops in counts.items() if flops}

    @property
    def flops(self) -> int:
        """FLOPs of the tensor cores; of a kernel that does not use them, of its fused multiply-adds."""
        return sum(self.tensor_flops.values()) or sum(self.fma_flops.values())

    @property
    def on_tensor_cores(self) -> bool:
        """Whether it used the tensor cores."""
        return any(self.tensor_flops.values())


@dataclass(frozen=True)
class RangeCount:
    """What the kernels of one range did, in the order of their launches."""

    kernels: tuple[KernelCount, ...]

    @property
    def tensor_flops(self) -> dict[str, int]:
        """Operations of the tensor cores, by element type of their operands."""
        return _summed(kernel.tensor_flops for kernel in self.kernels)

    @property
    def fma_flops(self) -> dict[str, int]:
        """FLOPs of fused multiply-adds outside of the tensor cores, by element type, those of elementwise work included."""
        return _summed(kernel.fma_flops for kernel in self.kernels)

    @property
    def dram_read(self) -> int:
        """Bytes read from memory."""
        return sum(kernel.dram_read for kernel in self.kernels)

    @property
    def dram_written(self) -> int:
        """Bytes written to memory."""
        return sum(kernel.dram_written for kernel in self.kernels)

    @property
    def matrix_kernels(self) -> tuple[KernelCount, ...]:
        """The kernels that did the bulk of the arithmetic: all on tensor cores, others if their share is worth the name."""
        most = max((kernel.flops for kernel in self.kernels), default=0)
        return tuple(
            kernel
            for kernel in self.kernels
            if kernel.on_tensor_cores or (kernel.flops and kernel.flops * _NOT_MATRIX >= most)
        )

    @property
    def flops(self) -> int:
        """FLOPs of the matrix kernels."""
        return sum(kernel.flops for kernel in self.matrix_kernels)


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return {name: number for name, number in total.items() if number}
