"""The code blocks of a Markdown file, and the commands in those that hold some."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
PROMPT = "$ "


@dataclass(frozen=True)
class Block:
    """A fenced block: the language after its fence, and where in which file it begins."""

    path: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command as it is typed, and the output that the documentation shows after it; None where it shows none."""

    text: str
    output: str | None = None


def blocks(path: Path) -> Iterator[Block]:
    """Every fenced block of a file."""
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(path, text.count("\n", 0, found.start()) + 1, found[1], found[2])


def commands(block: Block) -> Iterator[Command]:
    """Of an `sh` block each line, or lines up to where quotes close; of a `console` block what follows each `$ `."""
    if block.language == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Command(command, output)
        return
    pending = ""
    for line in block.text.splitlines(keepends=True):
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        if words:
            yield Command(pending.strip())
        pending = ""


def same_output(shown: str, printed: str) -> bool:
    """Whether what is printed is what is shown, in which a line `...` stands for any lines."""
    parts: list[list[str]] = [[]]
    for line in _lines(shown):
        if line.strip() == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    rest = _lines(printed)
    first, *others = parts
    if rest[: len(first)] != first:
        return False
    rest = rest[len(first) :]
    if not others:
        return not rest
    *middle, last = others
    for part in middle:
        places = (place for place in range(len(rest) + 1) if rest[place : place + len(part)] == part)
        place = next(places, None)
        if place is None:
            return False
        rest = rest[place + len(part) :]
    return len(rest) >= len(last) and rest[len(rest) - len(last) :] == last


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
