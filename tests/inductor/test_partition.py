"""What is saved for the backward, by the rules of torch.compile's partitioner."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.inductor.lowering import JointGraph, Op
from graphflops.inductor.partition import Partition
from tests.inductor.one_call import CLASSES


def joint(*ops: Op, sizes: dict[str, int], results: set[str]) -> JointGraph:
    graph = JointGraph({}, HOPPER, sizes={"x": 0, **sizes}, inputs={"x": True}, results=results)
    graph.ops.extend(ops)
    return graph


def op(kind: Any, out: str, *reads: str, is_gradient: bool = False, **more: Any) -> Op:
    made: Op = CLASSES[kind]((out,), reads, 100, 0, out, is_gradient=is_gradient, **more)
    return made


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
        op("extern", "result", "relu", recomputable=False, views={"relu": "reshaped"}),
        op("extern", "gradient of weight", "relu", is_gradient=True, views={"relu": "reshaped"}),
        op("pointwise", "mask", "relu"),
        op("pointwise", "gradient", "mask", is_gradient=True),
        sizes={"product": 1000, "relu": 1000, "result": 10, "mask": 500, "gradient": 10},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == ["relu", "mask"]


def saved(
    *ops: Op, gradients: tuple[str, ...] = (), tangents: tuple[str, ...] = (), **sizes: int
) -> list[str]:
    """What is saved of a product of 300 bytes and of what is computed from it; `result` is returned."""
    product = op("extern", "product", "x", recomputable=False)
    graph = joint(product, *ops, sizes={"product": 300, "gradient": 10, **sizes}, results={"result"})
    graph.gradients.update(dict.fromkeys(gradients))
    graph.tangents.update(dict.fromkeys(tangents))
    return list(Partition(graph).saved())


@pytest.mark.parametrize(("size", "expected"), [(74, ["product", "small"]), (75, ["product"])])
def test_what_is_less_than_a_quarter_of_its_operand_is_not_computed_again(
    size: int, expected: list[str]
) -> None:
    """The product is saved anyway: 4 x 75 are 300 bytes."""
    found = saved(
        op("pointwise", "small", "product"),
        op("pointwise", "result", "small"),
        op("pointwise", "gradient", "product", "small", is_gradient=True),
        small=size,
        result=300,
    )
    assert found == expected


@pytest.mark.parametrize(("size", "expected"), [(90, "far"), (96, "near")])
def test_a_tensor_weighs_a_tenth_more_for_each_operator_before_the_backward(size: int, expected: str) -> None:
    """Of 100 bytes that gradients read, 110; one operator before, of 90 bytes 108.9, of 96 bytes 116.2."""
    found = saved(
        op("pointwise", "far", "product"),
        op("pointwise", "near", "far"),
        op("pointwise", "result", "near"),
        op("pointwise", "gradient", "near", is_gradient=True),
        far=size,
        near=100,
        result=100,
    )
    assert found == [expected]


@pytest.mark.parametrize(("kind", "expected"), [("pointwise", "far"), ("extern", "near")])
def test_what_no_kernel_of_a_library_reads_weighs_twice(kind: str, expected: str) -> None:
    """100 bytes weigh 110 where they are stored anyway, else 220; 80 bytes one operator before twice 96."""
    found = saved(
        op("pointwise", "far", "product"),
        op("pointwise", "near", "far"),
        op(kind, "result", "near"),
        op("pointwise", "gradient", "near", is_gradient=True),
        far=80,
        near=100,
        result=100,
    )
    assert found == [expected]


@pytest.mark.parametrize("is_behind", [True, False])
def test_what_is_read_before_and_behind_a_kernel_of_a_library_is_not_computed_again(is_behind: bool) -> None:
    """A skip connection: `again` reads what the layer before the product read. All else is saved anyway."""
    again = op("pointwise", "again", "base")
    layer = (op("pointwise", "first", "base"), op("extern", "second", "first", recomputable=False))
    found = saved(
        op("pointwise", "base", "product"),
        *((*layer, again) if is_behind else (again, *layer)),
        op("pointwise", "result", "second", "again"),
        op("pointwise", "gradient", "base", "second", "again", is_gradient=True),
        **dict.fromkeys(("base", "first", "second", "again", "result"), 300),
    )
    assert ("again" in found) is is_behind


def test_gradients_that_are_values_of_the_forward_are_saved_and_those_given_are_not() -> None:
    result = op("pointwise", "result", "product")
    assert saved(result, gradients=("product",), result=300) == ["product"]
    given = op("pointwise", "gradient", "tangent", is_gradient=True)
    assert saved(result, given, tangents=("tangent",), result=300, tangent=300) == []


def test_inputs_come_first_then_tensors_in_program_order() -> None:
    found = saved(
        op("extern", "other", "product", recomputable=False),
        op("pointwise", "result", "other"),
        op("pointwise", "gradient", "other", "x", "product", is_gradient=True),
        other=300,
        result=300,
    )
    assert found == ["x", "product", "other"]


@pytest.mark.parametrize(("view", "expected"), [("sources", ["again"]), ("targets", ["x", "rows"])])
def test_what_reads_a_view_of_an_input_far_from_others_is_not_computed_again(
    view: str, expected: list[str]
) -> None:
    """Layers of a graph network read the ends of edges: the second gather, of the same ends, is behind a product."""
    graph = joint(
        op("pointwise", "first", "x", views={"x": "sources"}),
        op("extern", "rows", "first", recomputable=False),
        op("pointwise", "again", "rows", "x", views={"x": view}),
        op("pointwise", "result", "again"),
        op("pointwise", "gradient", "again", is_gradient=True),
        sizes={"first": 100, "rows": 100, "again": 300, "result": 300, "gradient": 300},
        results={"result"},
    )
    assert list(Partition(graph).saved()) == expected
