"""How results lie in memory, by strides of operands that a reader can check."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.attention.kernel import attention_kernel
from graphflops.devices import HOPPER
from graphflops.execution.layouts import Layouts, attention_problem, chosen_kernel
from graphflops.graph import Ref
from tests.one_call import g, program_of
from tests.support import t

Lies = dict[str, tuple[int, ...]]


def laid(op: str, *given: Any, lies: Lies | None = None, outputs: int = 1, **named: Any) -> Layouts:
    """Layouts after one call. lies: strides of operands, `x0` first."""
    main = program_of(f"aten.{op}", *given, outputs=outputs, **named).main
    found = Layouts((), main.values, HOPPER)
    found.known.update(lies or {})
    for name in lies or {}:
        found.forms.kinds[name] = found.kind(name)
    found.follow(main.calls[0])
    return found


X, TURNED = t(2, 3, 4), (1, 8, 2)  # the first axis innermost, then the last one
IMAGE, LAST = (2, 8, 6, 6), (288, 1, 48, 8)


@pytest.mark.parametrize(
    ("op", "given", "lies", "expected"),
    [
        ("relu.default", (X,), {}, (12, 4, 1)),
        ("relu.default", (X,), {"x0": TURNED}, TURNED),
        ("relu.default", (X,), {"x0": (2, 16, 4)}, TURNED),  # without the gaps
        ("add.Tensor", (X, X), {"x0": TURNED}, TURNED),  # the first operand decides
        ("add.Tensor", (X, X), {"x1": TURNED}, (12, 4, 1)),
        ("add.Tensor", (X, X), {"x0": (0, 0, 0), "x1": TURNED}, TURNED),  # where it repeats, the next one
        ("add.Tensor", (t(4), X), {"x1": TURNED}, TURNED),
        ("mul.Tensor", (X, t()), {"x0": TURNED}, TURNED),
        ("to.dtype", (X, t(1, dtype="bfloat16").dtype), {"x0": TURNED}, TURNED),
        ("clone.default", (X,), {"x0": (2, 16, 4)}, TURNED),
        ("contiguous.default", (X,), {"x0": TURNED}, (12, 4, 1)),
        ("detach.default", (X,), {"x0": (2, 16, 4)}, (2, 16, 4)),
        ("permute.default", (X, (2, 0, 1)), {}, (1, 12, 4)),
        ("transpose.int", (X, -1, 0), {}, (1, 4, 12)),
        ("select.int", (X, -1, 1), {"x0": TURNED}, (1, 8)),
        ("select.int", (X, 1, 1), {"x0": TURNED}, (1, 2)),
        ("slice.Tensor", (X, -1, 0, 4, 2), {}, (12, 4, 2)),
        ("slice.Tensor", (X, 1, 0, 3, 2), {"x0": TURNED}, (1, 16, 2)),
        ("slice.Tensor", (X, 1, 0, 2), {"x0": TURNED}, TURNED),
        ("movedim.int", (X, 0, -1), {}, (4, 1, 12)),
        ("movedim.int", (X, -1, 0), {}, (1, 12, 4)),
        ("movedim.int", (X, -2, 2), {}, (12, 1, 4)),
        ("diagonal.default", (t(3, 4, 3), 0, -1, 0), {}, (3, 13)),
        ("diagonal.default", (t(3, 3, 4), 0, 0, -2), {}, (1, 16)),
        ("diagonal.default", (t(3, 3, 4),), {}, (1, 16)),
        ("unfold.default", (X, -1, 2, 1), {}, (12, 4, 1, 1)),
        ("unfold.default", (X, -2, 2, 1), {}, (12, 4, 1, 4)),
        ("unsqueeze.default", (X, 1), {"x0": TURNED}, (1, 24, 8, 2)),
        ("expand.default", (t(2, 1, 4), (5, 2, 3, 4)), {"x0": (1, 8, 2)}, (0, 1, 0, 2)),
        ("matmul.default", (X, t(4, 5)), {"x0": TURNED}, (15, 5, 1)),
        ("sum.dim_IntList", (X, (1,)), {"x0": TURNED}, (4, 1)),
        # channels last, of images whose operand, or a convolution's weight, has them last
        ("conv2d.default", (t(*IMAGE), t(4, 8, 3, 3)), {"x0": LAST}, (64, 1, 16, 4)),
        ("conv2d.default", (t(*IMAGE), t(4, 8, 3, 3)), {"x1": (72, 1, 24, 8)}, (64, 1, 16, 4)),
        ("conv2d.default", (t(*IMAGE), t(4, 8, 3, 3)), {}, (64, 16, 4, 1)),
        ("conv1d.default", (t(2, 8, 6), t(4, 8, 3)), {"x0": (48, 1, 8)}, (16, 4, 1)),
        ("max_pool2d.default", (t(*IMAGE), (2, 2)), {"x0": LAST}, (72, 1, 24, 8)),
        ("max_pool2d.default", (t(*IMAGE), (2, 2)), {}, (72, 9, 3, 1)),
        ("cat.default", ((t(*IMAGE), t(*IMAGE)), 1), {"x0_0": LAST, "x0_1": LAST}, (576, 1, 96, 16)),
        ("cat.default", ((t(*IMAGE), t(*IMAGE)), 1), {"x0_0": LAST}, (576, 36, 6, 1)),
        ("zeros_like.default", (X,), {"x0": TURNED}, TURNED),
    ],
)  # fmt: skip
def test_how_a_result_lies(op: str, given: Any, lies: Lies, expected: tuple[int, ...]) -> None:
    assert laid(op, *given, lies=lies).of("y0") == expected


@pytest.mark.parametrize(
    ("op", "given", "lies", "copies", "views"),
    [
        ("reshape.default", (X, (6, 4)), {}, set(), set()),
        ("reshape.default", (X, (6, 4)), {"x0": TURNED}, {"y0"}, set()),
        ("reshape.default", (X, (2, 12)), {"x0": (24, 4, 1)}, set(), set()),
        ("contiguous.default", (X,), {}, set(), {"y0"}),
        ("contiguous.default", (X,), {"x0": TURNED}, set(), set()),
        ("clone.default", (X,), {}, set(), set()),
    ],
)
def test_layout_operators_that_copy(
    op: str, given: Any, lies: Lies, copies: set[str], views: set[str]
) -> None:
    found = laid(op, *given, lies=lies)
    assert (found.copies, found.views) == (copies, views)
    assert found.is_copy("y0") is (True if copies else False if views else None)


def lstm(layers: int, batch_first: bool) -> tuple[Any, ...]:
    states = (t(layers, 3, 8),) * 2
    weights = [t(32, 10 if not n else 8) if k == 0 else t(32, 8) for n in range(layers) for k in range(2)]
    return (
        t(*((3, 5) if batch_first else (5, 3)), 10),
        states,
        tuple(weights),
        False,
        layers,
        0.0,
        False,
        False,
        batch_first,
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_a_sequence_with_the_batch_first_lies_with_the_steps_first(layers: int) -> None:
    """So cuDNN computes it; the states of all layers lie in order."""
    found = laid("lstm.input", *lstm(layers, True), outputs=3)
    assert found.of("y0") == (8, 3 * 8, 1)
    assert found.of("y1") == found.of("y2") == (3 * 8, 8, 1)
    found = laid("lstm.input", *lstm(layers, False), outputs=3)
    assert found.of("y0") == (3 * 8, 8, 1)


SDPA = "scaled_dot_product_attention.default"
HEADS_INSIDE = (4 * 16 * 8, 8, 4 * 8, 1)  # of (2, 4, 16, 8): heads of a token side by side


@pytest.mark.parametrize(
    ("dtype", "lies", "more", "expected"),
    [
        ("bfloat16", {"x0": HEADS_INSIDE}, {}, HEADS_INSIDE),  # as the query
        ("bfloat16", {}, {}, (512, 128, 8, 1)),
        ("float32", {}, {}, HEADS_INSIDE),  # the efficient kernel
    ],
)
def test_how_attention_lies(dtype: str, lies: Lies, more: Any, expected: tuple[int, ...]) -> None:
    x = t(2, 4, 16, 8, dtype=dtype)
    assert laid(SDPA, x, x, x, lies=lies, **more).of("y0") == expected


def test_the_problem_of_an_attention() -> None:
    x, mask = g(2, 4, 16, 8), t(16, 16)
    main = program_of(f"aten.{SDPA}", x, x, x, mask, 0.25, False, enable_gqa=True).main
    (call,) = main.calls
    layouts = Layouts((), main.values, HOPPER)
    layouts.known["x1"] = HEADS_INSIDE
    found = attention_problem(call, layouts, training=True)
    assert found is not None
    assert (found.dropout, found.is_causal, found.is_grouped, found.wants_gradient) == (
        0.25,
        False,
        True,
        True,
    )
    assert found.mask is not None
    assert [each.strides for each in found.operands] == [(512, 128, 8, 1), HEADS_INSIDE, (512, 128, 8, 1)]
    assert (found.mask.type, found.mask.strides) == (mask, (16, 1))
    idle = attention_problem(call, layouts, training=False)
    assert idle is not None
    assert not idle.wants_gradient
    for name in ("x0", "x1", "x2"):
        layouts.values = {**main.values, name: None}
        assert attention_problem(call, layouts, training=True) is None
    layouts.values = main.values
    assert chosen_kernel(call, layouts, True) == (found, attention_kernel(found, HOPPER))


@pytest.mark.parametrize(("rank", "is_known"), [(2, False), (3, True), (4, True)])
def test_attention_of_matrices_has_no_problem(rank: int, is_known: bool) -> None:
    x = t(*(2, 4, 16, 8)[-rank:])
    main = program_of(f"aten.{SDPA}", x, x, x, is_causal=True).main
    found = attention_problem(main.calls[0], Layouts((), main.values, HOPPER), training=True)
    assert (found is not None) is is_known
    if found is not None:
        assert (found.is_causal, found.is_grouped, found.mask, found.dropout) == (True, False, None, 0)
        assert not found.wants_gradient  # there is none


def test_calls_of_other_kernels_are_not_chosen() -> None:
    x = t(2, 4, 16, 8)
    for op in ("aten.relu.default", "aten._scaled_dot_product_flash_attention.default"):
        given = (x,) if "relu" in op else (x, x, x)
        main = program_of(op, *given, outputs=1 if "relu" in op else 9).main
        assert chosen_kernel(main.calls[0], Layouts((), main.values, HOPPER), True) is None


def test_orders_of_what_a_program_is_given() -> None:
    """An order with as many axes as the tensor has; others are of something else."""
    main = program_of("aten.relu.default", X).main
    for order, expected in (((1, 2, 0), TURNED), ((1, 0), (12, 4, 1)), (None, (12, 4, 1))):
        orders = None if order is None else {"x0": order, "missing": order}
        found = Layouts(main.calls, main.values, HOPPER, orders)
        assert (found.of("x0"), found.of("y0")) == (expected, expected)


def test_operands_by_their_argument() -> None:
    found = laid("relu.default", X)
    assert found.operand({"x": Ref("x0"), "a": 3}, "a", "x") == "x0"
    assert found.operand({"x": Ref("missing")}, "x", "b") == ""
    assert found.as_operand("missing", X) is None
    assert found.as_operand("x0", t(2, 3)) is None
    assert found.as_operand("x0", t(2, 5, 4)) is None
    assert found.as_operand("x0", t(2, 3, 9)) == (27, 9, 1)  # only the last axis may differ


def test_results_without_a_name_or_a_type_lie_nowhere() -> None:
    main = program_of("aten.sort.default", X, outputs=2).main
    (call,) = main.calls
    found = Layouts((), {**main.values, "y1": None}, HOPPER)
    first, second = found.results(call)
    assert first is not None
    assert (first.strides, second) == ((12, 4, 1), None)
    found.follow(call)
    assert "y1" not in found.known


def test_kinds_of_values_that_lie_alike() -> None:
    """In order that of its type; else one for each type and strides."""
    found = laid("add.Tensor", X, X, lies={"x0": TURNED})
    plain, turned = found.forms.types["x0"], found.kind("x0")
    assert plain != turned
    assert found.kind("y0") == turned
    found.known["x1"] = (12, 4, 1)
    assert found.kind("x1") == plain == found.forms.types["x1"]
