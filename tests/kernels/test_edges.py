"""Kernels of the smallest and of odd calls: one element, one row, an axis in the middle, nothing at all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Space
from typing import Any

import pytest

from graphflops.execution.strides import row_major
from graphflops.kernels.attention import attention, attention_backward
from graphflops.kernels.beside import reduced_axes
from graphflops.kernels.buffers import axes_of
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.kernels.gradients import _gather_backward
from graphflops.kernels.images import pooling
from graphflops.kernels.kernel import (
    Attention,
    Convolution as Sizes,
    Exchange,
    Kernel,
    Product,
    Recurrence,
    Rows,
    Strided,
)
from graphflops.kernels.moved import _written_rows, collective
from graphflops.kernels.products import product_backward, recurrent
from graphflops.tensor import BFLOAT16, TensorType
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, one_call


def test_what_sizes_are_where_nothing_else_is_said() -> None:
    assert Product(4, 5, 6) == Product(4, 5, 6, 1, "tn", "", False)
    assert Attention(1, 2, 3, 4, 5, 6) == Attention(1, 2, 3, 4, 5, 6, 1.0, "flash", "forward", "")
    assert Recurrence(1, 2, 3, 4, 5) == Recurrence(1, 2, 3, 4, 5, 1, 1, "forward")
    assert Exchange(7) == Exchange(7, 2, 1)
    assert Strided(7, 2, 3) == Strided(7, 2, 3, 0.0, False)
    assert Rows(7, 2) == Rows(7, 2, True)
    assert Sizes(1, 2, 3, (4,), (4,), (1,)) == Sizes(
        1, 2, 3, (4,), (4,), (1,), 1, False, "", "forward", False
    )
    assert Kernel("copy", "float32") == Kernel("copy", "float32", 0, 0, 0, 0, None, "", 1)


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [
        ((4, 1), 1, Rows(4, 1)),
        ((1, 4), 0, Rows(4, 1, False)),
        ((1,), 0, Rows(1, 1)),
        ((4, 2), 1, Rows(4, 2)),
        ((2, 3, 4), 1, Rows(8, 3, False)),
    ],
)
def test_rows_of_one_element(shape: tuple[int, ...], axis: int, rows: Rows) -> None:
    (kernel,) = forward("aten.cumsum.default", t(*shape), axis)
    assert kernel.sizes == rows


@pytest.mark.parametrize(
    ("shape", "axis", "is_along_rows"),
    [
        ((2, 3, 4), 2, True),
        ((2, 3, 4), -1, True),
        ((2, 3, 4), 1, False),
        ((2, 3, 4), 0, False),
        ((4,), 0, True),
    ],
)
def test_elements_that_are_scattered_along_rows(
    shape: tuple[int, ...], axis: int, is_along_rows: bool
) -> None:
    index = t(*shape, dtype="int64")
    *_, kernel = forward("aten.scatter_add.default", t(*shape), axis, index, t(*shape))
    assert (kernel.variant == "scatter_add") is is_along_rows
    assert isinstance(kernel.sizes, Rows)


@pytest.mark.parametrize(
    ("rows", "dtype", "width"), [(1, "float32", 4), (2, "float32", 4), (3, "bfloat16", 2)]
)
def test_rows_that_are_written_in_place(rows: int, dtype: str, width: int) -> None:
    places = (t(rows, dtype="int64"),)
    (kernel,) = forward("aten.index_put_.default", t(10, 8, dtype=dtype), places, t(rows, 8, dtype=dtype))
    assert (kernel.sizes, kernel.written_bytes) == (Rows(rows, 8), width * 8 * rows)


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("upsample_bilinear2d.vec", (g(0, 3, 8, 8), None, False, (2.0, 2.0))),
        ("softmax.int", (g(0, 8), -1)),
        ("mul.Tensor", (g(0, 8), g(0, 8))),
        ("max_pool2d.default", (g(0, 3, 8, 8), (2, 2))),
    ],
)
def test_gradients_of_no_elements_move_none(op: str, given: Any) -> None:
    assert all(kernel.written_bytes == 0 for kernel in backward(f"aten.{op}", *given))
    assert all(kernel.written_bytes == 0 for kernel in forward(f"aten.{op}", *given))


WEIGHT = (16, 8, 3, 3)
IMAGE = (2, 8, 6, 6)
LAST, WEIGHT_LAST = (288, 1, 48, 8), (72, 1, 24, 8)


@pytest.mark.parametrize(
    ("shape", "strides", "weight_strides", "layout"),
    [
        (IMAGE, None, None, Layout()),
        (IMAGE, LAST, None, Layout(operand=True)),
        (
            IMAGE,
            None,
            WEIGHT_LAST,
            Layout(operand=True, gaps=True, weight=True),
        ),  # the weight asks for a copy
        (IMAGE, LAST, WEIGHT_LAST, Layout(operand=True, weight=True)),
        (IMAGE, (576, 36, 6, 1), None, Layout(gaps=True)),
        (IMAGE, (576, 1, 48, 8), None, Layout(operand=True, gaps=True)),
        ((1, 8, 6, 6), (7, 36, 6, 1), None, Layout()),  # of one image there is no next one
        (IMAGE, (288, 1, 8, 48), None, Layout(gaps=True)),  # its axes exchanged: no order that PyTorch knows
    ],
)
def test_how_operand_and_weight_of_a_convolution_lie(
    shape: Any, strides: Any, weight_strides: Any, layout: Layout
) -> None:
    own, others = strides or row_major(shape), weight_strides or row_major(WEIGHT)
    assert Layout.of(shape, own, WEIGHT, others) == layout


def test_sequences_are_put_in_order_first() -> None:
    assert Layout.of((2, 8, 6), (48, 1, 8), (16, 8, 3), (24, 3, 1)) == Layout(gaps=True)
    volume = (2, 8, 4, 4, 4)
    last = (512, 1, 128, 32, 8)
    assert Layout.of(volume, last, (16, 8, 3, 3, 3), row_major((16, 8, 3, 3, 3))) == Layout(operand=True)


def conv(x: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...], **changed: Any) -> Convolution:
    axes = len(x) - 2
    types = [TensorType(shape, BFLOAT16) for shape in (x, weight, out)]
    plain = {"stride": (1,) * axes, "padding": (0,) * axes, "groups": 1, "transposed": False}
    return Convolution(*types, **{**plain, **changed})  # type: ignore[arg-type]


def test_facts_of_a_convolution() -> None:
    shapes = (2, 24, 6, 5), (12, 8, 3, 3), (2, 12, 4, 3)
    one = conv(*shapes, groups=3)
    assert (one.channels, one.results, one.wide, one.narrow, one.taps, one.steps) == (8, 4, 8, 4, 9, 72)
    assert (one.batch, one.positions, one.result_positions, one.rows) == (2, 30, 12, 24)
    assert one.multiplies == 24 * 8 * 4 * 3 * 9
    assert conv(*shapes, groups=3, transposed=True).multiplies == 60 * 8 * 4 * 3 * 9
    assert (one.weight_elements, one.operand_elements, one.result_elements) == (32, 2 * 24 * 30, 2 * 12 * 12)
    assert (one.positions_align, one.channels_align, one.results_align) == (2, 8, 4)
    assert (one.packed, one.axes, one.is_half, one.is_single) == (8, 2, True, False)
    assert (one.is_depthwise, one.is_pointwise, one.is_strided, one.is_patch) == (False, False, False, False)
    assert (one.is_power, one.is_aligned, one.float_weight) == (True, False, 4 * 12 * 8 * 9)
    # four results are eight
    assert one.copies() == {"x": 2 * 2 * 24 * 30, "w": 2 * 12 * 8 * 9 * 2, "o": 2 * 2 * 12 * 12 * 2}
    padded = {"x": 2 * 2 * 24 * 30 * 2, "w": 2 * 12 * 8 * 9 * 8, "o": 2 * 2 * 12 * 12 * 4}
    assert one.copies(16) == padded


@pytest.mark.parametrize(
    ("changed", "fact", "expected"),
    [
        ({"groups": 24}, "is_depthwise", True),
        ({"groups": 1}, "is_depthwise", False),
        ({"stride": (1, 2)}, "is_strided", True),
        ({"stride": (3, 3)}, "is_patch", True),
        ({"stride": (3, 3), "padding": (0, 1)}, "is_patch", False),
        ({"stride": (3, 3), "transposed": True}, "is_patch", False),
        ({"stride": (3, 2)}, "is_patch", False),
        ({"groups": 2}, "is_power", False),  # of twelve channels
        ({"groups": 2}, "packed", 16),
        ({"groups": 12}, "packed", 4),  # the fewest
        ({"groups": 24}, "results", 1),  # at least one
    ],
)
def test_facts_that_change(changed: dict[str, Any], fact: str, expected: Any) -> None:
    one = conv((2, 24, 6, 5), (12, 8, 3, 3), (2, 12, 4, 3), **{"groups": 3, **changed})
    assert getattr(one, fact) == expected


@pytest.mark.parametrize(
    ("rest", "stride", "padding", "groups"),
    [
        ((), (1, 1), (0, 0), 1),
        ((None, (2,), (1,)), (2, 2), (1, 1), 1),
        ((None, (2, 3), (1, 0), (1, 1), 2), (2, 3), (1, 0), 2),
        ((None, 2, 1), (2, 2), (1, 1), 1),
    ],
)
def test_options_of_a_convolution(rest: Any, stride: Any, padding: Any, groups: int) -> None:
    call = one_call("aten.conv2d.default", t(2, 8, 6, 6), t(16, 8 // groups, 3, 3), *rest)
    found = Convolution.of(call.call, call.values)
    assert found is not None
    assert (found.stride, found.padding, found.groups, found.transposed) == (stride, padding, groups, False)
    assert (found.wants_x, found.wants_weight, found.wants_bias) == (False, False, False)


def test_padding_by_words_and_gradients_that_are_wanted() -> None:
    call = one_call("aten.conv2d.padding", g(2, 8, 6, 6), t(16, 8, 3, 3), g(16), (1, 1), "valid")
    found = Convolution.of(call.call, call.values)
    assert found is not None
    assert found.padding == (0, 0)
    assert (found.wants_x, found.wants_weight, found.wants_bias) == (True, False, True)
    turned = one_call("aten.conv_transpose2d.input", t(2, 16, 6, 6), t(16, 8, 3, 3))
    other = Convolution.of(turned.call, turned.values)
    assert other is not None
    assert other.transposed


@pytest.mark.parametrize(
    ("x", "weight", "is_known"),
    [
        ((2, 8, 6, 6), (16, 8, 3, 3), True),
        ((8, 6, 6), (16, 8, 3, 3), False),  # of one image without a batch
        ((2, 8, 6), (16, 8, 3), True),
        ((2, 8), (16, 8), False),
    ],
)
def test_convolutions_whose_operands_have_other_axes(x: Any, weight: Any, is_known: bool) -> None:
    call = one_call("aten.conv2d.default", t(2, 8, 6, 6), t(16, 8, 3, 3))
    shapes = {"x0": t(*x), "x1": t(*weight), "y0": t(*x)}
    assert (Convolution.of(call.call, shapes) is not None) is is_known


def test_calls_that_want_no_gradients_have_none() -> None:
    heads = [t(2, 4, 16, 8)] * 3
    assert product_backward(one_call("aten.mm.default", t(4, 8), t(8, 6))) == []
    assert _gather_backward(one_call("aten.embedding.default", t(10, 8), t(4, dtype="int64"))) == []
    assert attention_backward(one_call("aten.scaled_dot_product_attention.default", *heads)) == []


def test_an_attention_of_unknown_sizes_moves_what_it_costs() -> None:
    """Two products of each of the 2 * 4 heads, of 16 x 8 with 8 x 16 and back; q, k and v are read."""
    heads = [t(2, 4, 16, 8)] * 3
    one = 4 * 2 * 4 * 16 * 8  # bytes of each
    call = one_call("aten.scaled_dot_product_attention.default", *heads)
    call.arguments = {}  # operands without names
    (kernel,) = attention(call)
    products = 2 * (2 * 4) * (2 * 16 * 16 * 8)
    assert kernel == Kernel("attention", "float32", products, 0, 3 * one, one)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
def test_images_of_one_axis_are_pooled_without_a_batch(shape: tuple[int, ...]) -> None:
    call = one_call("aten.max_pool1d.default", g(*shape), (2,))
    assert [kernel.family for kernel in pooling(call)] == ["pool"]
    assert [kernel.family for kernel in pooling(call, is_backward=True)][-1] == "pool"


@pytest.mark.parametrize(
    ("name", "operand", "rank", "axes"),
    [
        ("prelu", (4,), 2, [1]),  # parameters lie along channels
        ("prelu", (4,), 4, [1]),
        ("prelu", (4,), 1, [0]),
        ("prelu", (2, 4), 2, [0, 1]),
        ("add", (4,), 3, [2]),
        ("add", (4,), 1, [0]),
        ("add", (4, 5), 4, [2, 3]),
        ("add", (), 2, []),
    ],
)
def test_axes_along_which_an_operand_lies(name: str, operand: Any, rank: int, axes: list[int]) -> None:
    assert [*axes_of(Space(name=name), operand, rank)] == axes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "rank", "axes"),
    [(None, 3, {0, 1, 2}), ((), 2, {0, 1}), (1, 3, {1}), (-1, 3, {2}), ((0, -1), 3, {0, 2}), (0, 0, set())],
)
def test_axes_of_an_argument(given: Any, rank: int, axes: set[int]) -> None:
    assert reduced_axes(given, rank) == axes


def test_rows_that_a_scatter_has_written() -> None:
    """4000 bytes of float32 are a thousand numbers, a hundred rows of ten; of bfloat16 they are two hundred."""
    written = Kernel("scatter", "float32", written_bytes=4000)
    for bits, rows in ((32, 100), (16, 200)):
        x: Any = Space(shape=(500, 10), bits=bits)
        assert _written_rows(written, x) == Rows(rows, 10)
    assert _written_rows(Kernel("scatter", "float32"), x) == Rows(1, 10)


@pytest.mark.parametrize(
    ("name", "results", "gradient"),
    [("wait_tensor", (1,), Space(estimate=None)), ("all_reduce", (), Space(estimate=None))],
)
def test_exchanges_that_nothing_takes_back(name: str, results: Any, gradient: Any) -> None:
    more = {"results": results, "gradient": gradient, "operands": (), "cost": None, "backward_cost": None}
    call: Any = Space(operator=Space(name=name), estimate=None, **more)
    assert collective(call, is_backward=True) == []


def test_a_recurrent_layer_without_tensors_runs_nothing() -> None:
    operator, x = Space(word="lstm"), Space(rank=3)
    for operands, out in (((), Space(rank=3)), ((x,), None), ((x,), Space(rank=0))):
        call: Any = Space(operator=operator, operands=operands, out=out)
        assert recurrent(call) == []


@pytest.mark.parametrize(("given", "groups"), [(0, 1), (1, 1), (2, 2), (-1, 1), (None, 1)])
def test_groups_are_at_least_one(given: Any, groups: int) -> None:
    call = one_call("aten.conv2d.default", t(2, 8, 6, 6), t(16, 8, 3, 3))
    node = replace(call.call.node, args=(*call.call.node.args, None, 1, 0, 1, given))
    found = Convolution.of(replace(call.call, node=node), call.values)
    assert found is not None
    assert found.groups == groups


def test_gradients_without_elements_are_not_computed() -> None:
    assert [len(backward("aten.linalg_cross.default", g(rows, 3), t(rows, 3))) for rows in (0, 5)] == [0, 1]


@pytest.mark.parametrize(
    ("axis", "keepdims", "expected"),
    [(0, 0, Rows(48, 4, False)), (1, 1, Rows(32, 6, False)), (2, 0, Rows(24, 8)), (2, 1, Rows(24, 8))],
)
def test_a_sum_whose_axes_are_an_operand(axis: int, keepdims: int, expected: Rows) -> None:
    """The last axis is summed where the result's is another one."""
    axes = t(1, dtype="int64", value=(axis,))
    (kernel,) = forward("onnx.ReduceSum.13", t(4, 6, 8), axes, keepdims=keepdims)
    assert kernel.sizes == expected


def test_a_resize_without_work_takes_the_nearest() -> None:
    """ONNX has one operator for all ways."""
    sizes = t(4, dtype="int64", value=(2, 8, 32, 32))
    found = {
        mode: forward("onnx.Resize.13", t(2, 8, 16, 16), None, None, sizes, mode=mode)[-1].variant
        for mode in ("nearest", "linear")
    }
    assert found == {"nearest": "nearest", "linear": "linear"}


def test_a_scatter_by_several_indices_copies_its_operand_first() -> None:
    """The copy's bytes are among those of the call. A number is looked up too where no mask tells its places."""
    index, value = t(2, dtype="int64"), t(2)
    assert [kernel.family for kernel in forward("aten.index_put_.default", t(4, 6), (index,), t())] == [
        "scatter"
    ]
    assert len(forward("aten.index_put_.default", t(4, 6), (index, index), value)) == 1
    _, copy = forward("aten.index_put.default", t(4, 6), (index, index), value)
    assert (copy.family, copy.read_bytes, copy.written_bytes) == ("elementwise", 0, 0)


@pytest.mark.parametrize(("parts", "variant"), [(1, ""), (2, "cat_aligned")])
def test_one_tensor_that_is_joined_is_copied(parts: int, variant: str) -> None:
    (kernel,) = forward("aten.cat.default", (t(4, 8),) * parts, 0)
    assert (kernel.family, kernel.variant) == ("copy", variant)
