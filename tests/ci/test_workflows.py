"""The workflows of the project itself: what runs when, and that nothing in them can change under us."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name: str) -> tuple[dict[str, Any], list[str]]:
    """When a workflow runs (YAML reads `on` as true), and the commands of its steps."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return workflow[True], [step["run"] for step in steps if "run" in step]


def test_every_push_and_pull_request_runs_all_checks() -> None:
    when, commands = read("checks.yml")
    assert {"push", "pull_request"} <= when.keys()
    assert when["push"] == {"branches": ["**"]}
    assert commands == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_week_the_newest_releases_are_tried() -> None:
    when, commands = read("newest.yml")
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", when["schedule"][0]["cron"])
    assert all(name in commands[0] for name in ("torch", "onnx", "onnxruntime", "transformers"))
    (module,) = re.findall(r"python -m (\S+)", commands[-1])
    assert importlib.util.find_spec(module)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_may_write_nothing_by_default(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {}
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"\S+@[0-9a-f]{40}", action) for action in used)
