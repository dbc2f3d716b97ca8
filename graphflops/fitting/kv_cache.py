"""What a decoder keeps of each request between two steps, and how many requests of a length fit on a device.

An input is a cache where a call joins it with new entries along one axis, or writes new entries into it along one axis; it
is a state where the program gives back a value of its type, or the input itself, as keys and values of an encoder. The first
axis of both counts requests.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from graphflops.derived.items import items
from graphflops.dims import Dim, Expr, evaluate, prod, symbol, total
from graphflops.dims.solving import first_from
from graphflops.ops import operator
from graphflops.report import Named, PhaseMemory, Report, Row
from graphflops.tensor import TensorType

_LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
_FEWEST_AXES = 3
_MOST_REQUESTS = 2**20


@dataclass(frozen=True, slots=True)
class KvCache:
    """The caches and states of a decoder together.

    inputs: how many they are. token_bytes: of one token of one request, with each layer whose cache grows. request_bytes:
    of a request of any length: states, and caches whose length is fixed. requests: the size of their first axis.
    lengths: the symbols of those that grow, each with the most tokens that it keeps, None without a limit. bits: of an
    element of the caches. fixed_bytes: of request_bytes, those of caches, such as windows that are full.
    """

    inputs: int
    token_bytes: int
    request_bytes: int
    requests: Dim
    lengths: Mapping[str, int | None]
    by_length: Mapping[str, int]
    bits: int = 16
    fixed_bytes: int = 0

    def stored_in(self, bits: int) -> KvCache:
        """The same caches of elements of so many bits; states are as they were."""
        by_length = {name: size * bits // self.bits for name, size in self.by_length.items()}
        fixed = self.fixed_bytes * bits // self.bits
        each = (sum(by_length.values()), self.request_bytes - self.fixed_bytes + fixed)
        return replace(
            self,
            token_bytes=each[0],
            request_bytes=each[1],
            by_length=by_length,
            bits=bits,
            fixed_bytes=fixed,
        )

    def common_bytes(self, length: int) -> int:
        """Bytes of so many first tokens, which requests that begin alike keep once; windows let them go."""
        return sum(each * length for name, each in self.by_length.items() if self.lengths[name] is None)

    @property
    def batch(self) -> str:
        """The symbol of their number; "" where it is fixed."""
        return symbol_of(self.requests)

    def bytes_at(self, length: int) -> int:
        """Bytes of one request that has so many tokens: a window keeps no more than fit into it."""
        kept = {name: length if most is None else min(length, most) for name, most in self.lengths.items()}
        return self.request_bytes + sum(each * kept[name] for name, each in self.by_length.items())

    def sizes_at(self, requests: int, length: int) -> dict[str, int]:
        """The symbols for so many requests of that length."""
        kept = {name: length if most is None else min(length, most) for name, most in self.lengths.items()}
        return kept | ({self.batch: requests} if self.batch else {})


def kv_cache(report: Report) -> KvCache | None:
    """The caches and states among the inputs of a program; None where there are none, or they are not of one batch."""
    given = {named.name: named.type for named in report.inputs if named.type.rank >= _FEWEST_AXES}
    axes: dict[str, int] = {}
    for row in report.rows:
        for name, axis in _written(row, given):
            axes.setdefault(name, axis)
    if not axes:
        return None
    batches = {given[name].shape[0] for name in axes}
    fixed: list[Dim] = []
    by_length: dict[str, Dim] = {}
    for name, axis in axes.items():
        value = given[name]
        length = symbol_of(value.shape[axis])
        others = value.shape[1:] if not length else (*value.shape[1:axis], *value.shape[axis + 1 :])
        size = prod(others) * value.dtype.bits // 8
        if length:
            by_length[length] = by_length.get(length, 0) + size
        else:
            fixed.append(size)
    windows = evaluate(total(fixed), report.values)
    states = _states(report, axes, batches)
    fixed += [prod(value.shape[1:]) * value.dtype.bits // 8 for value in states]
    sizes = {name: evaluate(size, report.values) for name, size in by_length.items()}
    lasting = evaluate(total(fixed), report.values)
    if len(batches) > 1 or lasting is None or windows is None or None in sizes.values():
        return None
    known = {name: size for name, size in sizes.items() if size is not None}
    most = {name: report.symbols[name].maximum for name in known}
    lengths = {
        name: None if limit == max(most.values(), key=_unbounded) else limit for name, limit in most.items()
    }
    inputs = len(axes) + len(states)
    bits = max(given[name].dtype.bits for name in axes)
    return KvCache(inputs, sum(known.values()), lasting, batches.pop(), lengths, known, bits, windows)


def _unbounded(limit: int | None) -> float:
    return float("inf") if limit is None else limit


def _states(report: Report, caches: Container[str], batches: Container[Dim]) -> list[TensorType]:
    """Inputs of numbers that a program of token ids gives back in the same type, as recurrent layers do.

    A single layer gives back the type of its activations too, so one that takes no ids tells nothing.
    """
    if "tokens" not in items(report):
        return []
    given = {named.name: named.type for named in report.inputs if named.type.rank > 1}
    types = {named.name: named.type for row in report.rows for named in row.outputs} | given
    back = [types[name] for name in report.outputs if name in types]
    found = []
    for name, value in given.items():
        if name not in caches and value.shape[0] in batches and value.dtype.kind == "float" and value in back:
            back.remove(value)
            found.append(value)
    return found


def requests_within(
    report: Report, entry: PhaseMemory, cache: KvCache, limit: int
) -> Iterator[tuple[int, int]]:
    """Lengths of the cache, each with the most requests of that length that fit into `limit` bytes together."""
    if not (cache.batch and cache.lengths):
        return
    for length in _LENGTHS:
        if is_open_for(report, cache, length):
            yield length, most_requests(report, entry, cache, length, limit)


def is_open_for(report: Report, cache: KvCache, length: int) -> bool:
    """Whether the program was exported for requests of that length."""
    infos = [report.symbols[name] for name, window in cache.lengths.items() if window is None]
    return all((one.minimum or 0) <= length <= _unbounded(one.maximum) for one in infos)


def most_requests(report: Report, entry: PhaseMemory, cache: KvCache, length: int, limit: int) -> int:
    """The most requests of a length within the limit, 0 where not even one is."""
    most = report.symbols[cache.batch].maximum or _MOST_REQUESTS

    def is_within(requests: int) -> bool:
        values = {**report.values, **cache.sizes_at(requests, length)}
        needed = evaluate(entry.requested_peak, values)
        return needed is not None and needed <= limit

    return first_from(1, most + 1, lambda requests: not is_within(requests)) - 1


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


def symbol_of(size: Dim) -> str:
    """The symbol that a size is, "" where it is none."""
    if isinstance(size, Expr) and len(size.symbols) == 1:
        (name,) = size.symbols
        return name if size == symbol(name) else ""
    return ""
