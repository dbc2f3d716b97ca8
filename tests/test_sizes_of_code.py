"""No file of the package is longer than 400 lines, and no function longer than 40.

Excepted are the GPU kernels in Triton: a kernel cannot be split without changing the code that runs.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import graphflops

PACKAGE = Path(graphflops.__path__[0])
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 400, 40
KERNEL = "triton.jit"


def functions(file: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse((PACKAGE / file).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return KERNEL in [ast.unparse(decorator) for decorator in function.decorator_list]


def test_files_are_short():
    lengths = {file: len((PACKAGE / file).read_text().splitlines()) for file in FILES}
    long = {file: lines for file, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE}
    assert not long, long


@pytest.mark.parametrize("file", FILES)
def test_functions_are_short(file):
    lengths = {
        node.name: node.end_lineno - node.lineno + 1 for node in functions(file) if not is_kernel(node)
    }
    long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION}
    assert not long, f"split these functions, which are longer than {MOST_LINES_OF_A_FUNCTION} lines"


def test_only_the_kernels_of_attention_are_excepted():
    files = {file for file in FILES for node in functions(file) if is_kernel(node)}
    assert files <= {file for file in FILES if file.startswith("runtime/flex/")}


def test_few_modules_stand_outside_of_rooms():
    loose = [name for name in FILES if "/" not in name]
    assert len(loose) <= 20, f"move one into a package: {loose}"
