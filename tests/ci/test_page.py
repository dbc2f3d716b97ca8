"""The page of a job: its limits, and what it says of many models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphflops.ci.changes import COMMENT, SUMMARY, ModelChange, page
from graphflops.comparison.compare import compared
from graphflops.errors import inert_in_logs
from graphflops.render.document import escaped
from graphflops.report.findings import Finding, ModelFindings
from tests.render.reports import decoder

OVER = Finding("GF301", "over-limit", "error", "é" * 900, "make it cheaper")
NOTE = Finding("GF311", "not-limited", "note", "no limit", "add one")
CHANGED = ModelChange("lm.pt2", compared(decoder(3), decoder(4)))


@pytest.mark.parametrize("models", [1, 400])
@pytest.mark.parametrize("findings", [0, 5000])
def test_it_is_never_longer_than_allowed(models: int, findings: int) -> None:
    found = [ModelFindings(f"m{n}.onnx", (OVER,) * 10) for n in range(findings // 10)]
    whole = page([CHANGED] * models, found, ["a note"])
    assert len(whole.encode()) <= SUMMARY
    assert whole.startswith("## Cost of models\n\na note\n")
    text = page([CHANGED] * models, found, ["a note"], "<!-- me -->")
    assert len(text) <= COMMENT
    assert text.startswith("<!-- me -->\n## Cost of models\n\na note\n")
    shown = text.count("### lm.pt2")
    assert shown > 0
    if models == 400:
        assert f"… and {400 - shown:,} more changed models." in text
    if findings:
        assert "more findings." in text


def test_notes_are_no_broken_limits() -> None:
    text = page([], [ModelFindings("a.onnx", (NOTE,)), ModelFindings("b.onnx", ())], [])
    assert "**All limits kept by 2 models.**" in text
    assert "No model changed." in text


def test_nothing_is_said_of_what_was_not_done() -> None:
    text = page(None, None, ["There is no earlier commit to compare with."])
    assert text == "## Cost of models\n\nThere is no earlier commit to compare with.\n"


def test_the_command_that_mends_a_model_is_offered() -> None:
    offer = "`graphflops audit lm.onnx --fix` mends 3 findings"
    text = page([replace(CHANGED, offer=offer), CHANGED], None, [], "<!-- me -->")
    assert text.count("graphflops audit lm.onnx --fix") == 1


def test_names_of_files_are_shown_as_text() -> None:
    text = page([ModelChange("<b>@x](y)\n.pt2")], None, [])
    assert "<b>" not in text
    assert "@x" not in text


@pytest.mark.parametrize(
    "text, inert",
    [
        ("::error::x", ":\u200b:error::x"),
        ("a\n  ::set-output name=x::y\n", "a\n  :\u200b:set-output name=x::y\n"),
        ("a ##[error]b", "a ##\u200b[error]b"),
        ("std::vector and C++::x", "std::vector and C++::x"),
    ],
)
def test_no_line_is_a_workflow_command(text: str, inert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert inert_in_logs(text) == text
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert inert_in_logs(text) == inert


@pytest.mark.parametrize(
    "name", ["@team", "me@x.org", "a #12", "GH-12", "http://evil.example", "www.evil.example", "o/r#1"]
)
def test_markdown_mentions_nobody(name: str) -> None:
    text = escaped(name)
    assert "\u200b" in text
    assert text.replace("\u200b", "").replace("\\", "") == name
