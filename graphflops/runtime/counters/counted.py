"""Counts of kernels, from the hardware counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Fused multiply-adds by element type. Half precision is not counted: HFMA and HFMA2, which does two operations, share one
# counter, and compilers also move constants with them.
_FUSED = {"float32": "ffma", "float64": "dfma"}
_NOT_MATRIX = 64  # a kernel with less than 1/64 of the largest kernel's FLOPs is an auxiliary kernel


@dataclass(frozen=True)
class KernelCount:
    """Counts of one kernel launch.

    name: demangled name of the kernel.
    tensor_flops: FLOPs of the tensor cores by element type of the operands, in whole tiles.
    instructions: other arithmetic instructions by name (ffma, fadd, ...), one for each thread that executed it.
    grid: blocks launched along each axis.
    dram_read, dram_written: bytes, with empty caches before the launch; data that remains in a cache is not written.
    """

    name: str
    tensor_flops: Mapping[str, int]
    instructions: Mapping[str, int]
    grid: tuple[int, ...]
    dram_read: int
    dram_written: int

    @property
    def fma_flops(self) -> dict[str, int]:
        """FLOPs of fused multiply-adds outside the tensor cores, by element type."""
        counts = {dtype: 2 * self.instructions.get(name, 0) for dtype, name in _FUSED.items()}
        return {dtype: flops for dtype, flops in counts.items() if flops}

    @property
    def flops(self) -> int:
        """FLOPs of the tensor cores; FLOPs of fused multiply-adds if the kernel does not use tensor cores."""
        return sum(self.tensor_flops.values()) or sum(self.fma_flops.values())

    @property
    def on_tensor_cores(self) -> bool:
        """True if it used the tensor cores."""
        return any(self.tensor_flops.values())


@dataclass(frozen=True)
class RangeCount:
    """Counts of the kernels of one range, in the order of their launches."""

    kernels: tuple[KernelCount, ...]

    @property
    def tensor_flops(self) -> dict[str, int]:
        """FLOPs of the tensor cores, by element type of the operands."""
        return _summed(kernel.tensor_flops for kernel in self.kernels)

    @property
    def fma_flops(self) -> dict[str, int]:
        """FLOPs of fused multiply-adds outside the tensor cores, by element type, elementwise work included."""
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
        """The kernels of the matrix work: all on tensor cores, and others with a notable share of the FLOPs."""
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
