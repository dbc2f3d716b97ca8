"""Iteration count, results and cost of a loop: as formulas of the iteration where possible, else iteration by iteration.

The body is priced at a symbolic iteration. A carried size or integer that grows by the same amount in each iteration becomes
a formula of it; a condition that compares such formulas gives the iteration count; a cost that depends on the iteration is
summed over all of them. A loop that does not fit formulas is run iteration by iteration if it is short; otherwise its
open sizes get names of their own.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise

from graphflops import dims
from graphflops.cost import QUANTITIES, Cost, Estimate, RegionRun, Value, data_dependent
from graphflops.dims import Dim, Expr
from graphflops.dims.atoms import Atom
from graphflops.errors import DimError
from graphflops.rules.onnx.entries import alike, common, numbers, one_of, unknown
from graphflops.rules.onnx.values import Number, Place, filled, known_contents
from graphflops.rules.shapes import axis_of, nested, tensors_of
from graphflops.tensor import Contents, SequenceType, TensorType, UnknownType, with_sizes

Body = Callable[[Dim, "State"], "Turn"]


_DEGREE = 4  # largest degree of a polynomial that is summed
_FAR = 10**6  # a turn at which a polynomial found from the first turns is tried once more


def at_turn(formula: Dim, turn: str, index: Dim) -> Dim:
    """A formula at one iteration."""
    return formula.substitute({turn: index}) if isinstance(formula, Expr) else formula


def before(count: Dim, formula: Dim, turn: str) -> Dim:
    """The formula simplified by turn < `count`, if the count is a size plus a number."""
    sizes = sorted(count.symbols) if isinstance(count, Expr) else []
    more = count - dims.symbol(sizes[0]) if len(sizes) == 1 else None
    if not isinstance(more, int) or not isinstance(formula, Expr) or turn not in formula.symbols:
        return formula
    name = f"{turn}_left"  # the number of later iterations
    try:
        within = formula.substitute({sizes[0]: dims.symbol(turn) + 1 + dims.symbol(name) - more})
        return at_turn(within, name, count - 1 - dims.symbol(turn))
    except DimError:  # it grows too large on the way
        return formula


def growth(formula: Dim, turn: str, count: Dim) -> Dim | None:
    """By how much the sum of a formula over iterations 0, 1, ... `count` - 1 exceeds `count` times its value at iteration 0.

    None if the formula is no polynomial of the iteration, or one that may fall.
    """
    row = [at_turn(formula, turn, index) for index in range(_DEGREE + 3)]
    first: list[Dim] = []  # the differences of all orders at turn 0, while they are not zero: Newton's form
    while not all(dims.same(value, 0) for value in row):
        if len(first) > _DEGREE:
            return None
        first.append(row[0])
        row = [after - before for before, after in pairwise(row)]
    far = _ways(_FAR, enumerate(first))
    if not dims.same(far, at_turn(formula, turn, _FAR)) or not all(
        dims.at_least(each, 0) for each in first[1:]
    ):
        return None
    return _ways(count, ((order + 1, each) for order, each in enumerate(first) if order > 0))


def _ways(count: Dim, weights: Iterable[tuple[int, Dim]]) -> Dim:
    """The sum of weights, each times the number of ways to choose `taken` of `count` things; with one denominator."""
    whole = math.factorial(_DEGREE + 1)
    shares = ((taken, each * (whole // math.factorial(taken))) for taken, each in weights)
    ways = (share * dims.prod(count - gone for gone in range(taken)) for taken, share in shares)
    return dims.floor_div(dims.total(ways), whole)


def turns_while(condition: Dim | None, turn: str) -> Dim | None:
    """How many iterations run if the loop goes on while all comparisons of a condition hold after an iteration.

    None unless the sides of each comparison approach each other by the same amount in each iteration.
    """
    if not isinstance(condition, Expr) or len(condition.terms) != 1:
        return None
    ((atoms, coefficient),) = condition.terms.items()
    turns = [_turns_while(atom, turn) for atom in atoms]
    known = [count for count in turns if count is not None]
    return dims.dim_min(*known) if coefficient == 1 and len(known) == len(turns) else None


def _turns_while(comparison: Atom, turn: str) -> Dim | None:
    """The same for one comparison."""
    if (relation := comparison.kind) not in ("<", "<=", "!="):
        return None
    smaller, larger = dims.arguments(comparison)
    gap = [at_turn(larger - smaller, turn, index) for index in range(3)]
    nearer = gap[0] - gap[1]
    if not isinstance(nearer, int) or not dims.same(gap[1] - gap[2], nearer):
        return None
    if relation == "!=" and nearer < 0:
        nearer, gap[0] = -nearer, -gap[0]
    if nearer <= 0 or dims.at_least(-1, gap[0]):
        return 1 if nearer > 0 and relation != "!=" else None
    return (dims.floor_div(gap[0], nearer) + 1 if relation == "<=" else dims.ceil_div(gap[0], nearer)) + 1


State = tuple[Value, ...]
_ROUNDS = 4  # attempts at finding what each iteration adds
_UNROLLED = (32, 8, 2)  # iterations that run one by one: of a loop, of a loop within a loop, and so on
_MOST_RUNS = 500  # of bodies, in one loop and those within it; past that neither formulas nor single iterations are tried

_level: ContextVar[int] = ContextVar("level", default=0)
_runs: ContextVar[list[int]] = ContextVar("runs")


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration: the values it carries into the next, its scan outputs, and whether there is a next."""

    run: RegionRun
    carried: State
    scanned: State
    goes_on: Dim | None = 1  # 0 or 1 if known, a formula if it depends on sizes, None if it depends on data


def looped(body: Body, state: State, limit: Dim | None, places: Sequence[int] = ()) -> Estimate:
    """The estimate of a loop of at most `limit` iterations; results are the carried values, then the stacked scan outputs.

    places: the axis along which each scan output is stacked; the first axis if empty.
    """
    level = _level.get()
    if level == 0:
        _runs.set([0])
    token = _level.set(level + 1)
    try:
        return _Loop(body, state, limit, tuple(places), level, _runs.get()).estimate()
    finally:
        _level.reset(token)


@dataclass
class _Loop:
    body: Body
    initial: State
    limit: Dim | None
    places: tuple[int, ...]
    level: int
    runs: list[int]  # how often bodies were priced so far, in the outermost loop and all loops within it
    open: set[str] = field(default_factory=set)  # names of carried sizes without a formula

    @property
    def name(self) -> str:
        """The symbol of the iteration, a different one for each nesting level."""
        return f"turn_{self.level}"

    @property
    def tired(self) -> bool:
        """Whether the limit of body runs is reached, so that the rest is priced once."""
        return self.runs[0] >= _MOST_RUNS

    def turn(self, index: Dim, state: State) -> Turn:
        self.runs[0] += 1
        return self.body(index, state)

    def estimate(self) -> Estimate:
        if not self.tired:
            begun = self.turn(dims.symbol(self.name), self.initial)
            if any(map(_unlike, self.initial, begun.carried)) and (turns := self.followed()):
                return self.listed(turns)
            state, turn = self.settled()
        else:
            state, turn = self.opened()
        trips = 0 if self.limit == 0 else self.trips(turn.goes_on)
        if (self.open or trips is None) and (turns := self.followed()):
            return self.listed(turns)
        count = data_dependent("loop_trips") if trips is None else trips
        carried = self.initial if count == 0 else tuple(self.seen(value, count) for value in state)
        scanned = (self.stacked(value, place, count) for place, value in enumerate(turn.scanned))
        return self.priced(turn, count, (*carried, *scanned))

    # What each iteration adds

    def settled(self) -> tuple[State, Turn]:
        """The carried values as formulas of the iteration, and the iteration that starts from them."""
        state, index = self.initial, dims.symbol(self.name)
        for attempt in range(_ROUNDS):
            turn, name = self.turn(index, state), f"carried_{self.level}"
            pairs = enumerate(zip(state, turn.carried, strict=True))
            last = attempt + 2 >= _ROUNDS
            after = tuple(self.grown(old, new, f"{name}_{place}", last) for place, (old, new) in pairs)
            if after == state:
                return state, turn
            if self.tired:
                break
            state = after
        return self.opened()

    def opened(self) -> tuple[State, Turn]:
        """The carried values with a name for each of their sizes, and the iteration that starts from them."""
        state: list[Value] = []
        for place, value in enumerate(self.initial):
            if isinstance(value, TensorType):
                names = [f"carried_{self.level}_{place}_{axis}" for axis in range(value.rank)]
                self.open.update(names)
                state.append(value.like(map(dims.symbol, names)))
            else:
                state.append(SequenceType() if isinstance(value, SequenceType) else value)
        return tuple(state), self.turn(dims.symbol(self.name), tuple(state))

    def grown(self, old: Value, new: Value, name: str, last: bool) -> Value:
        """A carried value as a formula that matches its change in one iteration; unchanged if it matches already."""
        if old == new:
            return old
        if isinstance(old, SequenceType) and isinstance(new, SequenceType):
            element = new.element if old.length == 0 else alike(old.element, new.element)
            if old.length is None or new.length is None:
                return SequenceType(element)
            return SequenceType(element, self.stepped(old.length, new.length, name, last))
        if not isinstance(old, TensorType) or not isinstance(new, TensorType) or _unlike(old, new):
            return UnknownType()
        pairs = enumerate(zip(old.shape, new.shape, strict=True))
        shape = tuple(self.stepped(a, b, f"{name}_{axis}", last) for axis, (a, b) in pairs)
        value = self.counted(old, new, last) if shape == new.shape else None
        return TensorType(shape, old.dtype, value=value)

    def stepped(self, old: Dim, new: Dim, name: str, last: bool) -> Dim:
        """A size as a formula of the iteration: its first value plus the iteration times the growth in one."""
        if old == dims.symbol(name) or self.advanced(old) == new:
            return old
        if last or self.turns_in(old) or self.turns_in(new):
            self.open.add(name)
            return dims.symbol(name)
        return old + (new - old) * dims.symbol(self.name)

    def counted(self, old: TensorType, new: TensorType, last: bool) -> Contents | None:
        """Known contents as formulas of the iteration; None if one of them has no formula."""
        before, after = numbers(old), numbers(new)
        if before is None or after is None:
            return None
        entries: list[Number] = []
        for a, b in zip(before, after, strict=True):
            if a == b or (not isinstance(a, float) and self.advanced(a) == b):
                entries.append(a)
            elif last or isinstance(a, float) or isinstance(b, float) or self.turns_in(a) or self.turns_in(b):
                return None
            else:
                entries.append(a + (b - a) * dims.symbol(self.name))
        return nested(iter(entries), old.shape)

    def turns_in(self, size: Dim) -> bool:
        return isinstance(size, Expr) and self.name in size.symbols

    def advanced(self, size: Dim) -> Dim:
        return at_turn(size, self.name, dims.symbol(self.name) + 1)

    # The iteration count

    def trips(self, goes_on: Dim | None) -> Dim | None:
        """The iteration count; None if it depends on data."""
        if isinstance(goes_on, int):
            return self.limit if goes_on else 1
        turns = turns_while(goes_on, self.name)
        return turns if turns is None or self.limit is None else dims.dim_min(turns, self.limit)

    def followed(self) -> list[Turn] | None:
        """All iterations, run one by one; None if there are too many or the last one depends on data."""
        if isinstance(self.limit, Expr):
            return None
        turns: list[Turn] = []
        while len(turns) != self.limit:
            if self.tired or len(turns) == _UNROLLED[min(self.level, len(_UNROLLED) - 1)]:
                return None
            turns.append(self.turn(len(turns), turns[-1].carried if turns else self.initial))
            if turns[-1].goes_on == 0:
                break
            if turns[-1].goes_on != 1:
                return None
        return turns

    # Results and cost

    def seen(self, value: Value, turn: Dim) -> Value:
        """A value at one iteration; sizes without a formula become data-dependent."""
        at = {self.name: turn, **{name: data_dependent(name) for name in self.open}}
        seen: Value = with_sizes(value, lambda size: size.substitute(at) if isinstance(size, Expr) else size)
        return seen

    def stacked(self, value: Value, place: int, count: Dim) -> Value:
        """A scan output of all iterations, stacked along a new axis."""
        if not isinstance(value, TensorType):
            return UnknownType()
        axes = enumerate(value.shape)
        settled = (unknown("scan", axis) if self.turns_in(size) else size for axis, size in axes)
        slice_ = self.seen(value.like(settled), count)
        assert isinstance(slice_, TensorType)
        whole = self.with_axis(slice_, place, count)
        known = known_contents(value)
        if known is None or self.places:
            return whole

        def entry(at: Place) -> Number:
            number = known[at[1:]]
            return number if isinstance(number, float) else at_turn(number, self.name, at[0])

        return filled(whole, entry)

    def with_axis(self, x: TensorType, place: int, count: Dim) -> TensorType:
        """The tensor with the axis along which a result is stacked."""
        axis = axis_of(self.places[place], x.rank + 1) if place < len(self.places) else 0
        return x.like((*x.shape[:axis], count, *x.shape[axis:]))

    def listed(self, turns: Sequence[Turn]) -> Estimate:
        """The estimate of iterations that were run one by one."""
        scanned: list[Value] = []
        for place, values in enumerate(zip(*(turn.scanned for turn in turns), strict=True)):
            tensors = tensors_of(values)
            one = one_of(common(tensors)) if len(tensors) == len(values) else UnknownType()
            scanned.append(self.with_axis(one, place, len(turns)) if isinstance(one, TensorType) else one)
        regions = counted([turn.run for turn in turns])
        return Estimate((*turns[-1].carried, *scanned), writes=(), regions=regions)

    def priced(self, turn: Turn, count: Dim, out: State) -> Estimate:
        """The body's cost times the iteration count; if it changes, the first iteration's cost for each plus the growth."""
        same_for_all = Estimate(out, writes=(), regions=((turn.run, count),))
        if not any(self.turns_in(getattr(turn.run.cost, name)) for name in QUANTITIES):
            return same_for_all
        made = {name: before(count, getattr(turn.run.cost, name), self.name) for name in QUANTITIES}
        more = {name: growth(formula, self.name, count) for name, formula in made.items()}
        known = {name: part for name, part in more.items() if part is not None}
        if len(known) < len(more):
            return same_for_all
        return Cost(**known).estimate(out, regions=((self.turn(0, self.initial).run, count),))


def counted(runs: Sequence[RegionRun]) -> tuple[tuple[RegionRun, int], ...]:
    """Each distinct run, and how often it occurs."""
    times = Counter(map(id, runs))
    return tuple((run, times[key]) for key, run in {id(run): run for run in runs}.items())


def _unlike(a: Value, b: Value) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.rank != b.rank or a.dtype != b.dtype
    return type(a) is not type(b)
