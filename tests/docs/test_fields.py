"""The tables of docs/report.md and docs/diff.md name every field, code and quantity that there is, and no other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import cli
from graphflops.report.contradictions import DIAGNOSTICS
from tests.docs.models import ROOT, SAMPLES

REPORT = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
DIFF = (ROOT / "docs" / "diff.md").read_text(encoding="utf-8")
OBJECTS = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))["$defs"]


def named(text: str, heading: str) -> set[str]:
    """What stands in backticks in the first column of the tables between a heading and the next."""
    section = re.split(r"^#{2,3} ", text.partition(heading + "\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    assert section, f"no section {heading}"
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize(
    "heading, name",
    [
        ("## Fields", "Report"),
        ("### `origin`", "Origin"),
        ("### `symbols`", "SymbolInfo"),
        ("### Costs", "Cost"),
        ("### `coverage`", "Coverage"),
        ("### `rows`", "Row"),
        ("### `attentions`", "AttentionUse"),
        ("### `memory_use`", "PhaseMemory"),
    ],
)
def test_fields_of_a_report(heading: str, name: str) -> None:
    assert named(REPORT, heading) == set(OBJECTS[name]["properties"])


def test_fields_of_totals_are_the_costs_and_their_own() -> None:
    costs = set(OBJECTS["Cost"]["properties"])
    assert named(REPORT, "### `totals`") == set(OBJECTS["Totals"]["properties"]) - costs


def test_fields_of_times() -> None:
    assert named(REPORT, "### `time`") == {
        *OBJECTS["CallTime"]["properties"],
        *OBJECTS["PhaseTime"]["properties"],
    }


def test_fields_of_memory() -> None:
    held = {f"held[].{name}" for name in OBJECTS["Held"]["properties"]}
    assert named(REPORT, "### `memory`") == set(OBJECTS["Timeline"]["properties"]) | held


def test_diagnostics() -> None:
    fields = set(OBJECTS["Diagnostic"]["properties"])
    rows = dict(re.findall(r"^\| (GF\d+) \| `([a-z-]+)` \|", REPORT, re.MULTILINE))
    assert rows == DIAGNOSTICS
    assert named(REPORT, "### `diagnostics`") == fields


def compared(*models: str) -> Any:
    files = [str(SAMPLES / name) for name in models]
    result = CliRunner().invoke(cli.main, ["diff", *files, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_fields_of_a_comparison() -> None:
    found = compared("convnet.pt2", "lstm.pt2") | {"time": None, "serving": None}
    (entry, *_) = found["modules"]
    assert named(DIFF, "## The JSON comparison") == set(found) | set(entry)
