"""Every defect that was found once, and a fixed number of new inputs; a longer run is `python -m tests.fuzz`."""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from graphflops.dims import parse_dim
from graphflops.errors import DimError, shown
from tests.fuzz.judge import DEFECTS, call, run_command
from tests.fuzz.kinds import KINDS, tried

if sys.platform != "linux":
    pytest.skip("limits of memory are read from /proc", allow_module_level=True)

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
SEED = 13
INPUTS = {  # of each of four shards
    "pt2": 25,
    "program": 60,
    "onnx": 30,
    "onnx_call": 60,
    "report": 20,
    "profile": 20,
    "budget": 20,
    "text": 300,
    "options": 40,
}
SHARDS = range(4)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_was_found(path: Path) -> None:
    for which in range(12):
        assert tried(path, which).kind not in DEFECTS
    if path.suffix not in (".txt", ".toml"):
        assert run_command(["analyze", str(path)]).kind not in DEFECTS


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("kind", KINDS)
def test_new_inputs(kind: str, shard: int, tmp_path: Path) -> None:
    for count in range(INPUTS[kind]):
        made = KINDS[kind](random.Random(f"{SEED} {kind} {shard} {count}"))
        path = tmp_path / f"input{made.suffix}"
        path.write_bytes(made.data)
        verdict = tried(path, count)
        if verdict.kind in DEFECTS:
            kept = shutil.copy(path, tmp_path / f"found{made.suffix}")
            pytest.fail(f"{verdict.kind} {verdict.where}: {kept} (input {count})")


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.text(max_size=60) | st.text("s0123N+-*/()%, ", max_size=60))
def test_sizes_and_names(text: str) -> None:
    assert shown(text).isprintable()
    assert call(lambda: parse_dim(text)).kind in ("fine", "refused")
    with contextlib.suppress(DimError):
        size = parse_dim(text)
        assert parse_dim(str(size)) == size
