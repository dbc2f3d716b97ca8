import pytest

from graphflops.dims import symbol
from graphflops.errors import ShapeError
from graphflops.rules.onnx.entries import VARIES
from graphflops.tensor import BOOL, INT64, OptionalType, SequenceType, UnknownType
from tests.support import price, shapes, t

B, S = symbol("b"), symbol("s")


def number(value=None):
    """A scalar, known or not."""
    return t(dtype="int64", value=value)


def only(estimate):
    """The one result of a call."""
    (out,) = estimate.out
    return out


PAIR = only(price("onnx.SequenceConstruct.11", t(2, "s"), t(3, "s")))


def test_bookkeeping_is_free():
    assert not price("onnx.SequenceConstruct.11", t(2), t(3)).cost
    assert not price("onnx.SequenceAt.11", PAIR, number(0)).cost
    assert only(price("onnx.SequenceEmpty.11", dtype=7)) == SequenceType(None, 0, ())


def test_elements_are_followed_one_by_one():
    assert PAIR.element == t(VARIES, "s")
    assert only(price("onnx.SequenceAt.11", PAIR, number(1))) == t(3, "s")
    assert only(price("onnx.SequenceAt.11", PAIR, number(-2))) == t(2, "s")
    assert only(price("onnx.SequenceLength.11", PAIR)) == t(dtype="int64", value=2)
    with pytest.raises(ShapeError):
        price("onnx.SequenceAt.11", PAIR, number(2))


def test_an_element_that_only_data_picks():
    out = only(price("onnx.SequenceAt.11", PAIR, number()))
    assert (str(out.shape[0]), out.shape[1]) == ("Symbol('element_axis0?')", S)
    assert only(price("onnx.SequenceAt.11", SequenceType(t(5), S), number())) == t(5)
    assert only(price("onnx.SequenceAt.11", SequenceType(), number())) == UnknownType()


def test_insert_and_erase():
    longer = only(price("onnx.SequenceInsert.11", PAIR, t(7, "s"), number(1)))
    assert [item.shape[0] for item in longer.items] == [2, 7, 3]
    assert only(price("onnx.SequenceInsert.11", PAIR, t(7, "s"))).items[2] == t(7, "s")
    assert only(price("onnx.SequenceErase.11", longer, number(1))) == PAIR
    assert only(price("onnx.SequenceErase.11", PAIR)).items == (t(2, "s"),)
    many = SequenceType(t(4), S)
    assert only(price("onnx.SequenceInsert.11", many, t(4))) == SequenceType(t(4), S + 1)
    assert only(price("onnx.SequenceInsert.11", many, t(5))).element == t(VARIES)
    assert only(price("onnx.SequenceErase.11", many)).length == S - 1


@pytest.mark.parametrize(
    "split, keepdims, expected",
    [
        (t(2, dtype="int64", value=(2, 3)), 1, [(2, B), (3, B)]),
        (t(dtype="int64", value=2), 1, [(2, B), (2, B), (1, B)]),
        (None, 1, [(1, B)] * 5),
        (None, 0, [(B,)] * 5),
    ],
)
def test_split_to_sequence_copies(split, keepdims, expected):
    estimate = price("onnx.SplitToSequence.11", t(5, "b"), split, keepdims=keepdims)
    assert [item.shape for item in only(estimate).items] == expected
    assert estimate.cost.read_bytes == estimate.cost.written_bytes == 5 * 4 * B


def test_split_of_an_axis_that_is_not_known():
    assert only(price("onnx.SplitToSequence.11", t("s", 3), None)) == SequenceType(t(1, 3), S)
    assert only(price("onnx.SplitToSequence.11", t("s", 3), None, keepdims=0)) == SequenceType(t(3), S)
    halves = only(price("onnx.SplitToSequence.11", t("s"), number(2)))
    assert halves == SequenceType(t(VARIES), (S + 1) // 2)
    assert only(price("onnx.SplitToSequence.11", t(2 * S), number(2))) == SequenceType(t(2), S)


def test_split_carries_contents():
    shape = t(3, dtype="int64", value=(B, S, 64))
    items = only(price("onnx.SplitToSequence.11", shape, None, keepdims=0)).items
    assert [item.value for item in items] == [B, S, 64]


def test_concat_from_sequence():
    estimate = price("onnx.ConcatFromSequence.11", PAIR, axis=0)
    assert shapes(estimate) == [(5, S)]
    assert estimate.cost.read_bytes == estimate.cost.written_bytes == 5 * 4 * S
    stacked = SequenceType(t(3, 4), S)
    assert shapes(price("onnx.ConcatFromSequence.11", stacked, axis=-1)) == [(3, 4 * S)]
    assert shapes(price("onnx.ConcatFromSequence.11", stacked, axis=-1, new_axis=1)) == [(3, 4, S)]
    assert shapes(price("onnx.ConcatFromSequence.11", stacked, axis=0, new_axis=1)) == [(S, 3, 4)]
    (open_,) = shapes(price("onnx.ConcatFromSequence.11", SequenceType(t(3, VARIES), S), axis=1))
    assert open_ != (3, S)
    assert open_[0] == 3


def test_optional():
    some, none = only(price("onnx.Optional.15", t(2))), only(price("onnx.Optional.15", type=None))
    assert (some, none) == (OptionalType(t(2), True), OptionalType(None, False))
    assert only(price("onnx.OptionalGetElement.18", some)) == t(2)
    assert only(price("onnx.OptionalGetElement.18", PAIR)) == PAIR
    with pytest.raises(ShapeError):
        price("onnx.OptionalGetElement.18", none)


@pytest.mark.parametrize(
    "value, expected",
    [
        (OptionalType(t(2), True), 1),
        (OptionalType(None, False), 0),
        (OptionalType(t(2)), None),
        (t(2), 1),
        (None, 0),
    ],
)
def test_optional_has_element(value, expected):
    assert only(price("onnx.OptionalHasElement.18", value)) == t(dtype=BOOL, value=expected)


def test_length_of_a_sequence_is_a_size():
    assert only(price("onnx.SequenceLength.11", SequenceType(t(2), S))).value == S
    assert only(price("onnx.SequenceLength.11", SequenceType(t(2)))).dtype == INT64
