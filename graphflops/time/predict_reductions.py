"""Time of sums over outer axes, or planes: blocks, splits, and the joining of parts, as in Reduce.cuh of ATen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from graphflops.devices import Device
    from graphflops.kernels.kernel import Rows

_THREADS = 128  # of a block
_PLANE_THREADS = 512
_PER_THREAD = 4  # neighbouring results
_RESIDENT = 16  # blocks of a multiprocessor
_START = 1e-6  # seconds of a further wave of blocks
_LONG = 256  # elements of one thread from which on blocks share a result
_ROW_THREADS, _WARP = 512, 32  # of a block that adds up along rows
_LONGEST = 4096  # elements of a row that one block adds up
_LEAST = 16  # elements of one thread
_CONSTANTS = frozenset({"step", "join", "fence", "uneven"})


def in_turn(sizes: Rows) -> float:
    """Elements of a row that each thread of a warp adds up, for the whole warp; few rows get more warps (Reduce.cuh)."""
    height = 1  # rows of a block
    while height < _ROW_THREADS // _WARP and 2 * height <= sizes.rows:
        height *= 2
    width = _WARP  # threads of a row
    while width < _ROW_THREADS // height and 2 * width <= sizes.columns:
        width *= 2
    each = sizes.columns / width
    if each >= min(height * _LEAST, _LONG):  # the warps of a block share a row, and blocks a longer one
        each = min(each / height, _LONGEST / _WARP)
    return each * _WARP


def applies(sizes: Rows, rates: Mapping[str, float]) -> bool:
    """Whether these reductions have a model of their own, and the device its constants."""
    return rates.keys() >= _CONSTANTS


def seconds(sizes: Rows, traffic: float, rates: Mapping[str, float], device: Device) -> tuple[float, float]:
    """Seconds of a reduction to `sizes.rows` results, and of these what its threads do one after the other."""
    if sizes.is_inner:
        return _planes(sizes, traffic, rates, device)
    across = 1
    while across < _THREADS // _PER_THREAD and 2 * across * _PER_THREAD <= sizes.rows:
        across *= 2
    down = _THREADS // across
    results = across * _PER_THREAD
    blocks = -(-sizes.rows // results)
    each = -(-sizes.columns // down)
    parts = 1
    if each >= _LONG:
        most = _RESIDENT * (device.multiprocessors or 1) // blocks
        parts = max(1, min(-(-each // _LEAST), most))
    waves = -(-blocks * parts // (_RESIDENT * (device.multiprocessors or 1)))
    serial = waves * (-(-each // parts) * rates["step"] * 1e-9 + _START) - _START
    joined = 0.0
    if parts > 1:  # the last block of a result adds up the parts
        uneven = rates["uneven"] if sizes.rows % results else 1.0
        joined = rates["fence"] * 1e-6 + -(-parts // down) * rates["join"] * 1e-9 * uneven
    return rates["floor"] * 1e-6 + serial + traffic + joined, serial + joined


def _planes(sizes: Rows, traffic: float, rates: Mapping[str, float], device: Device) -> tuple[float, float]:
    """The same with a block for each channel, or several where there are few channels."""
    cores = device.multiprocessors or 1
    parts = 1
    if sizes.columns >= _LONG * _PLANE_THREADS:
        parts = max(1, 4 * cores // sizes.rows)
    serial = -(-sizes.rows * parts // cores) * sizes.columns / parts * rates["step"] * 1e-9
    joined = rates["fence"] * 1e-6 if parts > 1 else 0.0
    return rates["floor"] * 1e-6 + serial + traffic + joined, serial + joined
