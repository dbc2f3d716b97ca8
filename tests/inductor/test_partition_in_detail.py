"""What is saved where two tensors cost nearly the same, by the weights of torch.compile's partitioner."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.inductor.lowering import Op
from graphflops.inductor.partition import Partition
from tests.inductor.test_partition import joint, op


def saved(*ops: Op, given: dict[str, int] | None = None, **sizes: int) -> list[str]:
    """given: tensors of the program, with their bytes."""
    graph: Any = joint(*ops, sizes={**sizes, **(given or {})}, results={"result"})
    graph.inputs.update(given or {})
    return [*Partition(graph).saved()]


@pytest.mark.parametrize(("given", "expected"), [(109, "u"), (111, "a"), (115, "a")])
def test_what_is_given_weighs_its_bytes_and_what_is_computed_a_tenth_more(given: int, expected: str) -> None:
    """One operator before the backward; a library reads it, so that it is stored in any case."""
    ops = (
        op("pointwise", "a", "u"),
        op("extern", "result", "a", recomputable=False),
        op("pointwise", "gradient", "a", is_gradient=True),
    )
    assert saved(*ops, given={"u": given}, a=100, result=100, gradient=100) == [expected]


@pytest.mark.parametrize(("size", "expected"), [(115, "a"), (121, "a"), (122, "z"), (125, "z")])
def test_a_view_that_the_backward_reads_is_an_operator_more(size: int, expected: str) -> None:
    """A product three operators before the backward weighs 1.331 times its 100 bytes, the view 1.1 times its own."""
    ops = (
        op("extern", "z", "x", recomputable=False),
        op("pointwise", "a", "z"),
        op("pointwise", "result", "a"),
        op("pointwise", "gradient", "a", is_gradient=True, views={"a": "reshaped"}),
    )
    assert saved(*ops, z=100, a=size, result=100, gradient=100) == [expected]


def test_what_a_library_reads_for_the_backward_alone_is_stored() -> None:
    """Its copy is none of the forward: it may be made again, but what it copies may not."""
    ops = (
        op("extern", "product", "x", recomputable=False),
        op("pointwise", "active", "product"),
        op("pointwise", "result", "active"),
        op("extern", "copy", "active", recomputable=False),
        op("pointwise", "gradient", "copy", is_gradient=True),
    )
    assert saved(*ops, product=10, active=100, result=100, copy=200, gradient=1) == ["active"]


def test_gradients_of_others_are_not_saved() -> None:
    ops = (
        op("extern", "a", "x", recomputable=False),
        op("extern", "b", "a", recomputable=False),
        op("pointwise", "result", "b"),
        op("pointwise", "first", "a", is_gradient=True),
        op("pointwise", "second", "first", "b", is_gradient=True),
    )
    assert saved(*ops, a=100, b=100, result=100, first=1, second=1) == ["a", "b"]


def test_gradients_that_come_from_outside_are_not_saved() -> None:
    graph = joint(
        op("extern", "a", "x", recomputable=False),
        op("pointwise", "result", "a"),
        op("pointwise", "gradient", "tangent", "a", is_gradient=True),
        sizes={"a": 100, "tangent": 1, "result": 100, "gradient": 100},
        results={"result"},
    )
    graph.tangents["tangent"] = None
    assert [*Partition(graph).saved()] == ["a"]


@pytest.mark.parametrize(("small", "is_kept"), [(24, True), (25, False)])
def test_a_quarter_of_what_it_is_computed_from(small: int, is_kept: bool) -> None:
    """Of 100 bytes a tensor of less than a quarter is not computed again, though saving another would cost less."""
    ops = (
        op("extern", "a", "x", recomputable=False),
        op("pointwise", "mask", "a"),
        op("pointwise", "result", "a", "mask"),
        op("pointwise", "gradient", "mask", "a", is_gradient=True),
    )
    found = saved(*ops, a=100, mask=small, result=100, gradient=100)
    assert found == (["a", "mask"] if is_kept else ["a"])
