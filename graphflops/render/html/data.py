"""What a page shows, as data: calls, costs as formulas, modules, memory. The page itself adds up and evaluates.

A model of ten thousand calls has a few dozen distinct costs and formulas, so each is written once and referred to by its
index. What does not fit in a page is folded: the lightest calls first, then small modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from graphflops.base.record import Record
from graphflops.base.units import HUGE_BITS
from graphflops.cost import CONVENTIONS, QUANTITIES, REPORTED, Cost
from graphflops.dims import Dim, Expr
from graphflops.dims.solving import affine
from graphflops.open_sizes import of_report
from graphflops.render import summary
from graphflops.render.html.fragment import inert
from graphflops.render.ledger import Ledger, Tree, TreeModule, placed
from graphflops.render.memory import SECOND, device_of, memory_of
from graphflops.render.text import count_of, formula, operator_name, safe, short_type, shortened
from graphflops.report import HELD, Report, SymbolInfo, phases_of
from graphflops.report.size_names import pattern_of

LARGEST = 1_500_000  # bytes of data in a page
_OTHERS = "(other operators)"
_COLUMNS = ("node", "op", "module", "place", "source", "dtype", "time", "kind", "calls")
_TIME = _COLUMNS.index("time")
_PRETTY = 300  # characters of a formula shown
_LONGEST_FORMULA = 10_000  # characters of a formula that the page evaluates
_SAFE_INTEGER = 2**53  # from here on JavaScript reads a number in JSON inexactly
# Numbers of unfolded calls, of places under one place, and of characters of a name; the first row that fits is taken.
_FITS = (
    (20_000, 300, 200), (10_000, 100, 120), (4_000, 50, 100), (1_000, 30, 80), (200, 12, 60), (30, 5, 40),
)  # fmt: skip


class PageSize(Record, frozen=True):
    """An input field of the page for a size."""

    shown: str  # the name that people read
    scale: tuple[int, int]  # slope and offset: people type slope times the size plus offset
    joint: str  # the size in the formulas of both programs
    # By program: the symbols that follow from the size, each with a slope and an offset; empty if it has none.
    symbols: tuple[Mapping[str, tuple[int, int]], ...]
    values: tuple[int | None, ...]  # the initial ones
    info: SymbolInfo
    limits: tuple[int | None, int | None]  # of the typed number
    places: tuple[str, ...]  # the axes beside the name

    def wire(self, open_: Collection[str]) -> dict[str, Any]:
        """The size in the page's form. open_: symbols that occur in formulas; others had values when the report was made."""
        names = {self.joint}.union(*self.symbols)
        return {
            "shown": safe(self.shown, 40),
            "scale": self.scale,
            "joint": self.joint,
            "open": not names.isdisjoint(open_),
            "symbols": [{name: [*line] for name, line in each.items()} for each in self.symbols],
            "values": self.values,
            "given_by": "bound" if self.info.is_upper_bound else self.info.given_by,
            "low": self.limits[0],
            "high": self.limits[1],
            "where": self.places,
        }


class PageChange(Record, frozen=True):
    """A module that changed, or several with the same change; figures in the sizes that the page shows."""

    status: str
    path: str
    type: str
    facts: tuple[str, ...]
    figures: tuple[tuple[Dim, Dim], ...]  # matrix FLOPs, bytes, parameters: before and after


def sizes_of(report: Report) -> list[PageSize]:
    """The sizes of one report, those alike under one name."""
    return [page_size(report, names, (tuple(names),)) for names in summary.alike_sizes(report)]


def page_size(report: Report, names: Sequence[str], sides: Sequence[Sequence[str]]) -> PageSize:
    """One or several alike sizes of a report. sides: by program of the page, the ones that it has."""
    info, shown = report.symbols[names[0]], of_report(report).stated[names[0]]
    line = affine(shown.size) or ("", 1, 0)
    return PageSize(
        pattern_of([of_report(report).stated[name].name for name in names]),
        line[1:],
        names[0],
        tuple([dict.fromkeys(own, (1, 0)) for own in sides]),
        (info.value,) * len(sides),
        info,
        summary.range_of(info, shown.size),
        tuple(summary.places(names[0], report) if len(names) == 1 else [count_of(len(names), "size")]),
    )


def page_data(
    sides: Sequence[Report], sizes: Sequence[PageSize], *, titles: Sequence[str], lead: Sequence[str] = (),
    changes: Sequence[PageChange] = (), operators: bool = True,
) -> str:  # fmt: skip
    """The data of a page about one report, or about two side by side, as JSON that is safe in a script element.

    lead: the first sentence, true at the initial sizes of the page.
    operators: whether the two programs' operators can be compared; an export always changes them.
    """
    trees = [Tree(report, Ledger(report)) for report in sides]
    rows = max(len(report.rows) for report in sides)
    room = _FITS[0][0]
    fixed = {"operators": operators, "titles": titles, "lead": lead, "conventions": CONVENTIONS}
    fixed["quantities"] = [[q.name, q.label, q.unit] for q in REPORTED if q.name in QUANTITIES]
    for calls, places, letters in _FITS:
        if calls > room and calls != _FITS[-1][0]:
            continue
        layout = laid_out(trees, places, limit=calls)
        parts = _Parts(letters)
        data = {
            "sides": [_side(tree, layout, side, parts, calls) for side, tree in enumerate(trees)],
            "places": [[parent, *map(parts.shown, texts), times] for parent, texts, times in layout.places],
            "changes": [_change(change, parts, sides[0]) for change in changes[: 2 * places]],
            "more_changes": max(len(changes) - 2 * places, 0),
            "sizes": [size.wire(parts.symbols) for size in sizes],
        }
        tables = {
            "names": [*map(parts.shown, parts.names)],
            "formulas": parts.formulas,
            "pretty": parts.pretty,
        }
        encoded = inert(msgspec.json.encode({**data, **fixed, **tables}))
        size = len(encoded.encode())
        if size <= LARGEST:
            break
        room = min(calls, rows) * LARGEST // size
    return encoded


def _change(change: PageChange, parts: _Parts, report: Report) -> list[Any]:
    facts = [parts.shown(fact) for fact in change.facts]
    figures = [[parts.formula(quantity, report) for quantity in figure] for figure in change.figures]
    return [change.status, parts.shown(change.path), parts.shown(change.type), facts, figures]


class _Parts:
    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.names: dict[str, int] = {}  # the places of names
        self.formulas: list[int | str | list[str]] = []
        self.pretty: dict[int, str] = {}  # for people, of some formulas
        self.symbols: set[str] = set()  # that occur in a formula
        self._formulas: dict[Dim, int] = {}

    def shown(self, name: str) -> str:
        return safe(name, self.letters)

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def formula(self, dim: Dim, report: Report, *, pretty: bool = False) -> int:
        """The index of a formula, which is an integer (as text where JavaScript would round it) or a text to be evaluated.

        For a formula that is too long it is a list of its value, which is right at the report's own sizes only.
        """
        found = self._formulas.setdefault(dim, len(self.formulas))
        if found == len(self.formulas):
            self.formulas.append(_wired(dim, report))
            if not isinstance(dim, int):
                self.symbols |= dim.symbols
        if pretty and not isinstance(dim, int):
            self.pretty[found] = shortened(formula(dim, report.names), _PRETTY)
        return found


def _wired(dim: Dim, report: Report) -> int | str | list[str]:
    if isinstance(dim, int):
        return dim if abs(dim) < _SAFE_INTEGER else _digits(dim)
    text = str(dim)
    if len(text) <= _LONGEST_FORMULA:
        return text
    value = report.value(dim)
    return [] if value is None else [_digits(value)]


def _digits(number: int) -> str:
    """The number in decimal, or in hexadecimal if it is too long for Python to print in decimal."""
    return str(number) if number.bit_length() <= HUGE_BITS else hex(number)


def _side(tree: Tree, layout: Layout, number: int, parts: _Parts, most: int) -> dict[str, Any]:
    calls, report = _Calls(tree, layout, number, parts, most), tree.ledger.report
    axes = of_report(report).axes
    totals, unknown = [], [*report.coverage.unknown_ops.items()][:50]
    for name, phase in phases_of(report).items():
        costs = [*(getattr(phase.cost, quantity.name) for quantity in REPORTED), phase.peak_bytes]
        totals.append([name, *(parts.formula(cost, report, pretty=True) for cost in costs)])
    return {
        "headline": summary.headline(report),
        "path": safe(report.origin.path, 200),
        "sha256": safe(report.origin.sha256, 64),
        "totals": totals,
        "peak_at": summary.located(report, (report.step() or report.totals).peak_node),
        "held": [parts.formula(getattr(report, name), report) for name in HELD],
        "coverage": [getattr(report.coverage, name) for name in ("nodes", "counted", "free", "unknown")],
        "unknown_ops": [[parts.shown(operator_name(op)), times] for op, times in unknown],
        "phases": tree.ledger.phases,
        "kinds": calls.kinds,
        "calls": {name: cells for name, cells in calls.columns.items() if name != "time" or report.device},
        "parameters": [parts.formula(count, report) for count in layout.parameters[number]],
        "memory": memory_of(report, calls.entry_of, parts.name, parts.formula),
        "device": device_of(report),
        "diagnostics": summary.diagnostics(report),
        "requires": [
            [parts.shown(text), parts.formula(condition.substitute(axes), report)]
            for text, condition in report.guards.items()
            if isinstance(condition, Expr)
        ],
    }


class _Calls:
    """The calls of one report in columns. entry_of: by row, its entry.

    If there are too many calls, the lightest ones are folded: those of one operator, module and state share an entry. If
    these are too many as well, all other operators of an outermost module share one.
    """

    def __init__(self, tree: Tree, layout: Layout, number: int, parts: _Parts, most: int) -> None:
        ledger, report = tree.ledger, tree.ledger.report
        self.report, self.ledger, self.parts = report, ledger, parts
        self.kinds: list[list[Any]] = []
        self.entry_of: list[int] = []
        name, folded, lines = parts.name, self._folded(most), list[list[int]]()
        known: dict[int, int] = {}  # the place of the cost of each kind
        rest: dict[tuple[Any, ...], tuple[int, Counter[int]]] = {}
        for row, kind in zip(report.rows, ledger.of, strict=True):
            place, op = layout.home[number][tree.by_path[row.module]], operator_name(row.op)
            cost, dtype, time = ledger.kinds[kind], row.matrix_dtype, round(row.seconds * SECOND)
            if folded.get(kind, 1) > 0:
                if kind in folded:
                    folded[kind] -= 1
                if kind not in known:
                    known[kind] = self._cost(cost.state, cost.forward, cost.backward)
                self.entry_of.append(len(lines))
                where = (name(row.node), name(op), name(row.module), place, name(row.source))
                lines.append([*where, name(dtype), time, known[kind], 1])
                continue
            if (op, place, dtype, cost.state) not in rest and len(rest) > most:
                op, place = _OTHERS, layout.outermost(place)
            key = (op, place, dtype, cost.state)
            if key not in rest:
                rest[key] = len(lines), Counter()
                lines.append([-1, name(op), -1, place, -1, name(dtype), 0, 0, 0])
            entry, counts = rest[key]
            counts[kind] += 1
            lines[entry][_TIME] += time
            self.entry_of.append(entry)
        for (*_, state), (entry, counts) in rest.items():
            group = ledger.group(counts)
            lines[entry][-2:] = self._cost(state, group.forward, group.backward), counts.total()
        self.columns = {head: [line[at] for line in lines] for at, head in enumerate(_COLUMNS)}

    def _folded(self, most: int) -> dict[int, int]:
        """For kinds that are partly folded: how many of their calls have an entry of their own."""
        counts = Counter(self.ledger.of)
        if len(self.ledger.of) <= most:
            return {}
        weight = self.ledger.weight
        ranked = sorted(counts, key=lambda kind: weight(self.ledger.group({kind: 1})), reverse=True)
        folded = {}
        for kind in ranked:
            if counts[kind] > most:
                folded[kind] = most
            most -= min(counts[kind], most)
        return folded

    def _cost(self, state: str, forward: Cost, backward: Cost) -> int:
        costs = [
            [self.parts.formula(getattr(cost, name), self.report) for name in QUANTITIES] if cost else 0
            for cost in (forward, backward)
        ]
        self.kinds.append([state, *costs])
        return len(self.kinds) - 1


class Layout(Struct):
    """All places, the parent before the child; and by side where each module's calls and parameters belong.

    A place is a module, several equal siblings together, or the rest of a long list: the number of the place around it, -1
    for the program, its label, path and type, and how many modules it stands for.
    """

    places: list[tuple[int, tuple[str, str, str], int]]
    home: list[dict[TreeModule, int]]
    # By side and place: the parameters of the modules themselves.
    parameters: list[list[int]] = []

    def outermost(self, place: int) -> int:
        while self.places[place][0] > 0:
            place = self.places[place][0]
        return place


def laid_out(trees: Sequence[Tree], most: int, limit: int) -> Layout:
    """One tree for all sides. most: places under one, the lightest share one. limit: places; those below join the last."""
    layout = Layout([], [{} for _ in trees])
    parents = [-1]  # by level, the place around the next one
    for place, line in enumerate(placed(trees, most, limit=limit)):
        level, label, path, members, around, is_rest = line
        kinds = (short_type(module.type) for module in members[0] if module is not None and module.type)
        texts = (label, "", "") if is_rest else (label, path, next(kinds, ""))
        layout.places.append((parents[level], texts, len(members)))
        parents[level + 1 :] = [place]
        for member in (*members, *around):
            for home, module in zip(layout.home, member, strict=True):
                # What is below a place belongs to it unless a later one takes it.
                home.update((one, place) for one in ([] if module is None else module.walk()))
    for side, tree in enumerate(trees):
        own = [0] * len(layout.places)
        for module in tree.root.walk():
            own[layout.home[side][module]] += module.parameters
        layout.parameters.append(own)
    return layout
