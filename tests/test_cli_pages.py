"""Pages and exports from the command line: which format for which file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import MODEL, STATIC, misused, ok


@pytest.mark.parametrize("name", ["report.html", "REPORT.HTM"])
def test_the_suffix_asks_for_a_page(tmp_path: Path, name: str) -> None:
    assert ok("analyze", MODEL, "--output", tmp_path / name) == ""
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "Content-Security-Policy" in text


def test_a_page_of_a_saved_report_is_that_of_the_model(tmp_path: Path) -> None:
    ok("analyze", MODEL, "--output", tmp_path / "report.json")
    saved, of_model = (ok("analyze", path, "--format", "html") for path in (tmp_path / "report.json", MODEL))
    assert without_picture(saved) == without_picture(of_model)


def without_picture(page: str) -> str:
    """A page without its graph, of which a saved report knows no weights."""
    head, opening, rest = page.partition('<section id="picture"')
    assert opening
    return head + rest.partition("</section>")[2]


def test_a_page_of_a_comparison(tmp_path: Path) -> None:
    ok("diff", MODEL, STATIC, "--output", tmp_path / "diff.html")
    assert (tmp_path / "diff.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_exports(tmp_path: Path) -> None:
    assert json.loads(ok("analyze", MODEL, "--format", "speedscope"))["exporter"].startswith("graphflops ")
    ok("analyze", MODEL, "--depth", "1", "--output", tmp_path / "model.dot")
    assert (tmp_path / "model.dot").read_text(encoding="utf-8").startswith("digraph graphflops {")


@pytest.mark.parametrize("form", ["html", "speedscope"])
@pytest.mark.parametrize("option", [("--by", "op"), ("--top", "3"), ("--depth", "2")])
def test_what_is_whole_takes_no_choice_of_lines(form: str, option: tuple[str, str]) -> None:
    message = f"{option[0]}: not an option of --format {form} for a report, which takes none"
    assert message in misused("analyze", MODEL, "--format", form, *option)


@pytest.mark.parametrize("option", [("--by", "op"), ("--top", "3")])
def test_a_graph_takes_a_depth_only(option: tuple[str, str]) -> None:
    message = f"{option[0]}: not an option of --format dot for a report, which takes --depth"
    assert message in misused("analyze", MODEL, "--format", "dot", *option)


@pytest.mark.parametrize("command", [("rules",), ("diff", MODEL, STATIC)])
@pytest.mark.parametrize("form", ["speedscope", "dot"])
def test_only_reports_have_exports(command: tuple[str, ...], form: str) -> None:
    assert "is not one of" in misused(*command, "--format", form)


def test_a_list_of_rules_is_no_page() -> None:
    assert "is not one of" in misused("rules", "--format", "html")
