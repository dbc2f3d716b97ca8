"""Statements as documents: valid by the published schemas, the same bytes twice, harmless whatever the names."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import documents
from graphflops import statement
from graphflops.cli import main
from graphflops.render import render
from graphflops.statements.statement import Statement

ROOT = Path(__file__).parents[2]
MODELS = {  # files of models, with the axis that is counted where it is not tokens
    "samples/gqa_transformer.pt2": None,
    "samples/all_heads.pt2": None,
    "samples/convnet.onnx": "image[0]",
    "samples/lstm.pt2": "x[0]",
    "samples/cond.pt2": "x[0]",
    "tests/data/models/gemma3.pt2": None,
    "tests/data/models/swin_t.pt2": "x[0]",
    "tests/data/pt2/lm_dynamic-torch2.6.0.pt2": None,
}
CAPTURED = ("MixtralConfig", "T5Config")  # benchmarks.documents has ten of them
FORMATS = ("table", "json", "markdown", "html", "cyclonedx", "spdx", "huggingface")
# By format: what checks it.
CHECKERS = {
    "markdown": "markdown_it",
    "json": "jsonschema",
    "cyclonedx": "cyclonedx.validation.json",
    "spdx": "spdx_python_model",
    "huggingface": "yaml",
    "html": "html.parser",
}
DECODER = "samples/gqa_transformer.pt2"


@cache
def stated(name: str) -> Statement:
    return documents.stated(ROOT / name, MODELS[name]) if name in MODELS else captured(name)


def captured(config: str) -> Statement:
    pytest.importorskip("transformers", reason="needs transformers")
    return documents.stated(documents.model(config), None)


def document(name: str, form: str) -> str:
    pytest.importorskip(CHECKERS[form], reason=f"needs {CHECKERS[form]}")
    text = render(stated(name), form)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("form", CHECKERS)
@pytest.mark.parametrize("name", [*MODELS, *CAPTURED])
def test_documents_of_ten_models_are_valid(name: str, form: str) -> None:
    assert documents.CHECKS[form](document(name, form)) == ""


@pytest.mark.parametrize(
    "form, old, new",
    [
        ("markdown", "| stage |", "<b>stage</b> |"),
        ("json", '"at_least":false', '"at_least":"no"'),
        ("cyclonedx", '"activity":"training"', '"activity":"thinking"'),
        ("cyclonedx", '"activityEnergyCost"', '"activityEnergyColour"'),
        ("spdx", "ai_energyUnit", "ai_energyColour"),
        ("huggingface", "emissions: 6000", "emissions: many"),
        ("html", "</ul>", "</ol>"),
    ],
)
def test_what_is_wrong_is_not_valid(form: str, old: str, new: str) -> None:
    text = document(DECODER, form)
    assert old in text
    assert documents.CHECKS[form](text.replace(old, new)) != ""


def test_measured_energy_stands_in_the_documents() -> None:
    model = pytest.importorskip("spdx_python_model", reason="needs spdx-python-model").v3_0_1
    (component,) = json.loads(document(DECODER, "cyclonedx"))["components"]
    spent = component["modelCard"]["considerations"]["environmentalConsiderations"]["energyConsumptions"]
    assert [(one["activity"], one["activityEnergyCost"]) for one in spent] == [
        ("training", {"value": 120, "unit": "kWh"})
    ]
    assert spent[0]["co2CostEquivalent"] == {"value": 0.006, "unit": "tCO2eq"}  # 120 kWh of 50 g
    objects = model.SHACLObjectSet()
    model.JSONLDDeserializer().read(io.BytesIO(document(DECODER, "spdx").encode()), objects)
    (package,) = objects.foreach_type("ai_AIPackage")
    (energy,) = package.ai_energyConsumption.ai_trainingEnergyConsumption
    assert (float(energy.ai_energyQuantity), energy.ai_energyUnit.rpartition("/")[2]) == (120, "kilowattHour")
    assert "CO2 equivalent in kg: 6 (given)" in document(DECODER, "html")


def test_hugging_face() -> None:
    yaml = pytest.importorskip("yaml", reason="needs pyyaml")
    _, head, body = document(DECODER, "huggingface").split("---\n", 2)
    emissions = yaml.safe_load(head)["co2_eq_emissions"]
    assert (emissions["emissions"], emissions["training_type"]) == (120 * 50, "pre-training")
    assert body.lstrip().startswith("## Compute")
    unknown = render(statement(ROOT / DECODER, "2B"), "huggingface")
    assert isinstance(unknown, str)
    assert yaml.safe_load(unknown.split("---\n", 2)[1]) is None  # what is not known is not zero


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_run_is_the_same_bytes(form: str) -> None:
    assert render(documents.stated(ROOT / DECODER, None), form) == render(stated(DECODER), form)


@pytest.mark.parametrize("form", FORMATS)
def test_names_of_others_are_harmless(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m<script>|`x`\u202e.pt2"
    path.write_bytes((ROOT / DECODER).read_bytes())
    found = statement(
        path, "2B", stages=["fine-tuning/\x1b]0;\x07:1B"], date="2026-11-23", supplier="\x1b[0m</p>"
    )
    text = render(found, form)
    assert isinstance(text, str)
    assert not {"\x1b", "\x07", "\u202e"} & {*text}
    if form in ("html", "markdown", "huggingface"):
        assert "<script>" not in text


def test_the_command_writes_by_suffix(tmp_path: Path) -> None:
    model, out = str(ROOT / DECODER), tmp_path / "card.md"
    found = CliRunner().invoke(main, ["statement", model, "--tokens", "2B", "--output", str(out)])
    assert found.exit_code == 0, found.output
    assert out.read_text("utf-8").startswith("## Compute\n")
    page = CliRunner().invoke(main, ["statement", model, "--tokens", "2B", "--format", "html"]).output
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page


def test_a_notebook_shows_it() -> None:
    found: Any = stated(DECODER)
    assert "EU: systemic risk" in found._repr_html_()
    assert "FLOPs of training" in repr(found)
