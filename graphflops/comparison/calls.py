"""Compares the calls of two programs: distinct ones by number, those of one module before and after, and rewired ones."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args

from graphflops.base.aligned import matching_blocks
from graphflops.base.units import numbered, unnumbered
from graphflops.comparison.modules import Counts, Pairs
from graphflops.comparison.result import WORK, Fact, FactKind, Figure
from graphflops.comparison.sizes import JointSizes, Renamed
from graphflops.cost import Cost
from graphflops.dims import Dim
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.tensor import TensorType, grouped

_NOTHING = Cost()
_ORDER = get_args(FactKind)  # facts of one call are listed in this order


class InternedCalls:
    """Numbers of the distinct calls of two programs (None for calls without cost), and sums of their costs."""

    def __init__(self, value: Callable[[Dim], int | None]) -> None:
        # By number: whether the cost is unknown, and the costs in joint sizes.
        self.kinds: list[tuple[bool, tuple[Cost, Cost]]] = []
        self._value = value
        self._numbers: dict[Hashable, int] = {}
        self._figures: dict[Hashable, Mapping[str, Figure]] = {}
        self._sums: dict[tuple[Counts, bool], Cost] = {}

    def of(self, report: Report, renamed: Renamed) -> list[int | None]:
        types: dict[int, Hashable] = {}
        costs: dict[int, Cost] = {id(None): _NOTHING}
        numbers: list[int | None] = []
        for row in report.rows:
            if row.state == "free" and not row.cost and not row.backward:
                numbers.append(None)
                continue
            for one in (row.cost, row.backward):
                if one is not None and id(one) not in costs:
                    costs[id(one)] = renamed.cost(one)
            cost, backward = costs[id(row.cost)], costs[id(row.backward)]
            tensors = []
            for _, type_ in (*row.inputs, *row.outputs):
                seen = types.get(id(type_))
                if seen is None:
                    seen = types[id(type_)] = (*map(renamed, type_.shape), type_.dtype)
                tensors.append(seen)
            what = (row.op, row.state, row.phase, row.matrix_dtype, len(row.inputs))
            key = (what, cost, backward, renamed(row.times), *tensors)
            number = self._numbers.setdefault(key, len(self.kinds))
            if number == len(self.kinds):
                self.kinds.append((row.state == "unknown", (cost, backward)))
            numbers.append(number)
        return numbers

    def unknown(self, counts: Counts) -> int:
        return sum(times for number, times in counts if self.kinds[number][0])

    def figures(
        self, before: Counts, after: Counts, parameters: tuple[int, int] | None, *, backward: bool = False
    ) -> Mapping[str, Figure]:
        """The work of these calls before and after, and parameters where they are given."""
        key = (before, after, parameters, backward)
        found = self._figures.get(key)
        if found is None:
            found = self.compared(self._sum(before, backward), self._sum(after, backward))
            if parameters is not None:
                found = {**found, "parameters": self.figure(*parameters)}
            self._figures[key] = found
        return found

    def compared(self, before: Cost, after: Cost) -> Mapping[str, Figure]:
        return {name: self.figure(getattr(before, name), getattr(after, name)) for name in WORK}

    def figure(self, before: Dim, after: Dim) -> Figure:
        return Figure(before, after, self._value(before), self._value(after))

    def _sum(self, counts: Counts, backward: bool) -> Cost:
        known = self._sums.get((counts, backward))
        if known is None:
            known = Cost.sum(self.kinds[number][1][backward] * times for number, times in counts)
            self._sums[counts, backward] = known
        return known


NumberedRow = tuple[Row, int]  # with the number of its kind
RowPair = tuple[Row | None, Row | None]


def different(old: Sequence[NumberedRow], new: Sequence[NumberedRow]) -> list[RowPair]:
    """Pairs of the calls that changed; calls that only moved within the module are left out."""
    before, after = (Counter(kind for _, kind in side) for side in (old, new))
    gone, come = before - after, after - before
    pairs: list[RowPair] = []
    i = j = 0
    equal = matching_blocks([kind for _, kind in old], [kind for _, kind in new])
    for a, b, size in [*equal, (len(old), len(new), 0)]:
        mine = [row for row, kind in old[i:a] if _spend(gone, kind)]
        pairs += _matched(mine, [row for row, kind in new[j:b] if _spend(come, kind)])
        i, j = a + size, b + size
    return pairs


def _spend(surplus: Counter[int], kind: int) -> bool:
    """True if the other program has fewer calls of this kind; else the call only moved."""
    surplus[kind] -= 1
    return surplus[kind] >= 0


def _matched(old: list[Row], new: list[Row]) -> Iterator[RowPair]:
    """Pairs calls of the same operator in order, those of one source line first, then by position; then lists the rest."""
    for key in (lambda row: (row.op, row.source), lambda row: row.op):
        waiting = grouped((key(row), row) for row in new)
        rest: list[Row] = []
        for row in old:
            if same := waiting.get(key(row)):
                yield row, same.pop(0)
            else:
                rest.append(row)
        left = {id(row) for same in waiting.values() for row in same}
        old, new = rest, [row for row in new if id(row) in left]
    if len(old) == len(new):
        yield from zip(old, new, strict=True)
        return
    yield from ((row, None) for row in old)
    yield from ((None, row) for row in new)


def facts(pairs: Iterable[RowPair], joined: JointSizes, module: tuple[str, str]) -> list[Fact]:
    """The distinct differences of these calls. module: the path of the module in either program."""
    found: dict[Fact, None] = {}
    came: dict[str, list[int]] = {}
    for before, after in pairs:
        if before is not None and after is not None:
            found.update(dict.fromkeys(_facts(before, after, joined, module)))
        elif row := before or after:
            came.setdefault(row.op, [0, 0])[before is None] += 1
    for op, (gone, new) in came.items():
        found[Fact("calls", str(gone), str(new), op)] = None
    return ordered(found)


def ordered(facts: Iterable[Fact]) -> list[Fact]:
    """Sorts facts by importance: among operands the weight first, then other parameters; results last."""

    def rank(fact: Fact) -> tuple[int, ...]:
        plain = fact.what.startswith("input")
        return _ORDER.index(fact.kind), fact.what == "result", plain, fact.what != "weight"

    return sorted(facts, key=rank)


def _facts(before: Row, after: Row, joined: JointSizes, module: tuple[str, str]) -> Iterator[Fact]:
    if before.state == "unknown" or after.state == "unknown":
        if before.state != after.state:
            yield Fact("unknown", before.state, after.state, after.op)
        elif before.op != after.op:
            yield Fact("operator", before.op, after.op)
        return
    if before.op != after.op:
        yield Fact("operator", before.op, after.op)
    if (before.cost.masked_flops == 0) != (after.cost.masked_flops == 0):
        yield Fact("mask", *joined.texts(before.cost.masked_flops, after.cost.masked_flops))
    if joined.old(before.times) != joined.new(after.times):
        yield Fact("times", *joined.texts(before.times, after.times))
    operands, others = _operands(before, module[0]), _operands(after, module[1])
    for what in {**operands, **others}:
        if what in operands and what in others:
            yield from _types(operands[what], others[what], what, joined)
        else:
            yield Fact("operand", *joined.texts(operands.get(what, ""), others.get(what, "")), what)
    if before.op == after.op and operator(after.op).kind == "attention":
        sides = zip(("query", "key and value"), before.inputs, after.inputs, strict=False)
        for what, (_, query), (_, now) in sides:
            if query.rank == now.rank == 4:  # the operands have an axis of heads
                heads = joined.old(query.shape[1]), joined.new(now.shape[1])
                if heads[0] != heads[1]:
                    yield Fact("heads", *joined.texts(*heads), what)
    if len(before.outputs) == len(after.outputs):
        for mine, other in zip(before.outputs, after.outputs, strict=True):
            yield from _types(mine.type, other.type, "result", joined)


def _operands(row: Row, module: str) -> dict[str, TensorType]:
    """The operands of a call by the module's names for its parameters, `weight`, or `input 2` for other operands."""
    # A parameter of another module, `p_head_weight`, is named by its last word.
    last = {name: name.rpartition("_")[2] for name, _ in row.inputs if name.startswith("p_")}
    named = [(own_name(name, module) or last.get(name, ""), type_) for name, type_ in row.inputs]
    alone = sum(not name for name, _ in named) == 1
    found: dict[str, TensorType] = {}
    for name, type_ in named:
        index = 1 + sum(known.startswith("input") for known in found)
        found[name or ("input" if alone else f"input {index}")] = type_
    return found


def _types(ours: TensorType, theirs: TensorType, what: str, joined: JointSizes) -> Iterator[Fact]:
    if ours.dtype != theirs.dtype:
        yield Fact("dtype", ours.dtype.name, theirs.dtype.name, what)
    if [*map(joined.old, ours.shape)] != [*map(joined.new, theirs.shape)]:
        shapes = (f"[{', '.join(map(str, type_.shape))}]" for type_ in (ours, theirs))
        yield Fact("shape", *joined.texts(*shapes), what)


def own_name(value: str, module: str) -> str:
    """`weight` of `p_fc_weight` or `fc.weight` for the module `fc`; "" if the value is no parameter of it."""
    flat = f"p_{module.replace('.', '_')}_" if module else "p_"
    for prefix in (flat, f"b{flat[1:]}", f"{module}."):
        if value.startswith(prefix) and len(value) > len(prefix):
            return value[len(prefix) :]
    return ""


_NAMED = 3  # changes that one sentence names
Numbers = tuple[Sequence[int | None], Sequence[int | None]]  # of both programs
Source = int | str  # the row of a call; else an input, by its place among them, or a weight


class Rewired(NamedTuple):
    """A call of the new program that reads other results than before. place: its module; before, after: calls or inputs."""

    op: str
    place: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def aligned(old: Report, new: Report, pairs: Pairs, numbers: Numbers) -> dict[int, int]:
    """By row of the old program, the row of the new one: calls of one kind in the same order, in paired modules."""
    found: dict[int, int] = {}
    for ours, theirs in pairs.new.items():
        kinds, others = (
            [report.rows[row].op if number[row] is None else number[row] for row in rows]
            for report, number, rows in zip((old, new), numbers, (ours.rows, theirs.rows), strict=True)
        )
        for a, b, size in matching_blocks(kinds, others):
            found.update(zip(ours.rows[a : a + size], theirs.rows[b : b + size], strict=True))
    return found


def rewired(old: Report, new: Report, paired: Mapping[int, int], numbers: Numbers) -> Iterator[Rewired]:
    """Calls whose operands come from other calls than their pair's; a call without cost counts as its first operand."""
    paired = {ours: theirs for ours, theirs in paired.items() if numbers[0][ours] is not None}
    (reads, names), (now_reads, now_names) = _reads(old, numbers[0]), _reads(new, numbers[1])
    same: dict[Source, Source] = {names[ours]: now_names[theirs] for ours, theirs in paired.items()}
    paired_new = {*same.values()}
    for ours, theirs in paired.items():
        was = [names.get(source, source) for source in reads[ours]]
        after = [now_names.get(source, source) for source in now_reads[theirs]]
        sides = ((was, same.keys()), (after, paired_new))
        if any(isinstance(one, int) and one not in known for side, known in sides for one in side):
            continue
        before = [same.get(source, source) for source in was]
        gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
        row = new.rows[theirs]
        is_unordered = "commutative" in operator(row.op).facts
        if before == after or (is_unordered and not gone and not come):
            continue
        told = ([*left.elements()] or side for left, side in ((gone, before), (come, after)))
        sources, others = (tuple([_named(new, one) for one in side]) for side in told)
        yield Rewired(operator(row.op).word, row.module, sources, others)


def told(found: Sequence[Rewired]) -> str:
    """The changes in one sentence, those of repeated layers together; "" for none."""

    def key(one: Rewired) -> tuple[object, ...]:
        names = (tuple(map(unnumbered, names)) for names in (one.before, one.after))
        return one.op, unnumbered(one.place), *names

    groups = grouped((key(one), one) for one in found)
    parts = []
    for group in [*groups.values()][:_NAMED]:
        first = group[0]
        place = numbered([one.place for one in group])
        before, after = (
            " and ".join(numbered([names[index] for names in side]) for index in range(len(side[0])))
            for side in ([one.before for one in group], [one.after for one in group])
        )
        where = f" of {place}" if place else ""
        parts.append(f"{first.op}{where} reads {after}, no longer {before}")
    more = len(groups) - _NAMED
    return "wiring: " + "; ".join(parts) + (f"; and {more:,} more" if more > 0 else "") if parts else ""


def _reads(report: Report, numbers: Sequence[int | None]) -> tuple[list[list[Source]], dict[Source, Source]]:
    """By row, the calls and inputs that its tensors come from; and, by row, the first equal call of equal operands."""
    made: dict[str, Source] = {name: f"input {place}" for place, (name, _) in enumerate(report.inputs)}
    reads: list[list[Source]] = []
    first: dict[tuple[object, ...], int] = {}
    merged: dict[Source, Source] = {}
    for index, (row, number) in enumerate(zip(report.rows, numbers, strict=True)):
        sources = [made.get(name, f"weight {name}") for name, _ in row.inputs]
        reads.append([one for one in sources if isinstance(one, int) or one.startswith("input")])
        if number is not None:
            operands = [merged.get(source, source) for source in sources]
            merged[index] = first.setdefault((number, row.module, *operands), index)
        result = index if number is not None or not sources else sources[0]
        made.update((name, result) for name, _ in row.outputs)
    return reads, merged


def _named(report: Report, source: Source) -> str:
    if isinstance(source, str):
        return f"input {report.inputs[int(source.split()[1])].name}"
    row = report.rows[source]
    return f"{operator(row.op).word} of {row.module}" if row.module else operator(row.op).word
