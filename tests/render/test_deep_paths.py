"""A module path of 100,000 parts is rendered in linear time by every format."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from graphflops import analyze
from graphflops.render import formats

SAMPLE = Path(__file__).parents[2] / "samples" / "convnet.pt2"


@pytest.mark.parametrize("form", formats.names("Report"))
def test_deep_module_paths(form):
    deep = ".".join("a" * 100_000)
    report = analyze(SAMPLE, device="h200" if form in ("chrome-trace", "chakra", "memory-snapshot") else None)
    report = replace(report, rows=tuple(row._replace(module=deep) for row in report.rows))
    start = time.process_time()
    text = formats.render(report, form)
    assert time.process_time() - start < 5
    if form == "speedscope":  # the program, 100 modules, and the calls in the last
        names = [frame["name"] for frame in json.loads(text)["shared"]["frames"]]
        assert names[1:100] == ["a"] * 99
        assert len(names) <= 1 + 100 + len(report.rows)
