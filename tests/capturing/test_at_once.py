"""Functions in processes of their own: what they write, what they raise, and what becomes of one that is killed."""

import multiprocessing
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from graphflops.capturing.run import at_once
from graphflops.errors import ModelError


def write_pid(path: Path) -> None:
    path.write_text(str(os.getpid()))


def refuse(what: str) -> None:
    raise ModelError(what)


def test_the_first_runs_here_and_each_other_in_a_process(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    at_once([partial(write_pid, path) for path in paths])
    first, *others = [int(path.read_text()) for path in paths]
    assert first == os.getpid()
    assert len({first, *others}) == 3


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(multiprocessing, "get_all_start_methods", lambda: ["spawn"]), (sys, "platform", "darwin")],
)
def test_where_no_process_can_be_forked_all_run_here(
    owner: object, name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, value)
    paths = [tmp_path / name for name in "ab"]
    at_once([partial(write_pid, path) for path in paths])
    assert {path.read_text() for path in paths} == {str(os.getpid())}


def test_what_a_process_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no second"):
        at_once([partial(write_pid, tmp_path / "a"), partial(refuse, "no second")])
    with pytest.raises(ModelError, match="no first"):
        at_once([partial(refuse, "no first"), partial(write_pid, tmp_path / "b")])


def test_a_process_that_is_killed_is_told(tmp_path: Path) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ModelError, match="was killed: capture one --phase"):
        at_once([partial(write_pid, tmp_path / "a"), die])
