import pytest

from graphflops.dims import dim_max, dim_min, symbol
from graphflops.errors import ShapeError
from tests.support import price, shapes, t

B, S, H, P = map(symbol, "bshp")
LONGEST = 2**63 - 1


def ints(*value):
    """A vector of known sizes."""
    return t(len(value), dtype="int64", value=value)


@pytest.mark.parametrize(
    "length, start, end, step, expected",
    [
        (10, 2, 5, 1, 3),
        (10, 0, LONGEST, 1, 10),
        (10, -3, LONGEST, 1, 3),
        (10, 0, -1, 3, 3),
        (10, 8, 3, 1, 0),
        (10, 20, 30, 1, 0),
        (10, -30, 4, 1, 4),
        (10, 9, -LONGEST - 1, -1, 10),
        (10, -1, -LONGEST, -1, 10),
        (10, 100, 0, -3, 3),
        (10, 5, 5, -1, 0),
        (10, 3, 7, -1, 0),
        ("s", 0, LONGEST, 1, S),
        ("s", 0, 2**31 - 1, 1, S),
        ("s", -1, LONGEST, 1, 1),
        ("s", 1, LONGEST, 1, S - 1),
        ("s", 0, -1, 1, S - 1),
        ("s", 0, LONGEST, 2, (S + 1) // 2),
        ("s", -1, -LONGEST - 1, -1, S),
        (
            "s",
            -2,
            -LONGEST - 1,
            -1,
            dim_max(0, S - 2) + 1,
        ),  # of one row that row: the start is brought to the front
        ("s", 4, LONGEST, 1, dim_max(0, S - 4)),
        ("s", -4, LONGEST, 1, dim_min(4, S)),
        (1, -8, -LONGEST, -1, 1),
        (5, 3, LONGEST, -1, 4),  # as onnxruntime has it: the largest number is the front here
        ("s", 0, 1, 1, 1),
        ("s", LONGEST, LONGEST, 1, 0),
        (1024, 0, S, 1, S),
        (1024, P, P + S, 1, S),
        ("s", S - 1, S, 1, 1),
    ],
)
def test_slice_keeps(length, start, end, step, expected):
    inputs = (ints(start), ints(end), ints(0), ints(step))
    assert shapes(price("onnx.Slice.13", t(length, 4), *inputs)) == [(expected, 4)]


@pytest.mark.parametrize("start", [0, 3, 9, -1, -10, 12, -12])
@pytest.mark.parametrize("end", [0, 4, 10, -1, -10, 30, -30])
@pytest.mark.parametrize("step", [1, 3, -1, -4])
def test_slice_agrees_with_python(start, end, step):
    numbers = tuple(range(10))
    (out,) = price("onnx.Slice.13", ints(*numbers), ints(start), ints(end), ints(0), ints(step)).out
    # Where it steps backwards, a start before the first element is brought to it; Python's slice is empty.
    assert out.value == numbers[max(start, -10) : end : step]


def test_slice_1_has_bounds_as_attributes():
    assert shapes(price("onnx.Slice.1", t(4, "s", 6), starts=(1, 0), ends=(3, 1000), axes=(0, 2))) == [
        (2, S, 6)
    ]
    assert shapes(price("onnx.Slice.1", t(4, 5), starts=(1, 1), ends=(-1, 9))) == [(2, 4)]


def test_slice_reads_what_it_returns():
    cost = price("onnx.Slice.13", t(100, 8), ints(0), ints(3)).cost
    assert (cost.read_bytes, cost.written_bytes) == (3 * 8 * 4, 3 * 8 * 4)


def test_slice_by_what_only_data_tells():
    (out,) = price("onnx.Slice.13", t("b", 8), t(1, dtype="int64"), ints(9), ints(1)).out
    assert out.shape[0] is B
    assert str(out.shape[1]) == "Symbol('slice_axis1?')"
    (out,) = price("onnx.Slice.13", t("b", 8), ints(0), ints(1), t(1, dtype="int64")).out
    assert out.rank == 2
    with pytest.raises(ShapeError):
        price("onnx.Slice.13", t(4), ints(0), ints(1), ints(0), ints(0))


def test_slice_carries_contents_of_more_axes():
    pads = t(3, 2, dtype="int64", value=((0, 0), (1, S), (2, 3)))
    (out,) = price("onnx.Slice.10", pads, ints(-1), ints(-LONGEST), ints(0), ints(-1)).out
    assert out.value == ((2, 3), (1, S), (0, 0))


def test_split_by_sizes():
    x = t("b", 10)
    assert shapes(price("onnx.Split.13", x, ints(2, 3, 5), axis=1)) == [(B, 2), (B, 3), (B, 5)]
    assert shapes(price("onnx.Split.2", x, split=(4, 6), axis=-1)) == [(B, 4), (B, 6)]
    with pytest.raises(ShapeError):
        price("onnx.Split.13", x, ints(2, 3), axis=1)


def test_split_into_equal_pieces():
    wanted = (True, True)
    assert shapes(price("onnx.Split.13", t("b", 10), axis=1, outputs=wanted)) == [(B, 5)] * 2
    assert shapes(price("onnx.Split.13", t("b", 10), axis=0, outputs=wanted)) == [(B // 2, 10)] * 2
    assert shapes(price("onnx.Split.18", t(7), num_outputs=4)) == [(2,), (2,), (2,), (1,)]
    assert shapes(price("onnx.Split.18", t(4), num_outputs=3)) == [(2,), (2,), (0,)]  # as onnxruntime runs it
    with pytest.raises(ShapeError, match="5 do not make 4 pieces of 2"):
        price("onnx.Split.18", t(5), num_outputs=4)
    assert shapes(price("onnx.Split.18", t("s"), num_outputs=2)) == [((S + 1) // 2,), (S - (S + 1) // 2,)]
    assert shapes(price("onnx.Split.18", t(3 * S), num_outputs=3)) == [(S,)] * 3


def test_split_makes_only_pieces_that_are_wanted():
    cost = price("onnx.Split.18", t(6, 4), ints(1, 5), outputs=(True, False)).cost
    assert (cost.read_bytes, cost.written_bytes) == (16, 16)


def test_split_by_what_only_data_tells():
    first, second = shapes(price("onnx.Split.13", t(10), t(2, dtype="int64"), outputs=(True, True)))
    assert first != second


def test_split_carries_contents():
    parts = price("onnx.Split.18", ints(1, B, S), ints(1, 2)).out
    assert [part.value for part in parts] == [(1,), (B, S)]


@pytest.mark.parametrize(
    "pads, axes, expected",
    [
        ((0, 1, 0, 2), None, (B, 13)),
        ((1, 1), (-1,), (B, 12)),
        ((S, 0), (1,), (B, 10 + S)),
        ((-1, 0, -2, 0), None, (B - 3, 10)),
    ],
)
def test_pad(pads, axes, expected):
    operands = (ints(*pads), None, None if axes is None else ints(*axes))
    assert shapes(price("onnx.Pad.18", t("b", 10), *operands)) == [expected]


def test_pad_of_old_has_widths_as_attributes():
    assert shapes(price("onnx.Pad.2", t(3, 4), pads=(0, 1, 2, 3), mode="edge", value=0.0)) == [(5, 8)]
    assert shapes(price("onnx.Pad.1", t(3, 4), paddings=(0, 1, 2, 3))) == [(5, 8)]


def test_pad_refuses_to_cut_more_than_there_is():
    with pytest.raises(ShapeError):
        price("onnx.Pad.13", t(3), ints(-2, -2))
    with pytest.raises(ShapeError):
        price("onnx.Pad.13", t(3), ints(1, 1, 1))


def test_pad_by_what_only_data_tells():
    (out,) = price("onnx.Pad.18", t("b", 8), t(2, dtype="int64"), None, ints(1)).out
    assert out.shape[0] is B
    assert not isinstance(out.shape[1], int)


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("constant", (7, 7, 1, 2, S, 7)),
        ("edge", (1, 1, 1, 2, S, S)),
        ("reflect", (S, 2, 1, 2, S, 2)),
        ("wrap", (2, S, 1, 2, S, 1)),
    ],
)
def test_pad_carries_contents(mode, expected):
    fill = t(dtype="int64", value=7)
    (out,) = price("onnx.Pad.19", ints(1, 2, S), ints(2, 1), fill, mode=mode).out
    assert out.value == expected


def test_center_crop_pad():
    assert shapes(price("onnx.CenterCropPad.18", t(20, 8, 3), ints(10, 7, 3))) == [(10, 7, 3)]
    assert shapes(price("onnx.CenterCropPad.18", t(20, "h", 3), ints(9), axes=(-2,))) == [(20, 9, 3)]
    cost = price("onnx.CenterCropPad.18", t(20), ints(5)).cost
    assert (cost.read_bytes, cost.written_bytes) == (20, 20)
