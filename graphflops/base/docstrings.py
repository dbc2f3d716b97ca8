"""Docstrings that are output. Where `python -OO` has left them out, they are read from the source."""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any


def docstring(function: Callable[..., Any]) -> str:
    """A function's `says`, else the docstring of the innermost function that it wraps, without indentation; or ""."""
    from inspect import cleandoc, unwrap

    if says := getattr(function, "says", ""):
        return str(says)
    own = unwrap(function)
    text = own.__doc__
    if text is None and sys.flags.optimize > 1:
        code = getattr(own, "__code__", None)
        text = None if code is None else _of_source(code.co_filename).get((code.co_name, code.co_firstlineno))
    return cleandoc(text or "")


@cache
def _of_source(path: str) -> Mapping[tuple[str, int], str]:
    """The docstrings of the functions in a source file, by name and first line, decorators included."""
    import ast

    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {
        (node.name, min(part.lineno for part in (node, *node.decorator_list))): ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
