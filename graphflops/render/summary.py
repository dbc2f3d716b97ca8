"""The lines that every rendering begins with: origin, sizes, totals and what is unknown; any result in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphflops.base.lazy import imported
from graphflops.base.record import Record
from graphflops.base.units import memory, number, parameters
from graphflops.cost import REPORTED
from graphflops.dims import Dim, Expr
from graphflops.dims.solving import affine, sizes_taken
from graphflops.errors import elided
from graphflops.open_sizes import is_computed, of_report
from graphflops.render.ledger import Ledger, traffic
from graphflops.render.text import Numbers, count_of, listed, occurrences, safe, short_type
from graphflops.report import Report, SymbolInfo
from graphflops.report.findings import SEVERITIES, Finding, ModelFindings
from graphflops.report.size_names import alike, collapsed, in_prose, named, pattern_of, span

_SIZES = 8  # sizes listed
_PER_CODE = 8  # diagnostics listed of one code
_BRANCHES = 8  # calls listed that choose between graphs
_FORMULA = 60  # characters
_SAID = 60  # characters of a size
_LONGEST_SAID = 2_000  # before its names are put in
NAMED = frozenset(  # quantities that have lines or columns of their own
    ("matrix_flops", "macs", "vector_flops", "transcendentals", "masked_flops", "read_bytes", "written_bytes")
)


class Fact(Record, frozen=True):
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
    """For each open size, `batch = 1 (assumed)` and what is known about it; alike sizes share a line, `past_*[2] = 128`."""
    groups = alike_sizes(report)
    lines = [_line(report, group) for group in groups[:_SIZES]]
    if len(groups) <= _SIZES:
        return lines
    unset = sum(info.value is None for info in report.symbols.values())
    rest = f"{len(groups) - _SIZES:,} more sizes"
    return [*lines, (f"… {rest}", f"{unset:,} of all without a value" if unset else "")]


def alike_sizes(report: Report) -> list[list[str]]:
    """The symbols of a report, grouped if they differ only in numbers in their names."""
    infos, stated = report.symbols, of_report(report).stated
    kinds = {
        name: (info.value, info.given_by, info.minimum, info.maximum) if info.where else name
        for name, info in infos.items()
    }
    symbols = {one.name: name for name, one in stated.items()}
    return [[symbols[one] for one in group] for group in alike(symbols, lambda one: kinds[symbols[one]])]


def assumption(info: SymbolInfo) -> str:
    """What kind of value an assumed size has."""
    return "upper bound" if info.is_upper_bound else "assumed"


def _line(report: Report, symbols: Sequence[str]) -> tuple[str, str]:
    """One size, or several alike: its value, and where it stands, who gave it and its range."""
    sizes, info = of_report(report), report.symbols[symbols[0]]
    stated = [sizes.stated[name] for name in symbols]
    name = safe(pattern_of([one.name for one in stated]), 40)
    value = report.value(stated[0].size)
    said = "?" if value is None else f"{value:,}" + f" ({assumption(info)})" * (info.given_by == "assumption")
    option = f"--dim {name}=N"
    given = {
        "user": "given",
        "hint": "from the export",
        "assumption": f"set it with {option}",
        None: f"open: {option}" if info.where else f"depends on data{_maker(report, symbols[0])}: {option}",
    }[info.given_by]
    where = places(symbols[0], report) if len(symbols) == 1 else [count_of(len(symbols), "size")]
    if is_computed(stated[0].size) and info.value is not None:
        where[0] += f" with {safe(sizes.names[symbols[0]], 40)} = {info.value:,}"
    size = stated[0].size
    line = affine(size)
    steps = f" in steps of {line[1]:,}" if line is not None and line[1] > 1 else ""
    limits = f"{span(*range_of(info, size)) or 'any'}{steps}" if steps else span(*range_of(info, size))
    told = ", ".join(filter(None, (listed(where), given)))
    return f"{name} = {said}", f"{told} ({limits})" if limits else told


def _maker(report: Report, symbol: str) -> str:
    """The call that makes a size from data: ` of aten.nonzero.default (model.py:3)`."""
    sizes = ((row, size) for row in report.rows for out in row.outputs for size in out.type.shape)
    found = (row for row, size in sizes if isinstance(size, Expr) and symbol in size.symbols)
    return next((f" of {safe(row.op, 40)} ({safe(row.source, 60) or '?'})" for row in found), "")


def range_of(info: SymbolInfo, size: Dim) -> tuple[int | None, int | None]:
    """The inclusive range of a size: that of the symbol, or of an axis computed from it."""
    taken = None
    if isinstance(size, Expr) and is_computed(size):
        taken = sizes_taken(size, info.minimum, info.maximum)
    return (taken[0], None if info.maximum is None else taken[-1]) if taken else (info.minimum, info.maximum)


def places(name: str, report: Report) -> list[str]:
    """The symbol and where it stands, beside the name that it is stated by: `s27`, `ids[1]`, `x[2] = 4·h`."""
    sizes, info = of_report(report), report.symbols[name]
    stated, own = sizes.stated[name], [axis for axis in info.where if axis not in info.computed]
    found = [safe(axis, 60) for axis in collapsed([axis for axis in own if axis != stated.name])]
    if is_computed(stated.size):
        axis = "" if info.label_axis in ("", stated.name) else f"{safe(info.label_axis, 60)} = "
        found.insert(0, f"{axis}{_said(stated.size, sizes.names)}")
    elif stated.name != name:
        found.insert(0, safe(name, 40))
    said = (stated.name, info.label_axis)
    others = ((axis, size) for axis, size in info.computed.items() if axis not in said)
    return found + [f"{safe(axis, 60)} = {_said(size, sizes.names)}" for axis, size in others]


def _said(size: Dim, names: Mapping[str, str]) -> str:
    """A size in few characters: only the two ends of a long one."""
    return safe(named(elided(str(size), _LONGEST_SAID), names), _SAID)


def facts(report: Report, ledger: Ledger, formula_width: int = _FORMULA) -> Iterator[Fact]:
    """The totals, line by line. formula_width: of a formula in the middle of a line."""
    numbers, cost = Numbers(report.value, formula_width, report.names), report.totals.cost
    least = ">= " if report.coverage.unknown else ""
    yield from _matrix_facts(report, ledger, numbers)
    if cost.masked_flops != 0:
        seen = numbers.count(cost.matrix_flops - cost.masked_flops)
        hidden = numbers.count(cost.masked_flops)
        yield Fact("of these", f"{least}{hidden} skippable by masks, {least}{seen} visible")
    if cost.vector_flops != 0 or cost.transcendentals != 0:
        work = [f"{numbers.count(cost.vector_flops)} vector FLOPs"]
        if cost.transcendentals != 0:
            work.append(f"{least}{numbers.count(cost.transcendentals)} transcendentals")
        yield Fact("elementwise", least + ", ".join(work), "", bool(least))
    for quantity in REPORTED:
        amount = getattr(cost, quantity.name)
        if quantity.name not in NAMED and amount != 0:
            yield Fact(quantity.label, least + numbers.amount(amount, quantity.unit), "", bool(least))
    if report.mesh is not None:
        sent: Iterable[tuple[str, str]] = imported("graphflops.render.memory:mesh_facts")(report, numbers)
        yield from (Fact(label, least + text if label != "mesh" else text) for label, text in sent)
    read, written = numbers.memory(cost.read_bytes), numbers.memory(cost.written_bytes)
    moved = f"{least}{read} read, {least}{written} written"
    ratio = "" if least else _intensity(numbers, cost.matrix_flops, traffic(cost))
    yield Fact("bytes", moved + ratio, "", bool(least))
    yield Fact("peak memory", least + _peak(report, numbers), "", bool(least))
    if report.training is not None:
        yield Fact("training", imported("graphflops.render.memory:training_words")(report.training))
    if report.memory_use:
        yield Fact("device memory", imported("graphflops.render.memory:need")(report, numbers))
    if report.kernels_of:
        yield Fact("kernels", _kernels(report))
    if report.device:
        times: Iterable[tuple[str, str]] = imported("graphflops.render.time:facts")(report)
        yield from (Fact(label, text) for label, text in times)
    for choice in _choices(report, numbers):
        yield Fact("branches", choice)
    yield from _coverage_facts(report)


def _kernels(report: Report) -> str:
    """The release whose kernels are predicted; where they differ, also those that were measured and that exported."""
    measured: str = imported("graphflops.devices:HOPPER").torch
    exporter, _, release = report.origin.producer.partition(" ")
    is_other = exporter == "torch" and not release.startswith(f"{report.kernels_of}.")
    made_by = f"; the program was exported by {safe(release, 40)}" if is_other else ""
    by = "" if report.kernels_of == measured else f", measured with {measured}"
    return f"as PyTorch {report.kernels_of} launches them{by}{made_by}"


def _coverage_facts(report: Report) -> Iterator[Fact]:
    cover = report.coverage
    known = f"{cover.nodes - cover.unknown:,} of {count_of(cover.nodes, 'node')}"
    states = f"{cover.counted:,} counted, {cover.free:,} free, {cover.unknown:,} unknown"
    yield Fact("coverage", f"{known}: {states}", "", bool(cover.unknown))
    if cover.unknown:
        hint = "their cost is in no total; price them with --rules FILE.py"
        yield Fact("unknown", f"{occurrences(cover.unknown_ops)}   ({hint})", "", True)


def _matrix_facts(report: Report, ledger: Ledger, numbers: Numbers) -> Iterator[Fact]:
    """FLOPs and MACs: in total, by element type where there are several, and by phase."""
    cost, unknown = report.totals.cost, report.coverage.unknown
    least = ">= " if unknown else ""
    missing = f"   ({count_of(unknown, 'node')} unknown)" if unknown else ""
    counts = ledger.counts(lambda row: row.matrix_dtype)
    types = {name: group for name, group in ledger.groups(counts).items() if name}
    only = f", {safe(next(iter(types)), 20)}" if len(types) == 1 else ""
    flops = numbers.value(cost.matrix_flops)
    label = "forward FLOPs" if report.backward is not None else "FLOPs"
    if flops is not None:
        together = f"{least}{number(flops)}   ({least}{numbers.count(cost.macs)} MACs{only}){missing}"
        formula = "" if isinstance(cost.matrix_flops, int) else numbers.formula(cost.matrix_flops)
        yield Fact(label, together, formula, bool(least))
    else:
        text = f"{least}{missing.strip()}".strip()
        yield Fact(label, text, numbers.formula(cost.matrix_flops), bool(least))
        yield Fact("MACs", least.strip(), numbers.formula(cost.macs), bool(least))
    if len(types) > 1:
        side = "cost" if report.backward is None else "forward"
        costs = {name: getattr(group, side).matrix_flops for name, group in types.items()}
        parts = (f"{least}{numbers.count(work)} {safe(name, 20)}" for name, work in costs.items())
        yield Fact("in types", ", ".join(parts))
    if any(row.phase == "backward" for row in report.rows):
        by_phase = ledger.groups(ledger.counts(lambda row: row.phase))
        phases = [phase for phase in ("forward", "backward", "optimizer") if phase in by_phase]
        works = [(phase, by_phase[phase].cost.matrix_flops) for phase in phases]
        told = [(phase, work) for phase, work in works if phase != "optimizer" or work != 0]
        yield Fact("by phase", ", ".join(f"{least}{numbers.count(work)} {phase}" for phase, work in told))


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


def _intensity(numbers: Numbers, flops: Dim, moved: Dim) -> str:
    work, through = numbers.value(flops), numbers.value(moved)
    ratio = work / through if work and through else 0
    return f"     intensity {ratio:{',.0f' if ratio >= 100 else '.3g'}} FLOP/B" if ratio else ""


def _peak(report: Report, numbers: Numbers) -> str:
    peak = report.totals
    is_recorded = report.origin.format == "recorded" and report.memory_use
    # The host may have some.
    weights = report.memory_use[0].weights if is_recorded else report.parameter_bytes
    parts = [numbers.memory(peak.peak_bytes), f"{numbers.memory(weights)} parameters"]
    if report.buffer_bytes:
        parts.append(f"{memory(report.buffer_bytes)} buffers")
    place = located(report, peak.peak_node)
    how = ", run eagerly" if report.execution == "eager" else ""
    return " + ".join(parts) + (f"    at {place}" if place else "") + how


def user_call(name: str) -> str:
    """The call that the user wrote, `cdist`, for one that it is made of, `cdist/3`, or that one's result, `cdist/3.0`."""
    outer, _, inner = name.rpartition("/")
    return outer if inner.partition(".")[0].isdigit() else name


def located(report: Report, node: str) -> str:
    """Where the user finds a node, which may be part of a call: its module and source line, else its own name."""
    names = (node, user_call(node)) if node else ()
    row = next((row for name in names for row in report.rows if row.node == name), None)
    if row is None:
        return safe(node, 80)
    place = safe(row.module or row.node, 80)
    if report.origin.format == "recorded":
        place = f"{safe(row.module or row.op, 80)} of the {row.phase}"
    return f"{place} ({safe(row.source, 80)})" if row.source else place


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


_WIDTH = 200  # characters


def brief(value: Any) -> str:
    """`<Report model.pt2: 1.200 G FLOPs, 221.8 k parameters, 118 calls>`."""
    kind = type(value).__name__
    about = _ABOUT[kind]
    return f"<{kind} {elided(imported(about)(value) if isinstance(about, str) else about(value), _WIDTH)}>"


def _brief_report(report: Report) -> str:
    numbers, unknown = Numbers(report.value, _FORMULA, report.names), report.coverage.unknown
    calls = count_of(report.coverage.nodes, "call") + (f", {unknown:,} of them unknown" if unknown else "")
    flops = f"{'>= ' if unknown else ''}{numbers.count(report.totals.cost.matrix_flops)} FLOPs"
    return f"{title(report)}: {flops}, {parameters(report.parameters)} parameters, {calls}"


_ABOUT: dict[str, str | Callable[[Any], str]] = {
    "Report": _brief_report,
    "Sweep": lambda found: f"{title(found.report)}: {count_of(len(found.points), 'point')}",
    "Overview": lambda found: (
        count_of(len(found.lines), "model")
        + (f", {failed:,} failed" if (failed := sum(line.cost is None for line in found.lines)) else "")
    ),
    "History": lambda found: f"{safe(found.path, 80)}: {count_of(len(found.points), 'commit')}",
    "Comparison": "graphflops.render.diff.words:brief",
    "Findings": lambda found: conclusion(found.models),
    "Fits": "graphflops.render.serving:verdict",
    "Checked": lambda found: conclusion(found.findings.models),
    "Audit": lambda found: f"{safe(found.path, 80)}: {counted(found.findings)}",
    "Validation": "graphflops.render.validation:brief",
    "Statement": "graphflops.render.statement:headline",
    "Serving": "graphflops.render.serving:headline",
    "Plan": "graphflops.render.plan:said",
    "Replication": "graphflops.render.serving:replication_headline",
}


def counted(findings: Iterable[Finding]) -> str:
    """`2 errors, 1 note`; `nothing found`."""
    severities = Counter(finding.severity for finding in findings)
    parts = [count_of(severities[severity], severity) for severity in SEVERITIES if severities[severity]]
    return ", ".join(parts) or "nothing found"


def state(model: ModelFindings) -> str:
    """What was found in a model; `within budget` where every limit holds."""
    return "within budget" if model.limits and not model.findings else counted(model.findings)


def conclusion(found: Sequence[ModelFindings]) -> str:
    """`3 errors in 2 of 50 models`, `nothing found in 50 models`."""
    every = [finding for model in found for finding in model.findings]
    concerned = sum(bool(model.findings) for model in found)
    some = f"{concerned:,} of " if concerned else ""
    if not every and any(model.limits for model in found):
        return f"within budget: {count_of(len(found), 'model')}"
    return f"{counted(every)} in {some}{count_of(len(found), 'model')}"
