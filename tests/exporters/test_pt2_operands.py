"""Operands of calls in a `.pt2`: torch binds them by the names of the operator's schema, not by their order in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphflops
from graphflops.derived.items import items
from graphflops.exporters import load
from graphflops.graph import Ref
from graphflops.ops.operator import arranged, orders
from tests.children import finished
from tests.exporters.build import call, graph, meta, program, refused, save, tensor

COLUMN, ROW = tensor("column"), tensor("row")


def listed(target: str, *operands: tuple[str, Any], kind: int | None = 1) -> dict[str, Any]:
    """A call of operands by name, in this order."""
    inputs = [{"name": name, "arg": argument, "kind": kind} for name, argument in operands]
    return {**call(f"torch.ops.{target}"), "inputs": inputs}


def of_vectors(node: dict[str, Any], *sizes: int) -> dict[str, Any]:
    """A program of one call on a column of six and a row of six."""
    inputs = [{"user_input": {"arg": operand}} for operand in (COLUMN, ROW)]
    return program([node], {"column": meta(6, 1), "row": meta(1, 6), "y": meta(*sizes)}, inputs)


@pytest.mark.parametrize("kind", [1, 2, None])
def test_names_decide_which_operand_is_which(kind: int | None, tmp_path: Path) -> None:
    node = listed("aten.mm.default", ("mat2", ROW), ("self", COLUMN), kind=kind)
    report = graphflops.analyze(save(tmp_path / "a.pt2", of_vectors(node, 6, 6)))
    assert report.totals.cost.matrix_flops == 2 * 6 * 6 * 1
    assert not report.diagnostics


def test_a_name_twice(tmp_path: Path) -> None:
    for operands in (("self", "self", "mat2"), ("self", "mat2", "mat2")):
        node = listed("aten.mm.default", *((name, COLUMN) for name in operands))
        refused(save(tmp_path / "a.pt2", of_vectors(node, 6, 6)), "has two operands of one name")
    node = listed("my.operator", ("a", COLUMN), ("a", ROW))
    refused(save(tmp_path / "b.pt2", of_vectors(node, 6, 6)), "has two operands of one name")


def test_a_name_that_the_operator_does_not_have(tmp_path: Path) -> None:
    node = listed("aten.mm.default", ("self", COLUMN), ("other", COLUMN), ("mat2", ROW))
    path = save(tmp_path / "a.pt2", of_vectors(node, 6, 6))
    assert load(path).nodes[0].args == (Ref("column"), Ref("row"))
    (found,) = graphflops.analyze(path).diagnostics
    assert (found.code, found.message) == (
        "GF130",
        "aten.mm.default has no operand other: readers differ in whether it counts",
    )


def test_names_of_a_higher_order_operator(tmp_path: Path) -> None:
    """What torch writes has none for positions: a name is a keyword, and one that the rule does not know is not guessed."""
    relu = call("torch.ops.aten.relu.default", tensor("a"), out="b")
    types = {"a": meta(1), "row": meta(1, 6), "b": meta(1)}
    body = graph([tensor("a"), ROW], [relu], [tensor("b")], types)
    function = {"as_graph": {"name": "f", "graph": body}}
    lists = {name: {"as_tensors": [{"name": name}]} for name in ("column", "row")}
    for names, state in ((("", "", ""), "counted"), (("f", "pos_args", "xs"), "unknown")):
        operands = zip(names, (function, lists["column"], lists["row"]), strict=True)
        node = listed("higher_order.map_impl", *operands)
        report = graphflops.analyze(save(tmp_path / "a.pt2", of_vectors(node, 6, 1)))
        assert {row.state for row in report.rows} == {state}


def test_the_order_of_the_table() -> None:
    assert orders("aten.mm.default") == (("self", "mat2"),)
    assert arranged("aten.mm.default", ("self", "mat2")) is None
    assert arranged("aten.mm.default", ("mat2", "self")) == (1, 0)
    assert arranged("aten.mm.default", ("mat2", "x", "self")) == (2, 0)
    assert arranged("my.operator", ("b", "a")) is None
    # torch 2.14 renamed the first argument
    assert arranged("aten._cdist_backward.default", ("grad", "x1", "x2", "p", "cdist")) is None
    assert arranged("aten._cdist_backward.default", ("grad_output", "x1", "x2", "p", "cdist")) is None


def test_the_table_has_the_operators_of_the_installed_torch() -> None:
    """In a process of its own: others register operators too. If it fails: python -m tests.oracle.operator_arguments."""
    told = "from tests.oracle.operator_arguments import missing; print(missing())"
    assert finished(told).stdout == "{}\n"


def test_a_gather_without_operands(tmp_path: Path) -> None:
    """It is unknown, and the report says so also where it looks for token ids."""
    path = save(tmp_path / "a.pt2", of_vectors(listed("aten.embedding.default"), 6, 1))
    report = graphflops.analyze(path)
    assert [row.state for row in report.rows] == ["unknown"]
    assert items(report) == {"samples": 6}
