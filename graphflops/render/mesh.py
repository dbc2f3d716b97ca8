"""The mesh of a recorded step and what is sent along its axes, for every format that draws tables."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from graphflops.base.numbered import numbered, unnumbered
from graphflops.dims import Dim, total
from graphflops.render.text import Numbers, count_of, operator_name, safe
from graphflops.report import Exchange, Report

HEADS = ("axis", "collective", "module", "phase", "calls", "sent")


def facts(report: Report, numbers: Numbers) -> Iterator[tuple[str, str]]:
    """The mesh, and the bytes sent along each of its axes."""
    mesh = report.mesh
    assert mesh is not None
    sizes = ", ".join(f"{safe(axis, 40)}={size}" for axis, size in mesh.axes.items())
    devices = count_of(prod(mesh.axes.values()), "device")
    yield "mesh", f"{sizes}: {devices}, of which rank {mesh.rank} is recorded"
    sent: dict[str, list[Dim]] = {}
    for exchange in report.exchanges:
        sent.setdefault(exchange.axis, []).append(exchange.bytes)
    if sent:
        texts = (f"{numbers.memory(total(sizes))} {_axis(axis)}" for axis, sizes in sent.items())
        yield "by mesh axis", ", ".join(texts)


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
        yield [*what, f"{calls:,}", numbers.memory(sent)]


def _axis(axis: str) -> str:
    return safe(axis, 40) or "no axis"
