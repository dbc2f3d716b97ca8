"""The import graph of the package: no cycles, and no import that points up the layers of docs/design.md.

Every import statement counts: those inside functions and those that only a type checker sees, too.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Modules that still import one another, each with the reason.
KNOWN_CYCLES: list[set[str]] = []


@cache
def modules() -> dict[str, Path]:
    """The files of the package by module name."""
    found = {}
    for path in sorted((ROOT / "graphflops").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def known(name: str) -> str:
    """The module that a dotted name is, or is defined in; "" for one of another package."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


@cache
def imports() -> dict[str, set[str]]:
    """By module: the modules of the package that it imports anywhere."""
    found = {}
    for name, path in modules().items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(known(alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                names.update(known(f"{node.module}.{alias.name}") for alias in node.names)
        found[name] = names - {name, ""}
    return found


def cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that import one another: what is left after those without importers or imports are taken away."""
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen: set[str] = set()
        pending = [start]
        while pending:
            for target in edges.get(pending.pop(), set()) - seen:
                seen.add(target)
                pending.append(target)
        reach[start] = seen
    found: list[set[str]] = []
    for name in edges:
        if name in reach[name] and not any(name in cycle for cycle in found):
            found.append({other for other in reach[name] if name in reach[other]})
    return found


@cache
def layers() -> list[list[str]]:
    """The layers that docs/design.md lists, the lowest first: names of modules and folders."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = re.search(r"^## \d+\. Layers$.*?```text\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert section is not None, "docs/design.md has a section Layers with a list"
    return [line.partition("  ")[0].split(", ") for line in section[1].splitlines() if line.strip()]


def layer_of(module: str) -> int:
    """The layer of a module: that of its longest prefix in the list."""
    name = module.removeprefix("graphflops").removeprefix(".") or "__init__"
    places = {entry.replace("/", "."): index for index, line in enumerate(layers()) for entry in line}
    while name not in places and "." in name:
        name = name.rpartition(".")[0]
    assert name in places, f"docs/design.md lists no layer for {module}"
    return places[name]


def test_no_modules_import_one_another():
    assert sorted(map(sorted, cycles(imports()))) == sorted(map(sorted, KNOWN_CYCLES))


@pytest.mark.parametrize("module", sorted(modules()))
def test_no_import_points_up_the_layers(module):
    up = [target for target in sorted(imports()[module]) if layer_of(target) > layer_of(module)]
    assert not up, f"{module} imports from a layer above its own"


def test_every_entry_of_the_list_is_there():
    names = {name.removeprefix("graphflops.") for name in modules()} | {"__init__"}
    listed = [entry.replace("/", ".") for line in layers() for entry in line]
    assert [entry for entry in listed if entry not in names] == []
    assert len(listed) == len(set(listed))


def test_a_cycle_of_three_is_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]
