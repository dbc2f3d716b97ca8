"""Statements as documents: valid by the published schemas, the same bytes twice, harmless whatever the names."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import statement
from graphflops.cli import main
from graphflops.render import render
from graphflops.statements.statement import Statement
from tests.render.test_schema import validator

ROOT = Path(__file__).parents[2]
MODELS = {  # ten models, with the axis that is counted where it is not tokens
    "samples/gqa_transformer.pt2": None,
    "samples/gqa_transformer.onnx": None,
    "samples/all_heads.pt2": None,
    "samples/convnet.pt2": "image[0]",
    "samples/convnet.onnx": "image[0]",
    "samples/lstm.pt2": "x[0]",
    "samples/cond.pt2": "x[0]",
    "tests/data/models/gemma3.pt2": None,
    "tests/data/models/swin_t.pt2": "x[0]",
    "tests/data/pt2/lm_dynamic-torch2.6.0.pt2": None,
}
FORMATS = ("table", "json", "markdown", "html", "cyclonedx", "spdx", "huggingface")


@cache
def stated(name: str) -> Statement:
    return statement(
        ROOT / name, "2B", per=MODELS[name], kwh=120, carbon=50, date="2026-11-23", supplier="Example Ltd"
    )


@pytest.mark.parametrize("name", MODELS)
def test_json(name: str) -> None:
    validator("statement.schema.json").validate(json.loads(render(stated(name), "json")))


@pytest.mark.parametrize("name", MODELS)
def test_cyclonedx(name: str) -> None:
    checked = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib")
    from cyclonedx.schema import SchemaVersion

    text = render(stated(name), "cyclonedx")
    assert isinstance(text, str)
    assert checked.JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (component,) = json.loads(text)["components"]
    spent = component["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    assert [(one["activity"], one["activityEnergyCost"]) for one in spent] == [
        ("training", {"value": 120, "unit": "kWh"})
    ]
    assert spent[0]["co2CostEquivalent"] == {"value": 0.006, "unit": "tCO2eq"}


@pytest.mark.parametrize("name", MODELS)
def test_spdx(name: str) -> None:
    """Read back by SPDX's own classes, which refuse properties, types and values that its model does not have."""
    model = pytest.importorskip("spdx_python_model", reason="needs spdx-python-model").v3_0_1
    text = render(stated(name), "spdx")
    assert isinstance(text, str)
    objects = model.SHACLObjectSet()
    model.JSONLDDeserializer().read(io.BytesIO(text.encode()), objects)
    assert not objects.link()  # nothing is named that is not there
    (package,) = objects.foreach_type("ai_AIPackage")
    (energy,) = package.ai_energyConsumption.ai_trainingEnergyConsumption
    assert (float(energy.ai_energyQuantity), energy.ai_energyUnit.rpartition("/")[2]) == (120, "kilowattHour")
    wrong = text.replace("ai_energyUnit", "ai_energyColour")
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError)):
        model.JSONLDDeserializer().read(io.BytesIO(wrong.encode()), model.SHACLObjectSet())


def test_hugging_face() -> None:
    """The keys of https://huggingface.co/docs/hub/model-cards-co2; emissions are in grams."""
    yaml = pytest.importorskip("yaml", reason="needs pyyaml")
    text = render(stated("samples/gqa_transformer.pt2"), "huggingface")
    assert isinstance(text, str)
    _, head, body = text.split("---\n", 2)
    emissions = yaml.safe_load(head)["co2_eq_emissions"]
    assert emissions.keys() == {"emissions", "source", "training_type", "hardware_used"}
    assert (emissions["emissions"], emissions["training_type"]) == (120 * 50, "pre-training")
    assert body.lstrip().startswith("## Compute")
    unknown = render(statement(ROOT / "samples/gqa_transformer.pt2", "2B"), "huggingface")
    assert isinstance(unknown, str)
    assert yaml.safe_load(unknown.split("---\n", 2)[1]) is None  # what is not known is not zero


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_run_is_the_same_bytes(form: str) -> None:
    name = "samples/gqa_transformer.pt2"
    again = statement(ROOT / name, "2B", kwh=120, carbon=50, date="2026-11-23", supplier="Example Ltd")
    assert render(again, form) == render(stated(name), form)


@pytest.mark.parametrize("form", FORMATS)
def test_names_of_others_are_harmless(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m<script>|`x`\u202e.pt2"
    path.write_bytes((ROOT / "samples/gqa_transformer.pt2").read_bytes())
    found = statement(
        path, "2B", stages=["fine-tuning/\x1b]0;\x07:1B"], date="2026-11-23", supplier="\x1b[0m</p>"
    )
    text = render(found, form)
    assert isinstance(text, str)
    assert not {"\x1b", "\x07", "\u202e"} & {*text}
    if form in ("html", "markdown", "huggingface"):
        assert "<script>" not in text


def test_the_command_writes_by_suffix(tmp_path: Path) -> None:
    model, out = str(ROOT / "samples/gqa_transformer.pt2"), tmp_path / "card.md"
    found = CliRunner().invoke(main, ["statement", model, "--tokens", "2B", "--output", str(out)])
    assert found.exit_code == 0, found.output
    assert out.read_text("utf-8").startswith("## Compute\n")
    page = CliRunner().invoke(main, ["statement", model, "--tokens", "2B", "--format", "html"]).output
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page


def test_a_notebook_shows_it() -> None:
    found: Any = stated("samples/gqa_transformer.pt2")
    assert "EU: systemic risk" in found._repr_html_()
    assert "FLOPs of training" in repr(found)
