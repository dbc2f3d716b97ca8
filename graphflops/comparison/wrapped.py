"""A program and the export of a module around it: paths and names that differ by a common prefix are the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.comparison.constants import STORED, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from graphflops.report import Report

_FEW = 4  # a prefix leads to more than one in so many names: optimizers of graphs rename many


def is_export(old: Report, new: Report) -> bool:
    """True for a program and its export, which keeps the work and not the operators."""
    return (old.origin.format == "onnx") != (new.origin.format == "onnx")


def under_common_names(
    old: Report, new: Report, uniform: Callable[[str], float | None]
) -> tuple[Report, Report, Callable[[str], float | None]]:
    """Of an export check both programs by the names inside of the module that the inner one is, and `uniform` by those."""
    if not is_export(old, new):
        return old, new, uniform
    if prefix := _prefix(old, new):
        return old, _unwrapped(new, prefix)[0], uniform
    if prefix := _prefix(new, old):
        old, names = _unwrapped(old, prefix)
        return old, new, lambda name: uniform(names.get(name, name))
    return old, new, uniform


def _prefix(inner: Report, outer: Report) -> str:
    """How names of the outer program begin that are the inner one's behind it; "" where more are equal as they are."""
    found, names = _names(inner), _names(outer)
    met: Counter[str] = Counter()
    for name in names:
        ends = [0, *(place + 1 for place, sign in enumerate(name) if sign == "_"), len(name) + 1]
        met.update({name[: end - 1] if end else "" for end in ends if name[end:] in found})
    best = max(met, key=lambda prefix: (met[prefix], -len(prefix)), default="")
    return best if met[best] > max(met[""], min(len(found), len(names)) // _FEW) else ""


def _names(report: Report) -> set[str]:
    """Modules with products and stored tensors, as either exporter would spell them."""
    modules = {row.module for row in report.rows if row.cost.matrix_flops != 0}
    return {plain(name) for name in (*modules, *_stored(report))}


def _stored(report: Report) -> dict[str, None]:
    made = {named.name for named in report.inputs}.union(n.name for row in report.rows for n in row.outputs)
    return dict.fromkeys(n.name for row in report.rows for n in row.inputs if n.name not in made)


def _unwrapped(report: Report, prefix: str) -> tuple[Report, Mapping[str, str]]:
    """The program with what is in a module under its names there; by new name of a stored tensor the old one."""
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
    """A path or the name of a stored tensor without the prefix; one beside it as it is."""
    kind = next((kind for kind in STORED if name.startswith(kind)), "")
    rest = name.removeprefix(kind)
    if plain(name) == prefix or plain(name).startswith(f"{prefix}_"):
        rest = rest[len(prefix) + 1 :]
    return kind + rest
