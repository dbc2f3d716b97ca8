"""How many random changes of the code that predicts memory and time are noticed by its own unit tests.

    python -m benchmarks.mutations --count 200 --seed 1 --lines /tmp/lines.json
    python -m benchmarks.mutations --only graphflops/time --only graphflops/kernels

A mutation changes one place of one file: `//` to `*`, `<` to `<=`, `and` to `or`, a number to the next, a condition to its
opposite, or leaves out a term or a bound of a slice. Places are drawn at random among those that a test executes. The tests
that execute the line (of a module's constant, those of functions that use it) run until one fails, cheapest first, within
`--seconds` of recorded time; one that takes far more of a CPU does not end, and counts as killed too. Each mutation is one
line: killed or survived, where, before and after. No file of the package is changed: a process of its own compiles the
mutated file from its syntax tree.

`--lines` keeps which test executes which lines, to be recorded again only where a file of tests, or the package, changed.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import sys
import time
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent
MUTATED = (
    "graphflops/memory/*.py graphflops/execution/*.py graphflops/kernels/*.py graphflops/time/*.py graphflops/inductor/*.py "
    "graphflops/planning/*.py graphflops/links/*.py graphflops/passes/optimizer.py"
)
TESTS = (
    "tests/memory/test_*.py tests/kernels/test_*.py tests/time/test_*.py tests/inductor/test_*.py "
    "tests/planning/test_*.py tests/links/test_*.py tests/passes/test_optimizer*.py tests/test_dispatched_calls.py"
)
LIBRARIES = "torch torch._dynamo torch._inductor.ir torch._functorch.aot_autograd numpy networkx onnx sympy"  # imported once
ADDRESS_SPACE = 16 << 30  # a mutation may ask for any size
SWAPS = (
    "Add Sub, Sub Add, Mult FloorDiv, FloorDiv Mult, Div Mult, Mod FloorDiv, Pow Mult, And Or, Or And, Lt LtE, LtE Lt, "
    "Gt GtE, GtE Gt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In"
)
SWAPPED = {getattr(ast, old): getattr(ast, new)() for old, new in map(str.split, SWAPS.split(", "))}
NOT_MUTATED = ("annotation", "returns", "decorator_list")


class Test(NamedTuple):
    """What a test executed of the mutated files, and how long it took while that was recorded."""

    name: str
    seconds: float
    lines: dict[str, list[int]]  # by file

    @property
    def path(self) -> str:
        return self.name.partition("::")[0]


class Mutation(NamedTuple):
    """One place of a syntax tree, the field of its parent that holds it, and what stands there instead."""

    file: str
    in_function: bool  # else it runs when the module is imported
    tree: ast.Module
    parent: ast.AST
    field: str
    index: int
    before: Any
    after: ast.AST

    def __str__(self) -> str:
        before, after = (" ".join(ast.unparse(node).split()) for node in (self.before, self.after))
        return f"{self.file}:{self.before.lineno}  {before}  ->  {after}"

    def code(self) -> Any:
        """The mutated module; the tree stays changed."""
        held, new = getattr(self.parent, self.field), ast.copy_location(self.after, self.before)
        changed = [*held[: self.index], new, *held[self.index + 1 :]] if isinstance(held, list) else new
        setattr(self.parent, self.field, changed)
        return compile(ast.fix_missing_locations(self.tree), str(ROOT / self.file), "exec")

    def run_by(self, tests: list[Test]) -> list[Test]:
        """The tests that execute it; of what a module defines, all of files where one executes a function that uses that."""
        lines = {self.before.lineno} if self.in_function else self.used_at()
        near = [test for test in tests if not lines.isdisjoint(test.lines.get(self.file, ()))]
        if self.in_function:
            return near
        paths = {test.path for test in near or tests if self.file in test.lines}
        return [test for test in tests if test.path in paths]

    def used_at(self) -> set[int]:
        """Lines of functions that use what the module's statement defines, or what other statements make of it."""
        names = set[str]()
        for statement in self.tree.body:
            nodes = [*ast.walk(statement)]
            read = [node for node in nodes if isinstance(node, ast.Name)]
            if self.before in nodes or (
                isinstance(statement, ast.Assign) and any(x.id in names for x in read)
            ):
                names.update(node.id for node in read if isinstance(node.ctx, ast.Store))
                names.add(getattr(statement, "name", ""))
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        used = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)]
        return {node.lineno for node in used if node.id in names}


def replacements(node: Any, field: str) -> Iterator[ast.AST]:
    """What may stand instead of a node, which its parent holds in a field."""
    if field in ("test", "ifs") and getattr(node, "id", "") != "TYPE_CHECKING":
        yield ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPPED:
            yield from (ast.BinOp(left, SWAPPED[type(op)], right), left, right)
        case ast.AugAssign(target, op, value) if type(op) in SWAPPED:
            yield ast.AugAssign(target, SWAPPED[type(op)], value)
        case ast.Compare(left, ops, others):
            for i, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:i], SWAPPED[type(op)], *ops[i + 1 :]], others)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPPED[type(op)], values)
            for i in range(len(values)):
                rest = [*values[:i], *values[i + 1 :]]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Slice(lower, upper, step):
            bounds = ((None, upper), (lower, None))
            yield from (ast.Slice(*kept, step) for kept in bounds if kept != (lower, upper))
        case ast.Constant(value) if type(value) in (int, float):
            yield ast.Constant(value + 1)


def mutations_of(file: str) -> Iterator[Mutation]:
    """All that one file allows."""
    tree = ast.parse((ROOT / file).read_text())

    def within(parent: ast.AST, in_function: bool) -> Iterator[Mutation]:
        for field, value in ast.iter_fields(parent):
            inner = in_function or (field == "body" and isinstance(parent, ast.FunctionDef | ast.Lambda))
            for i, node in enumerate(value if isinstance(value, list) else [value]):
                if field in NOT_MUTATED or not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
                    continue
                for new in replacements(node, field):
                    yield Mutation(file, inner, tree, parent, field, i, node, new)
                yield from within(node, inner)

    return within(tree, False)


def passes(limit: int, run: Callable[..., Any], *given: Any) -> bool:
    """Whether a function ends with status 0 in a process of its own, which has so many seconds of a CPU."""

    def silently() -> None:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1), os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        sys.exit(int(run(*given)))

    process = multiprocessing.get_context("fork").Process(target=silently)
    process.start(), process.join()
    return process.exitcode == 0


class Recorder:
    """A plugin of pytest that notes the lines of the mutated files which each test executes."""

    def __init__(self, files: list[str]) -> None:
        self.files = {str(ROOT / file): file for file in files}
        self.tests: list[tuple[str, float, dict[str, list[int]]]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        executed: dict[str, set[int]] = defaultdict(set)

        def trace(frame: Any, event: str, _: object) -> Any:
            file = self.files.get(frame.f_code.co_filename)
            if event == "line" and file:
                executed[file].add(frame.f_lineno)
            return trace if file else None

        start = time.process_time()
        sys.settrace(trace)
        done = yield
        sys.settrace(None)
        seconds = round(time.process_time() - start, 3)
        self.tests.append((item.nodeid, seconds, {file: [*lines] for file, lines in executed.items()}))
        return done


def record(path: Path, files: list[str], written: Path) -> int:
    status = pytest.main([str(path), "-p", "no:cacheprovider"], plugins=[recorder := Recorder(files)])
    written.write_text(json.dumps(recorder.tests))
    return status


def recorded(files: list[str], kept: Path) -> list[Test]:
    """All tests with the lines that they execute; what `kept` knows of an unchanged file of tests is not run again."""
    known: dict[str, list[Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    package = b"".join(path.read_bytes() for path in sorted((ROOT / "graphflops").rglob("*.py")))
    found: list[Test] = []
    for path in sorted(path for pattern in TESTS.split() for path in ROOT.glob(pattern)):
        key = hashlib.sha256(package + path.read_bytes() + str(path.relative_to(ROOT)).encode()).hexdigest()
        if key not in known:
            if not passes(900, record, path, files, part := kept.with_suffix(".part")):
                sys.exit(f"{path.relative_to(ROOT)} fails without any mutation: run it with pytest first")
            known[key] = json.loads(part.read_text())
            kept.write_text(json.dumps(known))
        found += [Test(*test) for test in known[key]]
    return found


def run_mutated(mutation: Mutation, names: list[str]) -> int:
    """Run tests with the mutated module; pytest would compile the modules of its plugins itself to rewrite assertions."""
    code, path, original = mutation.code(), str(ROOT / mutation.file), SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: code if self.path == path else original(self, name)  # type: ignore
    return pytest.main([*names, "-x", "-p", "no:cacheprovider", "--assert=plain"])


def killed(mutation: Mutation, tests: list[Test], seconds: int) -> bool:
    """Whether a test that executes the line fails, or does not end."""
    chosen = sorted(mutation.run_by(tests), key=lambda test: test.seconds)
    totals = accumulate(test.seconds for test in chosen)
    names = [test.name for test, total in zip(chosen, totals) if total <= seconds or test is chosen[0]]  # noqa: B905
    return not passes(2 * seconds + 20, run_mutated, mutation, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    option = parser.add_argument
    option("--count", type=int, default=200)
    option("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    option("--lines", type=Path, default=Path("/tmp/graphflops_lines.json"))
    option("--seconds", type=int, default=10, help="recorded time of the tests that a mutation runs")
    option("--only", action="append", help="mutate files whose path begins so")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        "1"  # these tests need none, and importing them takes as long as a test
    )
    for library in LIBRARIES.split():
        importlib.import_module(library)
    files = sorted(str(path.relative_to(ROOT)) for pattern in MUTATED.split() for path in ROOT.glob(pattern))
    tests = recorded(files, options.lines)
    executed = {(file, line) for test in tests for file, lines in test.lines.items() for line in (0, *lines)}
    places = [
        mutation
        for file in files
        if file.startswith(tuple(options.only or ("",)))
        for mutation in mutations_of(file)
        if (file, mutation.before.lineno * mutation.in_function) in executed
    ]
    chosen = random.Random(options.seed).sample(places, min(options.count, len(places)))
    print(
        f"seed {options.seed}: {len(chosen)} of {len(places):,} mutations at lines that {len(tests)} tests execute"
    )
    dead = 0
    for mutation in chosen:
        dead += (died := killed(mutation, tests, options.seconds))
        print(f"{'killed  ' if died else 'survived'}  {mutation}", flush=True)
    print(f"{dead} of {len(chosen)} killed: {dead / len(chosen):.1%}")


if __name__ == "__main__":
    main()
