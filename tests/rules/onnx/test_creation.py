import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.tensor import FLOAT32, INT64, UnknownType
from tests.support import price, shapes, t

B, S = symbol("b"), symbol("s")


def number(value, dtype="int64"):
    """A known scalar."""
    return t(dtype=dtype, value=value)


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


@pytest.mark.parametrize(
    "attribute, shape, dtype, value",
    [
        ({"value": ints(3, 4)}, (2,), "int64", (3, 4)),
        ({"sparse_value": t(3, 3)}, (3, 3), "float32", None),
        ({"value_float": 0.5}, (), "float32", 0.5),
        ({"value_floats": (1.0, 2.0)}, (2,), "float32", (1.0, 2.0)),
        ({"value_int": -1}, (), "int64", -1),
        ({"value_ints": (1, 2, 3)}, (3,), "int64", (1, 2, 3)),
        ({"value_ints": ()}, (0,), "int64", ()),
        ({"value_string": "a"}, (), "string", None),
        ({"value_strings": ("a", "b")}, (2,), "string", None),
    ],
)
def test_constant_in_every_form(attribute, shape, dtype, value):
    estimate = price("onnx.Constant.13", **attribute)
    (out,) = estimate.out
    assert (out.shape, out.dtype.name, out.value) == (shape, dtype, value)
    assert not estimate.cost


def test_constant_of_shape():
    estimate = price("onnx.ConstantOfShape.9", ints(2, S))
    assert estimate.out == (t(2, "s", uniform=0.0),)
    assert estimate.cost.written_bytes == 8 * S
    one = t(1, dtype="int64", value=(1,))
    assert price("onnx.ConstantOfShape.9", ints(4), value=one).out[0].value == (1, 1, 1, 1)
    assert price("onnx.ConstantOfShape.9", ints(), value=one).out[0].value == 1
    assert price("onnx.ConstantOfShape.9", t(3, dtype="int64")).out[0].rank == 3
    unknown = price("onnx.ConstantOfShape.9", t("n", dtype="int64"), value=one)
    assert unknown.unknown
    assert unknown.out == (UnknownType(one.dtype),)


@pytest.mark.parametrize(
    "start, limit, delta, expected, value",
    [
        (0, 5, 1, 5, (0, 1, 2, 3, 4)),
        (10, 4, -2, 3, (10, 8, 6)),
        (1, 5, 3, 2, (1, 4)),
        (5, 1, 1, 0, ()),
        (0, S, 1, S, None),
        (B, B + S, 1, S, None),
        (0, S, 2, (S + 1) // 2, None),
        (S, S + 3, 1, 3, (S, S + 1, S + 2)),
    ],
)
def test_range(start, limit, delta, expected, value):
    estimate = price("onnx.Range.11", number(start), number(limit), number(delta))
    (out,) = estimate.out
    assert (out.shape, out.dtype, out.value) == ((expected,), INT64, value)
    assert estimate.vector_flops == 0


def test_range_of_floats():
    ends = (number(x, "float32") for x in (1.0, 5.0, 2.0))
    estimate = price("onnx.Range.11", *ends)
    assert estimate.out == (t(2, value=(1.0, 3.0)),)
    assert estimate.vector_flops == 2 * 2


def test_range_to_what_only_data_tells():
    (out,) = price("onnx.Range.11", number(0), t(dtype="int64"), number(1)).out
    assert str(out.shape[0]) == "Symbol('range?')"
    with pytest.raises(ShapeError):
        price("onnx.Range.11", number(0), number(1), number(0))


def test_one_hot():
    estimate = price("onnx.OneHot.11", t("b", dtype="int64"), number(10.0, "float32"), t(2))
    assert estimate.out == (t("b", 10),)
    assert estimate.vector_flops == 0
    off_on = t(2, dtype="int64", value=(0, 5))
    (out,) = price("onnx.OneHot.11", ints(1, -1), number(3), off_on, axis=0).out
    assert out.value == ((0, 0), (5, 0), (0, 5))
    (out,) = price("onnx.OneHot.11", ints(1, 4), t(dtype="int64"), off_on).out
    assert out.shape[0] == 2
    assert out.rank == 2


def test_eye_like():
    assert price("onnx.EyeLike.9", t(2, 3, dtype="int32"), dtype=1).out == (t(2, 3),)
    (out,) = price("onnx.EyeLike.9", t(2, 3, dtype="int64"), k=-1).out
    assert out.value == ((0, 0, 0), (1, 0, 0))
    assert shapes(price("onnx.EyeLike.9", t("b", "b"))) == [(B, B)]
    assert price("onnx.EyeLike.9", t(4, 4)).cost.read_bytes == 0
    assert price("onnx.EyeLike.9", t(4, 4)).out[0].dtype == FLOAT32
