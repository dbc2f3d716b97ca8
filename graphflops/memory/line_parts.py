"""Lines of code with several statements, `a = f(x); b = g(a)`, and loops with their body, `for f in layers: x = f(x)`.

An export names the line of each call, not the statement. A statement is done when the operator or module that it runs last
has run as often as it is spelled. Then the next one begins, and after the last one the first, as in a loop. The line is
parsed, never evaluated.
"""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from graphflops.memory.statements import is_spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphflops.graph import Node

_OPERATORS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub", "rsub"),
    ast.Mult: ("mul",),
    ast.Div: ("div", "mul"),  # `1 / x` is a reciprocal times 1
    ast.Pow: ("pow",),
    ast.MatMult: ("matmul",),
    ast.USub: ("neg",),
}
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "long", "int", "bool"})


class Part(NamedTuple):
    """One statement of a line.

    runs_last: names of what it runs last: an operator, or a module as its parent names it. times: how often it is spelled.
    alias: the variables of `a = b`, which runs nothing. rest: the statements after it that are such aliases.
    """

    text: str
    runs_last: tuple[str, ...]
    times: int
    rest: tuple[tuple[str, str], ...] = ()

    def ends_with(self, node: Node, child: str) -> bool:
        """Whether a call is one of what runs last. child: the module, called by this line, that the call is part of."""
        if child:
            return any(child == name or child.endswith(f".{name}") or not name for name in self.runs_last)
        word = node.operator.word.strip("_")
        is_cast = node.operator.kind == "cast" and not _CASTS.isdisjoint(self.runs_last)
        return is_cast or any(name and word.startswith(name) for name in self.runs_last)

    def spells(self, node: Node, child: str) -> bool:
        """Whether the text names the operator of a call, or the module that it is part of."""
        return _called(child) in self.text if child else is_spelled(node, self.text)


def _called(child: str) -> str:
    """How code calls a module: `.conv(`, or `.layers[3](` of one in a list."""
    before, _, name = child.rpartition(".")
    return f".{before.rpartition('.')[2]}[{name}](" if name.isdigit() else f".{name}("


@lru_cache(maxsize=4096)
def line_parts(text: str) -> tuple[Part, ...]:
    """The statements of a line that has several, or a loop; () for a line of one statement, and for a piece of one."""
    return _parts(text) if ";" in text or text.startswith(("for ", "while ")) else ()


@lru_cache(maxsize=4096)
def only_statement(text: str) -> Part | None:
    """The statement of a line that has one; None for a line of several, and for a piece of one."""
    parts = _parts(text)
    return parts[0] if len(parts) == 1 else None


def _parts(text: str) -> tuple[Part, ...]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    parts: list[Part] = []
    for statement in _statements(tree.body):
        alias = _alias(statement)
        if alias and parts:
            parts[-1] = parts[-1]._replace(rest=(*parts[-1].rest, alias))
            continue
        value = getattr(statement, "value", None)
        if isinstance(value, ast.AST) and any(
            isinstance(part, (ast.Call, ast.BinOp)) for part in ast.walk(value)
        ):
            parts.append(_part(statement, text))
    return tuple(parts)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        inner = getattr(statement, "body", None)
        if isinstance(inner, list):
            yield from _statements(inner)
        else:
            yield statement


def _alias(statement: ast.stmt) -> tuple[str, str] | None:
    """The variables of `a = b`."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
        target = statement.targets[0]
        return (target.id, statement.value.id) if isinstance(target, ast.Name) else None
    return None


def _part(statement: ast.stmt, text: str) -> Part:
    own = ast.get_source_segment(text, statement) or ""
    value: ast.AST = getattr(statement, "value", statement)
    if isinstance(statement, ast.AugAssign):
        names, times = _OPERATORS.get(type(statement.op), ()), 1
    else:
        while isinstance(value, ast.Tuple) and value.elts:
            value = value.elts[-1]
        names = _names(value)
        whole = getattr(statement, "value", statement)
        times = sum(_names(part) == names for part in ast.walk(whole) if part is value or _computes(part))
    return Part(own, names, times)


def _names(value: ast.AST) -> tuple[str, ...]:
    """Names of what an expression runs last; () where they are not known, ("",) for a module in a variable."""
    if isinstance(value, (ast.BinOp, ast.UnaryOp)):
        return _OPERATORS.get(type(value.op), ())
    if not isinstance(value, ast.Call):
        return ()
    called = value.func
    if isinstance(called, ast.Name):
        return ("",)
    if isinstance(called, ast.Attribute):
        return (called.attr,)
    if isinstance(called, ast.Subscript) and isinstance(called.value, ast.Attribute):
        index = called.slice
        number = index.value if isinstance(index, ast.Constant) else None
        return (f"{called.value.attr}.{number}",) if isinstance(number, int) else ("",)
    return ()


def _computes(part: ast.AST) -> bool:
    """Whether an expression may run an operator: a call, or arithmetic on one; `i + 1` is taken for a number."""
    if isinstance(part, ast.Call):
        return True
    if not isinstance(part, (ast.BinOp, ast.UnaryOp)):
        return False
    inner = [below for below in ast.walk(part) if below is not part]
    has_number = any(isinstance(below, ast.Constant) for below in inner)
    return not has_number or any(isinstance(below, ast.Call) for below in inner)
