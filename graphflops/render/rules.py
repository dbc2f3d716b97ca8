"""Lists which rule prices which operator."""

from __future__ import annotations

from collections import Counter
from inspect import unwrap
from pathlib import Path

from graphflops.base.docstrings import docstring
from graphflops.render.tables import Listing
from graphflops.report import Report
from graphflops.rules import Rule, find, known


def registered() -> Listing:
    """Every operator that has a rule."""
    heads = ("operator", "rule", "file", "what is counted")
    return Listing(
        heads, [[rule.key, *_home(rule), docstring(rule.function).partition("\n")[0]] for rule in known()]
    )


def used(report: Report) -> Listing:
    """Every operator of a program, the unknown ones first: how often it is called, and what priced it."""
    heads = ("operator", "calls", "state", "priced as", "rule", "file")
    states: dict[str, Counter[str]] = {}
    for row in report.rows:
        states.setdefault(row.op, Counter())[row.state] += 1
    rows: list[list[str | int]] = []
    for op, seen in sorted(states.items(), key=lambda item: (not item[1]["unknown"], item[0])):
        rule = find(op)
        home = [rule.key, *_home(rule)] if rule else ["", "", ""]
        rows.append([op, seen.total(), ", ".join(sorted(seen)), *home])
    return Listing(heads, rows)


def _home(rule: Rule) -> list[str]:
    name = getattr(unwrap(rule.function), "__qualname__", type(rule.function).__name__)
    package, _, module = rule.home.rpartition(".")
    if package == "graphflops.rules":
        return [name.replace("<locals>.", ""), f"{module}.py"]
    code = getattr(rule.function, "__code__", None)
    return [name.replace("<locals>.", ""), Path(code.co_filename).name if code else rule.home]
