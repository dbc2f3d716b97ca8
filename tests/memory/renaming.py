"""Programs as if their code had been written with other names, or in a library."""

from __future__ import annotations

import builtins
import keyword
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.analysis import as_graph
from graphflops.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Callable

# A name that no dot stands before is a variable, a function, or the keyword of an operand.
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_KEPT = {*keyword.kwlist, *dir(builtins), "torch", "nn", "F", "functional", "math", "dist", "float32"}
_LIBRARY = "/usr/lib/python3/site-packages/transformers/models/toy/modeling_toy.py"
_FRAME = re.compile(r'(File "[^"\n]*", line \d+, in )(\S+)(\n[ \t]*)([^\n]*)')


def with_stacks(model: object, changed: Callable[[str], str]) -> Graph:
    """A program whose call stacks are changed."""
    return _with_stacks(as_graph(model, None), changed)


def _with_stacks(graph: Graph, changed: Callable[[str], str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        args = tuple(_with_stacks(arg, changed) if isinstance(arg, Graph) else arg for arg in node.args)
        nodes.append(replace(node, args=args, python_stack=changed(node.python_stack)))
    return replace(graph, nodes=tuple(nodes))


def renamed(model: object, name: str, *methods: str) -> Graph:
    """A program whose variables and functions have other names, `name` with a number; those of methods, where listed.

    Names in files of transformers stay: they are a library's.
    """
    numbers: dict[str, str] = {}

    def other(word: str) -> str:
        return word if word in _KEPT else numbers.setdefault(word, f"{name}{len(numbers)}")

    def frame(match: re.Match[str]) -> str:
        head, function, gap, text = match.groups()
        if "/transformers/" in head:
            return match[0]
        for method in methods:
            text = re.sub(rf"\.{method}\b", f".{other(method)}", text)
        function = function if function == "forward" else other(function)
        return f"{head}{function}{gap}{_NAME.sub(lambda found: other(found[0]), text)}"

    return with_stacks(model, lambda stack: _FRAME.sub(frame, stack))


def in_library(model: object, text: str) -> Graph:
    """A program whose lines that have a text stand in a file of transformers."""

    def frame(match: re.Match[str]) -> str:
        return re.sub(r'File "[^"\n]*"', f'File "{_LIBRARY}"', match[0]) if text in match[4] else match[0]

    return with_stacks(model, lambda stack: _FRAME.sub(frame, stack))
