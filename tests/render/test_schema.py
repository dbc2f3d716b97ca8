"""The published JSON Schemas are what the types say, and true of real reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphflops import analyze
from graphflops.comparison.compare import compared
from graphflops.render import render
from tests.generated import SCHEMAS
from tests.render.reports import decoder, hostile, training, unset, with_unknown

ROOT = Path(__file__).parents[2]
SAMPLES = sorted(path.name for path in (ROOT / "samples").iterdir() if path.suffix in (".pt2", ".onnx"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_published(name: str) -> None:
    path = ROOT / "docs" / name
    assert path.read_text(encoding="utf-8") == SCHEMAS[name](), "write it: python -m tests.generated"


def validator(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="needs the package jsonschema")
    schema = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", SAMPLES)
def test_true_of_samples(name: str) -> None:
    report = analyze(ROOT / "samples" / name, training=name.endswith("r.pt2"))
    validator("report.schema.json").validate(json.loads(render(report, "json")))


@pytest.mark.parametrize(
    "report", [with_unknown(decoder(2)), unset(decoder(1)), training(decoder(1)), hostile()]
)
def test_true_of_reports_by_hand(report: Any) -> None:
    validator("report.schema.json").validate(json.loads(render(report, "json")))


def test_true_of_comparisons() -> None:
    for pair in (
        (decoder(2), with_unknown(decoder(3))),
        (decoder(1), decoder(1)),
        (training(decoder(1)), training(decoder(2))),
    ):
        validator("diff.schema.json").validate(json.loads(render(compared(*pair), "json")))


@pytest.mark.parametrize(
    "place, value",
    [
        (("schema",), 2),
        (("rows", 0, "state"), "zero"),
        (("rows", 0, "cost", "matrix_flops"), "12"),
        (("totals",), None),
    ],
)
def test_what_is_no_report_fails(place: tuple[Any, ...], value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs the package jsonschema")
    report = json.loads(render(decoder(1), "json"))
    inside = report
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validator("report.schema.json").validate(report)
