"""Predicted times for a terminal and for Markdown: the totals, and where the time goes."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Literal

from graphflops.base.record import Record
from graphflops.base.units import interval, number, percent, rate, seconds, starred
from graphflops.derived.items import cost_per_million, outside_of_calls, throughput
from graphflops.devices import Device, complete, device, disturbance
from graphflops.render.text import Entry, TextTable, operator_name, safe
from graphflops.report import Cut, Report, Row
from graphflops.report.timeline import CallTime, PhaseTime
from graphflops.tensor import grouped

_LINES = 12
_MOSTLY = 0.5  # of the time
LEAST_SHARE = 0.005  # of the time, which prints as 1 %
_MOST_MODULES = 4_000  # paths whose prefixes are tried


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Label and text of each line about time."""
    forward, step = report.totals.time, report.step_time
    if forward is None:
        return
    whole = step or forward
    yield "time", f"{_with_interval(forward)} on {safe(report.device, 60)}, {report.execution}"
    if step is not None:
        yield "step time", _with_interval(step)
    yield ("limited by", limits(whole))
    if whole.shares.get("launch", 0.0) >= _MOSTLY:
        yield "launches", "depend on the CPU, up to 1.8 x; measure yours: graphflops profile --host-only"
    matrix, memory = whole.matrix_utilization, whole.bandwidth_utilization
    parts = ((matrix, "of the matrix peak"), (memory, "of the memory bandwidth"))
    if reached := ", ".join(f"{percent(part, 1)} % {of}" for part, of in parts if part is not None):
        yield "reaches", reached
    yield from communication(report, whole)
    yield from rates(report, whole)
    # No bound where calls are not in the time.
    if whole.energy_joules is not None and not whole.is_lower_bound:
        yield "energy", f"at most {whole.energy_joules:.3g} J, at the power limit of the device"


def communication(report: Report, whole: PhaseTime) -> Iterator[tuple[str, str]]:
    """How long collectives run, how much of it nothing hides, and how the devices are joined."""
    if not report.network:
        return
    least = ">= " if whole.is_lower_bound else ""
    computes = seconds(max(whole.seconds - whole.exposed, 0.0))
    sent, exposed = seconds(whole.communication), seconds(whole.exposed)
    yield "collectives", f"{least}{sent}, of which {exposed} exposed, beside {computes} of computation"
    yield "network", report.network


def rates(report: Report, whole: PhaseTime) -> Iterator[tuple[str, str]]:
    """Throughput per second, and the price of a million samples or tokens."""
    most, least = ("at most ", ">= ") if whole.is_lower_bound else ("", "")
    found = throughput(report)
    if found:
        yield "throughput", ", ".join(f"{most}{rate(count)} {name}/s" for name, count in found.items())
    if prices := cost_per_million(found, report.price_per_hour):
        each = (f"{least}{price:,.4g} for a million {name}" for name, price in prices.items())
        yield "price", ", ".join(each)


def profile(report: Report) -> str:
    """How well the measured points of the device's profile predict kernels that are not among them."""
    if not report.profile_errors:
        return "no kernel of this device was measured"
    known = report.profile_errors.items()
    errors = ", ".join(f"{safe(name, 40)} {100 * error:.0f} %" for name, error in known)
    return f"median error of kernels that measured points correct, on points held out: {errors}"


def limits(time: PhaseTime) -> str:
    """What limits how much of the time: `launch 88 %, memory 12 %`."""
    parts = [(name, part) for name, part in time.shares.items() if part >= LEAST_SHARE]
    return ", ".join(f"{name} {100 * part:.0f} %" for name, part in parts)


def _with_interval(time: PhaseTime) -> str:
    spread = interval(time.low, time.high)
    return f"{'>= ' if time.is_lower_bound else ''}{seconds(time.seconds)}{f' ({spread})' if spread else ''}"


class _Share(Record, frozen=True):
    name: str
    calls: int
    times: Sequence[CallTime]

    def sum(self, end: Literal["seconds", "low", "high"] = "seconds") -> float:
        return float(sum(map(attrgetter(end), self.times)))


def table(report: Report, by: Cut | None, top: int | None) -> TextTable:
    """Where the time goes, by module where nothing else is asked for."""
    key, kind = _key(report, by), by or "module"
    groups = grouped((key(row), row) for row in report.rows if row.time or row.backward_time)
    found = [
        _Share(
            name or f"(no {kind})",
            len(rows),
            [each for row in rows for each in (row.time, row.backward_time) if each],
        )
        for name, rows in groups.items()
        if name is not None
    ]
    if by != "attention" and (outside := sum(outside_of_calls(report).values())):
        # A graph has only the sums of the loss there.
        rest = CallTime(outside, 0.0, 0.0, "memory" if report.execution == "graph" else "launch")
        found.append(_Share("(outside of calls)", 0, [rest]))
    found.sort(key=lambda share: -share.sum())
    whole = sum(share.sum() for share in found)
    if by is None:  # what takes no time is left out
        found = [share for share in found if share.sum()]
    most = top or _LINES
    if others := found[most:]:
        times = [time for share in others for time in share.times]
        found[most:] = [_Share(f"… {len(others):,} more", sum(share.calls for share in others), times)]
    heads = (f"time by {kind}", "calls", "time", "%", "90 % interval", "limited by")
    return TextTable(heads, [_line(share, whole) for share in found])


def _line(share: _Share, whole: float) -> Entry:
    taken, spread = share.sum(), interval(share.sum("low"), share.sum("high"))
    bounds = Counter[str]()  # seconds by what limits them
    for time in share.times:
        bounds[time.bound] += time.seconds  # type: ignore[assignment]
    bound = max(bounds, key=bounds.__getitem__) if taken else ""
    calls = f"{share.calls:,}" if share.calls else ""
    return Entry([safe(share.name), calls, seconds(taken), percent(taken, whole), spread, bound])


def _key(report: Report, by: Cut | None) -> Callable[[Row], str | None]:
    if by == "op":
        return lambda row: operator_name(row.op)
    if by == "source":
        return lambda row: row.source
    if by == "attention":
        uses = {n: use.module or use.source or use.calls[0] for use in report.attentions for n in use.calls}
        return lambda row: starred(uses[row.node]) if row.node in uses else None
    split = {module: starred(module).split(".") for module in {row.module for row in report.rows}}
    timed = {row.module for row in report.rows if row.time is not None}
    tried = [*{tuple(split[module]) for module in timed}][:_MOST_MODULES]
    depth = 1
    while depth < 12 and len({parts[: depth + 1] for parts in tried}) <= _LINES:
        depth += 1
    shown = {module: ".".join(parts[:depth]) for module, parts in split.items()}
    return lambda row: shown[row.module]


def host_summary(profile: Device) -> str:
    """How fast the CPU beside the device launches kernels, compared with the CPU on which calls' costs were measured."""
    host, reference = profile.host, complete(device("h200")).host
    lines = [profile.name, _others(profile)]
    if host is None or reference is None or not host.seconds:
        return "\n".join([*lines, "  host       not measured"])
    factor = host.seconds["forward.call"] / reference.seconds["forward.call"]
    lines.append(f"  host       {factor:.2f} x the CPU time of the reference, the middle of hosts of an H200")
    took = host.benchmarks.items()
    lines += [f"    {name.replace('_', ' '):<22} {1e6 * each:8.1f} µs" for name, each in took]
    return "\n".join(lines)


def _others(profile: Device) -> str:
    """The share of the machine that other processes took while it was measured."""
    shares = [f"{100 * share:.0f} % of the {part.upper()}" for part, share in profile.busy.items()]
    disturbed = disturbance(profile)
    taken = f"  others     {' and '.join(shares) or 'not known'}"
    return f"{taken}\n  {disturbed}" if disturbed else taken


def summary(profile: Device) -> str:
    """Ceilings of the device, and points and held-out error of each family."""
    lines = [host_summary(profile), f"  memory     {number(int(profile.bandwidth))}B/s"]
    lines += [f"  {dtype:<10} {number(int(peak))}FLOP/s" for dtype, peak in profile.matrix.items()]
    lines += [
        "  kernels that measured points correct, by the error of points held out; constants predict all others"
    ]
    lines += ["  family         element type   points  median    90th percentile"]
    families = grouped(((one.family, one.dtype), (len(one.points), one.error)) for one in profile.calibration)
    for (family, dtype), found in families.items():
        points = sum(count for count, _ in found)
        known = [(count, error) for count, error in found if error is not None]
        weight = sum(count for count, _ in known) or 1
        median, ninth = (sum(count * error[place] for count, error in known) / weight for place in (0, 2))
        shown = f"{100 * median:5.1f} %   {100 * ninth:5.1f} %" if known else "     -"
        lines.append(f"  {family:<14} {dtype:<14} {points:>6}  {shown}")
    return "\n".join(lines)
