"""Forged files: none passes `analyze --strict`, and the judge tells those that do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.forged import Forged, forged_files, forgers, passes

FORGERS = forgers()
COUNT, SEED = 60, 24  # of each class
HONEST = Path(__file__).parents[2] / "samples" / "convnet.pt2"


def test_the_judge_names_a_file_that_costs_more_than_is_printed(tmp_path: Path) -> None:
    honest = Forged(HONEST.read_bytes(), ".pt2", "none", 1, "nothing")
    assert not passes(honest, tmp_path)
    said = passes(honest._replace(real=10**15), tmp_path)
    assert said.startswith("none: nothing: exit 0 at ")
    assert not passes(honest._replace(data=b"PK\x03\x04", real=10**15), tmp_path)


@pytest.mark.parametrize("kind", FORGERS)
def test_no_forged_file_passes(kind: str, tmp_path: Path) -> None:
    files = forged_files({kind: FORGERS[kind]}, COUNT, SEED)
    assert not [said for forged in files if (said := passes(forged, tmp_path))]
