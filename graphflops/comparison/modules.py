"""The trees of modules of two programs, where equal modules have equal signatures; and which module became which.

Modules are paired by path and type, then by position, then by contents, from the top down. Those in a list (numbered ones)
are aligned as sequences, so that one more in the middle leaves the others as they were; others by name. Modules left over on
both sides are then searched elsewhere: a subtree with equal contents was moved or renamed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from graphflops.base.aligned import equal_at_start
from graphflops.base.patterns import ModuleNode, module_at
from graphflops.base.record import field
from graphflops.base.units import is_index
from graphflops.report import Report

Counts = tuple[tuple[int, int], ...]  # calls by kind, in the order of the kinds


class ComparedModule(ModuleNode):
    """A module of one program, with what is inside it."""

    kind: str = ""  # the type without its package, which exporters and moves between files change
    rows: list[int] = field(default_factory=list)  # of its own calls in program order
    calls: list[tuple[int, int]] = field(default_factory=list)  # (row, kind) of those that cost something
    first: int | None = None  # the first call inside it, as a row of the report
    mark: Hashable = ()  # the key by which its own calls are compared
    signature: int = -1  # equal for modules that are equal from here down except for their own names
    size: int = 1  # modules from here down; `counts` has their calls
    own: Counts = ()  # its own calls by kind
    counts: Counts = ()
    holds: int = 0  # elements of parameters from here down

    @property
    def numbered(self) -> bool:
        return is_index(self.name)

    def above(self) -> Iterator[ComparedModule]:
        """The modules around this one, the innermost first."""
        module = self.parent
        while module is not None:
            yield module
            module = module.parent


def grown(
    report: Report, kinds: Sequence[int | None], parameters: Mapping[str, int],
    signatures: dict[Hashable, int], mark: Callable[[ComparedModule], Hashable],
) -> ComparedModule:  # fmt: skip
    """The modules of a report. `signatures` is shared by the programs that are compared."""
    root = ComparedModule("", "", type=report.modules.get("", ""))
    by_path = {"": root}
    for index, (row, kind) in enumerate(zip(report.rows, kinds, strict=True)):
        module = module_at(by_path, row.module, report.modules)
        module.rows.append(index)
        if module.first is None and kind is not None:
            module.first = index
        module.type = module.type or row.module_type
        if kind is not None:
            module.calls.append((index, kind))
    for path, count in parameters.items():
        module_at(by_path, path, report.modules).parameters += count
    for path in report.modules:
        module_at(by_path, path, report.modules)
    for module in reversed([*root.walk()]):
        _finish(module, signatures, mark)
    return root


def _finish(
    module: ComparedModule, signatures: dict[Hashable, int], mark: Callable[[ComparedModule], Hashable]
) -> None:
    """Sorts the submodules of a module in program order and computes its signature from theirs."""
    module.kind = module.type.rpartition(".")[2]
    late = 1 << 60
    parts = sorted(module.children.values(), key=lambda part: late if part.first is None else part.first)
    module.children = {part.name: part for part in parts}
    module.first = min([part.first for part in (*parts, module) if part.first is not None], default=None)
    module.size = 1 + sum(part.size for part in parts)
    module.own = counted(kind for _, kind in module.calls)
    module.counts = together([module.own, *(part.counts for part in parts)]) if parts else module.own
    module.holds = module.parameters + sum(part.holds for part in parts)
    module.mark = mark(module)
    key = (module.mark, module.parameters, *((part.name, part.signature) for part in parts))
    module.signature = signatures.setdefault(key, len(signatures))


def counted(numbers: Iterable[int | None]) -> Counts:
    """How many calls of each kind there are."""
    return tuple(sorted(Counter(number for number in numbers if number is not None).items()))


def together(counts: Iterable[Counts]) -> Counts:
    """Several counts as one."""
    total: Counter[int] = Counter()
    for part in counts:
        total.update(dict(part))
    return tuple(sorted(total.items()))


ModulePair = tuple[ComparedModule, ComparedModule]  # one of the old program, one of the new
_MOST_CELLS = 250_000  # of the table that aligns two lists; past it, only numbers are compared
_MOST_TRIED = 10_000  # pairs of leftovers looked at for likeness
_MOST_EQUAL = 64  # modules with equal contents among which one of the same name is searched for
_ALIKE = 0.5  # the least share of equal calls of a module and the one that it became
_UNLIKE = 0.34  # below this likeness, a module of another type is a replacement, one of another name no pair

_EQUAL, _SAME_TYPE, _SAME_PLACE, _SAME_NAME = 20, 6, 1, 2  # scores of a pair when lists are aligned


class Pairs(Struct, eq=False):
    """The new module of each old one, and the reverse."""

    new: dict[ComparedModule, ComparedModule] = {}
    old: dict[ComparedModule, ComparedModule] = {}
    # Old modules that another kind of module replaces.
    replaced: set[ComparedModule] = field(default_factory=set)
    # Modules without a partner so far, of the old and of the new program.
    left: tuple[list[ComparedModule], list[ComparedModule]] = field(default_factory=lambda: ([], []))
    tried: int = 0  # pairs of unmatched modules compared for similarity so far

    def add(self, ours: ComparedModule, theirs: ComparedModule) -> None:
        self.new[ours] = theirs
        self.old[theirs] = ours


def align(old: ComparedModule, new: ComparedModule, *, by_contents: bool = True) -> Pairs:
    """Pair the modules of two programs. by_contents: whether equal contents show that a module moved."""
    pairs = Pairs()
    pending = [(old, new)]
    while pending:
        while pending:
            pending += _paired(*pending.pop(), pairs)
        if by_contents:
            free = _Free(pairs)
            unpaired = (one for one in pairs.left[0] if one not in pairs.new)
            queue = sorted(unpaired, key=lambda module: -module.size)
            for module in queue:  # which grows at its end
                if module in pairs.new:
                    continue
                chosen = free.equal(module) or free.alike(module)
                if chosen is None:
                    queue.extend(module.children.values())
                else:
                    free.take(chosen)
                    pending.append((module, chosen))
    return pairs


def _paired(ours: ComparedModule, theirs: ComparedModule, pairs: Pairs) -> Iterator[ModulePair]:
    if ours.signature == theirs.signature:
        for one, other in zip(ours.walk(), theirs.walk(), strict=True):
            pairs.add(one, other)
        return
    if (inner := _wrapped(ours, theirs)) is not None:
        pairs.left[1].append(theirs)
        yield ours, inner
        return
    if (inner := _wrapped(theirs, ours)) is not None:
        pairs.left[0].append(ours)
        yield inner, theirs
        return
    pairs.add(ours, theirs)
    if ours.parent is not None and differ(ours, theirs) and likeness(ours, theirs) < _UNLIKE:
        pairs.replaced.add(ours)
        return
    matched = list(_parts(ours, theirs))
    found = ({one for one, _ in matched}, {other for _, other in matched})
    pairs.left[0].extend(part for part in ours.children.values() if part not in found[0])
    pairs.left[1].extend(part for part in theirs.children.values() if part not in found[1])
    yield from matched


def differ(ours: ComparedModule, theirs: ComparedModule) -> bool:
    """True if the two have known and different types."""
    return bool(ours.kind and theirs.kind) and ours.kind != theirs.kind


def _wrapped(module: ComparedModule, around: ComparedModule) -> ComparedModule | None:
    """The submodule of `around` that equals the module, if `around` is a new wrapper; else None."""
    if not around.children or module.children.keys() & around.children.keys():
        return None
    if not differ(module, around):  # of one type, or of unknown ones: a wrapper has nothing but the module
        part, *others = around.children.values()
        alone = not others and not around.calls and not around.parameters and not differ(part, module)
        both_named = bool(module.kind and around.kind)
        return part if alone and not both_named and module.children.keys() == part.children.keys() else None
    same = [part for part in around.children.values() if part.kind == module.kind]
    equal = [part for part in same if part.signature == module.signature and (part.counts or part.holds)]
    names = module.children.keys()
    alike = equal or [part for part in same if names and part.children.keys() == names]
    return alike[0] if len(alike) == 1 or equal else None


def likeness(ours: ComparedModule, theirs: ComparedModule) -> float:
    """Similarity of two modules from 0 to 1: the share of equal calls, or of equal names of submodules."""
    mine, other = (Counter(dict(module.counts)) for module in (ours, theirs))
    most = max(mine.total(), other.total())
    calls = (mine & other).total() / most if most else float(not ours.children and not theirs.children)
    names, others = (  # numbers with their types: any two lists have the same numbers
        {(one.path[len(module.path) :].strip("."), one.kind * one.numbered) for one in [*module.walk()][1:]}
        for module in (ours, theirs)
    )
    return max(calls, len(names & others) / max(len(names | others), 1))


def _parts(ours: ComparedModule, theirs: ComparedModule) -> Iterator[ModulePair]:
    mine, other = [*ours.children.values()], [*theirs.children.values()]
    if all(part.numbered for part in (*mine, *other)):
        yield from _aligned(*(sorted(side, key=lambda part: int(part.name)) for side in (mine, other)))
        return
    free = {part.name: part for part in other}
    rest = mine
    # Same name and equal contents; same name and type; equal contents under another name; same name.
    matches: tuple[tuple[bool, Callable[[ComparedModule, ComparedModule], bool]], ...] = (
        (True, lambda part, one: one.signature == part.signature),
        (True, lambda part, one: not differ(part, one)),
        (False, lambda part, one: one.signature == part.signature and bool(one.counts or one.holds)),
        (True, lambda part, one: True),
    )
    for is_by_name, fits in matches:
        later: list[ComparedModule] = []
        for part in rest:
            among = [free.get(part.name)] if is_by_name else free.values()
            found = next((one for one in among if one is not None and fits(part, one)), None)
            if found is None:
                later.append(part)
            else:
                yield part, free.pop(found.name)
        rest = later
    for kind in {part.kind: None for part in rest if part.kind}:
        renamed = [part for part in rest if part.kind == kind]
        into = [part for part in free.values() if part.kind == kind]
        if len(renamed) == len(into):
            pairs = zip(renamed, into, strict=True)
            yield from (pair for pair in pairs if not pair[0].children or likeness(*pair) >= _UNLIKE)


def _aligned(mine: Sequence[ComparedModule], other: Sequence[ComparedModule]) -> Iterator[ModulePair]:
    """Aligns two lists of modules as sequences, for the largest sum of scores of pairs in order."""
    signatures = [part.signature for part in mine], [part.signature for part in other]
    start = equal_at_start(*signatures)
    end = equal_at_start(*(each[start:][::-1] for each in signatures))
    yield from zip(mine[:start], other[:start], strict=True)
    yield from zip(mine[::-1][:end], other[::-1][:end], strict=True)
    mine, other = mine[start : len(mine) - end], other[start : len(other) - end]
    if len(mine) * len(other) > _MOST_CELLS:
        by_name = {part.name: part for part in other}
        yield from ((part, by_name[part.name]) for part in mine if part.name in by_name)
        return
    best = [[0] * (len(other) + 1) for _ in range(len(mine) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        row, below = best[i], best[i + 1]
        for j in range(len(other) - 1, -1, -1):
            row[j] = max(below[j + 1] + _worth(mine[i], other[j]), below[j], row[j + 1])
    i = j = 0
    while i < len(mine) and j < len(other):
        if best[i][j] == best[i + 1][j + 1] + _worth(mine[i], other[j]):
            yield mine[i], other[j]
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1


def _worth(mine: ComparedModule, other: ComparedModule) -> int:
    alike = _SAME_PLACE if differ(mine, other) else _SAME_TYPE
    worth = _EQUAL if mine.signature == other.signature else alike
    return worth + (_SAME_NAME if mine.name == other.name else 0)


class _Free:
    """New modules without a partner, and without a submodule that has one."""

    def __init__(self, pairs: Pairs) -> None:
        self._equal: dict[int, dict[ComparedModule, None]] = {}  # by signature
        self._pairs = pairs
        modules = [module for root in pairs.left[1] for module in root.walk()]
        mixed = {above for module in modules if module in pairs.old for above in module.above()}
        for module in modules:
            if module not in pairs.old and module not in mixed:
                self._equal.setdefault(module.signature, {})[module] = None
        self._count = sum(map(len, self._equal.values()))

    def take(self, module: ComparedModule) -> None:
        """Remove a module that found a partner, with all modules in it and around it."""
        for one in (*module.walk(), *module.above()):
            self._equal.get(one.signature, {}).pop(one, None)

    def equal(self, module: ComparedModule) -> ComparedModule | None:
        """A module with the same contents, if it has parameters or the same parent: any relu equals any other."""
        candidates = [*islice(self._equal.get(module.signature, ()), _MOST_EQUAL)]
        parent = module.parent
        near = [one for one in candidates if parent is not None and self._pairs.new.get(parent) is one.parent]
        if not near and not module.holds:
            return None  # single small operators such as a relu prove nothing
        return _named(module.name, near or candidates)

    def alike(self, module: ComparedModule) -> ComparedModule | None:
        """The most similar module of the same type, if at least half is equal."""
        if self._pairs.tried + self._count > _MOST_TRIED:
            return None
        self._pairs.tried += self._count
        shares = {
            one: likeness(module, one)
            for group in self._equal.values()
            for one in group
            if not differ(module, one)
            and bool(module.children) == bool(one.children)
            and module.size <= 2 * one.size <= 4 * module.size
        }
        best = max(shares.values(), default=0.0)
        return _named(module.name, [one for one in shares if shares[one] == best]) if best >= _ALIKE else None


def _named(name: str, modules: Sequence[ComparedModule]) -> ComparedModule | None:
    return next((module for module in modules if module.name == name), modules[0] if modules else None)


def out_of_order(places: Iterable[int]) -> set[int]:
    """The smallest set of indices whose removal leaves the sequence of distinct numbers ascending."""
    sequence = list(places)
    # By length of an increasing subsequence: the least place where one ends, and its index.
    ends: list[tuple[int, int]] = []
    before: list[int] = []
    for index, place in enumerate(sequence):
        at = bisect_left(ends, (place, 0))
        before.append(ends[at - 1][1] if at else -1)
        ends[at : at + 1] = [(place, index)]
    left, index = set(range(len(sequence))), ends[-1][1] if ends else -1
    while index >= 0:
        left.remove(index)
        index = before[index]
    return left
