"""What the operators of small programs read, make and are: numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.inductor.plan import Plan
from tests.inductor.one_call import each, made, plan_of
from tests.inductor.several_calls import plan_of_calls
from tests.one_call import g
from tests.support import t

HALF: dict[str, Any] = {"dtype": "bfloat16"}
LONG: dict[str, Any] = {"dtype": "int64"}


def of_call(op: str, *operands: Any, **more: Any) -> list[Any]:
    return made(plan_of(f"aten.{op}", *operands, **more))


def named(plan: Plan, out: str) -> Any:
    return next(op for op in plan.joint.ops if op.outputs and op.outputs[0] == out)


def test_moments_that_a_norm_returns_are_read_from_its_statistics() -> None:
    operands = t(6, 4, 64), (4, 64), t(4, 64), t(4, 64), 1e-5
    assert of_call("native_layer_norm.default", *operands, outputs=3) == [
        ("reduction", 8 * 6, 6 * 4 * 64, 6, "x0", "moments"),  # rows of the two axes that are normalised
        ("pointwise", 4 * 6 * 4 * 64, 6 * 4 * 64, 0, "x0 x2 x3 statistics", ""),
        ("pointwise", 4 * 6, 6 * 4 * 64, 0, "statistics", ""),
        ("pointwise", 4 * 6, 6 * 4 * 64, 0, "statistics", ""),
    ]


def test_gradients_of_a_norm_with_a_weight_alone() -> None:
    assert of_call("rms_norm.default", g(6, 4, 64), (64,), g(64))[2:] == [
        ("reduction", 4 * 64, 6 * 4 * 64, 64, "g1 x0 statistics", "outer"),
        ("reduction", 8 * 6 * 4, 6 * 4 * 64, 6 * 4, "g1 x0 statistics x2", ""),
        ("pointwise", 4 * 6 * 4 * 64, 6 * 4 * 64, 0, "g1 x0 statistics x2 g4", ""),
    ]


@pytest.mark.parametrize(
    ("shape", "axis", "rows", "outer"),
    [
        ((40, 30), -1, 40, ""),
        ((40, 30), 1, 40, ""),
        ((40, 30), -2, 30, "outer"),
        ((40, 30), 0, 30, "outer"),
        ((40, 0), -1, 0, ""),
    ],
)
def test_rows_of_a_softmax(shape: tuple[int, ...], axis: int, rows: int, outer: str) -> None:
    count = shape[0] * shape[1]
    assert of_call("softmax.int", t(*shape), axis) == [
        ("reduction" if count else "pointwise", 8 * rows, count, rows, "x0", outer),
        ("pointwise", 4 * count, count, 0, "x0 statistics", ""),
    ]


def test_a_softmax_of_one_number_takes_no_loop() -> None:
    assert of_call("softmax.int", t(), -1) == [
        ("pointwise", 8, 1, 0, "x0", ""),
        ("pointwise", 4, 1, 0, "x0 statistics", ""),
    ]


def test_rows_of_a_softmax_begin_at_lines_of_memory() -> None:
    """Of 1025 elements the next line of 32 begins at 1056, but nothing lies behind the last row."""
    assert of_call("softmax.int", t(2, 3, 1025), -1) == [
        ("reduction", 8 * 6, 2 * 3 * 1025, 6, "x0", ""),
        ("pointwise", 4 * (5 * 1056 + 1025), 2 * 3 * 1025, 0, "x0 statistics", ""),
    ]


def test_a_cross_entropy_reads_one_element_of_each_row() -> None:
    plan = plan_of("aten.cross_entropy_loss.default", g(10, 8, **HALF), t(10, **LONG))
    assert plan.joint.ops[1].parts == {"x0": {"y0": 2 * 10}}
    plan = plan_of("aten.cross_entropy_loss.default", t(10, 8, 5), t(10, 5, **LONG))
    assert made(plan) == [
        ("reduction", 8 * 50, 400, 50, "x0", "outer"),  # classes are the second axis
        ("reduction", 4, 50, 1, "x0 x1 statistics", ""),
    ]
    assert plan.joint.ops[1].parts == {"x0": {"y0": 4 * 50}}
    assert plan_of("aten.cross_entropy_loss.default", t(10, 8), t(10, 8)).joint.ops[1].parts == {}


@pytest.mark.parametrize("is_read_beside", [False, True])
def test_a_norm_that_only_a_gate_reads_is_in_float32(is_read_beside: bool) -> None:
    calls = [("n", "layer_norm.default", "x", (64,), "w", None), ("y", "gelu.default", "n")]
    more = [("z", "add.Tensor", "n", "y")] if is_read_beside else []
    plan = plan_of_calls({"x": t(6, 64, **HALF), "w": t(64, **HALF)}, *calls, *more)
    assert plan.joint.bytes("n") == (2 if is_read_beside else 4) * 6 * 64
    assert named(plan, "y").reads_twice
    assert not named(plan, "n").reads_twice


@pytest.mark.parametrize(("window", "size"), [((16, 15), 1), ((16, 16), 8)])
def test_a_position_in_a_window_is_a_byte_up_to_256(window: tuple[int, int], size: int) -> None:
    image = g(1, 1, 4 * window[0], 4 * window[1])
    marks, count = f"stored, window {window[0] * window[1]}", image.numel
    assert of_call("max_pool2d.default", image, window, window) == [
        ("pointwise", 4 * 16, 16, 0, "x0", marks),
        ("pointwise", size * 16, 16, 0, "x0", marks),
        ("pointwise", 4 * count, count, 0, "g1 x0 positions", "stored"),  # type: ignore[operator]
    ]


@pytest.mark.parametrize(
    ("op", "operands", "count", "window"),
    [
        ("max_pool2d.default", (t(2, 3, 8, 8), 2, 2), 2 * 3 * 16, 4),  # no positions without gradients
        ("max_pool2d.default", (t(2, 3, 8, 8), (2, 4), (2, 4)), 2 * 3 * 8, 8),
        ("avg_pool1d.default", (t(2, 3, 8), (4,), (4,)), 2 * 3 * 2, 4),
        ("max_pool3d.default", (t(2, 3, 4, 4, 4), (2,), (2,)), 2 * 3 * 8, 2),
    ],
)
def test_windows_of_poolings(op: str, operands: Any, count: int, window: int) -> None:
    assert of_call(op, *operands) == [
        ("pointwise", 4 * count, count, 0, "x0", f"stored, window {window}"),
    ]


def test_an_interpolation_of_half_precision_is_one_in_float32() -> None:
    plan = plan_of("aten.upsample_bilinear2d.vec", g(4, 8, 8, 8, **HALF), None, False, (2.0, 2.0))
    one, four = 4 * 8 * 8 * 8, 4 * 8 * 16 * 16
    assert made(plan) == [
        ("pointwise", 4 * one, one, 0, "x0", ""),
        ("pointwise", 4 * four, four, 0, "operand", "stored, window 4"),
        ("pointwise", 2 * four, four, 0, "float32", ""),
        *[("pointwise", 4 * one, one, 0, "", "alone")] * 4,
        ("pointwise", 0, four, 0, "g1 g3 g4 g5 g6", "stored, adds"),
        ("pointwise", 2 * one, one, 0, "g3 g4 g5 g6 g7", ""),
    ]
    operand, inner, out, *_, adds, _ = plan.joint.ops
    assert [op.instructions for op in (operand, inner, out)] == [1, 40, 1]
    assert [set(op.moved) for op in (operand, inner, out)] == [set(), {"y operand"}, set()]
    assert {table: [*part.values()] for table, part in adds.parts.items()} == {
        f"gradient {number} of x0": [4 * four] for number in range(3, 7)
    }
    assert plan.joint.labels["y in float32"] == ("y0", "value")


def test_other_interpolations_of_half_precision_are_read_as_they_are() -> None:
    assert of_call("upsample_nearest2d.vec", g(4, 8, 8, 8, **HALF), None, (2.0, 2.0)) == [
        ("pointwise", 2 * 8192, 8192, 0, "x0", "stored, window 4"),
        ("pointwise", 2 * 2048, 2048, 0, "g1", ""),
    ]


@pytest.mark.parametrize(
    ("op", "shape", "tables"),
    [
        ("upsample_linear1d", (4, 8, 8), 2),
        ("upsample_bilinear2d", (4, 8, 8, 8), 4),
        ("upsample_trilinear3d", (4, 2, 4, 4, 4), 8),
        ("upsample_bicubic2d", (4, 8, 8, 8), 16),
    ],
)
def test_an_interpolated_element_adds_to_tables_of_zeros(op: str, shape: Any, tables: int) -> None:
    factors = (2.0,) * (len(shape) - 2)
    plan = plan_of(f"aten.{op}.vec", g(*shape), None, False, factors)
    assert each(plan, "is_alone") == [False, *[True] * tables, False, False]


def test_what_is_added_by_index_is_added_to_a_copy() -> None:
    half = {"dtype": "float16"}
    plan = plan_of("aten.index_add.default", g(100, 64, **half), 0, t(20, **LONG), g(20, 64, **half))
    assert made(plan) == [
        ("pointwise", 2 * 6400, 6400, 0, "x0", "stored"),
        ("pointwise", 2 * 6400, 1280, 0, "x2 x3 operand", "stored, adds"),
        ("pointwise", 2 * 1280, 1280, 0, "g1 x2", ""),
    ]
    adds, gradient = plan.joint.ops[1:]
    assert (adds.parts, adds.moved) == ({"y operand": {"y0": 4 * 1280}}, {"x2", "x3", "y operand"})
    assert gradient.moved == {"gradient 1 of y0"}


def test_a_mask_that_dropout_returns_is_what_its_result_is_computed_from() -> None:
    plan = plan_of("aten.native_dropout.default", t(4, 8), 0.5, True, outputs=2)
    assert [op.outputs for op in plan.joint.ops] == [("y random",), ("y mask",), ("y0",)]


def test_each_of_many_gradients_is_an_operator() -> None:
    plan = plan_of("aten.meshgrid.default", tuple(g(2) for _ in range(9)), outputs=9)
    assert sum(op.is_gradient for op in plan.joint.ops) == 9


@pytest.mark.parametrize("count", [8, 9])
def test_more_than_eight_tensors_are_joined_one_by_one(count: int) -> None:
    """Each is copied to its place in memory that is there from the first copy on."""
    plan = plan_of("aten.cat.default", tuple(t(4, place + 1) for place in range(count)), 1)
    whole = 4 * 4 * sum(range(count + 1))
    assert plan.joint.bytes("y0") == whole
    members = [op for kernel in plan.forward.kernels for op in kernel.members]
    if count == 8:
        assert [(op.outputs, op.role) for op in members] == [(("y0",), "join")]
        return
    parts = [f"y0, part {place}" for place in range(1, 10)]
    assert [(op.outputs, op.reads, op.elements, op.part_bytes) for op in members] == [
        ((part,), (f"x0_{place - 1}",), 4 * place, 4 * 4 * place) for place, part in enumerate(parts, 1)
    ]
    assert plan.forward.lies_in == dict.fromkeys(parts, "y0")
    assert [plan.joint.bytes(part) for part in parts[:2]] == [16, 32]


@pytest.mark.parametrize(
    ("op", "operands", "kept", "outer"),
    [
        ("cumsum", (t(40, 6), 0), 6, "outer, "),
        ("cumsum", (t(40, 6), 1), 40, ""),
        ("cumsum", (t(40, 6), -1), 40, ""),
        ("cumsum", (t(2, 20, 6), -2), 12, "outer, "),
    ],
)
def test_rows_of_running_sums(op: str, operands: Any, kept: int, outer: str) -> None:
    kind = "reduction" if 8 * kept <= 240 else "pointwise"
    elements, kept = (240, kept) if kind == "reduction" else (kept, 0)
    assert of_call(f"{op}.default", *operands) == [(kind, 4 * 240, elements, kept, "x0", f"{outer}stored")]


@pytest.mark.parametrize(
    ("op", "operands", "kept", "outer"),
    [
        ("mean.dim", (t(4, 16, 9), (1,), True), 36, "outer"),
        ("mean.dim", (t(4, 9, 16), (-2,), False), 64, "outer"),
        ("mean.dim", (t(4, 9, 16), (-1,), True), 36, ""),
        ("mean.dim", (t(4, 9, 16), (0, 1), False), 16, "outer"),
        ("mean.dim", (t(4, 9, 16), (0, 2), False), 9, ""),
        ("sum.default", (t(40, 64),), 1, ""),
        ("mean.dim", (t(16, 1), (0,), True), 1, ""),  # the last axis is of one element
        ("mean.dim", (t(2, 3, 4, 5), (2, 3), False), 6, ""),
        ("mean.dim", (t(2, 30, 4, 5), (1,), False), 40, "outer"),
    ],
)
def test_which_axes_are_summed(op: str, operands: Any, kept: int, outer: str) -> None:
    count = operands[0].numel
    assert of_call(op, *operands) == [("reduction", 4 * kept, count, kept, "x0", outer)]


def test_a_maximum_along_an_axis_keeps_its_places() -> None:
    assert of_call("max.dim", t(40, 64), 0, outputs=2) == [
        ("reduction", 4 * 64, 8 * 64, 40 * 64, 64, "x0", "outer")
    ]


def test_a_cumulative_sum_of_nothing_or_one_number() -> None:
    assert of_call("cumsum.default", t(), 0) == [("pointwise", 4, 1, 0, "x0", "stored")]
    assert of_call("cumsum.default", t(4, 0), 1) == [
        ("pointwise", 0, 1, 0, "x0", "stored")
    ]  # a kernel all the same


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        (
            "layer_norm.default",
            (g(40, 64), (64,), None, g(64)),
            [
                ("reduction", 8 * 40, 2560, 40, "x0", "moments"),
                ("pointwise", 4 * 2560, 2560, 0, "x0 x3 statistics", ""),
                ("reduction", 4 * 64, 2560, 64, "g1 x0 statistics", "outer"),
                ("reduction", 8 * 40, 2560, 40, "g1 x0 statistics x3", ""),
                ("pointwise", 4 * 2560, 2560, 0, "g1 x0 statistics x3 g4", ""),
            ],
        ),
        (
            "layer_norm.default",
            (g(40, 64), (64,)),
            [
                ("reduction", 8 * 40, 2560, 40, "x0", "moments"),
                ("pointwise", 4 * 2560, 2560, 0, "x0 statistics", ""),
                ("reduction", 8 * 40, 2560, 40, "g1 x0 statistics", ""),
                ("pointwise", 4 * 2560, 2560, 0, "g1 x0 statistics g3", ""),
            ],
        ),
        (
            "layer_norm.default",  # of a weight alone: the operand wants no gradient
            (t(40, 64), (64,), g(64)),
            [
                ("reduction", 8 * 40, 2560, 40, "x0", "moments"),
                ("pointwise", 4 * 2560, 2560, 0, "x0 x2 statistics", ""),
                ("reduction", 4 * 64, 2560, 64, "g1 x0 statistics", "outer"),
            ],
        ),
        (
            "group_norm.default",
            (g(2, 80, 8, 8), 2),
            [
                ("reduction", 8 * 4, 10240, 4, "x0", "unordered, moments"),
                ("pointwise", 4 * 10240, 10240, 0, "x0 statistics", ""),
                ("reduction", 4 * 160, 10240, 160, "g1 x0", ""),
                ("reduction", 4 * 160, 10240, 160, "g1", ""),
                ("reduction", 8 * 4, 160, 4, "g3 g4", ""),
                ("pointwise", 4 * 10240, 10240, 0, "g1 x0 statistics g5", ""),
                ("pointwise", 4 * 10240, 10240, 0, "g6 statistics g5", ""),
            ],
        ),
        (
            "log_softmax.int",
            (g(40, 30), 0),
            [
                ("reduction", 8 * 30, 1200, 30, "x0", "outer"),
                ("pointwise", 4 * 1200, 1200, 0, "x0 statistics", ""),
                ("reduction", 8 * 30, 1200, 30, "g1 y0", "outer"),
                ("pointwise", 4 * 1200, 1200, 0, "g1 y0 g3", ""),
            ],
        ),
        (
            "nll_loss.default",
            (g(40, 30), t(40, **LONG)),
            [
                ("reduction", 4, 40, 1, "x0 x1", ""),
                ("pointwise", 4 * 1200, 1200, 0, "g1 x0 x1", ""),
            ],
        ),
        (
            "cross_entropy_loss.default",
            (g(40, 30), t(40, **LONG), t(30)),
            [
                ("reduction", 8 * 40, 1200, 40, "x0", ""),
                ("reduction", 4, 40, 1, "x0 x1 x2 statistics", ""),
                ("pointwise", 4 * 1200, 1200, 0, "g1 x0 x1 x2 statistics", ""),
            ],
        ),
        (
            "mse_loss.default",
            (g(40, 30), t(40, 30), 0),
            [
                ("pointwise", 4 * 1200, 1200, 0, "x0 x1", ""),  # of each element
                ("pointwise", 4 * 1200, 1200, 0, "g1 x0 x1", ""),
            ],
        ),
    ],
)
def test_norms_softmax_and_losses(op: str, operands: Any, expected: list[Any]) -> None:
    assert of_call(op, *operands) == expected


def test_a_norm_of_each_channel_of_an_image_is_one_of_a_batch() -> None:
    """Of one image that has all channels, for which weight and bias are repeated."""
    found = of_call("instance_norm.default", t(2, 3, 8, 8), t(3), t(3), None, None, True, 0.1, 1e-5, True)
    assert found == [
        ("pointwise", 4 * 6, 6, 0, "x1", ""),
        ("pointwise", 4 * 6, 6, 0, "x2", ""),
        ("reduction", 8 * 6, 384, 6, "x0", "moments"),
        ("pointwise", 4 * 384, 384, 0, "x0 y/0.0 y/1.0 statistics", ""),
    ]
