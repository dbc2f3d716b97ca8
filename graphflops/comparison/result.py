"""The result of a comparison: all that renderers read, in frozen classes.

Everywhere "before" is the old program and "after" the new one. Quantities of both are in the same sizes: a size that the
two programs share has one name, and one that a program leaves open and the other fixes is that number in both, so that
equal means equal. The programs' own formulas are in `Comparison.old` and `Comparison.new`.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.cost import REPORTED
from graphflops.dims import Dim, evaluate
from graphflops.fitting.cells import cell_of, known_of
from graphflops.report import Report, Row


class JointSize(Record, frozen=True):
    """A size of the two programs: one axis of an input, or a size that depends on data."""

    name: str  # in every quantity of the comparison
    where: tuple[str, ...]
    # Its name in the old program, the number that it is fixed at, or None if there is no such size; `after` likewise.
    before: str | int | None
    after: str | int | None
    value: int | None  # what both programs are compared at; None if not known, or if each has its own
    # Its value in the old program, by its file or the user; `after_value` likewise, and it may differ.
    before_value: int | None
    after_value: int | None
    assumed: bool = False  # `value` is an assumption, because neither program has a value or an example
    minimum: int | None = None  # of the values that both programs were exported for, like `maximum`
    maximum: int | None = None
    # The size of each axis that is an expression of this one
    computed: Mapping[str, Dim] = {}
    axis: str = ""  # the one of these axes that people read for the size, "" if they read its name
    # The old program's size as a formula of this one, if they differ: the two may be `2*n` and `3*n`. `after_as` likewise.
    before_as: Dim | None = None
    after_as: Dim | None = None

    @property
    def stated(self) -> str:
        """The name by which people read the size."""
        return self.axis or self.name

    @property
    def place(self) -> str:
        """An axis of this size; its name where it has none."""
        return self.axis or next((axis for axis in self.where if axis not in self.computed), self.name)

    def at(self, value: int) -> int:
        """What people read for a value of the size."""
        found = evaluate(self.computed[self.axis], {self.name: value}) if self.axis else None
        return value if found is None else found

    @property
    def opened(self) -> bool:
        """Fixed before, open now."""
        return isinstance(self.before, int) and isinstance(self.after, str)

    @property
    def fixed(self) -> bool:
        """Open before, fixed now."""
        return isinstance(self.before, str) and isinstance(self.after, int)


class TimeChange(Record, frozen=True):
    """Seconds of one run before and after, of the training step where both have one."""

    device: str
    execution: str
    before: float
    after: float
    low: float  # of the interval that holds the measured time after the change in nine of ten cases
    high: float

    @property
    def percent(self) -> float | None:
        """The change in percent of before; None where that is 0."""
        return 100 * (self.after / self.before - 1) if self.before else None


class ServedChange(Record, frozen=True):
    """Quantities of a step before and after, by the names of `fitting/cells.py`, as far as both programs tell them."""

    context: int  # tokens of each request, 0 where files of one size do not tell it
    before: Mapping[str, float]  # in seconds and bytes, as `after`
    after: Mapping[str, float]


Status = Literal["changed", "new", "gone", "moved"]
FactKind = Literal[
    "type", "unknown", "operator", "fused", "heads", "mask", "operand", "dtype", "shape", "shared",
    "parameters", "times", "calls", "work", "order",
]  # fmt: skip
LedgerStatus = Literal["unexplained", "costs_more", "explained"]
LedgerKind = Literal[
    "work", "element_types", "parameters_lost", "weight_shapes", "unknown", "cannot_run", "sizes_fixed",
    "attention_unfused", "heads_expanded", "batch_norms_folded", "shifts_left_out", "zeros_left_out",
    "constants_folded", "unused_left_out", "constants_lifted", "parameters_folded", "weights_packed",
    "weights_shared", "weights_split", "weights_quantized", "quantized", "repeated_work_merged",
]  # fmt: skip
WORK: tuple[str, ...] = tuple(quantity.name for quantity in REPORTED)


class Figure(Record, frozen=True):
    """One quantity before and after: in joint sizes, and as numbers at `Comparison.sizes` (None: a size has no value)."""

    before: Dim
    after: Dim
    before_value: int | None
    after_value: int | None

    @property
    def differs(self) -> bool:
        """True if the formulas differ, even if their values at the compared sizes are equal."""
        return self.before != self.after

    @property
    def delta(self) -> int | None:
        """After less before, as a number; None where a size has no value."""
        if self.before_value is None or self.after_value is None:
            return None if self.differs else 0
        return self.after_value - self.before_value

    @property
    def formula(self) -> Dim:
        """After less before, in joint sizes."""
        return self.after - self.before

    @property
    def percent(self) -> float | None:
        """The delta in percent of before; None where that is 0 or has no value."""
        if not self.differs:
            return 0.0
        if not self.before_value or self.delta is None:
            return None
        try:
            return 100 * self.delta / self.before_value
        except OverflowError:  # past what a float holds
            return None


class Fact(Record, frozen=True):
    """One difference of a module, each side as its program spells it; "" if that side has none."""

    # type: the module's type. unknown: the cost of a call of the operator `what` is known on one side only. operator:
    # another operator in a call's place. fused: of an export, the module that the work came from, or the one that it went
    # to. heads: of an attention, `what` says which. mask: matrix FLOPs that a mask hides. operand: one that is new or gone,
    # `what` says which. dtype, shape: of an operand or result. shared: the modules that the parameter `what` is shared with.
    # parameters: elements the module holds itself. times: how often a loop's body runs. calls: how many calls of the
    # operator `what` came or went. work: matrix FLOPs, of an export beside its program. order: the module that runs before
    # it.
    kind: FactKind
    before: str
    after: str
    what: str = ""


class CallChange(Record, frozen=True):
    """One call that changed; one side is None for a call that is new or gone."""

    before: Row | None
    after: Row | None


class ModuleChange(Record, frozen=True):
    """A module that is not as it was."""

    status: Status  # moved is a module whose place, name or order changed, with or without other changes
    before: str | None  # its path in that program, as `after`; None where it is not there; "" is the model
    after: str | None
    before_type: str  # as the file records it, as `after_type`; "" where unknown or absent
    after_type: str
    # `WORK` (with a joint graph's backward) and "parameters": of its own calls only, since the modules in it are entries of
    # their own; if `whole`, of everything in it, which is then listed nowhere else. So all entries and the unchanged
    # modules sum to the totals.
    figures: Mapping[str, Figure]
    # `WORK` of the gradients, where both reports have a training step; else empty.
    backward: Mapping[str, Figure] = {}
    whole: bool = False
    modules: int = 1  # in the entry; 1 unless `whole`
    calls: tuple[CallChange, ...] = ()  # those that differ, in program order; () where `whole`
    facts: tuple[Fact, ...] = ()  # what changed, the most telling first
    before_unknown: int = 0  # calls of unknown cost, which no figure contains, as `after_unknown`
    after_unknown: int = 0

    @property
    def path(self) -> str:
        """Its path in the new program, or in the old one if it is gone."""
        return (self.after if self.after is not None else self.before) or ""


class Fold(Record, frozen=True):
    """Sibling modules with the same change: `blocks.0-11.mlp`."""

    path: str | None  # as one text, in the new program; None where they are not there
    before_path: str | None  # in the old program, likewise
    members: tuple[ModuleChange, ...]
    figures: Mapping[str, Figure]  # sums over them, as `backward`
    backward: Mapping[str, Figure] = {}

    @property
    def first(self) -> ModuleChange:
        return self.members[0]


class Resized(NamedTuple):
    """A fixed size that is another one now. noun: what it counts, "" if nothing says so."""

    before: int
    after: int
    noun: str


class Cause(Record, frozen=True):
    """Entries that changed for one reason."""

    folds: tuple[Fold, ...]
    # The sizes that changed in all of them, the most telling first; () for an entry with a reason of its own.
    sizes: tuple[Resized, ...]
    place: str  # the module around them, "" for the whole model
    times: int  # how many modules that stands for
    figures: Mapping[str, Figure]  # sums, as `backward`
    backward: Mapping[str, Figure]


class GroupChange(Record, frozen=True):
    """All calls of one operator, or of one source line, before and after; a name is None where there are none."""

    before: str | None  # a line is followed by alignment: `model.py:17` may be `model.py:18` in `after`
    after: str | None
    before_calls: int
    after_calls: int
    before_unknown: int
    after_unknown: int
    figures: Mapping[str, Figure]
    backward: Mapping[str, Figure] = {}


class GrowthChange(Record, frozen=True):
    """A change in the degree of a total in a size: 0 constant, 1 linear, 2 quadratic."""

    quantity: str  # a name of `WORK` or "peak_bytes"
    size: str
    before: int
    after: int
    # Paths of folds, in the new program (in the old one where gone), whose own growth changed, the most telling first.
    modules: tuple[str, ...] = ()


class Crossing(Record, frozen=True):
    """A total that is less than before for small values of a size and more for large ones, or the other way round."""

    quantity: str  # a name of `WORK` or "peak_bytes"
    size: str
    # The smallest value of the size from which on the total is more (`more`) or less; the other sizes have their values.
    # Searched within the bounds that both programs were exported for.
    at: int
    more: bool


class UnknownChange(Record, frozen=True):
    """An operator without a known cost, and how many calls of it there are."""

    op: str
    before: int
    after: int


class DtypeChange(Record, frozen=True):
    """Bytes of parameters of one element type."""

    dtype: str
    before: int
    after: int


class InputChange(Record, frozen=True):
    """An input of the program whose type changed, or that is new or gone (None): `float32[4, 64]`."""

    name: str
    before: str | None
    after: str | None


class Remark(Record, frozen=True):
    """Something the reader should know before the numbers: a stable name and one sentence."""

    name: str
    message: str


class LedgerEntry(Record, frozen=True):
    """One kind of difference between a program and its export."""

    kind: LedgerKind
    status: LedgerStatus  # unexplained means that the export does not keep the work
    names: tuple[str, ...]  # modules, parameters, calls or inputs, by kind
    # The work, element types, shape or bytes of them all, as `after`; "" where the kind has none.
    before: str = ""
    after: str = ""


class Comparison(Rendered, Record, frozen=True):
    """What differs between two programs."""

    old: Report
    new: Report
    # Nothing differs: no quantity, no priced call, no size. Names of nodes and line numbers alone are no difference.
    same: bool
    # One program is an ONNX file and the other is not, so that modules are compared by matrix work, parameters and element
    # types only: the operators they are made of differ anyway.
    export: bool
    sizes: tuple[JointSize, ...]  # every size, those that differ in any way first
    # What limits the comparison, such as sizes that could not be made equal, and what a quantizer changed.
    remarks: tuple[Remark, ...]
    # Operators whose number of calls of unknown cost changed: unknown never means 0.
    unknown: tuple[UnknownChange, ...]
    # By phase ("forward", and "backward", "optimizer", "step" where both have them): `WORK` and "peak_bytes"; in "forward"
    # also `HELD`, and with a device in "forward" and "step" "device_bytes".
    totals: Mapping[str, Mapping[str, Figure]]
    dtypes: tuple[DtypeChange, ...]  # parameters by element type, all of them where any changed
    inputs: tuple[InputChange, ...]  # those whose type changed
    growth: tuple[GrowthChange, ...]  # totals that grow to another degree, the most telling first
    crossings: tuple[Crossing, ...]  # totals whose delta changes its sign with a size
    modules: tuple[ModuleChange, ...]  # those that are not as they were, by |delta|, the largest first
    unchanged: int  # how many modules are not listed
    # (before, after) paths that changed though the module did not move: its number in a list, or a wrapper around the whole
    # model; these count as unchanged.
    renumbered: tuple[tuple[str, str], ...]
    ops: tuple[GroupChange, ...]  # groups that changed, by |delta|, as `sources`
    unchanged_ops: int  # how many are not listed, as `unchanged_sources`
    sources: tuple[GroupChange, ...]
    unchanged_sources: int
    folded: tuple[Fold, ...]  # `modules` with neighbours that have equal changes as one entry
    causes: tuple[Cause, ...]  # `folded`, by what made them change
    ledger: tuple[LedgerEntry, ...] = ()  # of an export, each kind of difference, unexplained first; else ()
    # Rows of the new program by those of the old one that are equal, in order, or changed into them; of an export none.
    calls: Mapping[int, int] = {}

    @property
    def time(self) -> TimeChange | None:
        """The predicted times of both; None where one has none, or they are for different devices or executions."""
        old, new = self.old, self.new
        if not old.device or (old.device, old.execution) != (new.device, new.execution):
            return None
        for before, after in ((old.step_time, new.step_time), (old.totals.time, new.totals.time)):
            if before is not None and after is not None:
                times = (before.seconds, after.seconds, after.low, after.high)
                return TimeChange(new.device, new.execution, *times)
        return None

    @property
    def serving(self) -> ServedChange | None:
        """What changes for requests to two decoders; None for other programs, and for steps of other contexts."""
        before, after = cell_of(self.old), cell_of(self.new)
        if before is None or after is None or before.context != after.context:
            return None
        return ServedChange(after.context, known_of(before), known_of(after))
