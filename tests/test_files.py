"""Small files that the user names: read whole, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops.base.files import content
from graphflops.errors import FileError


def test_a_file_of_the_limit_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"12345")
    assert content(path, "budget", 5) == b"12345"
    with pytest.raises(FileError, match=r"a.toml: larger than any budget: at most 4 bytes$"):
        content(str(path), "budget", 4)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none: no such budget: write one$"):
        content(tmp_path / "none", "budget", 5, otherwise="write one")
    with pytest.raises(FileError, match=r": is a directory, not a file$"):
        content(tmp_path, "budget", 5)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"inside: cannot be read: Not a directory$"):
        content(tmp_path / "file" / "inside", "budget", 5)
