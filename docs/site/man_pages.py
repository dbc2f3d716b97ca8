"""Writes a man page for each command into a folder: `python docs/site/man_pages.py ~/.local/share/man/man1`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
from click_man.core import generate_man_page

from graphflops.cli import COMMANDS, main
from graphflops.version import __version__


def write_man_pages(folder: Path) -> None:
    """Writes graphflops.1 and graphflops-COMMAND.1."""
    folder.mkdir(parents=True, exist_ok=True)
    top = click.Context(main, info_name="graphflops")
    (folder / "graphflops.1").write_text(generate_man_page(top, __version__), encoding="utf-8")
    for name, summary in COMMANDS.items():
        command = main.get_command(top, name)
        assert command is not None
        command.short_help = summary
        page = generate_man_page(click.Context(command, info_name=name, parent=top), __version__)
        (folder / f"graphflops-{name}.1").write_text(_with_lines_kept(page), encoding="utf-8")


def _with_lines_kept(page: str) -> str:
    """The page with examples line by line: click_man leaves them as a paragraph after an empty line."""
    return re.sub(r"\n\.PP\n\x08?\n((?:graphflops .+\n|echo .+\n|git .+\n)+)", r"\n.PP\n.nf\n\1.fi\n", page)


if __name__ == "__main__":
    write_man_pages(Path(sys.argv[1]))
