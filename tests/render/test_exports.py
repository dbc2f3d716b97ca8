"""Exports to other tools: speedscope profiles and Graphviz graphs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from graphflops import analyze
from graphflops.render import render
from graphflops.report import Report
from tests.render.reports import bound, decoder, hostile, joint, training, unset, with_unknown

SAMPLE = Path(__file__).parents[2] / "samples" / "gqa_transformer.pt2"
REPORTS = {
    "given": bound(decoder()),
    "unknown": with_unknown(decoder(2)),
    "training": training(decoder(2)),
    "joint": joint(decoder(2)),
    "unset": unset(decoder(2)),
    "hostile": hostile(),
}


def profile(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(render(report, "speedscope"))
    return found


def test_a_profile_adds_up() -> None:
    report = decoder()
    flops, vector, moved = profile(report)["profiles"]
    cost = report.total()
    assert sum(flops["weights"]) == flops["endValue"] == report.value(cost.matrix_flops)
    assert sum(vector["weights"]) == report.value(cost.vector_flops)
    assert sum(moved["weights"]) == report.value(cost.read_bytes + cost.written_bytes)
    assert moved["unit"] == "bytes"


def test_the_stack_is_of_modules_and_ends_in_the_operator() -> None:
    found = profile(analyze(SAMPLE))
    names = [frame["name"] for frame in found["shared"]["frames"]]
    stacks = [[names[frame] for frame in sample] for sample in found["profiles"][0]["samples"]]
    assert stacks[0] == [
        "Transformer",
        "blocks",
        "0 (Block)",
        "attention (Attention)",
        "q (Linear)",
        "aten.linear",
    ]
    operators = [frame for frame in found["shared"]["frames"] if frame["name"] == "aten.linear"]
    assert {(frame["file"], frame["line"]) for frame in operators} == {
        ("samples/make.py", n) for n in (57, 58, 60, 78, 96)
    }


@pytest.mark.parametrize("name", REPORTS)
def test_what_speedscope_asks_of_a_profile(name: str) -> None:
    """Its file format: samples and weights of one length, frames that exist, an end."""
    found = profile(REPORTS[name])
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = found["shared"]["frames"]
    for one in found["profiles"]:
        assert one["type"] == "sampled"
        assert len(one["samples"]) == len(one["weights"])
        assert all(0 <= frame < len(frames) for sample in one["samples"] for frame in sample)
        assert one["endValue"] - one["startValue"] == sum(one["weights"])
    assert all(isinstance(frame["name"], str) for frame in frames)


def test_a_profile_says_what_is_missing() -> None:
    assert (
        next(one["name"] for one in profile(REPORTS["unknown"])["profiles"])
        == "FLOPs, without 3 unknown calls"
    )
    assert profile(REPORTS["unset"])["profiles"][0]["name"] == "FLOPs, without 9 unknown calls", (
        "whose size has no value"
    )
    assert profile(decoder())["profiles"][0]["name"] == "FLOPs"


def test_a_graph_of_modules() -> None:
    text = render(analyze(SAMPLE), "dot", depth=1)
    nodes = dict(re.findall(r'^  (n\d+) \[label="(.*?)"', text, re.M))
    names = {node: label.split("\\n")[0] for node, label in nodes.items()}
    assert sorted(names.values()) == sorted(
        ["sym_size", "blocks.0-3 × 4", "embedding", "head", "norm", "ids", "output 0"]
    )
    edges = [
        (names[a], names[b], size)
        for a, b, size in re.findall(r'^  (\w+) -> (\w+) \[label="(.+?)"\]', text, re.M)
    ]
    assert edges[:3] == [
        ("embedding", "blocks.0-3 × 4", "ids[0]×ids[1]×64 · 8,192 B"),
        ("blocks.0-3 × 4", "norm", "ids[0]×ids[1]×64 · 8,192 B"),
        ("norm", "head", "ids[0]×ids[1]×64 · 8,192 B"),
    ]
    (label,) = [label for label in nodes.values() if label.startswith("blocks")]
    assert "12.58 M FLOPs · 92.3 %" in label


@pytest.mark.parametrize("name", REPORTS)
def test_graphviz_reads_it(name: str) -> None:
    text = render(REPORTS[name], "dot")
    assert text.replace("\n", "").isprintable()
    assert text.count("{") >= 1
    program = shutil.which("dot")
    if program is None:
        pytest.skip("needs Graphviz: apt-get install graphviz")
    done = subprocess.run(
        [program, "-Tplain"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_unknown_is_said_in_a_graph() -> None:
    text = render(with_unknown(decoder(1)), "dot", depth=1)
    assert re.search(r"≥ [\d.]+ [kM] FLOPs", text)
