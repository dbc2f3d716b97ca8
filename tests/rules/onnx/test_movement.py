import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from tests.support import price, shapes, t

B, S, H, W = map(symbol, "bshw")


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


def matrix(*rows):
    """A matrix of known whole numbers."""
    return t(len(rows), len(rows[0]), dtype="int64", value=rows)


def moves(estimate, read, written):
    """Whether a call does no arithmetic and moves so many elements of four bytes."""
    cost = estimate.cost
    return (cost.vector_flops, cost.read_bytes, cost.written_bytes) == (0, 4 * read, 4 * written)


def test_transpose_reverses_or_permutes_and_copies():
    assert shapes(price("onnx.Transpose.13", t("b", "s", 3))) == [(3, S, B)]
    estimate = price("onnx.Transpose.13", t(2, 5, 7), perm=(1, 2, 0))
    assert shapes(estimate) == [(5, 7, 2)]
    assert moves(estimate, 70, 70)
    with pytest.raises(ShapeError):
        price("onnx.Transpose.13", t(2, 3), perm=(0, 0))


def test_transpose_carries_contents():
    (out,) = price("onnx.Transpose.13", matrix((0, 1, S), (3, 4, 5)), perm=(1, 0)).out
    assert out.value == ((0, 3), (1, 4), (S, 5))


def test_concat_adds_up_along_its_axis():
    estimate = price("onnx.Concat.13", t("b", 3), t("b", "s"), t("b", 1), axis=-1)
    assert shapes(estimate) == [(B, S + 4)]
    assert estimate.cost.read_bytes == estimate.cost.written_bytes == 4 * B * (S + 4)


def test_concat_1_joins_along_axis_one_where_none_is_said():
    assert shapes(price("onnx.Concat.1", t(2, 3), t(2, 4))) == [(2, 7)]


def test_concat_meets_sizes():
    assert shapes(price("onnx.Concat.13", t("s", 2), t(3, 2), axis=1)) == [(3, 4)]
    with pytest.raises(ShapeError):
        price("onnx.Concat.13", t(2, 2), t(3, 2), axis=1)
    with pytest.raises(ShapeError):
        price("onnx.Concat.13", t(2), t(3, 2), axis=0)


def test_concat_carries_contents():
    assert price("onnx.Concat.13", ints(1, S), ints(), ints(B), axis=0).out[0].value == (1, S, B)
    sides = (matrix((1, 2), (3, 4)), matrix((5,), (6,)))
    assert price("onnx.Concat.13", *sides, axis=1).out[0].value == ((1, 2, 5), (3, 4, 6))
    assert price("onnx.Concat.13", ints(1), t(1, dtype="int64"), axis=0).out[0].value is None


@pytest.mark.parametrize(
    "shape, target, expected",
    [
        ((3, 1), (3, 4), (3, 4)),
        ((3, 1), (2, 1, 6), (2, 3, 6)),
        ((3, 4), (1,), (3, 4)),
        ((1, 1, "s", "s"), (B, 1, S, S), (B, 1, S, S)),
        ((1, "s"), (B, 1), (B, S)),
        ((), (2, 2), (2, 2)),
    ],
)
def test_expand_broadcasts_both_ways(shape, target, expected):
    assert shapes(price("onnx.Expand.13", t(*shape), ints(*target))) == [expected]


def test_expand_reads_its_source_once():
    assert moves(price("onnx.Expand.13", t(1, 64), ints(32, 64)), 64, 32 * 64)


def test_expand_to_what_only_data_tells_keeps_sizes_that_cannot_change():
    (out,) = price("onnx.Expand.13", t(1, 64), t(2, dtype="int64")).out
    assert out.shape[1] == 64
    assert out.rank == 2
    with pytest.raises(ShapeError):
        price("onnx.Expand.13", t(2, 3), ints(2, 4))


def test_expand_carries_contents():
    assert price("onnx.Expand.13", ints(S), ints(3)).out[0].value == (S, S, S)
    assert price("onnx.Expand.13", ints(1, 2), ints(2, 1)).out[0].value == ((1, 2), (1, 2))


def test_tile():
    estimate = price("onnx.Tile.13", t(2, 3), ints(4, 5))
    assert shapes(estimate) == [(8, 15)]
    assert moves(estimate, 6, 120)
    assert shapes(price("onnx.Tile.13", t("b", 3), ints(2, S))) == [(2 * B, 3 * S)]
    assert price("onnx.Tile.13", ints(1, S), ints(2)).out[0].value == (1, S, 1, S)
    assert price("onnx.Tile.13", t(2, 3), t(2, dtype="int64")).out[0].rank == 2
    one = t(dtype="int64", value=3)
    assert shapes(price("onnx.Tile.1", t(2, 5), one, t(dtype="int64", value=1))) == [(2, 15)]


def test_depth_and_space():
    estimate = price("onnx.DepthToSpace.13", t("b", 12, "h", "w"), blocksize=2, mode="CRD")
    assert shapes(estimate) == [(B, 3, 2 * H, 2 * W)]
    assert shapes(price("onnx.SpaceToDepth.13", t(1, 3, 8, 12), blocksize=4)) == [(1, 48, 2, 3)]
    with pytest.raises(ShapeError):
        price("onnx.DepthToSpace.13", t(1, 6, 2, 2), blocksize=2)


def test_col2im_adds_every_block():
    estimate = price("onnx.Col2Im.18", t(1, 5 * 25, 9), ints(5, 5), ints(5, 5), pads=(1, 1, 1, 1))
    assert shapes(estimate) == [(1, 5, 5, 5)]
    assert estimate.vector_flops == 125 * 9


def test_trilu():
    assert moves(price("onnx.Trilu.14", t(3, 4, 4)), 48, 48)
    square = matrix((1, 2), (3, S))
    assert price("onnx.Trilu.14", square, upper=0).out[0].value == ((1, 0), (3, S))
    assert price("onnx.Trilu.14", square, t(dtype="int64", value=1)).out[0].value == ((0, 2), (0, 0))
    assert price("onnx.Trilu.14", square, t(dtype="int64")).out[0].value is None


def test_reverse_sequence():
    assert shapes(price("onnx.ReverseSequence.10", t(4, "b"), t("b", dtype="int64"))) == [(4, B)]
    with pytest.raises(ShapeError):
        price("onnx.ReverseSequence.10", t(4, 3), t(2, dtype="int64"))
