"""What is saved for the backward, by the rules of torch.compile's partitioner."""

from __future__ import annotations

from typing import Any

from graphflops.devices import HOPPER
from graphflops.inductor.joint_graph import JointGraph, Op
from graphflops.inductor.partition import Partition


def joint(*ops: Op, sizes: dict[str, int], results: set[str]) -> JointGraph:
    graph = JointGraph({}, HOPPER, sizes={"x": 0, **sizes}, inputs={"x": True}, results=results)
    graph.ops.extend(ops)
    return graph


def op(kind: Any, out: str, *reads: str, is_gradient: bool = False, **more: Any) -> Op:
    return Op(kind, (out,), reads, 100, 0, out, is_gradient=is_gradient, **more)


def test_a_cast_of_what_is_saved_is_computed_again() -> None:
    graph = joint(
        op("extern", "product", "x", recomputable=False),
        op("pointwise", "wide", "product"),
        op("pointwise", "result", "wide"),
        op("pointwise", "gradient", "wide", is_gradient=True),
        sizes={"product": 100, "wide": 200, "result": 100, "gradient": 100},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == ["product"]


def test_a_smaller_tensor_is_saved_instead_of_what_it_is_computed_from() -> None:
    graph = joint(
        op("extern", "product", "x", recomputable=False),
        op("pointwise", "mask", "product"),
        op("pointwise", "result", "product", "mask"),
        op("pointwise", "gradient", "mask", is_gradient=True),
        sizes={"product": 100, "mask": 10, "result": 100, "gradient": 100},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == ["mask"]


def test_what_a_product_of_the_backward_reads_is_not_computed_again() -> None:
    graph = joint(
        op("extern", "product", "x", recomputable=False),
        op("pointwise", "active", "product"),
        op("extern", "result", "active", recomputable=False),
        op("extern", "gradient", "active", is_gradient=True),
        sizes={"product": 10, "active": 100, "result": 100, "gradient": 100},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == ["active"]


def test_a_checkpoint_saves_what_goes_into_it() -> None:
    graph = joint(
        op("pointwise", "given", "x", recomputable=False),
        op("extern", "product", "given", recomputable=False, must_recompute=True),
        op("pointwise", "result", "product", must_recompute=True),
        op("pointwise", "gradient", "product", is_gradient=True),
        sizes={"given": 100, "product": 10, "result": 100, "gradient": 100},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == ["given"]


def test_a_relu_that_a_linear_layer_reshapes_is_saved_beside_its_mask() -> None:
    """The view counts as what is saved, so that the relu would be computed again; the mask, half its size, is saved too."""
    graph = joint(
        op("extern", "product", "x", recomputable=False),
        op("pointwise", "relu", "product"),
        op("extern", "result", "relu", recomputable=False, views=frozenset({"relu"})),
        op("extern", "gradient of weight", "relu", is_gradient=True, views=frozenset({"relu"})),
        op("pointwise", "mask", "relu"),
        op("pointwise", "gradient", "mask", is_gradient=True),
        sizes={"product": 1000, "relu": 1000, "result": 10, "mask": 500, "gradient": 10},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == ["relu", "mask"]
