"""A budget and its baseline come from the change that they are to judge."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from graphflops.base.files import locked, whole
from graphflops.budget import limits
from graphflops.ci.changes import loosened
from graphflops.errors import FileError

HEAD = '[[budget]]\nmatrix_flops = "1 GFLOP"\n'


@pytest.mark.parametrize(
    "line", ['models = "../*.pt2"', 'models = ["/etc/*"]', 'baseline = "a/../../b.json"']
)
def test_paths_stay_below_the_folder(tmp_path, line):
    path = tmp_path / "graphflops.toml"
    path.write_text(f"{line}\n{HEAD}")
    with pytest.raises(FileError, match="not below the folder of the budget"):
        limits.read(str(path))


def test_links_stay_below_the_folder(tmp_path):
    (tmp_path / "outside.pt2").write_bytes(b"x")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "m.pt2").symlink_to(tmp_path / "outside.pt2")
    (inside / "b.json").symlink_to(tmp_path / "outside.pt2")
    (inside / "graphflops.toml").write_text(f'models = "*.pt2"\nbaseline = "b.json"\n{HEAD}')
    budget = limits.read(str(inside / "graphflops.toml"))
    with pytest.raises(FileError, match=r"models: .* leads out of the folder"):
        budget.files()
    with pytest.raises(FileError, match=r"baseline: .* leads out of the folder"):
        _ = budget.baseline_path


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('matrix_flops = "1 G"', 'matrix_flops = "2 G"', "matrix_flops was at most 1 G, is at most 2 G now"),
        ('matrix_flops = "1 G"', 'matrix_flops = "900 M"', ""),
        (
            'matrix_flops = "1 G"',
            'peak_bytes = "1 GB"',
            "matrix_flops was at most 1 G, has no such limit now",
        ),
        ('matrix_flops = "+1 %"', 'matrix_flops = "+2 %"', "was at most +1 %, is at most +2 % now"),
        ('coverage = "99 %"', 'coverage = "9 %"', "coverage was 99 %, is 9 %"),
        ('forbid = "aten.tan"', "", "no longer forbidden: aten.tan"),
        ("", 'unknown = "my.op"', "may be of unknown cost now: my.op"),
        ('models = "a.pt2"', 'models = "b.pt2"', "a.pt2: all limits are gone"),
        ('modules."a.*" = {parameters = 5}', "", "parameters of a.* was at most 5, has no such limit now"),
    ],
)
def test_loosened(old, new, says):
    before, after = (limits.parse(f"[[budget]]\n{text}\n".encode(), "f") for text in (old, new))
    found = [*loosened(before, after)]
    assert says in found[0] if says else not found, found


def add_one(path: str) -> None:
    with locked(path):
        with open(path) as file:
            numbers = json.load(file)
        with whole(path) as part, open(part, "w") as file:
            json.dump([*numbers, os.getpid()], file)


@pytest.mark.skipif(not shutil.which("sh"), reason="files are locked on POSIX")
def test_updates_at_the_same_time_lose_nothing(tmp_path: Path):
    path = tmp_path / "b.json"
    path.write_text("[]")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add_one, args=(str(path),)) for _ in range(12)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert len(json.loads(path.read_text())) == 12
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]
