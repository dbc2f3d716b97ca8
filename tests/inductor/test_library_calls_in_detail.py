"""What libraries compute in a compiled program: products, convolutions and collectives, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.inductor.lowering import Extern
from tests.inductor.one_call import each, made, plan_of
from tests.inductor.several_calls import lines, ops, plan_of_calls
from tests.one_call import g
from tests.support import t

HALF: dict[str, Any] = {"dtype": "bfloat16"}


def reduced(out: str, x: str) -> tuple[Any, ...]:
    """A sum over devices, and the wait for it."""
    return (f"{out}_", "_c10d_functional.all_reduce.default", x, "sum", "0")


def gathered(out: str, x: str) -> tuple[Any, ...]:
    return (f"{out}_", "_c10d_functional.all_gather_into_tensor.default", x, 2, "0")


def wait(out: str) -> tuple[Any, ...]:
    return (out, "_c10d_functional.wait_tensor.default", f"{out}_")


SIN = ("m", "sin.default", "x")


@pytest.mark.parametrize(
    ("before", "summed", "after", "copied"),
    [
        ([], "x", ("y", "relu.default", "a"), "x"),  # what is given
        ([("v", "view.default", "x", (64, 4))], "v", ("y", "relu.default", "a"), "x"),
        ([SIN], "m", ("y", "add.Tensor", "a", "m"), "m"),  # what something else reads
        ([SIN, ("v", "view.default", "m", (64, 4))], "v", ("y", "mul.Tensor", "a", "v"), "m"),
        ([SIN], "m", ("y", "relu.default", "a"), ""),
        ([SIN, ("v", "view.default", "m", (64, 4))], "v", ("y", "relu.default", "a"), ""),
    ],
)
def test_a_sum_over_devices_is_written_over_its_operand(
    before: Any, summed: str, after: Any, copied: str
) -> None:
    plan = plan_of_calls({"x": t(4, 64)}, *before, reduced("a", summed), wait("a"), after)
    exchange = ops(plan)["a_"]
    assert exchange.reads == ("a_ copy" if copied else "m",)
    assert (exchange.into, exchange.role) == ("operand", "exchange")
    assert [op.reads for op in plan.joint.ops if op.outputs == ("a_ copy",)] == [(copied,)] * bool(copied)
    assert plan.joint.bytes("a_") == plan.joint.bytes(exchange.reads[0]) == 4 * 256


def test_what_is_gathered_has_memory_of_its_own() -> None:
    for x in ("x", "m"):
        plan = plan_of_calls({"x": t(4, 64)}, SIN, gathered("a", x), wait("a"), ("y", "relu.default", "a"))
        exchange = ops(plan)["a_"]
        assert exchange.reads == (x,)
        assert (exchange.into, exchange.role) == ("own", "exchange")
        assert plan.joint.bytes("a_") == 2 * 4 * 256


@pytest.mark.parametrize(("way", "is_over"), [(reduced, True), (gathered, False)])
def test_gradients_are_exchanged_too(way: Any, is_over: bool) -> None:
    plan = plan_of_calls({"x": g(4, 64)}, SIN, way("a", "m"), wait("a"), ("y", "sin.default", "a"))
    count = 256 if is_over else 512
    assert lines(plan)[3:] == [
        f"pointwise g2 <- g1 a_: {count}",
        f"extern g3 <- g2: {count}",
        "pointwise g4 <- g3 x: 256",
    ]
    exchange = ops(plan)["g3"]
    assert (exchange.into, exchange.role) == ("operand" if is_over else "own", "exchange")
    product = plan_of_calls({"x": g(4, 64), "w": t(64, 8)}, ("y", "mm.default", "x", "w"))
    assert [(op.into, op.role) for op in product.joint.ops if isinstance(op, Extern)] == [
        ("any", "product")
    ] * 2


@pytest.mark.parametrize(
    ("op", "x", "w", "views"),
    [
        ("linear.default", t(2, 4, 64), t(16, 64), {"x"}),
        ("linear.default", t(4, 64), t(16, 64), set()),
        ("matmul.default", t(2, 8, 64), t(2, 64, 8), set()),
        ("matmul.default", t(2, 4, 8, 64), t(2, 4, 64, 8), {"x", "w"}),
    ],
)
def test_operands_whose_axes_are_merged(op: str, x: Any, w: Any, views: set[str]) -> None:
    assert set(ops(plan_of_calls({"x": x, "w": w}, ("y", op, "x", "w")))["y"].views) == views


LINEAR = ("y", "linear.default", "x", "w", "b")


@pytest.mark.parametrize(
    ("dtype", "after", "is_added_later"),
    [
        ("float32", ("z", "relu.default", "y"), True),
        ("float32", ("z", "mm.default", "y", "v"), False),  # a library reads the result
        ("float32", ("z", "sum.dim_IntList", "y", (1,)), False),
        ("float32", ("z", "index_select.default", "y", 0, "i"), False),
        ("bfloat16", ("z", "relu.default", "y"), False),
        ("bfloat16", ("z", "mm.default", "y", "v"), False),
    ],
)
def test_where_a_bias_is_added(dtype: str, after: Any, is_added_later: bool) -> None:
    shapes = {"x": (8, 64), "w": (16, 64), "b": (16,), "v": (16, 8)}
    given = {name: t(*shape, dtype=dtype) for name, shape in shapes.items()}
    plan = plan_of_calls(given | {"i": t(8, dtype="int64")}, LINEAR, after)
    assert lines(plan)[0] == "extern y <- x w b: 128"
    product = "extern bias <- x w: 128" if is_added_later else "extern y <- x w b: 128"
    assert lines(plan, plan.forward)[0] == product
    assert plan.joint.labels == ({"y without bias": ("y", "value")} if is_added_later else {})


def test_a_bias_is_added_later_where_the_operand_is_copied() -> None:
    given = {"x": t(2, 64, 8, **HALF), "w": t(16, 64, **HALF), "b": t(16, **HALF)}
    turn = ("p", "transpose.int", "x", 1, 2)
    plan = plan_of_calls(given, turn, ("y", "linear.default", "p", "w", "b"), ("z", "relu.default", "y"))
    assert lines(plan)[:3] == [
        "pointwise 0 <- x: 1024",
        "extern bias <- 0 w: 256",
        "pointwise y <- bias b: 256",
    ]
    assert ops(plan)["bias"].views == {"y operand 0": "p"}


def test_gradients_of_a_product_whose_columns_are_padded() -> None:
    """1001 columns are 1008; rows of the gradient's copy begin at lines, 2002 bytes or 2016 are sixteen of them."""
    plan = plan_of_calls({"x": g(2048, 512, **HALF), "w": g(1001, 512, **HALF)}, LINEAR[:-1])
    assert lines(plan) == [
        f"pointwise 1 <- w: {512 * 1008}",
        f"extern y <- x 1: {2048 * 1001}",
        f"pointwise g4 <- g1: {2048 * 16 * 128}",
        f"pointwise g5 <- w: {2 * 1001 * 512}",
        f"extern g2 <- g4 g5: {2048 * 1001}",
        f"pointwise g6 <- g1: {2048 * 16 * 128}",
        f"extern g3 <- g6 x: {2048 * 1001}",
    ]
    assert each(plan, "is_padded") == [False, True, False, False, True, False, True]
    assert each(plan, "is_alone") == [True, *[False] * 6]
    assert plan.joint.bytes("y") == 2 * 2048 * 1008
    assert plan.joint.bytes("y padded 1") == 2 * 512 * 1008


def test_a_product_with_a_bias_and_no_size_of_a_multiple_of_8() -> None:
    given = {"x": t(12, 12, **HALF), "w": t(30, 12, **HALF), "b": t(30, **HALF)}
    plan = plan_of_calls(given, LINEAR)
    assert lines(plan) == [
        f"pointwise 0 <- x: {16 * 16}",
        f"pointwise 1 <- w: {16 * 32}",
        "pointwise 2 <- b: 32",
        "extern y <- 0 1 2: 360",
    ]
    sizes = [plan.joint.bytes(op.outputs[0]) for op in plan.joint.ops]
    assert sizes == [2 * 16 * 16, 2 * 16 * 32, 2 * 32, 2 * 16 * 32]


@pytest.mark.parametrize(
    ("c", "more", "expected"),
    [
        (g(8, 16), {"beta": 2}, ("pointwise", 4 * 128, 128, 0, "g1", "")),
        (g(16), {}, ("reduction", 4 * 16, 128, 16, "g1", "outer")),
        (g(8, 1), {}, ("reduction", 4 * 8, 128, 8, "g1", "outer")),
    ],
)
def test_the_gradient_of_what_is_added_to_a_product(c: Any, more: Any, expected: Any) -> None:
    plan = plan_of("aten.addmm.default", c, t(8, 64), t(64, 16), **more)
    assert made(plan)[1:] == [expected]


def test_a_sequence_whose_channels_are_last_is_copied() -> None:
    given = {"x": t(2, 50, 8), "w": t(4, 8, 3), "b": t(4)}
    turn, conv = ("p", "transpose.int", "x", 1, 2), ("y", "conv1d.default", "p", "w", "b")
    plan = plan_of_calls(given, turn, conv)
    count = 2 * 4 * 48
    assert lines(plan) == [
        "pointwise input <- x: 800",
        f"extern bias <- input w: {count}",
        f"pointwise y <- bias b: {count}",
    ]
    assert ops(plan)["bias"].workspace == 0  # eagerly the call itself makes the copy


def test_groups_of_few_channels_are_not_padded() -> None:
    """Beside a convolution that has the program's images turned."""
    given = {"x": t(2, 96, 16, 16), "w": t(96, 96, 3, 3), "s": t(2, 8, 16, 16), "v": t(16, 4, 3, 3)}
    calls = ("y", "conv2d.default", "x", "w"), ("z", "conv2d.default", "s", "v", None, 1, 0, 1, 2)
    plan = plan_of_calls(given, *calls, results=("y", "z"))
    assert plan.joint.channels_last
    assert ops(plan)["z"].workspace == 0
    assert ops(plan)["z"].reads == ("z input", "z weight")
