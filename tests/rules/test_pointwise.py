"""Elementwise arithmetic: result types, work per element, traffic, gradients, known contents."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.cost import Estimate
from graphflops.dims import Dim, symbol
from graphflops.errors import ShapeError
from graphflops.rules.registry import ForwardCall, find_backward, known
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

INTEGERS = t(8, dtype="int64")
BITWISE = ("and", "or", "xor", "lshift", "rshift")
s = symbol("s")


@pytest.mark.parametrize(
    ("op", "operands", "shape", "dtype", "flops", "evaluations"),
    [
        # sums
        ("aten.add.Tensor", (t(4, 8), t(4, 8)), (4, 8), "float32", 32, 0),
        ("aten.add.Tensor", (t(4, 1, 8), t(3, 1)), (4, 3, 8), "float32", 96, 0),
        ("aten.add.Tensor", (t("s", 8), t(8)), (s, 8), "float32", 8 * s, 0),
        ("aten.add_.Tensor", (t(4), t(4)), (4,), "float32", 4, 0),
        ("aten.add.Tensor", (t(8, dtype="complex64"), t(8)), (8,), "complex64", 2 * 8, 0),
        ("aten.sub.Scalar", (t(8, dtype="int64"), 2), (8,), "int64", 8, 0),
        ("aten.sub.Scalar", (t(8, dtype="int64"), 2.0), (8,), "float32", 8, 0),
        ("aten.rsub.Scalar", (t(8, dtype="float16"), 1), (8,), "float16", 8, 0),
        ("aten.lerp.Scalar", (t(8), t(8), 0.5), (8,), "float32", 3 * 8, 0),
        # products
        ("aten.mul.Tensor", (t(4, 8), t(8, dtype="float16")), (4, 8), "float32", 32, 0),
        ("aten.mul.Tensor", (t(8, dtype="float16"), t(dtype="float64")), (8,), "float16", 8, 0),
        ("aten.mul.Tensor", (t(8, dtype="float32"), t(dtype="complex128")), (8,), "complex64", 6 * 8, 0),
        ("aten.mul.Scalar", (t(8, dtype="bool"), 3), (8,), "int64", 8, 0),
        ("aten.mul.Scalar", (t(8, dtype="float64"), 1j), (8,), "complex128", 6 * 8, 0),
        ("aten.div.Tensor", (t(8, dtype="int32"), t(8, dtype="int64")), (8,), "float32", 8, 0),
        ("aten.div.Tensor", (t(8, dtype="complex64"), t(8, dtype="complex64")), (8,), "complex64", 11 * 8, 0),
        ("aten.floor_divide.default", (t(8, dtype="int64"), t(8, dtype="int64")), (8,), "int64", 2 * 8, 0),
        ("aten.remainder.Scalar", (t(8, dtype="int64"), 3), (8,), "int64", 4 * 8, 0),
        ("aten.reciprocal.default", (t(8, dtype="int64"),), (8,), "float32", 8, 0),
        # powers
        ("aten.pow.Tensor_Scalar", (t(8), 2), (8,), "float32", 8, 0),
        ("aten.pow.Tensor_Scalar", (t(8), 3.0), (8,), "float32", 2 * 8, 0),
        ("aten.pow.Tensor_Scalar", (t(8), 0.5), (8,), "float32", 0, 8),
        ("aten.pow.Tensor_Scalar", (t(8), 1), (8,), "float32", 0, 0),
        ("aten.pow.Tensor_Scalar", (t(8), 2.4), (8,), "float32", 0, 8),
        ("aten.pow.Tensor_Scalar", (t(8, dtype="complex64"), 2), (8,), "complex64", 6 * 8, 0),
        ("aten.pow.Scalar", (2, t(8)), (8,), "float32", 0, 8),
        ("aten.pow.Tensor_Tensor", (t(4, 1), t(3)), (4, 3), "float32", 0, 12),
        ("aten.square.default", (t(8, dtype="bool"),), (8,), "int64", 8, 0),
        ("aten.float_power.Tensor_Scalar", (t(8, dtype="int64"), 2), (8,), "float64", 8, 0),
        # comparisons and choices
        ("aten.ge.Scalar", (t(8), 0), (8,), "bool", 8, 0),
        ("aten.logical_and.default", (t(8), t(8, dtype="int64")), (8,), "bool", 8, 0),
        ("aten.maximum.default", (t(8, 1), t(8)), (8, 8), "float32", 64, 0),
        ("aten.max.other", (t(8, dtype="int32"), t(8, dtype="int64")), (8,), "int64", 8, 0),
        ("aten.clamp.default", (t(8), 0, None), (8,), "float32", 8, 0),
        ("aten.clamp.default", (t(8), None, 1), (8,), "float32", 8, 0),
        ("aten.clamp.Tensor", (t(8, dtype="int64"), t(8), t(8)), (8,), "float32", 2 * 8, 0),
        ("aten.where.self", (t(4, 1, dtype="bool"), t(8), t(dtype="float64")), (4, 8), "float32", 32, 0),
        ("aten.where.Scalar", (t(4, dtype="bool"), 1.0, 0), (4,), "float32", 4, 0),
        ("aten.masked_fill.Scalar", (t(4, 1), t(8, dtype="bool"), -1e9), (4, 8), "float32", 32, 0),
        ("aten.isclose.default", (t(8), t(8)), (8,), "bool", 6 * 8, 0),
        # rounding and bits
        ("aten.floor.default", (t(8),), (8,), "float32", 8, 0),
        ("aten.frac.default", (t(8),), (8,), "float32", 2 * 8, 0),
        ("aten.bitwise_and.Tensor", (t(8, dtype="bool"), t(8, dtype="uint8")), (8,), "uint8", 8, 0),
        ("aten.__rshift__.Scalar", (t(8, dtype="int32"), 2), (8,), "int32", 8, 0),
        *((f"aten.__i{name}__.Tensor", (INTEGERS, INTEGERS), (8,), "int64", 8, 0) for name in BITWISE),
        ("aten.nan_to_num.default", (t(8), 0.0), (8,), "float32", 3 * 8, 0),
        # complex numbers
        ("aten.abs.default", (t(8, dtype="complex64"),), (8,), "float32", 3 * 8, 8),
        ("aten.abs.default", (t(8, dtype="int16"),), (8,), "int16", 8, 0),
        ("aten.angle.default", (t(8, dtype="complex128"),), (8,), "float64", 0, 8),
        ("aten.complex.default", (t(8), t(8)), (8,), "complex64", 0, 0),
        ("aten.polar.default", (t(8, dtype="float64"), t(8, dtype="float64")), (8,), "complex128", 16, 16),
        ("aten.hypot.default", (t(8), t(8)), (8,), "float32", 3 * 8, 8),
        ("aten.atan2.default", (t(8, dtype="int64"), t(8)), (8,), "float32", 0, 8),
    ],
)
def test_work_and_type(op, operands, shape, dtype, flops, evaluations) -> None:
    estimate = price(op, *operands)
    assert estimate.out == (t(*shape, dtype=dtype),)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)
    assert estimate.matrix_flops == 0


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "flops"),
    [
        ("aten.add.Tensor", (t(8), t(8)), {"alpha": 2}, 2 * 8),
        ("aten.sub.Tensor", (t(8), t(8)), {"alpha": 1}, 8),
        ("aten.addcmul.default", (t(8), t(8), t(8)), {}, 2 * 8),
        ("aten.addcdiv.default", (t(8), t(8), t(8)), {"value": 0.1}, 3 * 8),
        ("aten.div.Tensor_mode", (t(8), t(8)), {"rounding_mode": "floor"}, 2 * 8),
        ("aten.div.Scalar_mode", (t(8), 3), {"rounding_mode": None}, 8),
        ("aten.round.decimals", (t(8),), {"decimals": 2}, 3 * 8),
        ("aten.round.default", (t(8),), {}, 8),
    ],
)
def test_attributes_change_the_work(op, operands, attributes, flops) -> None:
    assert price(op, *operands, **attributes).vector_flops == flops


def test_rounding_division_keeps_integers() -> None:
    integers = t(8, dtype="int64")
    assert price("aten.div.Tensor_mode", integers, integers, rounding_mode="trunc").out == (integers,)
    assert price("aten.div.Tensor_mode", integers, integers, rounding_mode=None).out == (t(8),)


def test_traffic_reads_operands_once_and_writes_the_result() -> None:
    cost = price("aten.add.Tensor", t(4, 8), t(8)).cost
    assert (cost.read_bytes, cost.written_bytes) == (4 * 32 + 4 * 8, 4 * 32)


def test_expanded_operand_is_read_at_its_stored_size() -> None:
    cost = price("aten.mul.Tensor", t(4, 8), t(4, 8, stored=8)).cost
    assert (cost.read_bytes, cost.written_bytes) == (4 * 32 + 4 * 8, 4 * 32)


def test_numbers_are_not_read() -> None:
    assert price("aten.mul.Scalar", t(8), 2.0).cost.read_bytes == 4 * 8


@pytest.mark.parametrize("op", ["aten._conj.default", "aten.positive.default", "aten.resolve_neg.default"])
def test_marks_on_the_same_memory_are_free(op) -> None:
    estimate = price(op, t(8, dtype="complex64"))
    assert estimate.alias
    assert not estimate.cost


def test_frexp_has_two_results() -> None:
    assert price("aten.frexp.Tensor", t(8, dtype="float64")).out == (
        t(8, dtype="float64"),
        t(8, dtype="int32"),
    )


def test_positions_of_what_is_true_are_counted_by_the_data() -> None:
    estimate = price("aten.where.default", t(4, 8, dtype="bool"))
    assert shapes(estimate) == [(symbol("nonzero?"),), (symbol("nonzero?"),)]


def test_sizes_that_cannot_meet_are_rejected() -> None:
    with pytest.raises(ShapeError, match="3 and 4"):
        price("aten.add.Tensor", t(3), t(4))


# Gradients.


def gradient(op: str, wants: str, **arguments: Any) -> Estimate:
    """The price of the gradients of the operands named."""
    forward = price(op, **arguments)
    found = find_backward(op)
    assert found is not None
    return found(ForwardCall(forward, arguments, frozenset(wants.split())))


@pytest.mark.parametrize(
    ("op", "wants", "arguments", "flops", "evaluations", "read", "written"),
    [
        # grad * b, grad * a: what is read are grad and the other operand
        ("aten.mul.Tensor", "a", {"a": t(8), "b": t(8)}, 8, 0, 2 * 32, 32),
        ("aten.mul.Tensor", "a b", {"a": t(8), "b": t(8)}, 16, 0, 3 * 32, 2 * 32),
        # one bias for four rows: a product and an addition for each of 32 elements
        ("aten.mul.Tensor", "b", {"a": t(4, 8), "b": t(8)}, 2 * 32, 0, 2 * 128, 32),
        # the gradient of a sum is the result's own, unless it was broadcast
        ("aten.add.Tensor", "a b", {"a": t(8), "b": t(8)}, 0, 0, 0, 0),
        ("aten.add.Tensor", "a b", {"a": t(4, 8), "b": t(8)}, 32, 0, 128, 32),
        ("aten.sub.Tensor", "b", {"a": t(8), "b": t(8)}, 8, 0, 32, 32),
        # grad / b; -grad * out / b
        ("aten.div.Tensor", "a", {"a": t(8), "b": t(8)}, 8, 0, 2 * 32, 32),
        ("aten.div.Tensor", "a b", {"a": t(8), "b": t(8)}, 4 * 8, 0, 3 * 32, 64),
        # zero behind a rounding: only written
        ("aten.floor.default", "a", {"a": t(8)}, 0, 0, 0, 32),
        # grad / 2^exponent
        ("aten.frexp.Tensor", "a", {"a": t(8)}, 8, 8, 32 + 32, 32),
        # 2 * a * grad
        ("aten.pow.Tensor_Scalar", "a", {"a": t(8), "exponent": 2}, 2 * 8, 0, 64, 32),
        ("aten.pow.Tensor_Scalar", "a", {"a": t(8), "exponent": 2.5}, 2 * 8, 8, 64, 32),
        ("aten.square.default", "a", {"a": t(8)}, 2 * 8, 0, 64, 32),
        ("aten.where.self", "a b", {"condition": t(8, dtype="bool"), "a": t(8), "b": t(8)}, 16, 0, 40, 64),
        ("aten.clamp.default", "a", {"a": t(8), "min": 0, "max": 1}, 16, 0, 64, 32),
        (
            "aten.masked_fill.Scalar",
            "a",
            {"a": t(8), "mask": t(8, dtype="bool"), "value": 0},
            8,
            0,
            32 + 8,
            32,
        ),
        ("aten.mul.Tensor", "a", {"a": t(8, dtype="complex64"), "b": t(8)}, 2 * 8, 0, 64 + 32, 64),
    ],
)
def test_gradients(op, wants, arguments, flops, evaluations, read, written) -> None:
    estimate = gradient(op, wants, **arguments)
    assert estimate.out == tuple(arguments[name] for name in wants.split())
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, evaluations)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (read, written)


def test_gradient_of_a_rounding_division_is_zero() -> None:
    operands = {"a": t(8), "b": t(8)}
    for mode, flops in (("floor", 0), (None, 8)):
        assert gradient("aten.div.Tensor_mode", "a", **operands, rounding_mode=mode).vector_flops == flops


@pytest.mark.parametrize(("rows", "flops"), [(s // 8 * 8, 0), (s, 0), (1, 8 * s)])
def test_only_the_gradient_of_a_repeated_operand_is_summed(rows: Dim, flops: Dim) -> None:
    assert gradient("aten.add.Tensor", "b", a=t(s, 8), b=t(rows, 8)).vector_flops == flops


ELEMENTWISE = [
    rule
    for rule in known()
    if rule.home.endswith((".pointwise", ".activation", ".special")) and find_backward(rule.key) is not None
]


@pytest.mark.parametrize("rule", ELEMENTWISE, ids=lambda rule: rule.key)
def test_every_gradient_has_its_operand_s_type(rule) -> None:
    names = [name for name in rule.signature.positional if name not in ("n", "p", "dim", "generator")]
    arguments = {
        name: t(8) if rule.key == "aten.prelu" and name == "weight" else t(4, 8) for name in names
    } | {"rounding_mode": None, "dim": -1, "n": 1}
    arguments = {name: value for name, value in arguments.items() if name in rule.signature.names}
    if rule.signature.is_variadic:
        arguments["*"] = ()
    estimate = rule.call(arguments)
    found = find_backward(rule.key)
    assert found is not None
    backward = found(ForwardCall(estimate, arguments, frozenset(names)))
    assert backward.out == tuple(arguments[name] for name in names)
    assert backward.cost.written_bytes <= 128 * len(names)


# Known contents.


@pytest.mark.parametrize(
    ("op", "a", "b", "value"),
    [
        ("aten.add.Tensor", t(2, dtype="int64", value=(s, 3)), 1, (s + 1, 4)),
        (
            "aten.mul.Tensor",
            t(2, dtype="int64", value=(s, 3)),
            t(1, dtype="int64", value=(2,)),
            (2 * s, 6),
        ),
        ("aten.floor_divide.default", t(dtype="int64", value=4 * s), 2, 2 * s),
        (
            "aten.mul.Tensor",
            t(2, 1, dtype="int64", value=((2,), (3,))),
            t(2, dtype="int64", value=(5, 7)),
            ((10, 14), (15, 21)),
        ),
        ("aten.eq.Scalar", t(2, dtype="int64", value=(1, 0)), 0, (0, 1)),
        ("aten.remainder.Scalar", t(2, dtype="int64", value=(7, s)), 4, (3, s % 4)),
        ("aten.rsub.Scalar", t(2, dtype="int64", value=(7, s)), 10, (3, 10 - s)),
        ("aten.floor_divide.default", t(1, dtype="int64", value=(7,)), 0, None),
        ("aten.add.Tensor", t(1, dtype="int64", value=(7,)), t(1, dtype="int64"), None),
        ("aten.add.Tensor", t(1, dtype="int64", value=(7,)), 0.5, None),
        ("aten.add.Tensor", t(4096, dtype="int64", value=(7,) * 4096), 1, None),
    ],
)
def test_contents_of_small_integer_tensors_are_followed(op, a, b, value) -> None:
    (out,) = price(op, a, b).out
    assert isinstance(out, TensorType)
    assert out.value == value
