"""What is counted, and in which units.

Conventions beside those of `REPORTED`, which every report prints: `matrix_flops` count the multiply-adds of any element type
(an int8 product counts integer operations, and its row says int8). Bytes are compulsory traffic: every operand that an
operator touches is read once and every result written once; a view is free, a broadcast operand is read at its stored size,
a gather reads the rows it returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, Protocol, Union

from graphflops.base.record import Record, replace
from graphflops.dims import Dim, at_least, dim_max, floor_div, symbol, total
from graphflops.tensor import DType, OptionalType, SequenceType, TensorType, UnknownType

Unit = Literal["FLOP", "MAC", "B", ""]
Value = Union[TensorType, SequenceType, OptionalType, UnknownType, Dim, float, bool, str, None]


class Quantity(Record, frozen=True):
    """One thing that is counted, as reports, tables, budgets and pages name it."""

    name: str  # the field of `Cost`; the key in JSON, CSV and a budget
    label: str  # in a sentence or a table of totals, `vector FLOPs`
    head: str  # over a column, `vector`
    unit: Unit  # B for bytes, "" for a plain number
    convention: str = ""  # what is counted, in one sentence
    part_of: str = ""  # the quantity that it is a part of
    is_rare: bool = False  # zero in most programs; tables leave it out then


class Cost(Record, frozen=True):
    """What one call, module or program costs; every field a `Dim` in the unit of its quantity."""

    matrix_flops: Dim = 0
    vector_flops: Dim = 0
    transcendentals: Dim = 0
    masked_flops: Dim = 0
    read_bytes: Dim = 0
    written_bytes: Dim = 0
    link_bytes: Dim = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f) + getattr(other, f) for f in QUANTITIES))

    def __mul__(self, times: Dim) -> Cost:
        return self if times == 1 else Cost(*(getattr(self, f) * times for f in QUANTITIES))

    def __bool__(self) -> bool:
        return any(getattr(self, f) != 0 for f in QUANTITIES)

    @property
    def flops(self) -> Dim:
        """Matrix and vector FLOPs."""
        return self.matrix_flops + self.vector_flops

    @property
    def moved_bytes(self) -> Dim:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def macs(self) -> Dim:
        """Multiply-adds of the matrix work; exact, since every such operation counts two."""
        return floor_div(self.matrix_flops, 2)

    def estimate(
        self, out: tuple[Value, ...], *, alias: bool = False, regions: tuple[tuple[RegionRun, Dim], ...] = ()
    ) -> Estimate:
        """The estimate of a call that costs this."""
        work: dict[str, Any] = {name: getattr(self, name) for name in WORK_QUANTITIES}
        reads, writes = (self.read_bytes,), (self.written_bytes,)
        return Estimate(out, **work, reads=reads, writes=writes, alias=alias, regions=regions)

    def exceeded_by(self, others: Iterable[Cost]) -> Cost:
        """By how much the largest of the others may exceed it, in each quantity separately."""
        listed = list(others)

        def excess(ours: Dim, theirs: list[Dim]) -> Dim:
            return dim_max(0, *(other - ours for other in theirs if not at_least(ours, other)))

        return Cost(*(excess(getattr(self, f), [getattr(other, f) for other in listed]) for f in QUANTITIES))

    @staticmethod
    def sum(costs: Iterable[Cost]) -> Cost:
        """The total of many costs. Equal calls share one object, so objects are counted first, polynomials added after."""
        counted: dict[int, tuple[Cost, int]] = {}
        for cost in costs:
            counted[id(cost)] = (cost, counted.get(id(cost), (cost, 0))[1] + 1)
        listed = [cost * times for cost, times in counted.values()]
        return Cost(*(total(getattr(cost, f) for cost in listed) for f in QUANTITIES))


QUANTITIES: tuple[str, ...] = Cost.__struct_fields__
# Every quantity of work and traffic in the order of reports: the fields of `Cost`, and MACs after the matrix FLOPs.
REPORTED = (
    Quantity(
        "matrix_flops", "FLOPs", "FLOPs", "FLOP",
        "products of matrices, convolutions, attention, recurrences; no bias; complex multiply-add = 8",
    ),
    Quantity("macs", "MACs", "MACs", "MAC"),
    Quantity(
        "vector_flops", "vector FLOPs", "vector", "FLOP",
        "one per element and elementary operation; a reduction of n elements is n",
    ),
    Quantity(
        "transcendentals", "transcendentals", "transcendental", "",
        "exp, log, sin, tanh, erf, pow, sqrt, ...: one per element, not in FLOPs",
    ),
    Quantity(
        "masked_flops", "FLOPs skippable by masks", "skippable", "FLOP",
        "part of matrix FLOPs that a known mask makes needless", part_of="matrix_flops",
    ),
    Quantity("read_bytes", "bytes read", "read", "B"),
    Quantity("written_bytes", "bytes written", "written", "B"),
    Quantity(
        "link_bytes", "bytes sent to other devices", "sent", "B",
        "what each device sends in collectives, by ring algorithms", is_rare=True,
    ),
)  # fmt: skip

CONVENTIONS = {
    "flops": "a multiply-add is 2 FLOPs; MACs = matrix FLOPs / 2",
    **{quantity.name: quantity.convention for quantity in REPORTED if quantity.convention},
    "backward": "gradients of what wants one; recomputation only where the program itself holds it; optimizer: AdamW",
    "time": "predicted for the device; the interval in brackets holds the measured time in 9 of 10 cases",
    "bytes": "operands read once, results written once, views free",
}


class RegionRun(Protocol):
    """One analysed nested graph at given operand types: its name, what it returns, flat, and what running it once costs.
    backward: of the gradients of that. stuck: the first call that cannot run; "" for none.
    """

    @property
    def name(self) -> str: ...

    @property
    def out(self) -> tuple[Value, ...]: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def backward(self) -> Cost: ...

    @property
    def stuck(self) -> str: ...


class Region(Protocol):
    """A nested graph as a rule sees it: a function from operand types to what running it once returns and costs.

    gradients: False where the region runs without recording gradients.
    autocast: True where operators convert their operands on their own, so that recorded element types differ from derived.
    """

    @property
    def declared(self) -> tuple[Value, ...]:
        """What the file records of its operands."""

    def __call__(self, *operands: Value, gradients: bool = True, autocast: bool = False) -> RegionRun: ...


class Estimate(Record, frozen=True, dict=True):
    """What a rule returns: the result types, the work, and the memory touched."""

    out: tuple[Value, ...] = ()  # result types, flat, in the operator's order; None where there is none
    matrix_flops: Dim = 0
    vector_flops: Dim = 0
    transcendentals: Dim = 0
    masked_flops: Dim = 0
    link_bytes: Dim = 0
    reads: tuple[TensorType | Dim | None, ...] = ()  # tensors touched, or plain byte counts, like the next
    writes: tuple[TensorType | Dim | None, ...] | None = None  # None means each result once
    alias: bool = False  # the results share the memory of the first tensor operand (views, in-place writes)
    matrix_dtype: DType | None = None  # of the matrix arithmetic, unless the first operand's
    devices: Dim = 2  # that take part in a collective
    # Nested graphs that run, each with how often; their cost comes on top of the estimate's own.
    regions: tuple[tuple[RegionRun, Dim], ...] = ()
    workspace: Dim = 0
    hint: tuple[str, str] | None = None  # the code of a note, and what it says
    # Why the work cannot be told, where only the results' types are known; no total then includes the call.
    unknown: str = ""

    def plus(
        self, *parts: Estimate, reads: tuple[TensorType | Dim | None, ...] = (), **changes: Any
    ) -> Estimate:
        """The estimate with reads and the work of `parts` and `changes` added; other fields of `changes` replace its own."""
        for name in WORK_QUANTITIES:
            amounts = (getattr(self, name), changes.get(name, 0), *(getattr(part, name) for part in parts))
            changes[name] = total(amounts)
        return replace(self, reads=(*self.reads, *reads), **changes)

    @cached_property
    def cost(self) -> Cost:
        """The estimate's own work and traffic, without nested graphs."""
        written = self.out if self.writes is None else self.writes
        results = (value for value in written if self.writes is not None or isinstance(value, TensorType))
        read_bytes, written_bytes = total(map(_nbytes, self.reads)), total(map(_nbytes, results))
        return Cost(**self.work, read_bytes=read_bytes, written_bytes=written_bytes)

    @property
    def work(self) -> dict[str, Dim]:
        """The quantities of work by name."""
        return {name: getattr(self, name) for name in WORK_QUANTITIES}


# The quantities that an estimate states; the others are traffic, which follows from the tensors it touches.
WORK_QUANTITIES: tuple[str, ...] = tuple(name for name in Estimate.__struct_fields__ if name in QUANTITIES)
MATRIX_QUANTITIES = frozenset({"matrix_flops", *(q.name for q in REPORTED if q.part_of == "matrix_flops")})


def _nbytes(value: Value) -> Dim:
    if isinstance(value, TensorType):
        return value.nbytes
    return 0 if value is None else value  # type: ignore[return-value]


def free(*out: Value, alias: bool = True) -> Estimate:
    """No work, no traffic: views, arithmetic on sizes, bookkeeping. `alias`: results share the first operand's memory."""
    return Estimate(out, writes=(), alias=alias)


def copied(*seen: TensorType) -> Estimate:
    """Each tensor read as it is stored and written out in full."""
    return Estimate(tuple(x.like() for x in seen), reads=seen)


def picked(out: TensorType, *indices: TensorType) -> Estimate:
    """Elements found by index: reads the indices and as many elements as it returns."""
    return Estimate((out,), reads=(out, *indices))


def data_dependent(what: str) -> Dim:
    """A size that depends on data, named after its origin; the analysis numbers it: `nonzero?` becomes `nonzero_0`."""
    _ORIGINS.add(what)
    return symbol(f"{what}?")


def is_data_dependent(name: str) -> bool:
    """Whether `data_dependent` gave a size its name, which the analysis may have numbered since."""
    return name.endswith("?") or name.rpartition("_")[0] in _ORIGINS


_ORIGINS: set[str] = set()  # only grows, as the table of symbols does
# Sizes within a loop of ONNX: none of a file has such a name.
OF_LOOPS = re.compile(r"turn_\d+(_left)?|carried_\d+_\d+_\d+")
