"""Calls that change the shape of a tensor in place: later uses of each of its names see the new shape, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphflops import analyze
from graphflops.report.contradictions import contradictions
from graphflops.rules.registry import find
from tests.exporters.build import call, graph, meta, program, save, tensor

BIG = {"as_ints": [64, 4]}
COPY = call("torch.ops.aten.clone.default", tensor("x"), out="a", name="a")
RESIZE = "torch.ops.aten.resize_.default"
LAST = call("torch.ops.aten.matmul.default", tensor("a"), tensor("w"), out="y", name="y")


def flops(path: Path, *nodes: Any, **types: Any) -> tuple[Any, int]:
    """Matrix FLOPs of the last product, of a and a matrix of 4 by 4, and the calls of unknown cost."""
    values = {"x": meta(2, 4), "w": meta(4, 4), "a": meta(2, 4), "y": meta(64, 4), **types}
    inputs = [{"user_input": {"arg": tensor(name)}} for name in ("x", "w")]
    report = analyze(save(path / "a.pt2", program([COPY, *nodes, LAST], values, inputs)))
    return report.totals.cost.matrix_flops, report.coverage.unknown


@pytest.mark.parametrize("target", ["a", "b", "c"])
def test_names_of_one_tensor(tmp_path: Path, target: str) -> None:
    """b and c are a, which was written in place."""
    nodes = [
        call("torch.ops.aten.relu_.default", tensor("a"), out="b", name="b"),
        call("torch.ops.aten.add_.Tensor", tensor("b"), {"as_int": 1}, out="c", name="c"),
        call(RESIZE, tensor(target), BIG, out="d", name="d"),
    ]
    types = {"b": meta(2, 4), "c": meta(2, 4), "d": meta(64, 4)}
    assert flops(tmp_path, *nodes, **types) == (2 * 64 * 4 * 4, 0)


@pytest.mark.parametrize(
    ("operator", "operands", "changes"),
    [
        ("contiguous.default", (), True),
        ("to.dtype", ({"as_scalar_type": 7},), True),
        ("dropout.default", ({"as_float": 0.5}, {"as_bool": False}), True),
        ("view.default", ({"as_ints": [2, 4]},), True),  # it may be anything that shares memory
        ("clone.default", (), False),
        ("relu.default", (), False),
        ("mul.Tensor", ({"as_int": 2},), False),
    ],
)
def test_values_that_may_be_the_tensor_are_unknown(
    tmp_path: Path, operator: str, operands: tuple[Any, ...], changes: bool
) -> None:
    nodes = [
        call(f"torch.ops.aten.{operator}", tensor("a"), *operands, out="b", name="b"),
        call(RESIZE, tensor("b"), BIG, out="c", name="c"),
    ]
    types = {"b": meta(2, 4), "c": meta(64, 4), "y": meta(2, 4)}
    assert flops(tmp_path, *nodes, **types) == ((0, 1) if changes else (2 * 2 * 4 * 4, 0))


def test_results_that_are_given_their_tensor(tmp_path: Path) -> None:
    large = call("torch.ops.aten.ones.default", BIG, out="b", name="b")
    given = call(
        "torch.ops.aten.linear.out", tensor("b"), tensor("w"), ("out", tensor("a")), out="c", name="c"
    )
    types = {"b": meta(64, 4), "c": meta(64, 4)}
    assert flops(tmp_path, large, given, **types) == (2 * 2 * 64 * 4 * 4, 0)


def test_a_tensor_that_a_nested_graph_changes(tmp_path: Path) -> None:
    """What runs around a nested graph is not followed: the call is unknown; a tensor of its own may change."""
    ends = {"p": meta(2, 4), "q": meta(2, 4), "r": meta(64, 4)}

    def conditional(target: str) -> Any:
        inner = [
            call("torch.ops.aten.clone.default", tensor("p"), out="q"),
            call(RESIZE, tensor(target), BIG, out="r"),
        ]
        branches = [
            {"as_graph": {"name": n, "graph": graph([tensor("p")], inner, [tensor("r")], ends)}} for n in "fg"
        ]
        operands = {"as_tensors": [{"name": "a"}]}
        return call("torch.ops.higher_order.cond", {"as_bool": True}, *branches, operands, out="b", name="b")

    types = {"b": meta(64, 4), "y": meta(2, 4)}
    assert flops(tmp_path, conditional("q"), **types) == (2 * 2 * 4 * 4, 0)
    assert flops(tmp_path, conditional("p"), **types)[1] == 1


class Turned(torch.nn.Module):
    """What models do in place: axes added, taken away and turned."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = x + 1
        a.t_()
        b = a @ y
        c = b.clone()
        c.unsqueeze_(0)
        d = c.squeeze_(0)
        d.transpose_(0, 1)
        d.swapaxes_(0, 1)
        return d.t_() @ b


@pytest.mark.parametrize("strict", [False, True])
def test_honest_programs(tmp_path: Path, strict: bool) -> None:
    exported = torch.export.export(Turned(), (torch.ones(3, 4), torch.ones(3, 5)), strict=strict)
    torch.export.save(exported, tmp_path / "a.pt2")
    report = analyze(tmp_path / "a.pt2")
    assert report.totals.cost.matrix_flops == 2 * 4 * 3 * 5 + 2 * 5 * 4 * 5
    assert not contradictions(report)
    assert not report.coverage.unknown


def test_each_operator_that_changes_a_view_in_place_has_a_rule_of_its_own() -> None:
    """The rule of a functional operator would give it the shape that it had."""
    tagged = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        word, _, variant = rest.partition(".")
        if namespace == "aten":
            operator = getattr(getattr(torch.ops.aten, word), variant or "default", None)
            if operator is not None and torch.Tag.inplace_view in operator.tags:
                tagged.add(word)
    assert len(tagged) > 8
    keeps_shape = {"detach_", "rename_"}
    assert {
        word for word in tagged - keeps_shape if getattr(find(f"aten.{word}"), "key", "") != f"aten.{word}"
    } == set()
