"""How results lie in memory in cases that a single rule decides; the strides are those that torch gives."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.dims import symbol
from graphflops.execution.layouts import Layouts
from graphflops.graph import Step
from tests.memory.test_layouts_by_hand import HEADS_INSIDE, IMAGE, LAST, SDPA, TURNED, Lies, X, laid
from tests.one_call import program_of
from tests.support import t

SEQUENCE, CHANNELS_LAST = (2, 8, 6), (48, 1, 8)
MASK = t(2, 3, 4, dtype="bool")
NORM = (None, None, t(8), t(8), False, 0.1, 1e-5, True)


def sequence(dtype: str = "float32") -> Any:
    return t(*SEQUENCE, dtype=dtype)


@pytest.mark.parametrize(
    ("op", "given", "lies", "expected"),
    [
        # cuDNN normalises sequences in float32, in row-major order
        ("batch_norm.default", (sequence(), *NORM), {"x0": CHANNELS_LAST}, (48, 6, 1)),
        ("batch_norm.default", (sequence("bfloat16"), *NORM), {"x0": CHANNELS_LAST}, CHANNELS_LAST),
        ("batch_norm.default", (t(*IMAGE), *NORM), {"x0": LAST}, LAST),
        ("avg_pool1d.default", (sequence(), (2,), (2,)), {"x0": CHANNELS_LAST}, (24, 1, 8)),
        ("pad.default", (sequence(), (1, 1)), {"x0": CHANNELS_LAST}, (64, 8, 1)),
        ("pad.default", (t(*IMAGE), (1, 1, 1, 1)), {"x0": LAST}, (512, 1, 64, 8)),
        ("conv1d.default", (sequence(), t(4, 8, 3), t(4)), {"x1": (24, 1, 8)}, (16, 4, 1)),
        ("conv2d.default", (t(*IMAGE), t(4, 8, 3, 3), t(4)), {}, (64, 16, 4, 1)),
        ("relu.default", (t(*IMAGE),), {"x0": LAST}, LAST),
        ("softmax.int", (t(*IMAGE), -1), {"x0": LAST}, (288, 36, 6, 1)),
        ("layer_norm.default", (X, (4,)), {"x0": TURNED}, (12, 4, 1)),
        # a mask that fills a copy, and one that fills the operand
        ("masked_fill.Scalar", (X, MASK, 0.0), {"x0": TURNED}, (12, 4, 1)),
        ("masked_fill_.Scalar", (X, MASK, 0.0), {"x0": TURNED}, TURNED),
        ("type_as.default", (X, X), {"x0": (0, 0, 0), "x1": TURNED}, (12, 4, 1)),
        ("add.Tensor", (X, X), {"x0": (0, 0, 0), "x1": (0, 0, 0)}, (12, 4, 1)),
        ("add.Tensor", (t(3, 1), X), {"x1": TURNED}, TURNED),
        ("add.Tensor", (t(3, 4), X), {"x1": TURNED}, TURNED),
        ("where.self", (MASK, X, X), {"x0": TURNED}, TURNED),
        ("lt.Scalar", (X, 1.0), {"x0": TURNED}, TURNED),
        ("logical_not.default", (X,), {"x0": TURNED}, TURNED),
        ("dropout.default", (X, 0.1, True), {"x0": TURNED}, TURNED),
        ("sort.default", (X, -1), {"x0": TURNED}, TURNED),
        ("flip.default", (X, (0,)), {"x0": TURNED}, TURNED),
        ("zeros_like.default", (X,), {"x0": (2, 16, 4)}, TURNED),
        # windows that overlap: equal strides, of which the longer axis goes outside
        ("exp.default", (t(3, 4),), {"x0": (1, 1)}, (1, 3)),
        ("exp.default", (t(3, 3),), {"x0": (1, 1)}, (3, 1)),
        ("exp.default", (t(4, 3),), {"x0": (1, 1)}, (3, 1)),
        ("exp.default", (t(2, 3, 4, 5),), {"x0": (1, 40, 10, 2)}, (1, 40, 10, 2)),
        ("exp.default", (t(2, 3, 4, 5),), {"x0": (3, 1, 30, 6)}, (3, 1, 30, 6)),
        # views
        ("slice.Tensor", (X, 0, 0, 2, 3), {}, (36, 4, 1)),
        ("slice.Tensor", (X, -3, 0, 2, 3), {}, (36, 4, 1)),
        ("select.int", (X, 0, 1), {"x0": TURNED}, (8, 2)),
        ("unsqueeze.default", (X, -1), {}, (12, 4, 1, 1)),
        ("unsqueeze.default", (X, 3), {"x0": TURNED}, (1, 8, 2, 1)),
        ("unsqueeze.default", (X, 0), {"x0": TURNED}, (2, 1, 8, 2)),
        ("unsqueeze.default", (X, -2), {"x0": TURNED}, (1, 8, 8, 2)),
        ("squeeze.dim", (t(2, 1, 4), 1), {"x0": (1, 8, 2)}, (1, 2)),
        ("permute.default", (X, (-1, 0, 1)), {"x0": TURNED}, (2, 1, 8)),
        ("t.default", (t(3, 4),), {}, (1, 4)),
        ("unfold.default", (X, 0, 2, 1), {}, (12, 4, 1, 12)),
        ("unfold.default", (X, 2, 2, 2), {}, (12, 4, 2, 1)),
        ("diagonal.default", (t(3, 4, 3), 0, 0, 2), {}, (3, 13)),
        ("diagonal.default", (t(2, 3, 4, 4), 0, -2, -1), {}, (48, 16, 5)),
        ("movedim.int", (t(2, 3, 4, 5), 1, -1), {}, (60, 5, 1, 20)),
        ("view.default", (X, (6, 4)), {}, (4, 1)),
        ("view.default", (X, (2, 3, 2, 2)), {"x0": TURNED}, (1, 8, 4, 2)),
    ],
)  # fmt: skip
def test_how_a_result_lies(op: str, given: Any, lies: Lies, expected: tuple[int, ...]) -> None:
    assert laid(op, *given, lies=lies).of("y0") == expected


@pytest.mark.parametrize(
    ("op", "given", "lies"),
    [
        ("exp", (3, 4), (1, 1)),
        ("exp", (3, 3), (1, 1)),
        ("exp", (4, 3), (1, 1)),
        ("exp", (2, 3, 4, 5), (1, 40, 10, 2)),
        ("exp", (2, 3, 4, 5), (3, 1, 30, 6)),
        ("exp", (2, 3, 4, 5), (0, 1, 3, 12)),
        ("zeros_like", (2, 3, 4), (2, 16, 4)),
        ("clone", (2, 3, 4), (1, 8, 2)),
        ("clone", (2, 3, 4), (2, 16, 4)),
        ("logical_not", (4, 5, 6), (1, 24, 4)),
    ],
)
def test_results_lie_as_torch_lays_them(op: str, given: Any, lies: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(2000).as_strided(given, lies)
    expected = getattr(torch, op)(x).stride()
    assert laid(f"{op}.default", t(*given), lies={"x0": lies}).of("y0") == expected


def test_attention_of_three_axes_lies_in_order() -> None:
    x = t(8, 16, 8)
    assert laid(SDPA, x, x, x).of("y0") == (128, 8, 1)
    wide = t(2, 4, 16, 8, dtype="bfloat16")
    # The result has the width of the values, in the order of the query.
    narrow = t(2, 4, 16, 16, dtype="bfloat16")
    assert laid(SDPA, wide, wide, narrow, lies={"x0": HEADS_INSIDE}).of("y0") == (1024, 16, 64, 1)


def test_orders_of_what_a_program_is_given() -> None:
    """Axes by their strides, the longest first; an order of another number of axes says nothing."""
    values = {"x": t(2, 3, 4), "y": t(2, 3), "s": symbol("n")}
    found = Layouts((), values, HOPPER, {"x": (2, 0, 1), "y": (2, 0, 1), "s": (0,), "z": (1, 0)})
    assert found.of("x") == (3, 1, 6)
    assert found.of("y") == (3, 1)
    assert {*found.known} == {"x"}
    assert found.is_copy("x") is None
    assert found.is_copy(None) is None


def test_a_part_of_what_lies_in_another_order() -> None:
    main = program_of("aten.relu.default", t("n", 4)).main
    found = Layouts((), main.values, HOPPER)
    found.follow(main.calls[0])
    assert found.of("y0") == (4, 1)


@pytest.mark.parametrize(("strides", "is_right"), [((1, 8), True), ((4, 1), False)])
@pytest.mark.parametrize("op", [("as_strided.default", (8, 4), (1, 8)), ("t.default",)])
def test_views_of_a_step_lie_as_their_operators_say(
    op: tuple[Any, ...], strides: tuple[int, int], is_right: bool
) -> None:
    main = program_of(f"aten.{op[0]}", t(4, 8), *op[1:]).main
    step = Step(("forward",), (), strides={"x0": (8, 1), "y0": strides}, views=frozenset({"y0"}))
    layouts = Layouts(main.calls, main.values, HOPPER, recorded=step)
    assert layouts.wrong == [*main.calls] * (not is_right)
