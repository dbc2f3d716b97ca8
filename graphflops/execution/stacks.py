"""The lines of code of a call as an export records them, outermost first, each with the module that it is part of."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from graphflops.exporters.sources import module_path

_LINE = re.compile(
    r'^[ \t]*File "([^"\n]{1,4096})", line (\d+), in (\S{1,256})\n[ \t]*([^\n]{0,4096})', re.MULTILINE
)
# Calls the module while a strict export traces it.
_OF_EXPORT = re.compile(r"(?:^|[/\\])torch[/\\]_dynamo[/\\]")
_MOST_FRAMES = 200  # of one call: deeper code is cut


class CodeLine(Struct, frozen=True):
    """One line of a call stack: the module whose forward it is part of, and its text."""

    file: str
    function: str
    number: int
    text: str
    module: str


@lru_cache(maxsize=4096)
def code_lines(python_stack: str, module_stack: str) -> tuple[CodeLine, ...]:
    """The lines of a call stack as an export records it, outermost first.

    Each forward in a stack is that of the next module; further ones are inherited by the last.
    """
    modules = _modules(module_stack)
    depth, last = -1, len(modules) - 1
    lines: list[CodeLine] = []
    for frame in _frames(python_stack):
        depth += depth < last and frame[1] == "forward"
        lines.append(_line(frame, modules[max(0, depth)]))
    return tuple(lines)


@lru_cache(maxsize=4096)
def _line(frame: tuple[str, str, int, str], module: str) -> CodeLine:
    """A line of a frame in a module; equal ones are one object, and compared as such."""
    return CodeLine(*frame, module)


@lru_cache(maxsize=4096)
def _modules(module_stack: str) -> list[str]:
    """The paths of the modules of a stack, outermost first; one without a path for none."""
    entries = (entry.split(",") for entry in module_stack.split(";"))
    return [module_path(parts[1]) for parts in entries if len(parts) > 2] or [""]


@lru_cache(maxsize=1024)
def _frames(python_stack: str) -> list[tuple[str, str, int, str]]:
    """File, function, number and text of each line of a stack; equal layers share the stack."""
    found = _LINE.findall(python_stack)[:_MOST_FRAMES]
    return [
        (file, function, int(number), text.strip())
        for file, number, function, text in found
        if not _OF_EXPORT.search(file)
    ]
