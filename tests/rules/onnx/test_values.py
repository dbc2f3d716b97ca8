"""Known contents through ONNX arithmetic, as numbers and as formulas of sizes."""

from __future__ import annotations

import math

import pytest

from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_max, dim_min, evaluate, floor_div, mod, symbol
from graphflops.rules.onnx import values
from graphflops.tensor import BOOL, FLOAT32, INT64, Contents, DType, TensorType
from tests.support import price, t

b, h, s = symbol("b"), symbol("h"), symbol("s")
SHAPE = (b, 3, h)


def ints(value: Contents) -> TensorType:
    """An integer tensor of known contents."""
    return t(*_shape(value), dtype="int64", value=value)


def floats(value: Contents) -> TensorType:
    """A floating tensor of known contents."""
    return t(*_shape(value), value=value)


def _shape(value: Contents) -> tuple[int, ...]:
    return (len(value), *_shape(value[0])) if isinstance(value, tuple) else ()


def contents(estimate: Estimate, dtype: DType = INT64) -> Contents | None:
    """What is known of the only result, which must be of that type."""
    (out,) = estimate.out
    assert isinstance(out, TensorType)
    assert out.dtype is dtype
    return out.value


@pytest.mark.parametrize(
    "op, operands, expected",
    [
        ("onnx.Add.14", (SHAPE, 1), (b + 1, 4, h + 1)),
        ("onnx.Add.14", (((1, 2), (3, 4)), ((10,), (20,))), ((11, 12), (23, 24))),
        ("onnx.Sub.14", (SHAPE, SHAPE), (0, 0, 0)),
        ("onnx.Mul.14", (SHAPE, (2, 2, 2)), (2 * b, 6, 2 * h)),
        ("onnx.Div.14", (SHAPE, 2), (floor_div(b, 2), 1, floor_div(h, 2))),
        ("onnx.Div.14", ((-7, 7, -7, 7), (2, -2, -2, 2)), (-3, -3, 3, 3)),  # towards zero
        ("onnx.Mod.13", (SHAPE, 2), (mod(b, 2), 1, mod(h, 2))),
        ("onnx.Mod.13", ((-7, 7), (3, -3)), (2, -2)),
        ("onnx.Neg.13", (SHAPE,), (-b, -3, -h)),
        ("onnx.Abs.13", ((-2, 2),), (2, 2)),
        ("onnx.Abs.13", (SHAPE,), SHAPE),
        ("onnx.Sign.13", ((-2, 0, 2),), (-1, 0, 1)),
        ("onnx.Max.13", (SHAPE, 2), (dim_max(b, 2), 3, dim_max(h, 2))),
        ("onnx.Min.13", (SHAPE, 2, 1), (dim_min(b, 1), 1, dim_min(h, 1))),
        ("onnx.Sum.13", (SHAPE, SHAPE, 1), (2 * b + 1, 7, 2 * h + 1)),
        ("onnx.Pow.15", (SHAPE, 2), (b * b, 9, h * h)),
        ("onnx.BitShift.11", ((1, 8), (3, 1)), (8, 16)),
        ("onnx.BitwiseAnd.18", (12, 10), 8),
        ("onnx.CumSum.14", (SHAPE, 0), (b, b + 3, b + h + 3)),
        ("onnx.Clip.13", (SHAPE, 0, 512), (dim_min(b, 512), 3, dim_min(h, 512))),
        ("onnx.Where.16", ((1, 0, 1), SHAPE, (7, 8, 9)), (b, 8, h)),
    ],
)
def test_whole_numbers(op: str, operands: tuple[Contents, ...], expected: Contents) -> None:
    attributes = {"direction": "LEFT"} if "BitShift" in op else {}
    assert contents(price(op, *map(ints, operands), **attributes)) == expected


@pytest.mark.parametrize(
    "op, operands, expected",
    [
        ("onnx.Equal.19", (SHAPE, (b, 4, -1)), (1, 0, 0)),
        ("onnx.Less.13", ((1, 2), 2), (1, 0)),
        ("onnx.GreaterOrEqual.16", (SHAPE, 0), (1, 1, 1)),
        ("onnx.And.7", ((0, 0, 1, 1), (0, 1, 0, 1)), (0, 0, 0, 1)),
        ("onnx.Or.7", ((0, 0, 1, 1), (0, 1, 0, 1)), (0, 1, 1, 1)),
        ("onnx.Xor.7", ((0, 0, 1, 1), (0, 1, 0, 1)), (0, 1, 1, 0)),
        ("onnx.Not.1", ((0, 1),), (1, 0)),
    ],
)
def test_truths(op: str, operands: tuple[Contents, ...], expected: Contents) -> None:
    logic = "Equal" not in op and "Less" not in op
    given = (t(*_shape(x), dtype="bool" if logic else "int64", value=x) for x in operands)
    assert contents(price(op, *given), BOOL) == expected


def test_a_size_left_open_by_minus_one_is_filled_in() -> None:
    is_open = price("onnx.Equal.19", ints(SHAPE), ints((-1, -1, -1))).out[0]
    assert contents(price("onnx.Where.16", is_open, ints((1, 1, 1)), ints(SHAPE))) == SHAPE


def test_twice_not_is_nothing() -> None:
    less = price("onnx.Less.13", ints(h), ints(s)).out[0]
    assert isinstance(less, TensorType)
    twice = price("onnx.Not.1", price("onnx.Not.1", less).out[0])
    assert contents(twice, BOOL) == less.value


@pytest.mark.parametrize(
    "factor, rounding, expected",
    [
        (0.5, "Floor", floor_div(h, 2)),
        (0.5, "Ceil", floor_div(h + 1, 2)),
        (2.0, "Floor", 2 * h),
        (0.699999988079071, "Floor", floor_div(7 * h, 10)),  # float32 nearest to 0.7
        (0.09090909361839294, "Floor", floor_div(h, 11)),  # and to 1 / 11
        (1.5, "Floor", floor_div(3 * h, 2)),
    ],
)
def test_a_scaled_size_rounded(factor: float, rounding: str, expected: Dim) -> None:
    size = price("onnx.Cast.13", ints(h), to=1).out[0]
    scaled = price("onnx.Mul.14", size, floats(factor)).out[0]
    rounded = price(f"onnx.{rounding}.13", scaled).out[0]
    assert contents(price("onnx.Cast.13", rounded, to=7)) == expected


def test_a_scaled_number_is_rounded_as_its_type_rounds() -> None:
    # 10 * float32(0.7) is 6.99999988 exactly, and 7 to the nearest float32
    scaled = price("onnx.Mul.14", floats(10.0), floats(0.699999988079071)).out[0]
    assert contents(price("onnx.Floor.13", scaled), FLOAT32) == 7.0


def test_fractions_of_sizes_cancel() -> None:
    size = price("onnx.Cast.13", ints(h), to=1).out[0]
    half = price("onnx.Div.14", size, floats(2.0)).out[0]
    whole = price("onnx.Mul.14", half, floats(2.0))
    assert contents(whole, FLOAT32) == h
    assert contents(price("onnx.Add.14", half, half), FLOAT32) == h
    assert contents(price("onnx.Greater.13", half, half), BOOL) == 0


def test_a_fraction_cast_to_an_integer_is_cut_off() -> None:
    size = price("onnx.Cast.13", ints(h), to=1).out[0]
    assert contents(price("onnx.Cast.13", price("onnx.Div.14", size, floats(2.0)).out[0], to=7)) == floor_div(
        h, 2
    )
    assert contents(price("onnx.Cast.13", floats((-1.5, 1.5)), to=7)) == (-1, 1)


@pytest.mark.parametrize(
    "op, axes, keepdims, expected",
    [
        ("onnx.ReduceProd.18", (0,), 0, 3 * b * h),
        ("onnx.ReduceSum.13", (-1,), 1, (b + h + 3,)),
        ("onnx.ReduceMax.20", (0,), 0, dim_max(b, h, 3)),
        ("onnx.ReduceMin.20", (0,), 0, dim_min(b, h, 3)),
    ],
)
def test_reduced_contents(op: str, axes: tuple[int, ...], keepdims: int, expected: Contents) -> None:
    assert contents(price(op, ints(SHAPE), ints(axes), keepdims=keepdims)) == expected


def test_contents_of_several_axes_are_reduced_along_each() -> None:
    pairs = ints(((1, b), (3, h), (5, s)))
    assert contents(price("onnx.ReduceSum.13", pairs, ints((0,)), keepdims=0)) == (9, b + h + s)
    assert contents(price("onnx.ReduceProd.18", pairs, ints((1,)), keepdims=1)) == ((b,), (3 * h,), (5 * s,))
    assert contents(price("onnx.ReduceSum.13", pairs, keepdims=0)) == b + h + s + 9


def test_a_scalar_has_one_element() -> None:
    assert contents(price("onnx.ReduceProd.18", t(0, dtype="int64", value=()), keepdims=0)) == 1


@pytest.mark.parametrize(
    "exclusive, reverse, expected",
    [(0, 0, (1, 3, 6)), (1, 0, (0, 1, 3)), (0, 1, (6, 5, 3)), (1, 1, (5, 3, 0))],
)
def test_running_sums(exclusive: int, reverse: int, expected: Contents) -> None:
    running = price("onnx.CumSum.14", ints((1, 2, 3)), ints(0), exclusive=exclusive, reverse=reverse)
    assert contents(running) == expected


@pytest.mark.parametrize(
    "op, operands",
    [
        ("onnx.Div.14", ((1, 2), 0)),  # the program may never come to it
        ("onnx.Mod.13", (1, 0)),
        ("onnx.Pow.15", (10, 10**9)),
    ],
)
def test_what_has_no_value_is_not_known(op: str, operands: tuple[Contents, ...]) -> None:
    assert contents(price(op, *map(ints, operands))) is None


def test_an_integer_that_does_not_fit_its_type_loses_its_upper_bits() -> None:
    assert contents(price("onnx.Cast.13", ints(2**40 + 5), to=6), t(dtype="int32").dtype) == 5
    assert contents(price("onnx.Add.14", ints(2**63 - 1), ints(2))) == -(2**63) + 1


def test_a_fraction_that_does_not_fit_its_type_is_not_known() -> None:
    assert contents(price("onnx.Cast.13", floats(float("inf")), to=7)) is None


def test_many_elements_are_not_followed() -> None:
    column, row = ints(tuple((i,) for i in range(60))), ints(tuple(range(60)))
    assert contents(price("onnx.Add.14", column, row)) is None
    assert values.FOLLOWED < 60 * 60


N = symbol("n")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize(
    ("op", "attributes", "a", "b", "expected"),
    [
        ("onnx.Div.14", {}, N - 4, 3, lambda n: int((n - 4) / 3)),
        ("onnx.Div.14", {}, -N, 2, lambda n: -(n // 2)),
        ("onnx.Div.14", {}, 2, N, lambda n: 2 // n),
        ("onnx.Div.14", {}, -7, N, lambda n: -(7 // n)),
        ("onnx.Div.14", {}, N - 4, 3 - 2 * N, lambda n: int((n - 4) / (3 - 2 * n))),
        ("onnx.Mod.13", {"fmod": 1}, N - 4, 3, lambda n: int(math.fmod(n - 4, 3))),
        ("onnx.Mod.13", {"fmod": 1}, -9, N, lambda n: -(9 % n)),
        ("onnx.Mod.13", {"fmod": 0}, -9, N, lambda n: -9 % n),
        ("onnx.Mod.13", {"fmod": 0}, N - 4, -3, lambda n: (n - 4) % -3),
    ],
)
def test_a_quotient_is_rounded_towards_zero_where_sizes_are_open_too(
    op, attributes, a, b, expected, size
) -> None:
    (out,) = price(op, ints(a), ints(b), **attributes).out
    assert evaluate(out.value, {"n": size}) == expected(size)
    numbers = [x if isinstance(x, int) else x.substitute({"n": size}) for x in (a, b)]
    assert contents(price(op, *map(ints, numbers), **attributes)) == expected(size)


def test_a_reduction_that_overflows_is_not_known() -> None:
    x = ints((2**40, 2**40))
    assert contents(price("onnx.ReduceProd.18", x, keepdims=0)) is None
    assert contents(price("onnx.ReduceSum.13", x, keepdims=0)) == 2**41
