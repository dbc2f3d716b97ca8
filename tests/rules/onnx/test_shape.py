import pytest

from graphflops.dims import symbol
from graphflops.errors import RuleError, ShapeError
from graphflops.tensor import INT64, UnknownType
from tests.support import price, shapes, t

B, S = symbol("b"), symbol("s")


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


@pytest.mark.parametrize(
    "attributes, expected",
    [
        ({}, (B, S, 64)),
        ({"start": 1}, (S, 64)),
        ({"start": -1}, (64,)),
        ({"end": -1}, (B, S)),
        ({"start": 1, "end": 2}, (S,)),
        ({"start": -9, "end": 9}, (B, S, 64)),
        ({"start": 2, "end": 1}, ()),
    ],
)
def test_shape_is_known_and_free(attributes, expected):
    estimate = price("onnx.Shape.25", t("b", "s", 64), **attributes)
    (out,) = estimate.out
    assert (out.shape, out.dtype, out.value) == ((len(expected),), INT64, expected)
    assert not estimate.cost


def test_size_counts_elements():
    (out,) = price("onnx.Size.13", t("b", 3, 4)).out
    assert (out.shape, out.value) == ((), 12 * B)


@pytest.mark.parametrize(
    "shape, target, expected",
    [
        ((2, 3, 4), (4, 6), (4, 6)),
        ((2, 3, 4), (0, -1), (2, 12)),
        ((2, 3, 4), (-1,), (24,)),
        (("b", "s", 64), (0, 0, 8, 8), (B, S, 8, 8)),
        (("b", "s", 64), (0, -1, 8), (B, 8 * S, 8)),
        (("b", "s", 64), (-1, 64), (B * S, 64)),
        (("b", "s", 64), (B, S, -1, 16), (B, S, 4, 16)),
        (("b", "s", 64), (B * S, -1), (B * S, 64)),
        ((0, 3), (0, 5), (0, 5)),
        ((), (1, 1), (1, 1)),
        ((1,), (), ()),
    ],
)
def test_reshape(shape, target, expected):
    estimate = price("onnx.Reshape.13", t(*shape), ints(*target))
    assert shapes(estimate) == [expected]
    assert not estimate.cost
    assert estimate.alias


def test_reshape_allowzero_takes_zero_literally():
    assert shapes(price("onnx.Reshape.14", t(0, 10), ints(7, 0), allowzero=1)) == [(7, 0)]


def test_reshape_1_has_its_shape_as_an_attribute():
    assert shapes(price("onnx.Reshape.1", t(2, 6), shape=(3, -1))) == [(3, 4)]


@pytest.mark.parametrize("target", [(5, 5), (-1, 7), (-1, -1), (1, 1, 1, 0)])
def test_reshape_says_what_does_not_fit(target):
    with pytest.raises(ShapeError):
        price("onnx.Reshape.14", t(2, 3, 4), ints(*target))


def test_reshape_to_what_only_data_tells():
    (out,) = price("onnx.Reshape.14", t(2, 3, 4), t(2, dtype="int64")).out
    assert [str(size) for size in out.shape] == ["Symbol('reshape_axis0?')", "Symbol('reshape_axis1?')"]
    assert shapes(price("onnx.Reshape.14", t(2, 3, 4), t(1, dtype="int64"))) == [(24,)]
    with pytest.raises(RuleError):
        price("onnx.Reshape.14", t(2, 3, 4), t("n", dtype="int64"))


def test_reshape_gives_a_tensor_of_unknown_rank_axes_again():
    (out,) = price("onnx.Reshape.14", UnknownType(INT64), ints(S, 4, -1)).out
    assert out.shape[:2] == (S, 4)
    assert out.rank == 3


def test_reshape_carries_contents():
    pads = ints(0, 0, 1, 2, S, 4)
    (out,) = price("onnx.Reshape.14", pads, ints(-1, 2)).out
    assert out.value == ((0, 0), (1, 2), (S, 4))


@pytest.mark.parametrize(
    "shape, axes, expected",
    [
        ((1, 3, 1, "s"), None, (3, S)),
        ((1, 3, 1, "s"), (0,), (3, 1, S)),
        ((1, 3, 1, "s"), (-2, 0), (3, S)),
        (("b", 3), (0,), (3,)),
        ((), None, ()),
    ],
)
def test_squeeze(shape, axes, expected):
    assert shapes(price("onnx.Squeeze.11", t(*shape), axes=axes)) == [expected]
    operand = None if axes is None else ints(*axes)
    assert shapes(price("onnx.Squeeze.13", t(*shape), operand)) == [expected]


def test_squeeze_of_axes_that_only_data_tells():
    assert shapes(price("onnx.Squeeze.13", t(1, 3), t(1, dtype="int64"))) == [(3,)]
    ((left, right),) = shapes(price("onnx.Squeeze.13", t(1, 1, 3), t(1, dtype="int64")))
    assert left is not right
    with pytest.raises(ShapeError):
        price("onnx.Squeeze.13", t(2, 3), ints(0))


def test_squeeze_of_no_axes():
    assert shapes(price("onnx.Squeeze.13", t(2, 3), ints())) == [(2, 3)]
    with pytest.raises(RuleError, match="onnxruntime all"):  # ONNX's reference keeps the axis of one
        price("onnx.Squeeze.13", t(1, 3), ints())


@pytest.mark.parametrize(
    "shape, axes, expected",
    [
        (("s",), (0,), (1, S)),
        (("s",), (1,), (S, 1)),
        ((3, 4), (0, -1), (1, 3, 4, 1)),
        ((3, 4), (2, 0, 1), (1, 1, 1, 3, 4)),
        ((3,), (), (3,)),
        ((), (0,), (1,)),
    ],
)
def test_unsqueeze(shape, axes, expected):
    assert shapes(price("onnx.Unsqueeze.11", t(*shape), axes=axes)) == [expected]
    assert shapes(price("onnx.Unsqueeze.13", t(*shape), ints(*axes))) == [expected]


def test_unsqueeze_of_a_number():
    with pytest.raises(ShapeError, match="axis 1 does not exist in a tensor of 1 axes"):
        price("onnx.Unsqueeze.13", t(), ints(1))
    assert shapes(price("onnx.Unsqueeze.13", t(), t(2, dtype="int64"))) == [(1, 1)]


def test_unsqueeze_at_places_that_only_data_tells():
    (sizes,) = shapes(price("onnx.Unsqueeze.13", t(2, 3), t(2, dtype="int64")))
    assert len(set(sizes)) == 4


def test_contents_survive_unsqueeze_and_squeeze():
    scalar = t(dtype="int64", value=S)
    (vector,) = price("onnx.Unsqueeze.13", scalar, ints(0)).out
    (back,) = price("onnx.Squeeze.13", vector, ints(0)).out
    assert (vector.value, back.value) == ((S,), S)


@pytest.mark.parametrize(
    "axis, expected", [(1, (B, 3 * S)), (0, (1, 3 * B * S)), (-1, (3 * B, S)), (3, (3 * B * S, 1))]
)
def test_flatten(axis, expected):
    assert shapes(price("onnx.Flatten.13", t("b", 3, "s"), axis=axis)) == [expected]


def test_flatten_of_a_scalar():
    assert shapes(price("onnx.Flatten.13", t(), axis=0)) == [(1, 1)]


def test_identity_and_bit_cast_do_nothing():
    assert price("onnx.Identity.16", ints(3, S)).out == (ints(3, S),)
    estimate = price("onnx.BitCast.26", t("b", 2), to=7 - 1)
    assert estimate.out == (t("b", 2, dtype="int32"),)
    assert not estimate.cost
    with pytest.raises(ShapeError):
        price("onnx.BitCast.26", t(2), to=7)
