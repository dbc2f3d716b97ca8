"""Forged recorded steps: none passes; and an honest one costs what torch runs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.change_recorded import CHANGES
from tests.fuzz.forge_recorded import NAMES, Judge, cheaper, figures, forged, honest, packed
from tests.fuzz.rerun_step import rerun

if TYPE_CHECKING:
    from pathlib import Path

TRIES, SEED = 3, 15  # of each change, on steps in turn
BAD = ("defect", "silent", "passes", "impossible")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """One for all: it knows what the honest steps cost."""
    return Judge(tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_step_costs_what_torch_runs(name: str, judge: Judge, tmp_path: Path) -> None:
    ours, path = judge.of_honest(name), tmp_path / "rerun.recorded"
    path.write_bytes(packed(rerun(honest(name))))
    assert figures(path, "--strict") == ("exit 0", ours)


@pytest.mark.parametrize("name", [*CHANGES, "damage"])
def test_no_forged_step_passes(name: str, judge: Judge) -> None:
    found = []
    for place in range(TRIES):
        base = [*NAMES][(place * 4 + len(name)) % len(NAMES)]
        if (one := forged(base, name, Random(f"{SEED} {name} {place}"))) is not None:
            word, what = judge.verdict(one)
            found += [(base, one.how, word, what)] if word in BAD else []
    assert not found


def test_the_judge_finds_what_is_cheaper() -> None:
    assert cheaper({"link_bytes": 5}, {"link_bytes": 6}) == "link_bytes 5 of 6"
    assert not cheaper({"link_bytes": 6}, {"link_bytes": 6})
