from graphflops.dims import symbol
from graphflops.tensor import INT64
from tests.support import price, shapes, t

S = symbol("s")


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


def test_non_zero_finds_as_many_as_the_data_says():
    estimate = price("onnx.NonZero.13", t("b", 3))
    (out,) = estimate.out
    assert (out.shape[0], str(out.shape[1]), out.dtype) == (2, "Symbol('nonzero?')", INT64)
    assert estimate.vector_flops == 3 * symbol("b")


def test_non_zero_of_known_contents():
    (out,) = price("onnx.NonZero.13", t(2, 2, dtype="int64", value=((1, 0), (1, 1)))).out
    assert (out.shape, out.value) == ((2, 3), ((0, 1, 1), (0, 0, 1)))
    assert price("onnx.NonZero.13", ints(S, 1)).out[0].value is None
    assert price("onnx.NonZero.13", t(dtype="int64", value=3)).out[0].shape == (0, 1)


def test_compress():
    condition = t(3, dtype="bool", value=(1, 0, 1))
    assert shapes(price("onnx.Compress.11", t(3, "s"), condition, axis=0)) == [(2, S)]
    assert shapes(price("onnx.Compress.11", t(3, 4), condition)) == [(2,)]
    assert shapes(price("onnx.Compress.11", t(2, "s"), condition, axis=0)) == [
        (1, S)
    ]  # the axis ends before it
    assert price("onnx.Compress.11", ints(5, 6, S), condition).out[0].value == (5, S)
    (out,) = price("onnx.Compress.11", t(3, 4), t(4, dtype="bool"), axis=-1).out
    assert str(out.shape[1]) == "Symbol('compress?')"


def test_unique():
    values, first, inverse, counts = price("onnx.Unique.11", ints(2, 1, 1, 3, 4, 3)).out
    assert (values.value, counts.value) == ((1, 2, 3, 4), (2, 1, 2, 1))
    assert (first.shape, inverse.shape) == ((4,), (6,))
    assert price("onnx.Unique.11", ints(2, 1, 1, 3), sorted=0).out[0].value == (2, 1, 3)


def test_unique_along_an_axis():
    values, first, inverse, counts = price("onnx.Unique.11", t(4, "s"), axis=0).out
    assert values.shape[1] is S
    assert first.shape == counts.shape == values.shape[:1]
    assert inverse.shape == (4,)
    flat = price("onnx.Unique.11", t(2, "s"), outputs=(True, False, True, False)).out
    assert flat[1] is flat[3] is None
    assert flat[2].shape == (2 * S,)
    slices = price("onnx.Unique.11", t(0, 3), axis=1).out[0]  # three empty slices are one distinct slice
    assert str(slices.shape[1]) == "Symbol('unique?')"
    assert price("onnx.Unique.11", t(3, 0), axis=1).out[0].shape == (3, 0)


def test_non_max_suppression_compares_every_pair():
    boxes, scores, most = t(1, 100, 4), t(1, 2, 100), t(1, dtype="int64", value=(20,))
    estimate = price("onnx.NonMaxSuppression.11", boxes, scores, most)
    (out,) = estimate.out
    assert (out.shape[1], out.dtype, str(out.shape[0])) == (3, INT64, "Symbol('nms?')")
    assert estimate.vector_flops >= 2 * 13 * (100 * 99 // 2)
    none = price("onnx.NonMaxSuppression.11", boxes, scores)
    assert (shapes(none), none.vector_flops) == ([(0, 3)], 0)
