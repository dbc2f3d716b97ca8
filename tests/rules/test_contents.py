"""Contents of small integer tensors: held as their type holds them, and only where they are few."""

from __future__ import annotations

import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.shapes import few, held, in_type
from graphflops.tensor import DTYPES
from tests.support import price, t

s = symbol("s")


@pytest.mark.parametrize(
    ("number", "dtype", "expected"),
    [
        (127, "int8", 127),
        (128, "int8", -128),
        (-129, "int8", 127),
        (256 + 7, "uint8", 7),
        (-1, "uint8", 255),
        (2**63, "int64", -(2**63)),
        (3**200, "int64", (3**200 + 2**63) % 2**64 - 2**63),
        (s - 4, "int64", s - 4),
        (s, "int8", None),
        (s % 100, "int8", s % 100),
        (s - 4, "uint64", None),
        (2**63 * s, "int64", None),
    ],
)
def test_a_number_in_a_type(number, dtype, expected):
    assert in_type(number, DTYPES[dtype]) == expected


def test_contents_grow_no_longer_than_a_shape_can_be():
    x = t(1, dtype="int64", value=(1,))
    for _ in range(11):  # 2^11 elements
        (x,) = map(held, price("aten.cat.default", (x, x)).out)
    assert x.shape == (2048,)
    assert x.value is None


@pytest.mark.parametrize("shape", [(2**40, 0), (0, 2**40), (2**20, 2**20, 0)])
def test_a_tensor_without_elements_has_many_rows_all_the_same(shape):
    assert few(shape) is None
    empty = t(0, dtype="int64", value=())
    for op, operands in {
        "aten.zeros.default": (shape,),
        "aten.view.default": (empty, shape),
        "onnx.Reshape.14": (empty, t(len(shape), dtype="int64", value=shape)),
        "onnx.ConstantOfShape.9": (t(len(shape), dtype="int64", value=shape),),
        "onnx.Expand.13": (t(1, dtype="int64", value=(1,)), t(len(shape), dtype="int64", value=shape)),
        "aten.add.Tensor": (t(*shape, dtype="int64"), 1),
    }.items():
        keywords = {"allowzero": 1} if "Reshape" in op else {}
        (out,) = price(op, *operands, **keywords).out
        assert out.shape == shape, op
        assert out.value is None, op


def test_windows_of_a_billion_places_are_counted_at_once():
    work = price("aten.adaptive_avg_pool1d.default", t(1, 1, "s"), (2**40,)).vector_flops
    assert work.substitute({"s": 1}) > 0
    exact = price("aten.adaptive_avg_pool1d.default", t(1, 1, "s"), (720720,)).vector_flops
    at_6 = price("aten.adaptive_avg_pool1d.default", t(1, 1, 6), (720720,)).vector_flops
    assert exact.substitute({"s": 6}) == at_6


def test_a_sparse_tensor_of_absurdly_many_axes_is_refused():
    with pytest.raises(ShapeError, match="axes"):
        price("aten.sparse_coo_tensor.indices", t(2**40, 3, dtype="int64"), t(3))
    with pytest.raises(ShapeError, match="coordinates"):
        price("aten.histogramdd.default", t(3, 2**40), 4)
    with pytest.raises(ShapeError, match="combinations"):
        price("aten.combinations.default", t(3), 2**40)
