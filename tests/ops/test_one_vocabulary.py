"""Outside `ops/` and `rules/` nothing reads the spelling of an operator: no literal, no table of names, no splitting."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import graphflops
from graphflops.ops import table
from graphflops.ops.operator import ROWS, operator, spellings

PACKAGE = Path(graphflops.__file__).parent
FILES = [
    path.relative_to(PACKAGE).as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("ops", "rules")
]
SPELLINGS = {*spellings(), *table.RULES, *table.BACKWARDS}
CANONICAL = {row.name for row in ROWS}
WORDS = {operator(key).word for key in SPELLINGS} | CANONICAL
WORDS -= {"bool", "int", "float", "complex"}  # types of Python
DISTINCT = {
    word for word in WORDS if word.lower() != word
}  # such as `MatMul`: only an operator has this name
MOST = 3  # names of operators in one collection

# File -> why it may hold what the others may not.
LITERALS = {
    "capturing/eager.py": "reads the calls of a run of torch, which are not yet those of a program",
    "dims/parser.py": "reads size strings, in which Python and sympy name functions of integers",
    "execution/composed.py": "writes ATen's own functions in ATen's calls",
    "execution/composed_gradients.py": "the same",
    "exporters/onnx_graph.py": "reads ONNX: a Constant is a stored tensor, not a call",
    "exporters/sources.py": "reads ONNX: by op_type, before a call has an operator",
    "exporters/types.py": "reads .pt2: calls that stand for a part of a stored weight are no calls of the program",
    "onnx_fix/apply.py": "rewrites ONNX: by op_type, in nodes that are no calls",
    "runtime/onnx_run.py": "reads ONNX: onnxruntime returns no Constant",
    "runtime/profile/onnx_trials.py": "writes models of one operator each, to measure them",
    "runtime/operators.py": "refuses some operators of torch, and replaces some by functions that run on any machine",
}
MASKS = "says what masks become in each operator, by canonical name"
COLLECTIONS = {
    "attention/affine.py": MASKS,
    "attention/elementwise.py": MASKS,
    "attention/flex.py": MASKS,
    "attention/scopes.py": "operators that run a graph once, by canonical name",
    "attention/structure.py": MASKS,
    "attention/index_propagation.py": MASKS,
    "render/chakra.py": "the numbers that Chakra has for collectives, by canonical name",
    "links/cost.py": "the collectives that a network has times of, by canonical name",
    "dims/atoms.py": "functions of sizes, as Python's math has them",
    "kernels/buffers.py": "temporary tensors of gradients, by canonical name",
    "kernels/beside.py": "says which operands are copied, and how gradients of views lie, by canonical name",
    "execution/layouts.py": "says what strides become in each operator, by canonical name",
    "exporters/sources.py": "reads ONNX: by op_type, before a call has an operator",
    "exporters/step_file.py": "says which results may be operands, and which views copies, by word",
    "kernels/matrices.py": "lowers decompositions to kernels, by word",
    "kernels/lower.py": "lowers calls to kernels, by kind and name",
    "kernels/gradients.py": "lowers gradients to kernels, by kind and name",
    "runtime/flex/trace.py": "names that the generated code already uses",
    "runtime/flex/lowering.py": "one line of Triton for each pointwise operator, by canonical name",
    "runtime/operators.py": "refuses operators of torch that could harm the process",
}
SPLITTERS = ("split", "rsplit", "partition", "rpartition", "rstrip", "endswith", "removesuffix")
VARIABLES = ("op", "op_type", "spelling", "base", "word")


@cache
def nodes_of(file: str) -> list[ast.AST]:
    nodes = sorted(ast.walk(ast.parse((PACKAGE / file).read_text())), key=lambda n: getattr(n, "lineno", 0))
    public = [node for node in nodes if isinstance(node, ast.Assign) and _name(node.targets[0]) == "__all__"]
    exported = {id(inner) for node in public for inner in ast.walk(node)}
    return [node for node in nodes if id(node) not in exported]


def spellings_in(file: str) -> list[str]:
    texts = [
        (node.lineno, node.value)
        for node in nodes_of(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [
        f"line {line}: {text!r}"
        for line, text in texts
        if text in DISTINCT or ("." in text and (text in SPELLINGS or operator(text).base in SPELLINGS))
    ]


def tables_in(file: str) -> list[str]:
    found = []
    for node in nodes_of(file):
        texts = list(strings(node))
        names = [text for text in texts if text in WORDS]
        if len(names) > MOST and 2 * len(names) > len(texts):
            found.append(f"line {node.lineno}: {', '.join(names[:6])}")
    return found


def strings(node: ast.AST) -> Iterator[str]:
    """String elements of a collection, or the words of a literal that is split."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        yield from (e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str))
    elif isinstance(node, ast.Dict):
        yield from (e.value for e in node.keys if isinstance(e, ast.Constant) and isinstance(e.value, str))
    elif isinstance(node, ast.Attribute) and node.attr == "split" and isinstance(node.value, ast.Constant):
        yield from str(node.value.value).split()


def splits_in(file: str) -> list[str]:
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in nodes_of(file)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SPLITTERS
        and _name(node.func.value) in VARIABLES
        and any(isinstance(argument, ast.Constant) and argument.value in (".", "_") for argument in node.args)
    ]


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("file", FILES)
def test_no_spelling_of_an_operator(file: str) -> None:
    found = [] if file in LITERALS else spellings_in(file)
    assert not found, f"ask node.operator for its name or kind instead of {found}"


@pytest.mark.parametrize("file", FILES)
def test_no_table_of_operators(file: str) -> None:
    found = [] if file in COLLECTIONS else tables_in(file)
    assert not found, f"make what these have in common a kind or a fact in graphflops/ops/table.py: {found}"


@pytest.mark.parametrize("file", FILES)
def test_no_splitting_of_spellings(file: str) -> None:
    found = splits_in(file)
    assert not found, f"node.operator has the parts dialect, word, variant and functional: {found}"


@pytest.mark.parametrize("file", [file for file, reason in COLLECTIONS.items() if "canonical" in reason])
def test_tables_by_canonical_names_hold_no_other_spelling(file: str) -> None:
    tables = [{*strings(node)} & WORDS for node in nodes_of(file)]
    others = {name for names in tables if len(names) > MOST for name in names - CANONICAL}
    assert not others, f"not canonical names: {sorted(others)}"


def test_every_exception_is_needed() -> None:
    assert [file for file in LITERALS if not spellings_in(file)] == []
    assert [file for file in COLLECTIONS if not tables_in(file)] == []


def test_what_the_tests_above_find(tmp_path: Path) -> None:
    path = tmp_path / "analysis.py"
    path.write_text(
        'moving = {"view", "expand", "permute", "slice"}\n'
        'conv = node.op.rpartition(".")[0] == "aten.conv2d"\n'
        'sizes = ("rows", "columns", "depth", "view")\n'
        'base = base.rstrip("_") + "MatMul"\n'
    )
    file = str(path)  # an absolute path stands for itself
    assert spellings_in(file) == ["line 2: 'aten.conv2d'", "line 4: 'MatMul'"]
    assert tables_in(file) == ["line 1: view, expand, permute, slice"]
    assert splits_in(file) == ["line 2: node.op.rpartition('.')", "line 4: base.rstrip('_')"]
