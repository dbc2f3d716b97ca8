"""The little programs that exporters write to compute sizes, each as it stands in their files."""

import pytest

from graphflops.dims import dim_min, symbol
from graphflops.tensor import TensorType
from tests.rules.onnx.test_control import branch
from tests.support import price, t

B, S, H, W = map(symbol, "bshw")
LONGEST = 2**63 - 1
VERSIONS = {
    "Add": 14,
    "Cast": 21,
    "Concat": 13,
    "ConstantOfShape": 9,
    "Div": 14,
    "Equal": 13,
    "Expand": 13,
    "Floor": 13,
    "Gather": 13,
    "Mod": 13,
    "Mul": 14,
    "Pad": 19,
    "Range": 11,
    "ReduceProd": 18,
    "Reshape": 14,
    "Resize": 19,
    "ScatterND": 18,
    "SequenceAt": 11,
    "Shape": 15,
    "Slice": 13,
    "Split": 18,
    "SplitToSequence": 11,
    "Squeeze": 13,
    "Sub": 14,
    "Tile": 13,
    "Transpose": 13,
    "Unsqueeze": 13,
    "Where": 16,
    "Neg": 13,
    "NonZero": 13,
    "Min": 13,
    "Max": 13,
}


def run(op, *operands, **attributes):
    """The first result of an operator."""
    out = price(f"onnx.{op}.{VERSIONS[op]}", *operands, **attributes).out[0]
    assert isinstance(out, TensorType)
    return out


def ints(*value):
    """A vector of known whole numbers."""
    return t(len(value), dtype="int64", value=value)


def number(value, dtype="int64"):
    """A known scalar."""
    return t(dtype=dtype, value=value)


def size_of(x, place):
    """A size as TorchScript reads it: the shape, one entry of it."""
    return run("Gather", run("Shape", x), number(place), axis=0)


def vector(*entries):
    """Numbers put together into a shape."""
    return run("Concat", *(run("Unsqueeze", entry, ints(0)) for entry in entries), axis=0)


def test_view_by_sizes_of_the_operand():
    x = t("b", "s", 64)
    shape = vector(size_of(x, 0), size_of(x, 1), number(8), number(-1))
    assert run("Reshape", x, shape).shape == (B, S, 8, 8)


def test_view_by_a_range_of_the_shape():
    x = t("b", "s", 64)
    lead = run("Slice", run("Shape", x), ints(0), ints(-1), ints(0))
    assert run("Reshape", x, run("Concat", lead, ints(8, 8), axis=0)).shape == (B, S, 8, 8)
    flat = run("Unsqueeze", run("ReduceProd", lead, None, keepdims=0), ints(0))
    assert run("Reshape", x, run("Concat", flat, ints(-1), axis=0)).shape == (B * S, 64)


def test_expand_that_keeps_what_is_minus_one():
    """`expand(-1, s, -1)`: ones of the shape's own shape, minus one, compared, and ones taken where they are equal."""
    x = t("b", 1, 64)
    shape = vector(number(-1), size_of(t("b", "s"), 1), number(-1))
    one = t(1, dtype="int64", value=(1,))
    ones = run("ConstantOfShape", run("Shape", shape), value=one)
    keeps = run("Equal", shape, run("Mul", ones, number(-1)))
    assert run("Expand", x, run("Where", keeps, ones, shape)).shape == (B, S, 64)


@pytest.mark.parametrize("rank", [3, 4])
def test_pads_built_through_a_matrix(rank):
    """`F.pad(x, (0, 4 - w % 4))`: pairs from the last axis on, filled up with zeros, turned around and transposed."""
    x = t(*("b", 3, "h", "w")[-rank:])
    wide = run("Sub", number(4), run("Mod", size_of(x, rank - 1), number(4)))
    given = vector(number(0), wide)
    missing = run("Sub", run("Mul", size_of(run("Shape", x), 0), number(2)), size_of(given, 0))
    zeros = run("ConstantOfShape", run("Unsqueeze", missing, ints(0)), value=t(1, dtype="int64", value=(0,)))
    pairs = run("Reshape", run("Concat", given, zeros, axis=0), ints(-1, 2))
    turned = run("Slice", pairs, ints(-1), ints(-LONGEST), ints(0), ints(-1))
    pads = run("Reshape", run("Transpose", turned, perm=(1, 0)), ints(-1))
    out = run("Pad", x, run("Cast", pads, to=7))
    assert out.shape == (*x.shape[:-1], W + 4 - W % 4)


def test_windows_of_a_picture():
    x = t("b", "h", "w", 32)
    rows, columns = (run("Div", size_of(x, place), number(7)) for place in (1, 2))
    shape = vector(size_of(x, 0), rows, number(7), columns, number(7), number(32))
    assert run("Reshape", x, shape).shape == (B, H // 7, 7, W // 7, 7, 32)


def test_positions_and_a_causal_mask():
    x, past = t("b", "s", 64), t("b", 8, "h", 64)
    seen = size_of(past, 2)
    whole = run("Add", seen, size_of(x, 1))
    positions = run("Range", seen, whole, number(1))
    assert positions.shape == (S,)
    columns = run("Range", number(0), whole, number(1))
    mask = run("Where", run("Equal", run("Unsqueeze", positions, ints(1)), columns), t(), t())
    assert mask.shape == (S, H + S)
    bias = t(1, 1, 1024, 1024)
    rows = run("Slice", bias, run("Unsqueeze", seen, ints(0)), run("Unsqueeze", whole, ints(0)), ints(2))
    assert run("Slice", rows, ints(0), run("Unsqueeze", whole, ints(0)), ints(3)).shape == (1, 1, S, H + S)


def test_positions_before_there_was_range():
    x = t("b", "s", 64)
    one = t(1, dtype="int64", value=(1,))
    ones = run("ConstantOfShape", run("Unsqueeze", size_of(x, 1), ints(0)), value=one)
    found = run("Transpose", run("NonZero", ones), perm=(1, 0))
    assert run("Squeeze", found, ints(1)).shape == (S,)
    assert run("NonZero", run("ConstantOfShape", run("Shape", x))).shape == (3, 0)


def test_the_last_so_many():
    x, y = t("b", "s", 64), t("b", "h")
    start = run("Unsqueeze", run("Neg", size_of(y, 1)), ints(0))
    assert run("Slice", x, start, ints(LONGEST), ints(1)).shape == (B, dim_min(H, S), 64)


def test_twice_the_size_of_a_picture():
    x = t("b", 3, "h", "w")
    spatial = run("Cast", run("Slice", run("Shape", x), ints(2), ints(4), ints(0)), to=1)
    doubled = run("Floor", run("Mul", spatial, t(2, value=(2.0, 0.5))))
    sizes = run(
        "Concat", run("Slice", run("Shape", x), ints(0), ints(2), ints(0)), run("Cast", doubled, to=7), axis=0
    )
    assert run("Resize", x, None, None, sizes).shape == (B, 3, 2 * H, W // 2)


def test_the_size_of_another_picture_by_factors():
    x, other = t(1, 3, "h", 10), t(1, 3, "w", 20)
    scales = run("Div", run("Cast", run("Shape", other), to=1), run("Cast", run("Shape", x), to=1))
    assert run("Resize", x, None, scales).shape == (1, 3, W, 20)


def test_a_shape_with_one_size_replaced():
    x = t("b", "s", 64)
    shape = run("ScatterND", run("Shape", x), t(1, 1, dtype="int64", value=((1,),)), ints(1))
    assert run("ConstantOfShape", shape).shape == (B, 1, 64)
    mask = run("Equal", run("Range", number(0), number(3), number(1)), number(1))
    assert run("ConstantOfShape", run("Where", mask, ints(7), run("Shape", x))).shape == (B, 7, 64)


def test_a_shape_taken_apart():
    shape = run("Shape", t("b", "s", 64))
    parts = price("onnx.Split.18", shape, num_outputs=3).out
    assert [run("Squeeze", part, ints(0)).value for part in parts] == [B, S, 64]
    (listed,) = price("onnx.SplitToSequence.11", shape, None, keepdims=0).out
    assert run("SequenceAt", listed, number(-2)).value == S


def test_repeats_from_sizes():
    x, y = t("b", 1, 64), t("h", "s")
    repeats = vector(number(1), size_of(y, 1), number(1))
    assert run("Tile", x, repeats).shape == (B, S, 64)


def test_as_many_as_fit():
    x = t("b", "s")
    most = run("Min", size_of(x, 1), number(512))
    out = run("Slice", x, ints(0), run("Unsqueeze", most, ints(0)), ints(1))
    assert [str(size) for size in out.shape] == ["b", "min(512, s)"]


def test_squeeze_of_an_axis_that_may_be_of_length_one():
    x = t("b", "s")
    holds = run("Equal", size_of(x, 1), number(1))

    branches = {"then_branch": branch(run("Squeeze", x, ints(1))), "else_branch": branch(x)}
    assert price("onnx.If.25", holds, **branches).out == (x,)
