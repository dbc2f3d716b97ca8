"""Lists the modules that changed, from the pairs of the two trees; and the operators and source lines."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphflops.base.record import Record
from graphflops.comparison.calls import InternedCalls, Numbers, RowPair, different, facts, ordered, own_name
from graphflops.comparison.modules import ComparedModule, Counts, Pairs, counted, differ, out_of_order
from graphflops.comparison.result import CallChange, Fact, Figure, GroupChange, ModuleChange, Status
from graphflops.comparison.sizes import JointSizes
from graphflops.report import Report
from graphflops.tensor import grouped

# By module, then by parameter as the module calls it: the other modules that use the parameter.
Shared = dict[str, dict[str, set[str]]]


class Trees(Record, frozen=True):
    """Both programs with their paired modules. training: both reports price gradients."""

    reports: tuple[Report, Report]
    old: ComparedModule
    new: ComparedModule
    pairs: Pairs
    kinds: InternedCalls
    joined: JointSizes
    shared: tuple[Shared, Shared]
    export: bool
    training: bool
    numbers: Numbers  # of the kind of each call


def listed(trees: Trees) -> tuple[list[ModuleChange], int, list[tuple[str, str]]]:
    """Modules that changed, are new, gone or moved, in program order; how many did not; those with just another path."""
    modules: list[ModuleChange] = []
    renumbered: list[tuple[str, str]] = []
    unchanged = 0
    # Exporters reorder calls that do not depend on each other.
    earlier = {} if trees.export else _reordered(trees)
    for ours, theirs, whole in _sides(trees):
        if ours is None or theirs is None:
            if _counts(trees, ours or theirs, whole=whole):
                status: Status = "gone" if theirs is None else "new"
                modules.append(_entry(trees, status, ours, theirs, whole=whole))
        elif entry := _paired(trees, ours, theirs, whole, earlier.get(ours), renumbered):
            modules.append(entry)
        else:
            unchanged += theirs.size if whole else 1
    return modules, unchanged, renumbered


def _sides(trees: Trees) -> Iterator[tuple[ComparedModule | None, ComparedModule | None, bool]]:
    """The modules of the new program with their partners, then those that are gone; and which stand for all in them."""
    for root, partners, is_new in ((trees.new, trees.pairs.old, True), (trees.old, trees.pairs.new, False)):
        stack = [root]
        while stack:
            module = stack.pop()
            partner = partners.get(module)
            if partner is None:
                whole = not any(part in partners for part in module.walk())
            else:
                is_replaced = not trees.pairs.replaced.isdisjoint((module, partner))
                whole = is_replaced or module.signature == partner.signature
            if is_new or partner is None:
                yield (partner, module, whole) if is_new else (module, partner, whole)
            if not whole:
                stack += [*module.children.values()][::-1]


def _reordered(trees: Trees) -> dict[ComparedModule, Fact]:
    """Modules whose position in the order of execution among their siblings changed."""
    found: dict[ComparedModule, Fact] = {}
    for ours, theirs in trees.pairs.new.items():
        if ours.signature == theirs.signature or len(ours.children) < 2:
            continue
        pairs = [(part, trees.pairs.new.get(part)) for part in ours.children.values() if part.counts]
        both = [(part, one) for part, one in pairs if one and one.parent is theirs and one.counts]
        mine, into = [part for part, _ in both], [one for _, one in both]
        order = sorted(into, key=lambda part: part.first or 0)
        place = {part: index for index, part in enumerate(order)}
        for index in out_of_order(place[part] for part in into):
            now = place[into[index]]
            names = (mine[index - 1].name if index else "", order[now - 1].name if now else "")
            found[mine[index]] = Fact("order", *names)
    return found


def _paired(
    trees: Trees, ours: ComparedModule, theirs: ComparedModule, whole: bool, order: Fact | None,
    renumbered: list[tuple[str, str]],
) -> ModuleChange | None:  # fmt: skip
    """The entry of a module that is in both programs; None if it did not change."""
    pairs = trees.pairs
    if ours in pairs.replaced:
        return _entry(trees, "changed", ours, theirs, whole=True)
    # A wrapper around the whole model moves nothing in it.
    is_inside = any(part in pairs.new for part in ours.above())
    outermost = not is_inside and not any(part in pairs.old for part in theirs.above())
    beside = outermost or (ours.parent is not None and pairs.new.get(ours.parent) is theirs.parent)
    moved = order is not None or not beside or ours.name != theirs.name
    if beside and order is None and moved and (outermost or (ours.numbered and theirs.numbered)):
        renumbered.append((ours.path, theirs.path))
        moved = False
    if whole and not (moved and _counts(trees, ours, whole=True)):
        return None
    entry = _entry(trees, "moved" if moved else "changed", ours, theirs, whole=whole, order=order)
    if moved or ours.parameters != theirs.parameters:
        return entry
    if trees.export:
        return entry if ours.mark != theirs.mark else None
    return entry if entry.calls or any(fact.kind == "shared" for fact in entry.facts) else None


def _counts(trees: Trees, module: ComparedModule | None, *, whole: bool) -> bool:
    """True if the module has work or parameters; of an export only matrix work and unknown calls count as work."""
    calls, held = _own(module, whole=whole)
    if held or not trees.export:
        return bool(held or calls)
    return trees.kinds.figures(calls, (), None)["matrix_flops"].differs or trees.kinds.unknown(calls) > 0


def _own(module: ComparedModule | None, *, whole: bool) -> tuple[Counts, int]:
    """The calls and the parameters of a module itself, or of everything in it."""
    if module is None:
        return (), 0
    return (module.counts, module.holds) if whole else (module.own, module.parameters)


def _entry(
    trees: Trees, status: Status, ours: ComparedModule | None, theirs: ComparedModule | None, *, whole: bool,
    order: Fact | None = None,
) -> ModuleChange:  # fmt: skip
    (before, held), (after, now_held) = (_own(side, whole=whole) for side in (ours, theirs))
    said: list[Fact] = [order] if order is not None else []
    pairs: list[RowPair] = []
    if ours is not None and theirs is not None:
        if differ(ours, theirs):
            said.append(Fact("type", ours.kind, theirs.kind))
        if not whole:
            calls = (
                [(report.rows[index], kind) for index, kind in side.calls]
                for report, side in zip(trees.reports, (ours, theirs), strict=True)
            )
            pairs = [] if trees.export else different(*calls)
            said += _own_facts(trees, ours, theirs, pairs)
    figures = trees.kinds.figures(before, after, (held, now_held))
    backward: Mapping[str, Figure] = {}
    if trees.training:
        backward = trees.kinds.figures(before, after, None, backward=True)
    return ModuleChange(
        status=status,
        before=None if ours is None else ours.path,
        after=None if theirs is None else theirs.path,
        before_type="" if ours is None else ours.type,
        after_type="" if theirs is None else theirs.type,
        figures=figures,
        backward=backward,
        whole=whole,
        modules=max(module.size for module in (ours, theirs) if module is not None) if whole else 1,
        calls=tuple(CallChange(*pair) for pair in pairs),
        facts=tuple(ordered(said)),
        before_unknown=trees.kinds.unknown(before),
        after_unknown=trees.kinds.unknown(after),
    )


def _own_facts(
    trees: Trees, ours: ComparedModule, theirs: ComparedModule, pairs: Sequence[RowPair]
) -> Iterator[Fact]:
    """The differences of a module itself, without its submodules."""
    before, after = trees.shared[0].get(ours.path, {}), trees.shared[1].get(theirs.path, {})
    for name in {**before, **after}:
        were = before.get(name, set())
        if {_path_now(trees, path) for path in were} != after.get(name, set()):
            yield Fact("shared", ", ".join(sorted(were)), ", ".join(sorted(after.get(name, ()))), name)
    if ours.parameters != theirs.parameters:
        yield Fact("parameters", str(ours.parameters), str(theirs.parameters))
    if not trees.export:
        yield from facts(pairs, trees.joined, (ours.path, theirs.path))
        return
    work = trees.kinds.figures(ours.own, theirs.own, None)["matrix_flops"]
    if work.differs:
        yield Fact("work", str(work.before), str(work.after))
    unknown = trees.kinds.unknown(ours.own), trees.kinds.unknown(theirs.own)
    if unknown[0] != unknown[1]:
        yield Fact("unknown", str(unknown[0]), str(unknown[1]))


def _path_now(trees: Trees, path: str) -> str:
    module: ComparedModule | None = trees.old
    for part in path.split(".") if path else ():
        module = module and module.children.get(part)
    partner = trees.pairs.new.get(module) if module else None
    return partner.path if partner else path


def shared(report: Report) -> Shared:
    """By module and parameter: the other modules whose calls read the same parameter."""
    users: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for row in report.rows:
        for name, _ in row.inputs:
            users[name][row.module] = None
    made = {named.name for row in report.rows for named in row.outputs}
    made |= {named.name for named in report.inputs}
    holders = [*report.parameter_modules]
    found: Shared = {}
    for name, modules in users.items():
        if len(modules) < 2 or name in made:
            continue
        called = next((text for path in (*modules, *holders) if (text := own_name(name, path))), "")
        if not called or name.startswith("b_"):
            continue
        for path in modules:
            found.setdefault(path, {})[called] = {*modules} - {path}
    return found


def attributed(old: Report, new: Report) -> Mapping[str, int]:
    """Parameters of the new program by module; a shared one is counted in the module in which the old program counts it."""
    counts = dict(new.parameter_modules)
    for report in (old, new):
        for path, parameters in shared(report).items():
            for others in parameters.values():
                for other in others:
                    extra = counts.get(path, 0) - old.parameter_modules.get(path, 0)
                    missing = old.parameter_modules.get(other, 0) - counts.get(other, 0)
                    if extra == missing > 0:
                        counts[path] = counts.get(path, 0) - extra
                        counts[other] = counts.get(other, 0) + extra
    return counts


def by_operator(trees: Trees) -> Iterator[GroupChange]:
    """One group for each operator, unchanged ones included."""
    groups = _grouped(trees, "op")
    yield from _compared(trees, groups, {name: name for name in groups[0]})


def by_source(trees: Trees) -> Iterator[GroupChange]:
    """One group for each source line, even if unchanged; a line is paired with the line that has most of its calls."""
    groups = _grouped(trees, "source")
    # Calls of an export are not aligned, but both programs name the lines of one source.
    pairs = {line: line for line in groups[0]} if trees.export else followed(_aligned(trees))
    yield from _compared(trees, groups, pairs)


def followed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By old line, the new line if each has most of the other's calls. pairs: the lines of each call."""
    votes = Counter(pairs)
    new: dict[str, str] = {}
    old: dict[str, str] = {}
    for (ours, theirs), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0][0] != vote[0][1])):
        new.setdefault(ours, theirs)
        old.setdefault(theirs, ours)
    return {ours: theirs for ours, theirs in new.items() if old[theirs] == ours}


def _aligned(trees: Trees) -> Iterator[tuple[str, str]]:
    """Pairs of source lines of equal calls in paired modules, in order."""
    old, new = (report.rows for report in trees.reports)
    for ours, theirs in trees.pairs.new.items():
        places = grouped((kind, index) for index, kind in theirs.calls)
        for index, kind in ours.calls:
            if partners := places.get(kind):
                yield old[index].source, new[partners.pop(0)].source
        if len(ours.calls) == len(theirs.calls):  # changed calls at the same place count too
            for (index, _), (other, _) in zip(ours.calls, theirs.calls, strict=True):
                if old[index].op == new[other].op:
                    yield old[index].source, new[other].source


def _grouped(trees: Trees, column: str) -> list[dict[str, Counts]]:
    sides: list[dict[str, list[int]]] = [{}, {}]
    for groups, report, kinds in zip(sides, trees.reports, trees.numbers, strict=True):
        for row, kind in zip(report.rows, kinds, strict=True):
            if kind is not None:
                groups.setdefault(getattr(row, column), []).append(kind)
    return [{name: counted(members) for name, members in groups.items()} for groups in sides]


def _compared(
    trees: Trees, groups: Sequence[dict[str, Counts]], partner: dict[str, str]
) -> Iterator[GroupChange]:
    old, new = groups
    names: list[tuple[str | None, str | None]] = [
        (name, partner[name] if partner.get(name) in new else None) for name in old
    ]
    taken = {found for _, found in names}
    names += [(None, name) for name in new if name not in taken]
    for ours, theirs in names:
        before = () if ours is None else old[ours]
        after = () if theirs is None else new[theirs]
        yield GroupChange(
            before=ours,
            after=theirs,
            before_calls=sum(times for _, times in before),
            after_calls=sum(times for _, times in after),
            before_unknown=trees.kinds.unknown(before),
            after_unknown=trees.kinds.unknown(after),
            figures=trees.kinds.figures(before, after, None),
            backward=trees.kinds.figures(before, after, None, backward=True) if trees.training else {},
        )


def changed(groups: Iterable[GroupChange], rank: Callable[[Any], Any], name: str) -> dict[str, Any]:
    """Those of the groups that changed, and how many did not, as fields of a comparison."""
    every = list(groups)
    found = sorted(filter(_differs, every), key=rank)
    return {name: tuple(found), f"unchanged_{name}": len(every) - len(found)}


def _differs(group: GroupChange) -> bool:
    before = (group.before is None, group.before_calls, group.before_unknown)
    after = (group.after is None, group.after_calls, group.after_unknown)
    figures = (*group.figures.values(), *group.backward.values())
    return before != after or any(figure.differs for figure in figures)
