"""What differs between a program and its export, and what explains it, under the names that both have."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from graphflops.base.patterns import modules_around
from graphflops.base.record import Record
from graphflops.comparison.result import InputChange, LedgerEntry, LedgerKind, LedgerStatus, UnknownChange
from graphflops.comparison.sizes import JointSizes, Renamed
from graphflops.comparison.stored_uses import STORED, Constants, ConstantUse, Matcher, entry, plain
from graphflops.cost import Cost
from graphflops.dims import Dim, evaluate
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.tensor import grouped

_FEW = 4  # a prefix must match more than one in this many names: graph optimizers rename many


def is_export(old: Report, new: Report) -> bool:
    """True for a program and its export, which keeps the work and not the operators."""
    return (old.origin.format == "onnx") != (new.origin.format == "onnx")


def under_common_names(
    old: Report, new: Report, uniform: Callable[[str], float | None]
) -> tuple[Report, Report, Callable[[str], float | None]]:
    """For an export check: both programs, and `uniform`, under the names of the inner one, a module of the outer."""
    if not is_export(old, new):
        return old, new, uniform
    if prefix := _prefix(old, new):
        return old, _unwrapped(new, prefix)[0], uniform
    if prefix := _prefix(new, old):
        old, names = _unwrapped(old, prefix)
        return old, new, lambda name: uniform(names.get(name, name))
    return old, new, uniform


def _prefix(inner: Report, outer: Report) -> str:
    """The prefix that names of the outer program have before those of the inner one; "" if more are equal without."""
    found, names = _names(inner), _names(outer)
    met: Counter[str] = Counter()
    for name in names:
        ends = [0, *(place + 1 for place, sign in enumerate(name) if sign == "_"), len(name) + 1]
        met.update({name[: end - 1] if end else "" for end in ends if name[end:] in found})
    best = max(met, key=lambda prefix: (met[prefix], -len(prefix)), default="")
    return best if met[best] > max(met[""], min(len(found), len(names)) // _FEW) else ""


def _names(report: Report) -> set[str]:
    """Modules with products and stored tensors, spelled as either exporter would spell them."""
    modules = {row.module for row in report.rows if row.cost.matrix_flops != 0}
    return {plain(name) for name in (*modules, *_stored(report))}


def _stored(report: Report) -> dict[str, None]:
    made = {named.name for named in report.inputs}.union(n.name for row in report.rows for n in row.outputs)
    return dict.fromkeys(n.name for row in report.rows for n in row.inputs if n.name not in made)


def _unwrapped(report: Report, prefix: str) -> tuple[Report, Mapping[str, str]]:
    """The program with names relative to a module for what is in it; by new name of a stored tensor, the old name."""
    stored = _stored(report)
    inside = {name: _inside(name, prefix) for name in stored}
    names = {name: new for name, new in inside.items() if new not in stored}
    rows = tuple(
        row._replace(
            module=_inside(row.module, prefix),
            inputs=tuple(named._replace(name=names.get(named.name, named.name)) for named in row.inputs),
        )
        for row in report.rows
    )
    modules = {_inside(path, prefix): type_ for path, type_ in report.modules.items()}
    held = {_inside(path, prefix): count for path, count in report.parameter_modules.items()}
    found = replace(report, rows=rows, modules=modules, parameter_modules=held)
    return found, {new: old for old, new in names.items()}


def _inside(name: str, prefix: str) -> str:
    """A path or stored tensor's name without the prefix; unchanged if it is outside of the prefix."""
    kind = next((kind for kind in STORED if name.startswith(kind)), "")
    rest = name.removeprefix(kind)
    if plain(name) == prefix or plain(name).startswith(f"{prefix}_"):
        rest = rest[len(prefix) + 1 :]
    return kind + rest


def constants(report: Report, renamed: Renamed) -> Constants:
    """Separate what depends on the inputs (all, if they are not known). renamed: puts joint sizes into a quantity."""
    regions = tuple(f"{row.node}/" for row in report.rows if row.regions)
    found = Constants(renamed, modules_guessed=not any(row.module_type for row in report.rows))
    needed, found.unused = _by_need(report, regions)
    changing = {named.name for named in report.inputs}
    made = {named.name for row in report.rows for named in row.outputs}
    roots: dict[str, tuple[str, ...]] = {}
    computed: dict[str, bool] = {}
    uses: dict[tuple[str, str], ConstantUse] = {}
    for row in needed:
        nested = bool(regions) and row.node.startswith(regions)
        for name, type_ in row.inputs:
            if name not in made and name not in changing and not nested:
                found.types.setdefault(name, (tuple(map(renamed, type_.shape)), type_.dtype))
                roots.setdefault(name, (name,))
        read = row.inputs[operator(row.op).reads_sizes :]
        used = [named for named in read if named.name not in changing]
        # Results that do not follow from the operands listed.
        is_drawn = operator(row.op).kind in ("random", "sequence")
        if nested or row.regions or not report.inputs or len(used) < len(read) or is_drawn:
            found.rows.append(row)
            changing.update(named.name for named in row.outputs)
            for name, type_ in used:
                if roots.get(name) and (name, row.module) not in uses:
                    shape, works = tuple(map(renamed, type_.shape)), computed.get(name, False)
                    use = ConstantUse(name, row.module, roots[name], shape, type_.dtype, works)
                    uses[name, row.module] = use
            continue
        if row.cost.matrix_flops != 0:
            found.folded.append(row)
        origin = tuple(dict.fromkeys(root for name, _ in used for root in roots.get(name, ())))
        works = row.state != "free" or any(computed.get(name, False) for name, _ in used)
        for name, _ in row.outputs:
            roots[name], computed[name] = origin, works
    found.uses = [*uses.values()]
    return found


def _by_need(report: Report, regions: tuple[str, ...]) -> tuple[list[Row], list[Row]]:
    """The calls that results depend on, or that act, and others with matrix work. regions: prefixes of nested calls."""
    wanted = set(report.outputs)
    needed, unused = [], []
    for row in reversed(report.rows):
        nested = row.regions or (regions and row.node.startswith(regions))
        acts = nested or not row.outputs or row.state == "unknown" or operator(row.op).mutates
        if not report.outputs or acts or not wanted.isdisjoint(name for name, _ in row.outputs):
            needed.append(row)
            wanted.update(name for name, _ in row.inputs)
        elif row.cost.matrix_flops != 0:
            unused.append(row)
    return needed[::-1], unused[::-1]


_CANNOT_RUN = "GF118"
_PROBES = (1, 2, 3)  # multiples of the compared sizes, at which different formulas are evaluated
_SIZE = 64  # the value of a size without one
_SMALL_INTEGERS = frozenset(("int8", "uint8", "int4", "uint4"))
_ORDER = get_args(LedgerStatus)  # entries are listed in this order


class ExportCheck(Record, frozen=True):
    """What both programs of an export check compute from their inputs."""

    joined: JointSizes
    before: Constants
    after: Constants

    def entries(self, uniform: Callable[[str], float | None]) -> Iterator[LedgerEntry]:
        yield from self._work()
        # Modules whose products have another element type; integers with a scale come from a quantizer.
        before, after = _dtypes(self.before.rows), _dtypes(self.after.rows)
        changed = [path for path in before if path in after and before[path] != after[path]]
        quantized = [path for path in changed if after[path] - before[path] <= _SMALL_INTEGERS]
        other = [path for path in changed if path not in quantized]
        kinds: dict[LedgerKind, list[str]] = {"element_types": other, "quantized": quantized}
        for kind, paths in kinds.items():
            sides = ({name for path in paths for name in side[path]} for side in (before, after))
            yield from entry(kind, paths, *(", ".join(sorted(names)) for names in sides))
        yield from Matcher(self.before, self.after, uniform).entries()
        yield from self._attention()
        yield from self._aside("constants_folded", self.before.folded, self.after.folded)
        yield from self._aside("unused_left_out", self.before.unused, self.after.unused)

    def _work(self) -> Iterator[LedgerEntry]:
        """Matrix work by module; unexplained if no module around it has all of it, even if repeated calls count once."""
        sides = (self.before, self.after)
        before, after = (side.flops(side.rows) for side in sides)
        differ = [path for path in {**before, **after} if not self.equal(before[path], after[path])]
        if not differ:
            return
        once = self.before.flops(_distinct(self.before.rows))
        whole = [side.flops([*side.rows, *side.folded]) for side in sides]
        sums = [_with_all_around(flops) for flops in (before, after, *whole, once)]
        unexplained, merged = [], []
        for path in differ:
            around = _and_around(path)
            if any(self.equal(sums[i][module], sums[i + 1][module]) for module in around for i in (0, 2)):
                continue
            if any(self.equal(sums[4][module], sums[1][module]) for module in around):
                merged.append(path)
            else:
                unexplained.append(path)
        unexplained.sort(key=lambda path: -abs(self.number(before[path]) - self.number(after[path])))
        totals = [sum((flops[path] for path in unexplained), 0) for flops in (before, after)]
        values = [self.joined.value(total) for total in totals]  # at the sizes compared at, else formulas
        told = (total if value is None else value for total, value in zip(totals, values, strict=True))
        yield from entry("work", unexplained, *map(str, told))
        yield from entry("repeated_work_merged", merged)

    def equal(self, before: Dim, after: Dim) -> bool:
        """True if two quantities are equal: by formula, else at several sizes."""
        if before == after:
            return True
        difference = after - before
        if isinstance(difference, int):
            return False
        values = {name: self.joined.values.get(name, _SIZE) for name in difference.symbols}
        probes = [{name: value * times for name, value in values.items()} for times in _PROBES]
        return all(evaluate(difference, probe) == 0 for probe in probes)

    def _aside(self, kind: LedgerKind, ours: Sequence[Row], theirs: Sequence[Row]) -> Iterator[LedgerEntry]:
        """Products that do not lead from inputs to results, unless the export has them too."""
        before, after = self.before.flops(ours), self.after.flops(theirs)
        if not self.equal(sum(before.values(), 0), sum(after.values(), 0)):
            yield from entry(kind, [row.node for row in ours])

    def number(self, quantity: Dim) -> int:
        return evaluate(quantity, defaultdict(lambda: _SIZE, self.joined.values)) or 0

    def _attention(self) -> Iterator[LedgerEntry]:
        """Attentions that are one operator in the program and several in the export; heads copied for them."""
        fused = [row for row in self.before.rows if operator(row.op).kind == "attention"]
        kept = Counter(row.module for row in self.after.rows if operator(row.op).kind == "attention")
        unfused = [row for row in fused if not kept[row.module]]
        if not unfused:
            return
        modules = {row.module for row in unfused}
        costs = (
            side.renamed.cost(Cost.sum(row.cost for row in side.rows if row.module in modules))
            for side in (self.before, self.after)
        )
        moved = (self.number(cost.read_bytes) + self.number(cost.written_bytes) for cost in costs)
        yield from entry("attention_unfused", [row.module for row in unfused], *map(str, moved))
        shapes = [(row.module, [named.type.shape for named in row.inputs[:2]]) for row in unfused]
        known = [(module, pair) for module, pair in shapes if [*map(len, pair)] == [4, 4]]
        yield from entry("heads_expanded", [module for module, (query, key) in known if query[1] != key[1]])


def ledger(
    old: Report, new: Report, joined: JointSizes, unknown: Iterable[UnknownChange],
    inputs: Iterable[InputChange], uniform: Callable[[str], float | None],
) -> tuple[LedgerEntry, ...]:  # fmt: skip
    """What differs between a program and its export, unexplained first. uniform: the number that fills a stored vector."""
    check = ExportCheck(joined, constants(old, joined.old), constants(new, joined.new))
    found = [*_of_the_whole(new, joined, unknown, inputs), *check.entries(uniform)]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.status)))


def _of_the_whole(
    new: Report, joined: JointSizes, unknown: Iterable[UnknownChange], inputs: Iterable[InputChange]
) -> Iterator[LedgerEntry]:
    cannot = (one.node for one in new.diagnostics if one.code == _CANNOT_RUN)
    yield from entry("cannot_run", dict.fromkeys(cannot))
    changes = [*unknown]
    counts = (sum(one.before for one in changes), sum(one.after for one in changes))
    yield from entry("unknown", [one.op for one in changes], *map(str, counts))
    for one in inputs:
        types = [(side or "").partition("[")[0] for side in (one.before, one.after)]
        if one.before is not None and one.after is not None and types[0] != types[1]:
            yield from entry("element_types", [one.name], *types)
    fixed = ((size, size.after) for size in joined.sizes if size.fixed)
    places = [f"{size.place} at {size.at(at) if isinstance(at, int) else at}" for size, at in fixed]
    yield from entry("sizes_fixed", places)
    if any(remark.name == "sizes-differ" for remark in joined.remarks):
        yield from entry("work", ["the sizes differ"])


def _with_all_around(flops: Mapping[str, Dim]) -> defaultdict[str, Dim]:
    found: defaultdict[str, Dim] = defaultdict(int)
    for path, own in flops.items():
        for module in _and_around(path):
            found[module] += own
    return found


def _and_around(path: str) -> set[str]:
    return {path, *modules_around(path), ""}


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """The calls without those that repeat an earlier call on the same values."""
    numbers: dict[str, object] = {}  # by value: which distinct call made it, and which result it is
    seen: dict[object, int] = {}
    found = []
    for row in rows:
        inputs = tuple([numbers.get(name, name) for name, _ in row.inputs])
        key = (row.op, inputs, row.cost, tuple([named.type for named in row.outputs]))
        if key not in seen or not inputs:
            found.append(row)
        number = seen.setdefault(key, len(seen))
        numbers.update((name, (number, place)) for place, (name, _) in enumerate(row.outputs))
    return found


def _dtypes(rows: Sequence[Row]) -> dict[str, set[str]]:
    worked = grouped((row.module, row.matrix_dtype) for row in rows if row.cost.matrix_flops != 0)
    return {module: {*dtypes} for module, dtypes in worked.items()}
