"""The mesh of a recorded step and what is sent along its axes, for every format that draws tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from graphflops.base.units import numbered, seconds, unnumbered
from graphflops.dims import total
from graphflops.render.text import Numbers, count_of, operator_name, safe
from graphflops.report import Exchange, Report

_HEADS = ("axis", "collective", "module", "phase", "calls", "sent")


def heads(report: Report) -> tuple[str, ...]:
    """Of the columns; those of times only where they are known."""
    return (*_HEADS, "time", "exposed") if report.device else _HEADS


def facts(report: Report, numbers: Numbers) -> Iterator[tuple[str, str]]:
    """The mesh, and the bytes sent along each of its axes."""
    mesh = report.mesh
    assert mesh is not None
    sizes = ", ".join(f"{safe(axis, 40)}={size}" for axis, size in mesh.axes.items())
    devices = count_of(prod(mesh.axes.values()), "device")
    yield "mesh", f"{sizes}: {devices}, of which rank {mesh.rank} is recorded"
    along: dict[str, list[Exchange]] = {}
    for exchange in report.exchanges:
        along.setdefault(exchange.axis, []).append(exchange)
    if along:
        texts = (
            f"{numbers.memory(total(each.bytes for each in sent))} {_axis(axis)}"
            for axis, sent in along.items()
        )
        yield "by mesh axis", ", ".join(texts)
    if report.device and len(along) > 1:
        texts = (f"{_axis(axis)} {', '.join(_times(sent))} exposed" for axis, sent in along.items())
        yield "collectives by axis", "; ".join(texts)


def lines(report: Report, numbers: Numbers) -> Iterator[list[str]]:
    """A line for each kind of collective by axis, phase and module; modules that differ in their number are one line."""
    alike: dict[tuple[str, ...], list[Exchange]] = {}
    for exchange in report.exchanges:
        key = exchange.axis, exchange.op, unnumbered(exchange.module), exchange.phase
        alike.setdefault(key, []).append(exchange)
    for group in alike.values():
        modules = numbered([exchange.module for exchange in group])
        calls, sent = sum(each.calls for each in group), total(each.bytes for each in group)
        what = [_axis(group[0].axis), operator_name(group[0].op), safe(modules), group[0].phase]
        yield [*what, f"{calls:,}", numbers.memory(sent), *(_times(group) if report.device else ())]


def _times(exchanges: Sequence[Exchange]) -> list[str]:
    """How long collectives run, and how long nothing else does."""
    return [seconds(sum(one.seconds for one in exchanges)), seconds(sum(one.exposed for one in exchanges))]


def _axis(axis: str) -> str:
    return safe(axis, 40) or "no axis"
