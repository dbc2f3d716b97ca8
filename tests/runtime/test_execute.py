"""The program run call by call gives what torch's own module of it gives."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

import graphflops
from graphflops.analysis import as_graph
from graphflops.errors import FileError, ModelError, RunError
from graphflops.graph import Graph, Input, Node, Opaque, Output, Ref
from graphflops.runtime.execute import Execution, Weights
from graphflops.runtime.operators import resolve
from tests.support import t

SAMPLES = Path(__file__).parents[2] / "samples"
RECORDED = sorted((Path(__file__).parents[1] / "data" / "pt2").rglob("*.pt2"))
CPU = torch.device("cpu")


def ran(model: object, *inputs: torch.Tensor, **options: Any) -> list[Any]:
    """What a program returns to its caller, on inputs in their order."""
    graph = as_graph(model)
    report = graphflops.analyze(graph)
    names = [name for name, _ in report.inputs]
    execution = Execution(
        graph, Weights(graph, CPU, **options), dict(report.values), trusted=not graph.origin.path
    )
    torch.manual_seed(0)
    returned = execution.run(dict(zip(names, [x.clone() for x in inputs], strict=True)))
    return [value for output, value in zip(graph.outputs, returned, strict=True) if output.role == "user"]


def same(model: object, program: Any, *inputs: torch.Tensor) -> None:
    """Our run and torch's, on the same numbers, are equal to the last bit or nearly."""
    torch.manual_seed(0)
    with torch.no_grad():
        theirs = pytree.tree_leaves(program.module()(*[x.clone() for x in inputs]))
    for mine, right in zip(ran(model, *inputs), theirs, strict=True):
        torch.testing.assert_close(mine, right, equal_nan=True)


SHAPES = {
    "gqa_transformer": lambda: (torch.randint(0, 256, (2, 7)),),
    "convnet": lambda: (torch.randn(4, 3, 32, 32),),
    "lstm": lambda: (torch.randn(2, 16, 32),),
    "cond": lambda: (torch.randn(4, 32),),
}


@pytest.mark.parametrize("name", ["gqa_transformer", "convnet", "lstm", "cond"])
def test_samples(name: str) -> None:
    path = SAMPLES / f"{name}.pt2"
    program = torch.export.load(path)
    shapes = [tuple(typed.shape) for _, typed in graphflops.analyze(path).inputs]
    values = graphflops.analyze(path).values
    made = []
    for shape, (_, typed) in zip(shapes, graphflops.analyze(path).inputs, strict=True):
        sizes = [size if isinstance(size, int) else size.substitute(values) for size in shape]
        made.append(torch.randn(sizes) if typed.dtype.is_floating else torch.randint(0, 256, sizes))
    same(path, program, *made)


class Everything(torch.nn.Module):
    """Control flow, a buffer, a constant, several results, a tuple of them and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8.0))
        self.constant = torch.full((8,), 0.5)

    def forward(self, x: torch.Tensor) -> Any:
        first, second = torch.split(x + self.table * self.constant, 4)
        chosen = torch.cond(first.sum() > 0, lambda y: self.a(y), lambda y: self.b(y), (second,))
        values, places = chosen.topk(3, dim=-1)
        with torch.no_grad():
            ordered = torch.sort(first, dim=-1)
        return {"values": values, "places": (places, ordered.values)}, x.shape[0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_everything_in_memory_and_saved(sign: float, tmp_path: Path) -> None:
    program = torch.export.export(Everything(), (torch.ones(8, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    x = sign * torch.rand(8, 8) - 3.5 * (sign < 0)
    same(program, program, x)
    same(tmp_path / "model.pt2", program, x)


def test_each_run_begins_with_the_stored_buffers() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.seen.add_(x) * 10

    program = torch.export.export(Counter(), (torch.ones(2),))
    graph = as_graph(program)
    for execution in (
        Execution(graph, Weights(graph, CPU, keep=keep), trusted=True) for keep in (False, True)
    ):
        for _ in range(2):
            returned = execution.run({"x": torch.ones(2)})[-1]
            assert returned.tolist() == [10, 10]


def test_loops() -> None:
    class Scan(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            from torch._higher_order_ops.scan import scan

            carried, turns = scan(lambda c, y: (c + y, c * y), torch.zeros(3), x)
            state = torch._higher_order_ops.while_loop(
                lambda i, s: i < 5, lambda i, s: (i + 1, s * 1.5), (torch.tensor(0), carried)
            )
            return carried, turns, state

    program = torch.export.export(Scan(), (torch.randn(6, 3),), strict=True)
    same(program, program, torch.randn(6, 3))


def test_flexible_attention() -> None:
    class Flex(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = create_block_mask(
                lambda b, h, i, j: i >= j, None, None, 48, 48, device="cpu", BLOCK_SIZE=16
            )
            self.slope = torch.nn.Buffer(torch.tensor([0.5, 0.25]))

        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return flex_attention(q, q, q, lambda s, b, h, i, j: s + self.slope[h] * (j - i), self.mask)

    program = torch.export.export(Flex(), (torch.randn(1, 2, 48, 16),))
    same(program, program, torch.randn(1, 2, 48, 16))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_layout_of_the_archive_runs(path: Path) -> None:
    """Files of each release since 2.4: what torch reads of them too must come out the same."""
    report = graphflops.analyze(path)
    made = []
    for _, typed in report.inputs:
        sizes = [size if isinstance(size, int) else size.substitute(report.values) for size in typed.shape]
        made.append(torch.randn(sizes) if typed.dtype.is_floating else torch.randint(0, 90, sizes))
    try:
        program = torch.export.load(path)
    except RuntimeError:  # too old for this torch
        assert all(torch.isfinite(value).all() for value in ran(path, *made))
        return
    same(path, program, *made)


def test_made_up_weights_give_the_same_shapes() -> None:
    found = ran(SAMPLES / "gqa_transformer.pt2", torch.randint(0, 256, (2, 7)), random=True)
    assert [tuple(value.shape) for value in found] == [(2, 7, 256)]
    assert torch.isfinite(found[0]).all()


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    with torch.device("meta"):
        program = graphflops.capture(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    with pytest.raises(FileError, match=r"weight is not stored in the program: use --random-weights"):
        ran(program, torch.ones(2, 4))


def test_weights_that_contradict_the_program(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.ones(2, 4),)), path)
    target = tmp_path / "changed.pt2"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("weights_config.json"):
                config = json.loads(data)
                config["config"]["weight"]["tensor_meta"]["sizes"] = [{"as_int": 2}, {"as_int": 4}]
                data = json.dumps(config).encode()
            new.writestr(name, data)
    with pytest.raises(
        FileError, match=r"weight is float32\[3, 4\] in the program, and float32\[2, 4\] where"
    ):
        ran(target, torch.ones(2, 4))


def program_of(op: str, *more: Any) -> Graph:
    """A program of one call."""
    nodes = (Node("n", op, (Ref("x"), *more), (), ("y",)),)
    return Graph(nodes, {"x": t(2, 2), "y": t(2, 2)}, (Input("x", "user"),), (Output(Ref("y")),))


@pytest.mark.parametrize(
    "op",
    [
        "aten.from_file.default",
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "builtins.__import__",
        "torch.load",
        "torch.hub.load",
        "_operator.attrgetter",
        "_operator.methodcaller",
        "math.factorial",
        "aten.__class__.default",
        "aten.add.__class__",
        "load_library.default.x",
        "prim.Print.default",
        "image.read_file.default",
        "_c10d_functional.all_reduce.default",
    ],
)
def test_a_file_cannot_name_what_is_not_an_operator_we_price(op: str) -> None:
    with pytest.raises(ModelError):
        resolve(op)


def test_an_operator_of_the_users_own_runs_from_memory_only() -> None:
    with torch.library._scoped_library("graphflops_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        with pytest.raises(ModelError, match="no rule"):
            resolve("graphflops_test.twice.default")
        assert resolve("graphflops_test.twice.default", trusted=True)(torch.ones(1)) == 2


def test_objects_that_only_a_pickle_holds_are_refused_by_name() -> None:
    graph = program_of("aten.add.Tensor", Opaque("__torch__.Secret"))
    with pytest.raises(RunError, match=r"n \(aten.add.Tensor\).*__torch__.Secret"):
        Execution(graph, Weights(graph, CPU)).run({"x": torch.ones(2, 2)})


def test_an_operator_that_fails_is_named() -> None:
    graph = program_of("aten.view.default", (3, 3))
    with pytest.raises(RunError, match=r"n \(aten.view.default\): RuntimeError: shape '\[3, 3\]' is invalid"):
        Execution(graph, Weights(graph, CPU)).run({"x": torch.ones(2, 2)})
