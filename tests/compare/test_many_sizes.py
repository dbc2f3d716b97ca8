"""Programs of very many sizes, inputs of one name: what compares each with each takes minutes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from graphflops import analyze
from graphflops.comparison.compare import compared
from graphflops.report import Named, Report, SymbolInfo
from tests.support import t

SAMPLE = Path(__file__).parents[2] / "samples" / "convnet.pt2"
MANY = range(8_000)


@pytest.fixture(scope="module")
def report() -> Report:
    return analyze(SAMPLE)


def joint_names(old: Report, new: Report) -> list[str]:
    start = time.process_time()
    found = compared(old, new)
    assert time.process_time() - start < 5
    return [size.name for size in found.sizes]


def test_sizes_that_all_stand_somewhere(report):
    old = replace(report, symbols={f"s{i}": SymbolInfo(i, "hint", where=(f"x[{i}]",)) for i in MANY})
    assert len(joint_names(old, report)) == 8_000 + len(report.symbols)


def test_sizes_of_one_label(report):
    old = replace(report, symbols={f"s{i}": SymbolInfo(i, "hint", label="same") for i in MANY})
    names = joint_names(old, replace(report, symbols={}))
    assert sorted(names, key=len)[:3] == ["same", "same_new", "same_new2"]


def test_inputs_of_one_name(report):
    twice = replace(report, inputs=(Named("x", t(2)), Named("x", t(3))))
    assert compared(twice, twice).sizes == compared(report, report).sizes
