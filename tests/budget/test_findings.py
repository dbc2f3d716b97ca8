"""Findings as table, JSON, Markdown and SARIF."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.render import findings as render, render as rendered
from graphflops.render.sarif import sarif, source_files
from graphflops.report.findings import Finding, Findings, ModelFindings, RuleInfo

RULES = {
    "GF203": RuleInfo("unused-initializer", "Nothing reads an initializer.", "Drop it.", "warning"),
    "GF301": RuleInfo("over-limit", "A limit is passed.", "Make it cheaper."),
}
WASTE = Finding(
    *("GF203", "unused-initializer", "warning", "w is read by nothing", "drop it"),
    node="mm",
    op="aten.mm",
    module="blocks.0.fc",
    source="model.py:17",
    flops=symbol("s1") * 5,
    bytes=None,
)
OVER = Finding("GF301", "over-limit", "error", "too much", "make it cheaper")
FOUND = [
    ModelFindings("models/a b.onnx", (WASTE, OVER), {"s1": 3}),
    ModelFindings("fine.pt2", ()),
]
EVIL = "x\x1b[31m\u202e](http://evil) | <b> @team\n"


def test_the_gravest_come_first() -> None:
    text = render.table(Findings(tuple(FOUND)))
    assert text.index("GF301") < text.index("GF203")
    assert "models/a b.onnx  1 error, 1 warning" in text
    assert "blocks.0.fc (model.py:17): w is read by nothing" in text
    assert "GF203 unused-initializer  15 FLOPs, bytes not known" in text
    assert "fix: drop it" in text
    assert "fine.pt2  nothing found" in text
    assert text.endswith("1 error, 1 warning in 1 of 2 models\n")


def test_many_of_one_code_are_counted() -> None:
    text = render.table(Findings((ModelFindings("m", (OVER,) * 5 + (WASTE,)),)), top=2)
    assert (
        "GF301 over-limit  x5\n    fix: make it cheaper\n    too much\n    too much\n    … and 3 more of GF301\n"
        in text
    )
    assert "more of GF203" not in text


def test_json() -> None:
    whole = json.loads(render.json(Findings(tuple(FOUND))))
    first, second = whole["models"]
    assert [finding["code"] for finding in first["findings"]] == ["GF301", "GF203"]
    assert first["findings"][1]["flops"] == {"value": 15, "formula": "5*s1"}
    assert first["findings"][1]["bytes"] is None
    assert second == {"model": "fine.pt2", "findings": [], "limits": []}


def test_markdown() -> None:
    text = render.markdown(Findings(tuple(FOUND)))
    assert text.startswith("**1 error, 1 warning in 1 of 2 models**\n")
    assert "### models/a b.onnx: 1 error, 1 warning" in text
    assert "**warning GF203 unused-initializer** 15 FLOPs, bytes not known  \nFix: drop it.\n" in text
    assert "- blocks.0.fc (model.py:17): w is read by nothing\n" in text
    assert "fine.pt2" not in text


@pytest.mark.parametrize("limit", [10_000, 5_000, 700])
def test_markdown_within_its_limit_counts_what_is_left_out(limit: int) -> None:
    many = [ModelFindings(f"model{n}.onnx", (OVER,) * 20) for n in range(60)]
    text = render.markdown(Findings(tuple(many)), limit=limit)
    assert len(text) <= limit
    kept = text.count("- too much")
    assert f"… and {1200 - kept:,} more findings." in text


@pytest.mark.parametrize("form", ["table", "json", "markdown", "sarif"])
def test_text_from_files_is_harmless(form: str) -> None:
    evil = Finding("GF301", "over-limit", "error", EVIL, EVIL, EVIL, EVIL, EVIL, EVIL)
    found = [ModelFindings(EVIL, (evil,))]
    text = rendered(Findings(tuple(found), "check", RULES), form)
    assert all(c.isprintable() or c in "\n\u200b" for c in text)
    if form == "markdown":
        assert "<b>" not in text
        assert "@team" not in text
        assert "](" not in text.replace("\\](", "")
    if form == "sarif":
        assert "](" not in json.loads(text)["runs"][0]["results"][0]["message"]["text"]


# SARIF: what the published schema asks of each object that we write: (required, all that is allowed).

SCHEMA: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema", "inlineExternalProperties", "properties"}),
    "run": ({"tool"}, {"automationDetails", "invocations", "columnKind", "results"}),
    "tool": ({"driver"}, {"extensions"}),
    "driver": ({"name"}, {"version", "semanticVersion", "informationUri", "rules"}),
    "rule": (
        {"id"},
        {
            "name",
            "shortDescription",
            "fullDescription",
            "help",
            "helpUri",
            "defaultConfiguration",
            "properties",
        },
    ),
    "automationDetails": (set(), {"id", "guid"}),
    "invocation": ({"executionSuccessful"}, set()),
    "result": (
        {"message"},
        {"ruleId", "ruleIndex", "level", "locations", "partialFingerprints", "properties"},
    ),
    "location": (set(), {"physicalLocation", "logicalLocations"}),
    "physicalLocation": ({"artifactLocation"}, {"region"}),
    "artifactLocation": (set(), {"uri", "uriBaseId"}),
    "region": ({"startLine"}, set()),
    "logicalLocation": (set(), {"name", "fullyQualifiedName", "kind"}),
}
LEVELS = {"none", "note", "warning", "error"}


def conforms(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    required, allowed = SCHEMA[kind]
    assert required <= value.keys() <= required | allowed, kind
    return value


def results(log: str) -> list[dict[str, Any]]:
    """The results of a log that has the required shape throughout."""
    whole = conforms("log", json.loads(log))
    assert whole["version"] == "2.1.0"
    (run,) = whole["runs"]
    conforms("run", run)
    driver = conforms("driver", conforms("tool", run["tool"])["driver"])
    conforms("automationDetails", run["automationDetails"])
    for invocation in run["invocations"]:
        conforms("invocation", invocation)
    for rule in driver["rules"]:
        conforms("rule", rule)
        assert rule["defaultConfiguration"]["level"] in LEVELS
        assert rule["shortDescription"].keys() == rule["help"].keys() == {"text"}
    for result in run["results"]:
        conforms("result", result)
        assert result["level"] in LEVELS
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"].keys() == {"text"}
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        (location,) = result["locations"]
        conforms("location", location)
        physical = conforms("physicalLocation", location["physicalLocation"])
        conforms("artifactLocation", physical["artifactLocation"])
        assert conforms("region", physical["region"])["startLine"] >= 1
        for logical in location["logicalLocations"]:
            conforms("logicalLocation", logical)
    listed: list[dict[str, Any]] = run["results"]
    return listed


def place(result: dict[str, Any]) -> tuple[str, int]:
    physical = result["locations"][0]["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


def test_sarif_has_the_shape_that_its_schema_asks_for() -> None:
    over, waste = results(sarif(Findings(tuple(FOUND), "audit", RULES)))
    assert (over["ruleId"], over["level"]) == ("GF301", "error")
    assert waste["properties"]["flops"] == 15
    assert waste["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "blocks.0.fc"


def test_a_finding_is_at_its_source_line_where_the_checkout_has_the_file() -> None:
    files = {"model.py": "src/lm/model.py"}
    over, waste = results(sarif(Findings(tuple(FOUND), "check", RULES), locate=lambda names: files))
    assert place(waste) == ("src/lm/model.py", 17)
    assert waste["message"]["text"] == "models/a b.onnx: w is read by nothing. Fix: drop it"
    assert place(over) == ("models/a%20b.onnx", 1)
    assert source_files(FOUND) == ["model.py"]


def test_a_finding_is_at_its_model_where_the_file_is_not_there() -> None:
    _, waste = results(sarif(Findings(tuple(FOUND), "check", RULES)))
    assert place(waste) == ("models/a%20b.onnx", 1)
    assert "(model.py:17)" in waste["message"]["text"]


@pytest.mark.parametrize(
    "path, uri",
    [
        ("./a.onnx", "a.onnx"),
        ("a\\b.onnx", "a/b.onnx"),
        ("c:d.onnx", "c%3Ad.onnx"),
        ("é.onnx", "%C3%A9.onnx"),
        ("bad\udcff.onnx", "bad%FF.onnx"),
        ("/tmp/a.onnx", "file:///tmp/a.onnx"),
        ("C:\\a b.onnx", "file:///C:/a%20b.onnx"),
    ],
)
def test_paths_are_uris(path: str, uri: str) -> None:
    (result,) = results(sarif(Findings((ModelFindings(path, (OVER,)),), "check", RULES)))
    assert place(result)[0] == uri


def test_fingerprints_tell_findings_apart_and_stay() -> None:
    def marks(*models: ModelFindings) -> list[str]:
        return [
            result["partialFingerprints"]["graphflops/v1"]
            for result in results(sarif(Findings(tuple(models), "check", RULES)))
        ]

    assert marks(FOUND[0]) == marks(FOUND[1], FOUND[0])
    assert len(set(marks(FOUND[0]))) == 2


def test_a_code_without_rule_has_one_made_of_it() -> None:
    (result,) = results(sarif(Findings((ModelFindings("m", (OVER,)),), "check", {})))
    assert result["ruleId"] == "GF301"


def test_a_number_that_json_readers_round_is_text() -> None:
    huge = Finding("GF301", "over-limit", "error", "x", "", flops=2**53, bytes=2**53 - 1)
    (result,) = results(sarif(Findings((ModelFindings("m", (huge,)),), "check", RULES)))
    assert result["properties"]["flops"] == "9007199254740992"
    assert result["properties"]["bytes"] == 9007199254740991
