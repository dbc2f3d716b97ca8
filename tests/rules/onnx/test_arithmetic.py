"""Elementwise arithmetic, activations, conversions: shapes by every version's broadcasting, types and work."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import BOOL, FLOAT16, INT64, DType, TensorType
from tests.support import price, shapes, t


@pytest.mark.parametrize(
    "op, vector, functions",
    [
        *(
            (f"onnx.{name}", 1, 0)
            for name in ("Abs.13", "Neg.13", "Floor.13", "Round.22", "Relu.14", "Reciprocal.13")
        ),
        *(
            (f"onnx.{name}", 0, 1)
            for name in ("Exp.13", "Sqrt.13", "Erf.13", "Tanh.13", "Sigmoid.13", "Acosh.9")
        ),
        ("onnx.LeakyRelu.16", 2, 0),
        ("onnx.HardSwish.14", 5, 0),
        ("onnx.Softplus.1", 1, 2),
        ("onnx.Mish.18", 1, 3),
        ("onnx.Gelu.20", 4, 1),
        ("onnx.Swish.24", 1, 1),
        ("onnx.Elu.6", 2, 1),
        ("onnx.Softmax.13", 4, 1),
        ("onnx.Hardmax.13", 1, 0),
        ("onnx.Not.1", 1, 0),
        ("onnx.Clip.13", 0, 0),
    ],
)
def test_work_per_element(op: str, vector: int, functions: int) -> None:
    x = t(4, 5, dtype=FLOAT16)
    estimate = price(op, x)
    assert estimate.out == (x,)
    assert (estimate.vector_flops, estimate.transcendentals) == (vector * 20, functions * 20)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (40, 40)


@pytest.mark.parametrize(
    "op, attributes, vector, functions",
    [
        ("onnx.Gelu.20", {"approximate": "tanh"}, 9, 1),
        ("onnx.Swish.24", {"alpha": 1.7}, 2, 1),
        ("onnx.Shrink.9", {"lambd": 1.0}, 2, 0),
        ("onnx.Shrink.9", {"bias": 1.0}, 4, 0),
        ("onnx.Clip.6", {"min": 0.0, "max": 6.0}, 2, 0),
        ("onnx.Relu.1", {"consumed_inputs": (0,)}, 1, 0),
    ],
)
def test_attributes_that_change_the_work(
    op: str, attributes: dict[str, Any], vector: int, functions: int
) -> None:
    estimate = price(op, t(4, 5), **attributes)
    assert (estimate.vector_flops, estimate.transcendentals) == (vector * 20, functions * 20)


@pytest.mark.parametrize(
    "a, b, attributes, out",
    [
        ((2, 3, 4), (4,), {}, (2, 3, 4)),
        ((3, 1), (4,), {}, (3, 4)),
        ((2, 3, 4, 5), (3, 4), {"broadcast": 1, "axis": 1}, (2, 3, 4, 5)),
        ((2, 3, 4, 5), (2,), {"broadcast": 1, "axis": 0}, (2, 3, 4, 5)),
        ((2, 3, 4, 5), (4, 5), {"broadcast": 1}, (2, 3, 4, 5)),
        ((2, 3, 4, 5), (), {"broadcast": 1, "axis": 2}, (2, 3, 4, 5)),
        (("b", 3), ("b", 1), {}, ("b", 3)),
    ],
)
@pytest.mark.parametrize("name", ["Add", "Div", "Pow", "Less"])
def test_broadcasting(name: str, a: Any, b: Any, attributes: dict[str, Any], out: Any) -> None:
    version = 1 if attributes else 13
    assert shapes(price(f"onnx.{name}.{version}", t(*a), t(*b), **attributes)) == [t(*out).shape]


def test_a_misplaced_operand_is_rejected() -> None:
    with pytest.raises(ShapeError, match="too many axes"):
        price("onnx.Add.6", t(2, 3), t(2, 3), broadcast=1, axis=1)
    with pytest.raises(ShapeError, match="broadcast"):
        price("onnx.Mul.14", t(2, 3), t(4))


@pytest.mark.parametrize("op", ["onnx.Equal.19", "onnx.Less.13", "onnx.Greater.13", "onnx.IsNaN.13"])
def test_predicates_are_boolean(op: str) -> None:
    operands = (t(2, 3),) if "Is" in op else (t(2, 3), t(3))
    assert price(op, *operands).out == (t(2, 3, dtype=BOOL),)


@pytest.mark.parametrize(
    "op, each", [("onnx.Sum.13", 2), ("onnx.Max.13", 2), ("onnx.Min.8", 2), ("onnx.Mean.13", 3)]
)
def test_any_number_of_operands(op: str, each: int) -> None:
    estimate = price(op, t("b", 4), t(4), t(1, 1))
    assert shapes(estimate) == [(symbol("b"), 4)]
    assert estimate.vector_flops == each * 4 * symbol("b")


@pytest.mark.parametrize("exponent, vector, functions", [(2.0, 1, 0), (0.5, 0, 1), (2.5, 0, 1), (None, 0, 1)])
def test_a_power_by_its_exponent(exponent: float | None, vector: int, functions: int) -> None:
    estimate = price("onnx.Pow.15", t(4, 5), t(value=exponent))
    assert (estimate.vector_flops, estimate.transcendentals) == (vector * 20, functions * 20)


def test_a_choice_has_the_type_chosen_from() -> None:
    estimate = price("onnx.Where.16", t(4, 1, dtype=BOOL), t(3, dtype=FLOAT16), t(dtype=FLOAT16))
    assert estimate.out == (t(4, 3, dtype=FLOAT16),)
    assert estimate.vector_flops == 12


def test_the_old_softmax_normalises_all_axes_behind() -> None:
    x = t(2, 3, 4)
    assert price("onnx.Softmax.11", x).out == price("onnx.Softmax.1", x, axis=3).out == (x,)
    assert price("onnx.LogSoftmax.11", x, axis=1).transcendentals == 24 + 2  # a logarithm per row of 12
    assert price("onnx.LogSoftmax.13", x, axis=1).transcendentals == 24 + 8


def test_slopes_may_be_fewer_than_elements() -> None:
    for version in (6, 16):
        estimate = price(f"onnx.PRelu.{version}", t(2, 3, 4), t(3) if version == 6 else t(3, 1))
        assert (shapes(estimate), estimate.vector_flops) == ([(2, 3, 4)], 48)
    with pytest.raises(ShapeError, match="more axes"):
        price("onnx.PRelu.16", t(3), t(2, 3))


def test_a_gated_activation_takes_equal_operands() -> None:
    assert price("onnx.SwiGLU.28", t(4, 5), t(4, 5)).vector_flops == 2 * 20
    with pytest.raises(ShapeError):
        price("onnx.SwiGLU.28", t(4, 5), t(5))


@pytest.mark.parametrize("to, dtype", [(7, INT64), (10, FLOAT16), ("INT64", INT64), ("FLOAT16", FLOAT16)])
def test_conversion(to: int | str, dtype: DType) -> None:
    estimate = price("onnx.Cast.1" if isinstance(to, str) else "onnx.Cast.13", t("b", 4), to=to)
    (out,) = estimate.out
    assert isinstance(out, TensorType)
    assert (out.dtype, estimate.vector_flops) == (dtype, 4 * symbol("b"))


def test_conversion_to_the_same_type_is_a_copy() -> None:
    estimate = price("onnx.CastLike.15", t(4), t(7))
    assert (estimate.vector_flops, estimate.cost.read_bytes, estimate.cost.written_bytes) == (0, 16, 16)
