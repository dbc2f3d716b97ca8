"""What code compares the name of an operator with is a name in `ops/`: a row of a table under any other never applies.

A name is read as `node.operator.name`, `op.name`, or through a variable that is assigned one. It is compared with a string,
a collection, the `case` of a match, or a table of the module, whose words are those that it has once it is imported.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

import graphflops
from graphflops.ops.operator import ROWS
from graphflops.ops.table import Kind
from graphflops.rules.elementwise import WORK

Compared = tuple[list[str], Callable[[str, str], bool]]  # words, and how a name is compared with one

PACKAGE = Path(graphflops.__file__).parent
PARTS = ("attention", "inductor", "memory", "onnx_audit", "passes", "time")
FILES = [
    path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] in (*PARTS, "view.py", "time_audit.py")
]
NAMES = frozenset(row.name for row in ROWS)
KINDS = frozenset(get_args(Kind))
OPERATORS = ("op", "operator")  # variables and attributes that hold operators
FEWEST, MOST_OF = 3, 2 / 3  # words of a table that is one of operators, and how many of them are names
OTHER_TABLES = (WORK,)  # rows for functions without an operator of their own, too


def words_in(text: str, values: Mapping[str, object]) -> Iterator[tuple[str, Callable[[str, str], bool]]]:
    """What a module compares names of operators with, and how. values: of the module's own names."""
    for scope in ast.walk(ast.parse(text)):
        if isinstance(scope, ast.FunctionDef):
            variables = {*assigned(scope)}
            for node in ast.walk(scope):
                for words, how in compared(node, variables, values):
                    yield from ((word, how) for word in words)


def is_name(read: ast.AST, variables: Collection[str]) -> bool:
    """Whether an expression is the name of an operator."""
    if isinstance(read, ast.Name):
        return read.id in variables
    if not isinstance(read, ast.Attribute) or read.attr != "name":
        return False
    owner = read.value
    return (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")) in OPERATORS


def assigned(scope: ast.AST) -> Iterator[str]:
    """Variables of a function that are assigned the name of an operator, alone or among others."""
    for node in ast.walk(scope):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = [*zip(target.elts, node.value.elts, strict=False)]
            yield from (to.id for to, value in pairs if isinstance(to, ast.Name) and is_name(value, ()))


def compared(node: ast.AST, variables: Collection[str], values: Mapping[str, object]) -> Iterator[Compared]:
    """What names are compared with at a node."""
    match node:
        case ast.Compare(left, [ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()], [right]) if is_name(
            left, variables
        ):
            yield words_of(right, values), str.__eq__
        case ast.Compare(left, [ast.In() | ast.NotIn()], [right]) if is_name(right, variables):
            yield words_of(left, values), str.__contains__
        case ast.Match(subject, cases) if is_name(subject, variables):
            patterns = [inner for case in cases for inner in ast.walk(case.pattern)]
            yield [word for each in patterns for word in words_of(each, {})], str.__eq__
        case ast.Subscript(table, index) if is_name(index, variables):
            yield words_of(table, values), str.__eq__
        case ast.Call(ast.Attribute(table, "get"), [index, *_]) if is_name(index, variables):
            yield words_of(table, values), str.__eq__
        case ast.Call(ast.Attribute(name, "startswith" | "endswith" as how), [words]) if is_name(
            name, variables
        ):
            yield words_of(words, values), getattr(str, how)


def words_of(expression: ast.AST, values: Mapping[str, object]) -> list[str]:
    """The strings that an expression holds: one, those of a collection, or those of a table of the module."""
    if isinstance(expression, ast.Constant):
        return [expression.value] if isinstance(expression.value, str) else []
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        return [word for each in expression.elts for word in words_of(each, values)]
    text = ast.unparse(expression)
    if not isinstance(expression, ast.expr) or text.partition(".")[0].partition("[")[0] not in values:
        return []  # what a function makes
    return strings(eval(text, dict(values)))


def strings(value: object) -> list[str]:
    """The string, or those of a collection; keys of a mapping."""
    if isinstance(value, str):
        return [value]
    is_table = isinstance(value, Collection) and not any(value is other for other in OTHER_TABLES)
    return [word for word in value if isinstance(word, str)] if is_table else []  # type: ignore[attr-defined]


def module_of(file: str) -> dict[str, object]:
    name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return vars(importlib.import_module(f"graphflops.{name}"))


def unknown(text: str, values: Mapping[str, object]) -> list[str]:
    """The words among those of `words_in` that no name of an operator equals, starts with or contains."""
    return sorted(
        {word for word, is_one in words_in(text, values) if not any(is_one(name, word) for name in NAMES)}
    )


def mixed(values: Mapping[str, object]) -> list[str]:
    """Words of a module's tables of operators that are neither their names nor kinds of them."""
    tables = [strings(value) for name, value in values.items() if not name.startswith("__")]
    of_operators = [
        words for words in tables if len(words) >= FEWEST and len(NAMES & {*words}) > MOST_OF * len(words)
    ]
    return sorted({word for words in of_operators for word in words} - NAMES - KINDS)


@pytest.mark.parametrize("file", FILES)
def test_names_are_compared_with_names_that_operators_have(file: str) -> None:
    found = unknown((PACKAGE / file).read_text(encoding="utf-8"), module_of(file))
    assert not found, (
        f"no operator in graphflops/ops is called {found}: give it a row, or use the name of its row"
    )


@pytest.mark.parametrize("file", FILES)
def test_tables_of_operators_have_names_of_operators(file: str) -> None:
    found = mixed(module_of(file))
    assert not found, (
        f"no operator in graphflops/ops is called {found}: give it a row, or use the name of its row"
    )


TEXT = """
def lower(call, op):
    if op.name == "cdist" or op.name in ("exp", "pdist") or "weight_nrm" in op.name or op.name.startswith("adaptve"):
        return _BY_NAME[op.name]
    kind, name = call.operator.kind, call.node.operator.name
    match name:
        case "matmul" | "einsun":
            return _LATER.get(name)
"""


def test_what_the_tests_above_find() -> None:
    values: dict[str, object] = {
        "_BY_NAME": {"roll": 1, "rolled": 2},
        "_LATER": {"tan": 1, "tanh": 2, "sinh": 3, "sine": 4},
    }
    assert unknown(TEXT, values) == [
        *("adaptve", "cdist", "einsun", "pdist", "rolled", "sine", "weight_nrm"),
    ]
    assert mixed(values) == ["sine"]
