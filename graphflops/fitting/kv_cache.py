"""The cache of keys and values that a decoder takes as inputs, and how many requests of a length fit beside it.

An input is a cache where a call joins it with new entries along one axis, or writes new entries into it along one axis. Its
first axis counts requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.dims import Expr, evaluate, prod, symbol, total
from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.dims import Dim
    from graphflops.report import Named, PhaseMemory, Report, Row
    from graphflops.tensor import TensorType

_LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_FEWEST_AXES = 3
_MOST_REQUESTS = 2**20


@dataclass(frozen=True, slots=True)
class KvCache:
    """The caches of a decoder together.

    inputs: how many they are. token_bytes: of one token of one request. batch, length: the sizes of their axes by symbol,
    "" where they are fixed.
    """

    inputs: int
    token_bytes: int
    batch: str
    length: str


def kv_cache(report: Report) -> KvCache | None:
    """The caches among the inputs of a program; None where there are none, or they are not alike."""
    given = {named.name: named.type for named in report.inputs if named.type.rank >= _FEWEST_AXES}
    found: dict[str, tuple[TensorType, int]] = {}
    for row in report.rows:
        for name, axis in _written(row, given):
            found.setdefault(name, (given[name], axis))
    if not found:
        return None
    batches = {value.shape[0] for value, _ in found.values()}
    lengths = {value.shape[axis] for value, axis in found.values()}
    each = total(
        prod((*value.shape[1:axis], *value.shape[axis + 1 :])) * value.dtype.bits // 8
        for value, axis in found.values()
    )
    size = evaluate(each, report.values)
    if len(batches) > 1 or len(lengths) > 1 or size is None:
        return None
    return KvCache(len(found), size, _symbol(batches.pop()), _symbol(lengths.pop()))


def requests_within(
    report: Report, entry: PhaseMemory, cache: KvCache, limit: int
) -> Iterator[tuple[int, int]]:
    """Lengths of the cache, each with the most requests of that length that fit into `limit` bytes together."""
    if not (cache.batch and cache.length):
        return
    info = report.symbols[cache.length]
    for length in _LENGTHS:
        if (info.maximum is not None and length > info.maximum) or length < (info.minimum or 0):
            continue
        yield length, _most(report, entry, cache, length, limit)


def _most(report: Report, entry: PhaseMemory, cache: KvCache, length: int, limit: int) -> int:
    """The most requests of a length within the limit, 0 where not even one is."""
    most = report.symbols[cache.batch].maximum or _MOST_REQUESTS

    def is_within(requests: int) -> bool:
        values = {**report.values, cache.length: length, cache.batch: requests}
        needed = evaluate(entry.requested_peak, values)
        return needed is not None and needed <= limit

    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def _written(row: Row, given: dict[str, TensorType]) -> Iterator[tuple[str, int]]:
    """Inputs of the program that a call extends or writes into, and the axis along which it does."""
    operands = [named for named in row.inputs if named.name in given]
    if not operands:
        return
    called = operator(row.op)
    if called.name == "cat" and len(row.inputs) > 1 and row.outputs:
        for named in operands:
            yield from ((named.name, axis) for axis in _differing(named, row.outputs[0]))
    elif (called.kind == "scatter" or called.name == "slice_scatter") and row.inputs[0].name in given:
        parts = [named for named in row.inputs[1:] if named.type.rank == row.inputs[0].type.rank]
        for part in parts[:1]:
            yield from ((row.inputs[0].name, axis) for axis in _differing(row.inputs[0], part))


def _differing(first: Named, second: Named) -> list[int]:
    """The axis in which two shapes differ, alone in a list; none where they differ in several."""
    if first.type.rank != second.type.rank:
        return []
    pairs = zip(first.type.shape, second.type.shape, strict=True)
    axes = [axis for axis, (one, other) in enumerate(pairs) if one != other]
    return axes if len(axes) == 1 and axes[0] > 0 else []


def _symbol(size: Dim) -> str:
    if isinstance(size, Expr) and len(size.symbols) == 1:
        (name,) = size.symbols
        return name if size == symbol(name) else ""
    return ""
