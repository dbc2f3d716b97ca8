"""The table of formats: each row names a function that exists and takes what the row says, and a row is enough."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from click.testing import CliRunner

from graphflops import compare
from graphflops.base.lazy import imported
from graphflops.cli import main
from graphflops.errors import OptionError
from graphflops.render import formats, render
from graphflops.render.formats import DOCUMENTS, FORMATS, RENDERED, Format, Renderer
from tests.render.reports import decoder

ROWS = [(form, kind) for form in FORMATS for kind in form.renderers]
HOMES = {
    "Report": "graphflops.report",
    "Sweep": "graphflops.derived.resize",
    "Overview": "graphflops.derived.overview",
    "History": "graphflops.versions.revisions",
    "Comparison": "graphflops.comparison.result",
    "Findings": "graphflops.report.findings",
    "Fits": "graphflops.fitting.fits",
    "Validation": "graphflops.runtime.validation",
    "Listing": "graphflops.render.text",
    "Answer": "graphflops.structure.answer",
    "Statement": "graphflops.statements.statement",
    "Serving": "graphflops.serving.plan",
    "Plan": "graphflops.planning.plan",
    "Replication": "graphflops.serving.plan",
}


@pytest.mark.parametrize("form, kind", ROWS, ids=lambda value: getattr(value, "name", value))
def test_a_row_is_what_its_function_takes(form: Format, kind: str) -> None:
    renderer = form.renderers[kind]
    value, *options = inspect.signature(imported(renderer.function)).parameters.values()
    assert value.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    if any(option.kind is inspect.Parameter.VAR_KEYWORD for option in options):  # those of its document
        options += inspect.signature(imported(DOCUMENTS[kind])).parameters.values()
    keywords = [option.name for option in options if option.kind is inspect.Parameter.KEYWORD_ONLY]
    assert sorted(keywords) == sorted(renderer.options)


def test_every_class_is_in_the_table_of_names() -> None:
    assert {kind for _, kind in ROWS} == RENDERED.keys() == HOMES.keys()
    for kind, home in HOMES.items():
        assert imported(f"{home}:{kind}").__name__ == kind


def test_names_and_suffixes_are_unique() -> None:
    suffixes = [suffix for form in FORMATS for suffix in form.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert len({form.name for form in FORMATS}) == len(FORMATS)


def test_an_option_that_a_format_does_not_take_is_one_line() -> None:
    with pytest.raises(
        OptionError, match="--by: not an option of --format json for a report, which takes none"
    ):
        render(decoder(1), "json", by="op")
    with pytest.raises(OptionError, match=r"--by, --top: not options of --format dot .* takes --depth"):
        render(decoder(1), "dot", by="op", top=3, depth=1)
    with pytest.raises(OptionError, match="sarif is no format for a report; there are table, json"):
        render(decoder(1), "sarif")
    with pytest.raises(OptionError, match="--depth is for the module tree"):
        render(decoder(1), "csv", depth=1)
    assert render(decoder(1), "csv", by="module", depth=1, width=80)


@pytest.mark.parametrize(
    "ask",
    [
        lambda report: report.by("foo"),
        lambda report: report.by(3),
        lambda report: report.summary(by="foo"),
        lambda report: render(report, "csv", by="foo"),
        lambda report: render(report, "markdown", by=""),
        lambda report: compare(report, report).summary(by="attention"),
        lambda report: report.to_dataframe(by="foo"),
    ],
)
def test_what_a_report_cannot_be_grouped_by_is_named_with_what_it_can(ask: Any) -> None:
    if ask.__code__.co_names[0] == "to_dataframe":
        pytest.importorskip("pandas")
    with pytest.raises(OptionError, match=r"^by: no ('.*'|3); there are op, module, source(, attention)?$"):
        ask(decoder(1))


def flops(report: Any) -> bytes:
    """A format of one number, eight bytes."""
    return int(report.value(report.total().matrix_flops)).to_bytes(8, "big")


def test_a_new_format_is_a_function_and_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    row = Format("flops", (".flops",), {"Report": Renderer(f"{__name__}:flops")})
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, row))
    report = decoder(1)
    assert render(report, "flops") == flops(report)
    assert formats.names("Report")[-1] == "flops"
    path = tmp_path / "model.flops"
    result = CliRunner().invoke(main, ["analyze", "samples/convnet.pt2", "--output", str(path)])
    assert result.exit_code == 0
    assert int.from_bytes(path.read_bytes(), "big") == 2_261_152
