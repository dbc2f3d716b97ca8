"""Statements of ten models of as many architectures as documents, each checked against what its format demands.

    python -m benchmarks.documents > benchmarks/results/documents.txt

Needs `pip install 'graphflops[capture]'` and the packages of the extra `dev`. Models are captured by name at small sizes:
what a document holds depends on the architecture, not on the size.
"""

from __future__ import annotations

import io
import json
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.capture import DECODERS, OTHERS, literal
from graphflops import statement
from graphflops.capturing.name import parsed
from graphflops.capturing.run import captured
from graphflops.render import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.graph import Graph
    from graphflops.statements.statement import Statement

DOCS = Path(__file__).parents[1] / "docs"
# By configuration: the axis that is counted where it is not tokens.
MODELS = {
    "LlamaConfig": None,
    "MixtralConfig": None,
    "DeepseekV3Config": None,
    "Gemma3TextConfig": None,
    "GPT2Config": None,
    "MambaConfig": None,
    "T5Config": None,
    "BertConfig": None,
    "ViTConfig": "pixel_values[0]",
    "Wav2Vec2Config": "input_values[0]",
}
# The keys of https://huggingface.co/docs/hub/model-cards-co2; emissions are in grams.
_CARD: dict[str, Any] = {
    "type": "object",
    "required": ["co2_eq_emissions"],
    "properties": {
        "co2_eq_emissions": {
            "type": "object",
            "required": ["emissions"],
            "additionalProperties": False,
            "properties": {
                "emissions": {"type": "number", "minimum": 0},
                "source": {"type": "string"},
                "training_type": {"enum": ["pre-training", "fine-tuning"]},
                "geographical_location": {"type": "string"},
                "hardware_used": {"type": "string"},
            },
        }
    },
}
_TABLES = 3  # of a statement: stages, conventions, thresholds


def _json(text: str) -> str:
    import jsonschema

    schema = json.loads((DOCS / "statement.schema.json").read_text("utf-8"))
    found = jsonschema.Draft202012Validator(schema).iter_errors(json.loads(text))
    return "; ".join(error.message for error in found)


def _cyclonedx(text: str) -> str:
    """By the published schema of CycloneDX 1.6, without further properties."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) or "")


def _spdx(text: str) -> str:
    """By SPDX's own classes, made from its model, which refuse properties, types and values that it does not have."""
    from spdx_python_model import v3_0_1 as model

    objects = model.SHACLObjectSet()
    try:
        model.JSONLDDeserializer().read(io.BytesIO(text.encode()), objects)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return str(error) or type(error).__name__
    missing = objects.link()
    return f"names what is not there: {missing}" if missing else ""


def _huggingface(text: str) -> str:
    import jsonschema
    import yaml

    _, head, body = text.split("---\n", 2)
    found = jsonschema.Draft202012Validator(_CARD).iter_errors(yaml.safe_load(head))
    return "; ".join(error.message for error in found) or _markdown(body.lstrip("\n"))


def _markdown(text: str) -> str:
    """By CommonMark with GitHub's tables: the tables are there, whole, and nothing is taken for HTML."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inner = [token for block in tokens for token in (block, *(block.children or ()))]
    tables = sum(token.type == "table_open" for token in inner)
    raw = [token.content for token in inner if token.type.startswith("html")]
    return f"{tables} tables, HTML {raw}" if tables != _TABLES or raw or not text.startswith("## ") else ""


class _Nesting(HTMLParser):
    """What is open, and what was closed out of turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def _html(text: str) -> str:
    """Elements nest, and there are one title, one heading, the tables and no script."""
    found = _Nesting(text)
    if found.wrong or found.open or not text.startswith("<!DOCTYPE html>"):
        return f"not nested: {found.wrong or found.open}"
    counts = [found.seen.count(tag) for tag in ("title", "h1", "table", "script")]
    return "" if counts == [1, 1, _TABLES, 0] else f"titles, headings, tables and scripts: {counts}"


CHECKS: dict[str, Callable[[str], str]] = {
    "markdown": _markdown,
    "json": _json,
    "cyclonedx": _cyclonedx,
    "spdx": _spdx,
    "huggingface": _huggingface,
    "html": _html,
}


def problems(found: Statement) -> dict[str, str]:
    """What is wrong with a statement as a document, by format; empty where nothing is."""
    told = {form: check(str(render(found, form))) for form, check in CHECKS.items()}
    return {form: problem for form, problem in told.items() if problem}


def model(config: str) -> Graph:
    """The program of a small model with that configuration, as `graphflops capture` makes it."""
    name = parsed(f"hf:{config}({literal({**DECODERS, **OTHERS}[config])})@length=24")
    assert name is not None
    return captured(name, training=True)["model"].graph()


def stated(program: object, axis: str | None) -> Statement:
    """A statement with all that documents have a place for."""
    given: dict[str, Any] = {"kwh": 120, "carbon": 50, "date": "2026-11-23", "supplier": "Example Ltd"}
    stages, hours = ["fine-tuning:1B", "evaluation:1M"], {"hours": 900, "device": "h100", "devices": 8}
    return statement(program, "2B", stages=stages, per=axis, original=1e18, **given, **hours)  # type: ignore[arg-type]


def main() -> None:
    """Print a line for each model."""
    warnings.simplefilter("ignore")
    print(f"{'model':18}{'parameters':>12}{'used':>12}{'model FLOPs':>13}  {'  '.join(CHECKS)}")
    valid = 0
    for config, axis in MODELS.items():
        found = stated(model(config), axis)
        told = problems(found)
        valid += not told
        verdicts = "  ".join(told.get(form, "valid").ljust(len(form)) for form in CHECKS)
        sizes = f"{found.parameters:12,}{found.used_parameters:12,}{found.flops.model:13.3e}"
        print(f"{config.removesuffix('Config'):18}{sizes}  {verdicts}".rstrip(), flush=True)
    print(f"{valid} of {len(MODELS)} models: all {len(CHECKS)} documents valid")


if __name__ == "__main__":
    main()
