"""The lines that every rendering begins with: origin, sizes, totals and what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.cost import REPORTED
from graphflops.lazy import imported
from graphflops.render.ledger import Ledger, traffic
from graphflops.render.text import Numbers, count_of, listed, named, occurrences, safe, short_type
from graphflops.size_names import axis_size, in_prose, span
from graphflops.units import memory, number, parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from graphflops.cost import Cost
    from graphflops.dims import Dim
    from graphflops.report import Report, SymbolInfo

_SIZES = 8  # sizes listed
_PER_CODE = 8  # diagnostics listed of one code
_BRANCHES = 8  # calls listed that choose between graphs
_FORMULA = 60  # characters
_NAMED = frozenset(  # quantities that a line of their own names
    ("matrix_flops", "macs", "vector_flops", "transcendentals", "masked_flops", "read_bytes", "written_bytes")
)


class Fact(NamedTuple):
    """One labelled line. `formula` stands beside the text and may be shortened; `alarming` turns it red."""

    label: str
    text: str
    formula: str = ""
    alarming: bool = False


def title(report: Report) -> str:
    """The file's name, else the type of the model."""
    name = report.origin.path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return safe(name or short_type(report.modules.get("", "")) or "program", 80)


def headline(report: Report) -> str:
    """Producer, number of nodes, parameters and their memory."""
    held = f"{parameters(report.parameters)} parameters, {memory(report.parameter_bytes)}"
    largest_first = sorted(report.parameter_dtypes, key=lambda name: (-report.parameter_dtypes[name], name))
    dtypes = " and ".join(safe(name, 20) for name in largest_first[:3])
    parts = [
        safe(report.origin.producer or report.origin.format, 80),
        count_of(report.coverage.nodes, "node"),
        f"{held} {dtypes}".rstrip(),
        f"{memory(report.buffer_bytes)} buffers" if report.buffer_bytes else "",
    ]
    return " · ".join(part for part in parts if part)


def sizes(report: Report) -> list[tuple[str, str]]:
    """`batch = 1 (assumed)` and what is known of it, for each named size."""
    names = report.names
    shown = list(report.symbols.items())[:_SIZES]
    lines = [(_size(names[name], info), _about(name, report)) for name, info in shown]
    if len(report.symbols) <= _SIZES:
        return lines
    unset = sum(info.value is None for info in report.symbols.values())
    rest = f"{len(report.symbols) - _SIZES:,} more sizes"
    return [*lines, (f"… {rest}", f"{unset:,} of all without a value" if unset else "")]


def _size(name: str, info: SymbolInfo) -> str:
    value = "?" if info.value is None else info.value
    return f"{safe(name, 40)} = {value}{f' ({assumption(info)})' if info.given_by == 'assumption' else ''}"


def assumption(info: SymbolInfo) -> str:
    """What kind of value an assumed size has."""
    return "upper bound" if info.is_upper_bound else "assumed"


def places(name: str, report: Report) -> list[str]:
    """The symbol and where it stands, beside the name shown: `s27`, `ids[1]`, `x[2] = 4*h` for an axis of an expression."""
    info, names, found = report.symbols[name], report.names, []
    if names[name] != name:
        found.append(safe(name, 40))
    for axis in info.where:
        size = axis_size(name, axis, report.inputs)
        equal = "" if size is None else f" = {safe(named(size, names), 60)}"
        if axis != names[name]:
            found.append(f"{safe(axis, 60)}{equal}")
    return found


def _about(name: str, report: Report) -> str:
    info = report.symbols[name]
    limits = span(info.minimum, info.maximum)
    option = f"--dim {safe(info.label or name, 40)}=N"
    given = {
        "user": "given",
        "hint": "from the export",
        "assumption": f"set it with {option}",
        None: f"open: {option}" if info.where else f"depends on data: {option}",
    }[info.given_by]
    where = listed(place for place in places(name, report) if place not in given)
    return ", ".join(part for part in (where, given) if part) + (f" ({limits})" if limits else "")


def facts(report: Report, ledger: Ledger, formula_width: int = _FORMULA) -> Iterator[Fact]:
    """The totals, line by line. formula_width: of a formula in the middle of a line."""
    numbers, cost = Numbers(report.value, formula_width, report.names), report.totals.cost
    least = ">= " if report.coverage.unknown else ""
    yield from _matrix_facts(report, ledger, numbers)
    if cost.masked_flops != 0:
        seen = numbers.count(cost.matrix_flops - cost.masked_flops)
        yield Fact(
            "of these", f"{least}{numbers.count(cost.masked_flops)} skippable by masks, {least}{seen} visible"
        )
    yield from _other_facts(cost, numbers, least)
    moved = (
        f"{least}{numbers.memory(cost.read_bytes)} read, {least}{numbers.memory(cost.written_bytes)} written"
    )
    ratio = "" if least else _intensity(numbers, cost.matrix_flops, traffic(cost))
    yield Fact("bytes", moved + ratio, "", bool(least))
    yield Fact("peak memory", least + _peak(report, numbers), "", bool(least))
    if report.training is not None:
        step: str = imported("graphflops.render.training:described")(report.training)
        yield Fact("training", step)
    if report.memory_use:
        need: str = imported("graphflops.render.memory:need")(report, numbers)
        yield Fact("device memory", need)
    if report.kernels_of:
        yield Fact("kernels", _kernels(report))
    if report.device:
        times: Iterable[tuple[str, str]] = imported("graphflops.render.time:facts")(report)
        yield from (Fact(label, text) for label, text in times)
    for choice in _choices(report, numbers):
        yield Fact("branches", choice)
    yield from _coverage_facts(report)


def _kernels(report: Report) -> str:
    """Whose kernels are predicted, and the release that exported the program where it is another."""
    exporter, _, release = report.origin.producer.partition(" ")
    is_other = exporter == "torch" and not release.startswith(f"{report.kernels_of}.")
    made_by = f"; the program was exported by {safe(release, 40)}" if is_other else ""
    return f"as PyTorch {report.kernels_of} launches them{made_by}"


def _matrix_facts(report: Report, ledger: Ledger, numbers: Numbers) -> Iterator[Fact]:
    """FLOPs and MACs: in total, by element type where there are several, and by phase."""
    cost, unknown = report.totals.cost, report.coverage.unknown
    least = ">= " if unknown else ""
    missing = f"   ({count_of(unknown, 'node')} unknown)" if unknown else ""
    types = {name: group for name, group in ledger.groups(lambda row: row.matrix_dtype).items() if name}
    only = f", {safe(next(iter(types)), 20)}" if len(types) == 1 else ""
    flops = numbers.value(cost.matrix_flops)
    label = "forward FLOPs" if report.backward is not None else "FLOPs"
    if flops is not None:
        together = f"{least}{number(flops)}   ({least}{numbers.count(cost.macs)} MACs{only}){missing}"
        yield Fact(label, together, _symbolic(cost.matrix_flops, numbers), bool(least))
    else:
        text = f"{least}{missing.strip()}".strip()
        yield Fact(label, text, numbers.formula(cost.matrix_flops), bool(least))
        yield Fact("MACs", least.strip(), numbers.formula(cost.macs), bool(least))
    if len(types) > 1:
        trained = report.backward is not None
        works = {
            name: (group.forward if trained else group.cost).matrix_flops for name, group in types.items()
        }
        parts = (f"{least}{numbers.count(work)} {safe(name, 20)}" for name, work in works.items())
        yield Fact("in types", ", ".join(parts))
    if any(row.phase == "backward" for row in report.rows):
        yield Fact("by phase", ", ".join(_by_phase(ledger, least)))


def _other_facts(cost: Cost, numbers: Numbers, least: str) -> Iterator[Fact]:
    """Work beside the matrix products, then every quantity that no other line names."""
    if cost.vector_flops != 0 or cost.transcendentals != 0:
        work = [f"{numbers.count(cost.vector_flops)} vector FLOPs"]
        if cost.transcendentals != 0:
            work.append(f"{least}{numbers.count(cost.transcendentals)} transcendentals")
        yield Fact("elementwise", least + ", ".join(work), "", bool(least))
    for quantity in REPORTED:
        amount = getattr(cost, quantity.name)
        if quantity.name not in _NAMED and amount != 0:
            yield Fact(quantity.label, least + numbers.amount(amount, quantity.unit), "", bool(least))


def _coverage_facts(report: Report) -> Iterator[Fact]:
    cover = report.coverage
    known = f"{cover.nodes - cover.unknown:,} of {count_of(cover.nodes, 'node')}"
    states = f"{cover.counted:,} counted, {cover.free:,} free, {cover.unknown:,} unknown"
    yield Fact("coverage", f"{known}: {states}", "", bool(cover.unknown))
    if cover.unknown:
        hint = "their cost is in no total; price them with --rules FILE.py"
        yield Fact("unknown", f"{occurrences(cover.unknown_ops)}   ({hint})", "", True)


def _choices(report: Report, numbers: Numbers) -> Iterator[str]:
    """For calls that run one of several graphs: the cost of each, and which one is counted."""
    rows = [row for row in report.rows if len({use.times == 0 for use in row.regions}) > 1]
    for row in rows[:_BRANCHES]:
        uses = sorted(row.regions, key=lambda use: use.times == 0)
        parts = (
            f"{safe(use.name, 40)} {numbers.count(use.cost.matrix_flops)} FLOPs{' (not counted)' if use.times == 0 else ''}"
            for use in uses
        )
        yield f"{safe(row.node, 40)}: {', '.join(parts)}"
    if len(rows) > _BRANCHES:
        yield f"… and {len(rows) - _BRANCHES:,} more, all in the JSON report"


def _symbolic(quantity: Dim, numbers: Numbers) -> str:
    return "" if isinstance(quantity, int) else numbers.formula(quantity)


def _by_phase(ledger: Ledger, least: str) -> list[str]:
    groups = ledger.groups(lambda row: row.phase)
    return [
        f"{least}{ledger.numbers.count(groups[phase].cost.matrix_flops)} {phase}"
        for phase in ("forward", "backward")
        if phase in groups
    ]


def _intensity(numbers: Numbers, flops: Dim, moved: Dim) -> str:
    work, through = numbers.value(flops), numbers.value(moved)
    if not work or not through:
        return ""
    ratio = work / through
    return f"     intensity {ratio:,.0f} FLOP/B" if ratio >= 100 else f"     intensity {ratio:.3g} FLOP/B"


def _peak(report: Report, numbers: Numbers) -> str:
    peak = report.totals
    parts = [numbers.memory(peak.peak_bytes), f"{memory(report.parameter_bytes)} parameters"]
    if report.buffer_bytes:
        parts.append(f"{memory(report.buffer_bytes)} buffers")
    place = located(report, peak.peak_node)
    how = ", run eagerly" if report.execution == "eager" else ""
    return " + ".join(parts) + (f"    at {place}" if place else "") + how


def located(report: Report, node: str) -> str:
    """Where the user finds a node: its module and source line, else its own name."""
    row = next((row for row in report.rows if row.node == node), None) if node else None
    if row is None:
        return safe(node, 80)
    source = safe(row.source, 80)
    place = safe(row.module, 80) or safe(node, 80)
    return f"{place} ({source})" if source else place


def unknown(report: Report) -> str:
    """What is unknown, for one line."""
    cover = report.coverage
    nodes = count_of(cover.unknown, "node")
    return f"{nodes} unknown: {occurrences(cover.unknown_ops)}; price them with --rules FILE.py"


def diagnostics(report: Report) -> list[str]:
    """One line for each diagnostic; of many with one code only the first ones."""
    by_code: dict[str, list[str]] = {}
    names = report.names
    for found in report.diagnostics:
        node = f"{safe(found.node, 80)}: " if found.node else ""
        kind = f"{safe(found.code, 20)} {safe(found.name, 40)}"
        by_code.setdefault(kind, []).append(f"{kind}  {node}{safe(in_prose(found.message, names), 500)}")
    lines: list[str] = []
    for kind, listed_ in by_code.items():
        lines += listed_[:_PER_CODE]
        if len(listed_) > _PER_CODE:
            lines.append(f"{kind}  … and {len(listed_) - _PER_CODE:,} more, all in the JSON report")
    return lines
