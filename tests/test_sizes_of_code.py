"""No file of the package is longer than 400 lines, and no function longer than 40.

Excepted are the GPU kernels in Triton: a kernel cannot be split without changing the code that runs.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import graphflops

PACKAGE = Path(graphflops.__path__[0])
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 40
KERNEL = "triton.jit"


@cache
def functions(file: str) -> list[tuple[str, int, bool]]:
    """Of each function: its name, its lines, and whether it is a kernel."""
    return [
        (node.name, node.end_lineno - node.lineno + 1, KERNEL in map(ast.unparse, node.decorator_list))
        for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def test_files_are_short():
    lengths = {file: len((PACKAGE / file).read_text().splitlines()) for file in FILES}
    long = {file: lines for file, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE}
    assert not long, long


@pytest.mark.parametrize("file", FILES)
def test_functions_are_short(file):
    long = {
        name: lines
        for name, lines, is_kernel in functions(file)
        if lines > MOST_LINES_OF_A_FUNCTION and not is_kernel
    }
    assert not long, f"split these functions, which are longer than {MOST_LINES_OF_A_FUNCTION} lines"


def test_only_the_kernels_of_attention_are_excepted():
    files = {file for file in FILES for *_, is_kernel in functions(file) if is_kernel}
    assert files <= {file for file in FILES if file.startswith("runtime/flex/")}


def test_few_modules_stand_outside_of_rooms():
    loose = [name for name in FILES if "/" not in name]
    assert len(loose) <= 20, f"move one into a package: {loose}"
