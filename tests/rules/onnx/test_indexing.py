import pytest

from graphflops.dims import symbol
from graphflops.errors import RuleError, ShapeError
from tests.support import price, shapes, t

B, S, V = map(symbol, "bsv")


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


def index(*shape):
    """Indices that only data knows."""
    return t(*shape, dtype="int64")


@pytest.mark.parametrize(
    "data, indices, axis, expected",
    [
        (("v", 64), ("b", "s"), 0, (B, S, 64)),
        ((2, 3, 4), (), 1, (2, 4)),
        ((2, 3, 4), (5,), -1, (2, 3, 5)),
        ((2, 3, 4), (5, 6), -2, (2, 5, 6, 4)),
    ],
)
def test_gather(data, indices, axis, expected):
    assert shapes(price("onnx.Gather.13", t(*data), index(*indices), axis=axis)) == [expected]


def test_gather_reads_the_rows_it_returns():
    cost = price("onnx.Gather.13", t(1000, 64), index(16)).cost
    assert cost.vector_flops == 0
    assert (cost.read_bytes, cost.written_bytes) == (16 * 64 * 4 + 16 * 8, 16 * 64 * 4)


def test_gather_carries_contents():
    shape = ints(B, S, 64)
    assert price("onnx.Gather.13", shape, t(dtype="int64", value=1)).out[0].value == S
    assert price("onnx.Gather.13", shape, t(dtype="int64", value=-1)).out[0].value == 64
    assert price("onnx.Gather.13", shape, ints(2, 0)).out[0].value == (64, B)
    table = t(2, 2, dtype="int64", value=((1, S), (3, 4)))
    assert price("onnx.Gather.13", table, ints(1, 0), axis=1).out[0].value == ((S, 1), (4, 3))
    assert price("onnx.Gather.13", shape, index()).out[0].value is None
    assert price("onnx.Gather.13", shape, t(dtype="int64", value=S)).out[0].value is None


def test_gather_elements():
    assert shapes(price("onnx.GatherElements.13", t("b", 9), index("b", 2), axis=1)) == [(B, 2)]
    table = t(2, 2, dtype="int64", value=((1, S), (3, 4)))
    where = t(1, 2, dtype="int64", value=((1, -2),))
    assert price("onnx.GatherElements.13", table, where).out[0].value == ((3, S),)
    with pytest.raises(ShapeError):
        price("onnx.GatherElements.13", t(2, 2), index(2))


@pytest.mark.parametrize(
    "data, indices, batch, expected",
    [
        ((2, 3, 4), ("n", 2), 0, (symbol("n"), 4)),
        ((2, 3, 4), (5, 1), 0, (5, 3, 4)),
        ((2, 3, 4), (2, 1), 1, (2, 4)),
        (("b", 3, 4), ("b", 7, 2), 1, (B, 7)),
    ],
)
def test_gather_nd(data, indices, batch, expected):
    assert shapes(price("onnx.GatherND.13", t(*data), index(*indices), batch_dims=batch)) == [expected]


def test_gather_nd_carries_contents():
    table = t(2, 2, dtype="int64", value=((1, S), (3, 4)))
    assert price("onnx.GatherND.13", table, t(2, 2, dtype="int64", value=((0, 1), (1, 0)))).out[0].value == (
        S,
        3,
    )
    assert price("onnx.GatherND.13", table, t(1, 1, dtype="int64", value=((1,),))).out[0].value == ((3, 4),)
    each = t(2, 1, dtype="int64", value=((1,), (0,)))
    assert price("onnx.GatherND.13", table, each, batch_dims=1).out[0].value == (S, 3)


def test_gather_nd_needs_to_know_how_deep_indices_go():
    with pytest.raises(RuleError):
        price("onnx.GatherND.13", t(2, 3), index(4, "n"))
    with pytest.raises(ShapeError):
        price("onnx.GatherND.13", t(2, 3), index(4, 3))


@pytest.mark.parametrize("name, reduction, flops", [("11", "none", 0), ("18", "add", 6), ("18", "max", 6)])
def test_scatter_elements(name, reduction, flops):
    operands = (t("b", 3), index(2, 3), t(2, 3))
    attributes = {} if reduction == "none" else {"reduction": reduction}
    estimate = price(f"onnx.ScatterElements.{name}", *operands, axis=1, **attributes)
    assert (shapes(estimate), estimate.vector_flops) == ([(B, 3)], flops)
    assert estimate.cost.read_bytes == 4 * 3 * B + 6 * 8 + 6 * 4
    assert estimate.cost.written_bytes == 4 * 3 * B


def test_scatter_is_scatter_elements():
    assert price("onnx.Scatter.9", t(4), index(2), t(2)) == price(
        "onnx.ScatterElements.18", t(4), index(2), t(2)
    )


@pytest.mark.parametrize(
    "reduction, expected", [("none", (1, S, 64)), ("add", (1, 2 + S, 64)), ("mul", (1, 2 * S, 64))]
)
def test_scatter_carries_contents(reduction, expected):
    shape = ints(1, 2, 64)
    (out,) = price(
        "onnx.ScatterND.18", shape, t(1, 1, dtype="int64", value=((1,),)), ints(S), reduction=reduction
    ).out
    assert out.value == expected
    (out,) = price("onnx.ScatterElements.18", shape, ints(-2), ints(S), reduction=reduction).out
    assert out.value == expected


def test_scatter_nd_of_rows():
    table = t(2, 2, dtype="int64", value=((1, 2), (3, 4)))
    rows = t(1, 2, dtype="int64", value=((S, B),))
    (out,) = price("onnx.ScatterND.18", table, t(1, 1, dtype="int64", value=((1,),)), rows).out
    assert out.value == ((1, 2), (S, B))
    assert price("onnx.ScatterND.18", table, index(1, 1), rows).out[0].value is None
    with pytest.raises(RuleError):
        price("onnx.ScatterND.18", table, index(1, 1), rows, reduction="mean")


def test_tensor_scatter_copies_the_cache():
    cache, update = t("b", 8, 1024, 64), t("b", 8, 1, 64)
    estimate = price("onnx.TensorScatter.24", cache, update, t("b", dtype="int64"))
    assert shapes(estimate) == [(B, 8, 1024, 64)]
    assert estimate.cost.written_bytes == B * 8 * 1024 * 64 * 4
    with pytest.raises(ShapeError):
        price("onnx.TensorScatter.24", cache, t("b", 7, 1, 64))
