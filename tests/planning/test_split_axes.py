"""Along which axis the result of a call is split where its operand is; none where the call needs the whole of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.planning.parts import Split
from tests.one_call import program_of
from tests.support import t

X, EVEN = t(2, 3, 4), t(2, 4, 4)


@pytest.mark.parametrize(
    ("op", "given", "axis", "expected"),
    [
        ("relu.default", (X,), 1, 1),
        ("add.Tensor", (t(4), X), 0, 2),  # axes are lined up from the last one
        ("sum.dim_IntList", (X, (0,)), 2, 1),
        ("sum.dim_IntList", (X, (0,)), 0, None),
        ("sum.dim_IntList", (X, (1,)), 0, 0),
        ("sum.dim_IntList", (X, (-1,), True), 1, 1),
        ("sum.default", (X,), 0, None),
        ("softmax.int", (X, -1), 1, 1),
        ("softmax.int", (X, -1), 2, None),
        ("layer_norm.default", (X, (3, 4)), 0, 0),
        ("layer_norm.default", (X, (3, 4)), 1, None),
        ("bmm.default", (X, t(2, 4, 5)), 0, 0),
        ("bmm.default", (X, t(2, 4, 5)), 1, None),
        ("mm.default", (t(3, 4), t(4, 5)), 0, None),
        ("cat.default", ((X, X), 1), 0, 0),
        ("cat.default", ((X, X), 1), 1, None),
        ("cat.default", ((X, X), -1), 2, None),
        ("cat.default", ((X, X),), 0, None),
        ("select.int", (X, 0, 1), 2, 1),
        ("select.int", (X, 0, 1), 0, None),
        ("select.int", (X, 2, 1), 1, 1),
        ("expand.default", (X, (5, 2, 3, 4)), 1, 2),
        ("transpose.int", (X, 0, 2), 0, 2),
        ("permute.default", (X, (1, 2, 0)), 0, 2),
        ("unbind.int", (X, 0), 1, 0),
        ("split.Tensor", (EVEN, 2, 1), 0, 0),
        ("split.Tensor", (EVEN, 2, 1), 1, 1),  # each piece has its parts
        ("split.Tensor", (EVEN, 2, 1), 2, 2),
        ("slice.Tensor", (X, 1, 0, 2), 0, 0),
        ("slice.Tensor", (X, 1, 0, 2), 2, 2),
        ("slice.Tensor", (X, 1, 0, 2), 1, None),
        ("slice.Tensor", (X, 1, 0, 3), 1, 1),  # of all rows
        ("roll.default", (X, (1,), (1,)), 0, 0),
        ("roll.default", (X, (1,), (1,)), 1, None),
        ("flip.default", (X, (-1,)), 2, None),
        ("reshape.default", (X, (6, 4)), 0, 0),
        ("reshape.default", (X, (6, 4)), 1, None),
        ("reshape.default", (X, (2, 12)), 1, 1),
        ("unsqueeze.default", (X, 0), 0, 1),
        ("unsqueeze.default", (X, 1), 0, 0),
        ("squeeze.dim", (t(1, 3, 4), 0), 1, 0),
    ],
)
def test_the_axis_of_a_result(op: str, given: tuple[Any, ...], axis: int, expected: int | None) -> None:
    program = program_of(f"aten.{op}", *given, outputs=2 if op in ("unbind.int", "split.Tensor") else 1)
    graph = replace(program.graph, types=dict(program.main.values))  # with those of the results
    name = "x0_0" if op.startswith("cat") else "x0"
    assert Split(graph, 2).axis_of_result(graph.nodes[0], name, axis) == expected
