"""Layouts that torch.compile chooses: limits and sizes of its rules, worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from graphflops.inductor.library_calls import (
    aligned_bytes,
    convolution_of,
    is_turned,
    padded_columns,
    prefers_channels_last,
)
from graphflops.inductor.lowering import Loop
from tests.inductor.one_call import plan_of
from tests.inductor.several_calls import program_of_calls
from tests.one_call import g, program_of
from tests.support import t

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

HALF: dict[str, Any] = {"dtype": "bfloat16"}
CONV = "conv2d.default"


def is_last(*weights: TensorType, given: int = 2, training: bool = False, groups: int = 1) -> bool:
    """Whether convolutions, each of an image of its own, run with channels last; groups: of the last one."""
    calls, inputs = [], {}
    for place, weight in enumerate(weights):
        of = groups if weight is weights[-1] else 1
        inputs |= {f"x{place}": t(2, weight.shape[1] * of, 8, 8), f"w{place}": weight}
        more = (None, (1, 1), (1, 1), (1, 1), groups) if of > 1 else (None, (1, 1), (1, 1))
        calls.append((f"y{place}", CONV, f"x{place}", f"w{place}", *more))
    main = program_of_calls(inputs, *calls).main
    return prefers_channels_last(main.calls, main.values, given, training=training)


@pytest.mark.parametrize(
    ("convolutions", "given", "expected"), [(1, 298, True), (1, 299, False), (2, 597, True), (2, 598, False)]
)
def test_programs_of_300_operators_for_each_convolution_stay(
    convolutions: int, given: int, expected: bool
) -> None:
    """Inputs count as operators, and so do the convolutions."""
    assert is_last(*[t(128, 128, 3, 3) for _ in range(convolutions)], given=given) is expected


def test_dropouts_in_evaluation_and_assertions_are_no_operators() -> None:
    given, conv = {"x": t(2, 96, 8, 8), "w": t(96, 96, 3, 3)}, ("y", CONV, "x", "w")
    for name, operands, most in (
        ("dropout.default", (0.1, False), 298),
        ("dropout.default", (0.1, True), 297),
        ("relu.default", (), 297),
        ("batch_norm.default", (None, None, None, None, False, 0.1, 1e-5, True), 287),  # eleven
    ):
        main = program_of_calls(given, conv, ("z", name, "y", *operands)).main
        found = [
            prefers_channels_last(main.calls, main.values, most + more, training=False) for more in (0, 1)
        ]
        assert found == [True, False], name


def test_images_of_open_size_stay_and_those_of_no_elements_are_turned() -> None:
    for batch, expected in (("n", False), (0, True)):
        main = program_of(f"aten.{CONV}", t(batch, 96, 8, 8), t(96, 96, 3, 3)).main
        assert prefers_channels_last(main.calls, main.values, 2, training=False) is expected


@pytest.mark.parametrize(
    ("weight", "groups", "expected"),
    [
        (t(64, 64, 3, 3), 1, False),  # up to 64 channels and results: a small one
        (t(65, 64, 3, 3), 1, True),
        (t(64, 65, 3, 3), 1, True),
        (t(65, 130, 3, 3), 1, False),  # half as many results as channels are slow
        (t(65, 129, 3, 3), 1, True),
        (t(65, 130, 1, 1), 1, True),  # unless of one position
        (t(65, 130, 1, 3), 1, True),
        (t(128, 64, 3, 3), 2, False),  # and so are groups
        (t(128, 2, 3, 3), 64, False),
        (t(128, 1, 3, 3), 128, True),  # but those of one channel
    ],
)
def test_slow_convolutions_of_a_training_step(weight: TensorType, groups: int, expected: bool) -> None:
    assert is_last(weight, training=True, groups=groups) is expected


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        # By groups 0.6 of the work, 9856 to 16384 multiply-adds of a position, takes 1.358 of the time: 3528 more.
        (t(64, 256, 3, 3), True),  # the other is then done in 0.725 of it: 4506 less
        (t(128, 128, 3, 3), False),  # or 0.823: 2900 less
    ],
)
def test_what_one_convolution_loses_another_wins(first: TensorType, expected: bool) -> None:
    assert is_last(first, t(128, 77, 3, 3), groups=2) is expected


def test_two_groups_alone_are_slower() -> None:
    assert not is_last(t(128, 128, 3, 3), groups=2)
    assert is_last(t(128, 128, 3, 3))


@pytest.mark.parametrize(
    ("name", "operands", "is_found", "is_image", "turned"),
    [
        ("relu.default", (t(2, 8, 4, 4),), False, False, False),
        ("conv1d.default", (t(2, 8, 16), t(4, 8, 3)), True, False, False),
        ("conv1d.default", (t(8, 16), t(4, 8, 3)), False, False, False),  # a sequence without a batch
        ("conv2d.default", (t(2, 8, 9, 9), t(4, 8, 3, 3)), True, True, True),
        ("conv2d.default", (t(2, 1, 9, 9), t(4, 1, 3, 3)), True, True, False),
        ("conv2d.default", (t(2, 8, 9, 9), t(4, 8, 3, 3), t(4)), True, True, True),
        (
            "conv2d.default",
            (t(2, 8, 9, 9), t(8, 1, 3, 3), None, (1, 1), (0, 0), (1, 1), 8),
            True,
            True,
            True,
        ),
        ("conv3d.default", (t(2, 8, 9, 9, 9), t(4, 8, 3, 3, 3)), True, False, False),
    ],
)
def test_what_is_a_convolution_of_images(
    name: str, operands: Any, is_found: bool, is_image: bool, turned: bool
) -> None:
    main = program_of(f"aten.{name}", *operands).main
    call, values = main.calls[0], main.values
    assert (convolution_of(call, values) is not None) is is_found
    assert is_turned(convolution_of(call, values), is_copied=False) is turned
    assert is_turned(convolution_of(call, values), is_copied=True) is is_image


@pytest.mark.parametrize(
    ("op", "operands", "columns"),
    [
        # Padded from 95 multiply-adds on for each element moved: 285 ** 3 of 3 * 285 ** 2.
        ("mm.default", (t(285, 285, **HALF), t(285, 285, **HALF)), 288),
        ("mm.default", (t(284, 285, **HALF), t(285, 285, **HALF)), None),
        ("mm.default", (t(285, 284, **HALF), t(284, 285, **HALF)), None),
        ("mm.default", (t(285, 285, **HALF), t(285, 284, **HALF)), None),
        ("matmul.default", (t(3, 95, 285, **HALF), t(285, 285, **HALF)), 288),
        ("matmul.default", (t("n", 96, **HALF), t(96, 1001, **HALF)), 1008),  # of any number of rows
        ("matmul.default", (t(8, "n", **HALF), t("n", 1001, **HALF)), 1008),
        ("mm.default", (t(900, 900, **HALF), t(900, "n", **HALF)), None),
        ("mm.default", (t(900, 900, **HALF), t(900, 1, **HALF)), None),
        ("mm.default", (t(900, 900, **HALF), t(900, 800, **HALF)), None),  # a multiple of 8
        ("mm.default", (t(900, 900), t(900, 901)), None),  # float32 takes no tensor cores of half precision
        ("matmul.default", (t(2, 900, 900, **HALF), t(2, 900, 901, **HALF)), None),
        ("bmm.default", (t(2, 900, 900, **HALF), t(2, 900, 901, **HALF)), None),
        ("linear.default", (t(900, 800, **HALF), t(901, 800, **HALF)), 904),
        ("linear.default", (t(900, 801, **HALF), t(900, 801, **HALF)), 904),
        ("linear.default", (t(900, 801, **HALF), t(800, 801, **HALF)), None),
        ("relu.default", (t(900, 901, **HALF),), None),
    ],
)
def test_columns_of_products_are_padded_to_multiples_of_8(
    op: str, operands: Any, columns: int | None
) -> None:
    main = program_of(f"aten.{op}", *operands).main
    assert padded_columns(main.calls[0], main.values) == columns


def test_a_product_that_adds_a_bias_is_padded_in_any_case() -> None:
    main = program_of("aten.linear.default", t(4, 16, **HALF), t(9, 16, **HALF)).main
    assert padded_columns(main.calls[0], main.values) is None
    assert padded_columns(main.calls[0], main.values, adds_bias=True) == 16
    main = program_of("aten.linear.default", t(4, 16, **HALF), t(1, 16, **HALF)).main
    assert padded_columns(main.calls[0], main.values, adds_bias=True) is None


@pytest.mark.parametrize(
    ("shape", "bits", "nbytes"),
    [
        ((3, 1025), 32, 4 * (2 * 1056 + 1025)),  # rows begin at multiples of 32 elements
        ((3, 1025), 16, 2 * (2 * 1088 + 1025)),  # or 64
        ((2, 3, 1025), 32, 4 * (3 * 1056 + 2 * 1056 + 1025)),
        ((2, 33, 33), 32, 4 * (1120 + 33 * 33)),  # from one matrix of 1089 to the next
        ((3, 1023), 32, None),  # short rows lie side by side
        ((3, 1056), 32, None),
        ((1025,), 32, None),
        ((0, 1025), 32, None),
        (("n", 1025), 32, None),
        ((), 32, None),
    ],
)
def test_bytes_of_results_whose_rows_begin_at_lines_of_memory(
    shape: Any, bits: int, nbytes: int | None
) -> None:
    assert aligned_bytes(t(*shape).shape, bits) == nbytes


@pytest.mark.parametrize(
    ("x", "w", "copied"),
    [
        (g(285, 285, **HALF), t(285, 285, **HALF), [285 * 640]),  # 288 columns are 576 bytes: 4.5 lines
        (g(3, 95, 900, **HALF), t(900, 317, **HALF), [3 * 95 * 640]),  # 320 are five lines
        (g(900, 900, **HALF), t(900, 800, **HALF), []),
    ],
)
def test_rows_of_a_padded_gradient_begin_at_lines_of_128_bytes(
    x: TensorType, w: TensorType, copied: list[int]
) -> None:
    plan = plan_of("aten.matmul.default", x, w)
    copies = [op for op in plan.joint.ops if type(op) is Loop and op.reads[0] in plan.joint.tangents]
    assert [plan.joint.bytes(op.outputs[0]) for op in copies] == copied
