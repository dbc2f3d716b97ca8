"""How values lie and which parts of them are read in a compiled program, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.dims import symbol
from graphflops.inductor.lowering import JointGraph
from tests.inductor.one_call import kept_of, kind_of, op, plan_of
from tests.inductor.several_calls import lines, ops, plan_of_calls
from tests.one_call import g
from tests.support import t


def test_a_copy_of_what_is_repeated_has_all_elements() -> None:
    repeat = ("s", "expand.default", "x", (40, 64))
    plan = plan_of_calls({"x": t(1, 64)}, repeat, ("y", "reshape.default", "s", (2560,)))
    assert lines(plan) == ["pointwise y <- x: 2560"]
    assert plan.joint.bytes("y") == 4 * 2560
    assert ops(plan)["y"].instructions == 0


def test_a_part_that_is_repeated_is_read_once() -> None:
    part, repeat = ("s", "slice.Tensor", "x", 1, 0, 1), ("e", "expand.default", "s", (10, 4))
    plan = plan_of_calls({"x": t(10, 64)}, part, repeat, ("y", "relu.default", "e"))
    assert ops(plan)["y"].parts == {"x": {"e": 4 * 10}}


PART, PRODUCT = ("s", "slice.Tensor", "m", 0, 0, 4), ("y", "mm.default", "s", "w")


def test_attention_reads_copies_of_parts_of_what_is_computed() -> None:
    """Then the whole need not be stored. A product reads its part of the whole."""
    parts = [(name, "slice.Tensor", "m", 0, 2 * place, 2 * place + 2) for place, name in enumerate("qkv")]
    attention = ("y", "scaled_dot_product_attention.default", "q", "k", "v")
    given = {"x": t(6, 4, 128, 64, dtype="bfloat16")}
    plan = plan_of_calls(given, ("m", "relu.default", "x"), *parts, attention)
    count = 2 * 4 * 128 * 64
    copies = [f"pointwise {name} <- m: {count}" for name in "qkv"]
    assert lines(plan)[1:4] == copies
    assert ops(plan)["y"].reads == ("y q", "y k", "y v")
    copy = ops(plan)["k"]
    assert (copy.outputs, copy.moved, copy.parts) == (("y k",), {"m"}, {"m": {"k": 2 * count}})
    assert plan.joint.bytes("y k") == 2 * count
    product = plan_of_calls({"x": t(10, 64), "w": t(64, 8)}, ("m", "relu.default", "x"), PART, PRODUCT)
    assert lines(product)[1:] == ["extern y <- m w: 32"]


@pytest.mark.parametrize(
    ("x", "before"),
    [
        (t(10, 64), [("m", "mm.default", "x", "v")]),  # made by a library
        (g(10, 64), [("m", "relu.default", "x")]),  # in a training step the partitioner decides
    ],
)
def test_a_library_reads_the_part_where_it_lies(x: Any, before: Any) -> None:
    plan = plan_of_calls({"x": x, "w": t(64, 8), "v": t(64, 64)}, *before, PART, PRODUCT)
    assert lines(plan)[1] == "extern y <- m w: 32"
    assert ops(plan)["y"].parts == {"m": {"s": 4 * 256}}


def test_numbers_of_a_formula() -> None:
    operands = t(4, 8), t(4, 8)
    assert plan_of("aten.isclose.default", *operands, 1e-5, 1e-8, True).joint.ops[0].numbers == (1e-5, 1e-8)
    assert plan_of("aten.add.Tensor", *operands, alpha=2).joint.ops[0].numbers == (2,)
    assert plan_of("aten.softmax.int", t(4, 8), -1).joint.ops[0].numbers == ()


def test_a_recurrent_layer_keeps_what_its_gradient_reads() -> None:
    """cuDNN keeps it in one tensor, beside the results."""
    shapes = {"h": (1, 2, 5), "c": (1, 2, 5), "i": (20, 8), "w": (20, 5), "a": (20,), "b": (20,)}
    given = {"x": g(6, 2, 8)} | {name: t(*shape) for name, shape in shapes.items()}
    more = (("h", "c"), ("i", "w", "a", "b"), True, 1, 0.0, True, False, False)
    plan = plan_of_calls(given, ("y n m", "lstm.input", "x", *more))
    forward, backward = plan.joint.ops
    assert forward.outputs == ("y", "n", "m", "y kept")
    assert [plan.joint.bytes(name) for name in forward.outputs[:3]] == [4 * 60, 4 * 10, 4 * 10]
    assert plan.joint.labels["y kept"] == ("y", "saved")
    assert (forward.elements, forward.workspace) == (60, 0)
    assert backward.reads[-2:] == ("y", "y kept")


def graph(values: dict[str, int]) -> JointGraph:
    return JointGraph(values, HOPPER)


def test_sizes_as_numbers() -> None:
    """Open sizes have their example, or are some number."""
    n, m = symbol("n"), symbol("m")
    joint = graph({"n": 3})
    joint.sizes.update({"a": 4 * n, "b": 4 * m, "c": 7})
    assert [joint.bytes(name) for name in "acd"] == [12, 7, 0]
    assert joint.bytes("b") == 4 * joint.number(m) > 0


@pytest.mark.parametrize(
    ("elements", "kept", "expected"),
    [(80, 10, ("reduction", 80, 10)), (79, 10, ("pointwise", 10, 0)), (10, 10, ("pointwise", 10, 0))],
)
def test_sums_of_fewer_than_eight_elements_take_no_loop(elements: int, kept: int, expected: Any) -> None:
    joint = graph({})
    joint.add(op("reduction", "a", "x", elements=elements, kept=kept))
    (found,) = joint.ops
    assert (kind_of(found), found.elements, kept_of(found)) == expected


def test_a_sum_to_nothing_takes_no_loop() -> None:
    joint = graph({})
    joint.add(op("reduction", "a", "x", elements=0, kept=0))
    joint.add(op("extern", "b", "x", elements=-1))
    assert [kind_of(found) for found in joint.ops] == ["pointwise", "extern"]


def test_weights_are_not_the_programs_own() -> None:
    """A plan counts what the user gives; of weights, and of sizes that are given, it knows the bytes alone."""
    product = ("y", "mm.default", "x", "w")
    plan = plan_of_calls({"x": t(4, 8), "w": t(8, 16)}, product, parameters="w")
    assert plan.joint.inputs == {"x": 4 * 32, "w": 4 * 128}
    assert [plan.joint.bytes(name) for name in "xwy"] == [4 * 32, 0, 4 * 64]
    assert [plan.joint.sizes[name] for name in "xw"] == [4 * 32, 0]
