"""The HTML of a report as text: whole, small, closed to the network, names escaped. What it shows is tested in a browser."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphflops.comparison.compare import compared
from graphflops.cost import Cost
from graphflops.dims import floor_div, symbol
from graphflops.render import render
from graphflops.render.html.fragment import devices
from graphflops.report import Held, Report, Row, Timeline
from tests.render.reports import HINTS, HOSTILE, decoder, hostile, made, training, unset, with_unknown

REPORTS = {
    "hint": decoder(),
    "formulas": unset(decoder()),
    "unknown": with_unknown(decoder(3)),
    "training": training(decoder(2)),
    "hostile": hostile(),
}
PAGES = {name: render(report, "html") for name, report in REPORTS.items()}
PAGES["diff"] = render(compared(decoder(2), with_unknown(decoder(3))), "html")
PAGES["diff-hostile"] = render(compared(decoder(2), hostile()), "html")


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "json": []}
        self.current = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.current = "json" if dict(attrs).get("type") == "application/json" else tag

    def handle_endtag(self, tag: str) -> None:
        self.current = ""

    def handle_data(self, data: str) -> None:
        if self.current in self.inside:
            self.inside[self.current].append(data)


def data_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Elements(page).inside["json"][0])
    return found


@pytest.mark.parametrize("name", PAGES)
def test_nothing_from_outside_and_no_handlers(name: str) -> None:
    elements = Elements(PAGES[name])
    allowed = {"content", "charset", "name", "http-equiv", "lang", "id", "type", "align"}
    drawn = {
        "class", "role", "tabindex", "transform", "x", "y", "r", "rx", "width", "height", "d", "viewbox", "refx", "refy",
        "markerwidth", "markerheight", "marker-end", "orient", "markerunits", "patternunits",
        "patterntransform", "fill", "fill-opacity",
        "aria-labelledby", "aria-label", "aria-expanded", "data-size", "data-sheet", "data-ends",
    }  # fmt: skip
    allowed |= drawn
    for tag, attributes in elements.found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert attributes.keys() <= allowed, (tag, attributes)
    style, script = elements.inside["style"][0], "".join(elements.inside["script"])
    assert not re.search(r"url\(|@import|@font-face", style)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import|eval|Function)\s*\(", script)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write", script)


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_names_the_script_and_style_by_hash(name: str) -> None:
    elements = Elements(PAGES[name])
    (policy,) = [a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in (policy or "").split("; "))
    assert rules.keys() == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind in ("script", "style"):
        (text,) = elements.inside[kind]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


@pytest.mark.parametrize("name", ["hostile", "diff-hostile"])
def test_names_are_text_everywhere(name: str) -> None:
    page = PAGES[name]
    tags = {tag for tag, _ in Elements(page).found}
    assert tags <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "noscript",
        "main",
        "script",
        "div",
        "p",
        "b",
        "br",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        *(
            "section",
            "h2",
            "svg",
            "defs",
            "marker",
            "pattern",
            "g",
            "rect",
            "circle",
            "path",
            "text",
            "template",
        ),
    }
    for active in ("\x1b", "\x9b", "\u202e", "\r", "\x00"):
        assert active not in page
    assert "<b>a|b</b>" not in page
    assert any(HOSTILE in size["symbols"][-1] for size in data_of(page)["sizes"]), "looked up by its own name"


def test_a_name_cannot_end_the_script() -> None:
    row = Row("</script><script>alert(1)</script><!--", "a.op", "m", "", "", "counted", cost=Cost(8))
    page = render(made([row]), "html")
    assert page.count("</script>") == 3
    assert "<!--" not in page
    data = data_of(page)
    assert data["names"][data["sides"][0]["calls"]["node"][0]].startswith("</script>")


def test_formulas_and_costs_are_written_once() -> None:
    data = data_of(render(decoder(200), "html"))
    (side,) = data["sides"]
    assert len(side["calls"]["node"]) == 2 + 200 * 7
    assert len(side["kinds"]) == 7, "as many as there are distinct costs: embedding, act and add are equal"
    assert len(data["formulas"]) < 50
    assert [place[1] for place in data["places"]] == [
        "Decoder", "embed", "blocks (x200)", "attn", "qkv", "mlp", "up", "act", "down",
    ]  # fmt: skip


def adversarial(count: int) -> Report:
    """Calls of which no two are alike, with long names, in modules of their own."""
    time, batch = symbol("s27"), symbol("s23")
    rows = [
        Row(
            *(f"node_{i}_{'x' * 150}", f"my.op_{i % 3000}.{'y' * 90}", f"a.b{i % 97}.c{i}.d{'z' * 100}"),
            *("torch.nn.Linear", f"path/model_{i % 50}.py:{i}", "counted"),
            cost=Cost(
                2 * batch * floor_div(time + i, 3) * (i + 1),
                time * i,
                batch * i,
                0,
                floor_div(time * 5 + i, 7),
                4 * batch * (i + 7),
            ),
        )
        for i in range(count)
    ]
    held = tuple(
        Held(row.node, "value", i, min(i + 3, count - 1), batch * (i + 1)) for i, row in enumerate(rows)
    )
    return replace(made(rows), memory=Timeline(tuple(range(count)), held))


@pytest.mark.parametrize("count", [100, 4_000])
def test_two_megabytes_are_never_passed(count: int) -> None:
    """Whatever is in the report; and what was folded is still counted."""
    report = adversarial(count)
    page = render(report, "html")
    assert len(page.encode()) < 2_000_000
    (side,) = data_of(page)["sides"]
    assert sum(side["calls"]["calls"]) == count
    assert len(side["calls"]["node"]) == count if count < 1000 else len(side["calls"]["node"]) < 3_000
    assert set(side["memory"]["calls"]) <= set(range(len(side["calls"]["node"])))


def test_the_page_is_not_written_for_one_report_alone() -> None:
    """The script and style are the same for every report, so that nothing of a file is in them."""
    assert len({tuple(Elements(page).inside["script"]) for page in PAGES.values()}) == 1
    assert len({tuple(Elements(page).inside["style"]) for page in PAGES.values()}) == 1


@pytest.mark.parametrize("device", devices(), ids=lambda device: device["name"])
def test_machines(device: dict[str, Any]) -> None:
    """Numbers of machines have units that make sense, and say where they are from."""
    assert device["source"].startswith("https://")
    assert 1e11 < device["bandwidth"] < 2e13
    assert 8e9 <= device["memory_bytes"] <= 1e12
    for peak in (*device["matrix"].values(), device["vector"] or 1e13):
        assert 1e12 < peak < 2e16
    assert device["matrix"].get("bfloat16", 0) >= device["matrix"].get("float32", 0)


def test_a_notebook_gets_a_small_piece() -> None:
    for report in REPORTS.values():
        piece = report._repr_html_()
        assert len(piece) < 60_000
        tags = {tag for tag, _ in Elements(piece).found}
        assert tags <= {"div", "p", "b", "br", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}
        assert report._repr_markdown_() == render(report, "markdown")
    assert "blocks (x12)" in decoder()._repr_html_()
    assert "&lt;b&gt;a|b&lt;/b&gt;" in hostile()._repr_html_()


def test_a_comparison_pairs_what_moved() -> None:
    """A module under another name is one place, not one gone and one new."""
    old = decoder(3)
    rows = tuple(
        row._replace(
            module=row.module.replace("blocks", "layers"),
            source=row.source.replace("model.py:1", "model.py:2"),
        )
        for row in old.rows
    )
    new = replace(
        old,
        rows=rows,
        modules={path.replace("blocks", "layers"): kind for path, kind in old.modules.items()},
        parameter_modules={
            path.replace("blocks", "layers"): count for path, count in old.parameter_modules.items()
        },
    )
    data = data_of(render(compared(old, new), "html"))
    labels = [place[1] for place in data["places"]]
    assert "layers (x3)" in labels
    assert not [label for label in labels if "blocks" in label]
    sources = [{data["names"][i] for i in side["calls"]["source"]} for side in data["sides"]]
    assert sources[0] == sources[1]


def test_sizes_of_both_programs_are_one() -> None:
    other = {"batch": replace(HINTS["s23"], value=5), "s27": HINTS["s27"]}
    old = decoder(1)

    def renamed(cost: Cost) -> Cost:
        names = {"s23": symbol("batch")}
        return Cost(
            *(
                q if isinstance(q, int) else q.substitute(names)
                for q in (getattr(cost, n) for n in Cost.__struct_fields__)
            )
        )

    new = replace(
        old,
        symbols=other,
        rows=tuple(r._replace(cost=renamed(r.cost)) for r in old.rows),
        totals=replace(old.totals, cost=renamed(old.totals.cost)),
    )
    sizes = data_of(render(compared(old, new), "html"))["sizes"]
    assert [["s23"], ["batch"]] in [[*map(list, size["symbols"])] for size in sizes]
    assert all(len(size["values"]) == 2 for size in sizes)


def test_the_wheel_holds_the_page() -> None:
    """Scripts, style and machines lie in the package, whose every file goes into the wheel."""
    import graphflops

    package = Path(graphflops.__file__).parent
    names = {path.name for path in (package / "render" / "html").iterdir()}
    from graphflops.render.html.fragment import SCRIPTS

    assert {*SCRIPTS, "page.css"} <= names
    assert {name for name in names if name.endswith(".js")} == {*SCRIPTS}
    assert (package / "devices" / "h200.json").is_file()


def test_training_priced_in_one_report_only_is_left_out() -> None:
    data = data_of(render(compared(training(decoder(2)), decoder(2)), "html"))
    assert [[name for name, *_ in side["totals"]] for side in data["sides"]] == [["forward"], ["forward"]]
    assert not any(backward for side in data["sides"] for _, _, backward in side["kinds"])


def test_operators_of_an_export_are_not_compared() -> None:
    other = replace(decoder(2), origin=replace(decoder(2).origin, format="onnx"))
    assert data_of(render(compared(decoder(2), other), "html"))["operators"] is False
    assert data_of(PAGES["diff"])["operators"] is True
