"""Programs run by graphflops against the same programs run by torch, and the verdicts of their validation.

Each model is exported, saved, read back by graphflops and run call by call; its results must be those of
`ExportedProgram.module()` on the same inputs, to the bit or nearly. No verdict may be `different`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import graphflops
from graphflops.analysis import as_graph
from graphflops.errors import GraphflopsError
from graphflops.runtime.execute import Execution, Weights
from graphflops.runtime.validate import validate
from tests.oracle.models import Effort, device as device_of, exported, quiet, table_of
from tests.oracle.op_db import Program, samples
from tests.oracle.zoo.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.runtime.validation import Validation

_TIGHT = {"rtol": 1e-4, "atol": 1e-5}


def results(program: torch.export.ExportedProgram, inputs: dict[str, torch.Tensor]) -> list[Any]:
    """What torch's own module of the program returns, flat."""
    names = program.graph_signature.user_inputs
    values = [inputs[name].clone() if name in inputs else None for name in names]
    args, kwargs = pytree.tree_unflatten(values, program.call_spec.in_spec)
    torch.manual_seed(0)
    with torch.no_grad():
        return list(pytree.tree_leaves(program.module()(*args, **kwargs)))


def example_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The program's own example inputs, by the names of its values."""
    leaves = pytree.tree_leaves(program.example_inputs)
    names = program.graph_signature.user_inputs
    return {
        name: value
        for name, value in zip(names, leaves, strict=True)
        if isinstance(value, torch.Tensor) and isinstance(name, str)
    }


def ours(graph: graphflops.graph.Graph, inputs: dict[str, torch.Tensor]) -> list[Any]:
    """What our run of the program returns to its caller, flat."""
    report = graphflops.analyze(graph)
    execution = Execution(graph, Weights(graph, torch.device("cpu")), dict(report.values))
    torch.manual_seed(0)
    returned = execution.run({name: value.clone() for name, value in inputs.items()})
    return [value for output, value in zip(graph.outputs, returned, strict=True) if output.role == "user"]


def same(mine: Any, theirs: Any) -> bool:
    """Whether two results are one."""
    if isinstance(theirs, torch.Tensor):
        return (
            isinstance(mine, torch.Tensor)
            and mine.shape == theirs.shape
            and mine.dtype == theirs.dtype
            and torch.allclose(mine, theirs, equal_nan=True, **_TIGHT)
        )
    return bool(mine == theirs)


def judged(case: Case) -> tuple[str, str]:
    """`equal`, `wrong` or `not exportable`, and why."""
    module = case.build().eval()
    try:
        program = exported(case, module, dynamic=False)
    except Exception as error:
        return "not exportable", _line(error)
    with tempfile.TemporaryDirectory() as folder:
        model: Any = Path(folder, "model.pt2")
        try:
            torch.export.save(program, model)
        except Exception:
            model = program  # flexible attention, say: only in memory
        graph = as_graph(model)
        inputs = example_of(program)
        try:
            theirs = results(program, inputs)
        except Exception as error:
            return "not exportable", f"torch's own module fails: {_line(error)}"
        mine = ours(graph, inputs)
        if len(mine) != len(theirs) or not all(map(same, mine, theirs)):
            return "wrong", "other results than torch's own module"
        random = validate(model, repeats=0)
        given = validate(model, inputs=inputs, repeats=0)
    kind, why = verdict(random, "random inputs")
    return (kind, why) if kind == "wrong" else verdict(given, "its inputs")


def made_up(case: Case, device: str) -> tuple[str, str]:
    """The verdict on a model without weights, run on made-up ones."""
    with device_of(case):
        module = case.build().eval()
    try:
        program = exported(case, module, dynamic=False)
    except Exception as error:
        return "not exportable", _line(error)
    return verdict(validate(program, random_weights=True, repeats=0, device=device), "made-up weights")


def verdict(found: Validation, name: str) -> tuple[str, str]:
    """`wrong` with the first call that is, else `equal`."""
    for node in found.nodes:
        if any(check.verdict in ("different", "not executed") for check in node.checks):
            return "wrong", f"{name}: {node.node} ({node.op}): {node.reason}"
    return "equal", ", ".join(f"{number} {verdict}" for verdict, number in found.verdicts.items() if number)


def judged_operators(shard: int, shards: int, most: int, device: str) -> Iterator[tuple[str, str, str]]:
    """(operator, `equal` or `wrong` or `not exportable`, why) of samples of torch's operator database, each run for real."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db[shard::shards]:
        for index, leaves, spec in samples(operator, most):
            name = f"{operator.name}{operator.variant_test_name and '.' + operator.variant_test_name}#{index}"
            tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
            try:
                program = torch.export.export(Program(operator.op, leaves, spec), tensors, strict=False)
            except Exception as error:
                yield name, "not exportable", _line(error)
                continue
            try:
                found = validate(program, inputs=example_of(program), repeats=0, device=device)
            except Exception as error:
                yield name, "wrong", _line(error)
                continue
            bad = [
                node
                for node in found.nodes
                if any(c.verdict in ("different", "not executed") for c in node.checks)
            ]
            yield name, "wrong" if bad else "equal", "; ".join(f"{node.op}: {node.reason}" for node in bad)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--table", default="torch_nn,programs,language", help="comma-separated tables of models"
    )
    parser.add_argument("--only", default="", help="comma-separated words, one of which a name must hold")
    parser.add_argument(
        "--op-db", metavar="I/N", help="instead: every Nth operator of torch's database from the Ith"
    )
    parser.add_argument("--most", type=int, default=5, help="samples of each operator")
    parser.add_argument("--device", default="cpu", help="where operators run")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    quiet()
    if options.op_db:
        shard, _, shards = options.op_db.partition("/")
        told: Counter[str] = Counter()
        for name, kind, why in judged_operators(int(shard), int(shards), options.most, options.device):
            told[kind] += 1
            if kind == "wrong" or (options.verbose and kind != "equal"):
                print(f"{name}: {kind}: {why[:300]}", flush=True)
        print(
            f"operators on torch {torch.__version__.partition('+')[0]}: "
            + ", ".join(f"{n} {k}" for k, n in sorted(told.items()))
        )
        return 1 if told["wrong"] else 0
    words = options.only.split(",")
    count: Counter[str] = Counter()
    for table in options.table.split(","):
        for case in table_of(table, Effort(1)):
            if not any(word in case.name for word in words):
                continue
            try:
                kind, why = judged(case) if not case.meta else made_up(case, options.device)
            except ModuleNotFoundError as error:
                kind, why = "not exportable", _line(error)
            except GraphflopsError as error:
                kind = "refused" if case.unknown else "wrong"
                why = _line(error)
            except Exception as error:
                kind, why = "wrong", f"internal: {_line(error)}"
            count[kind] += 1
            if kind != "equal" or options.verbose:
                print(f"{case.name}: {kind}: {why}", flush=True)
    print(
        f"validation on torch {torch.__version__.partition('+')[0]}: "
        + ", ".join(f"{n} {k}" for k, n in sorted(count.items()))
    )
    return 1 if count["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
