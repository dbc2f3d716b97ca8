"""What compiled programs of a few calls hold from when to when, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.inductor.fusing import Kernel
from graphflops.inductor.plan import Plans
from graphflops.memory.compiled import _Run, compiled_memory_use
from graphflops.passes.program import MemoryUse
from graphflops.report import Timeline
from tests.inductor.several_calls import program_of_calls
from tests.inductor.test_partition import joint, op
from tests.one_call import g
from tests.support import t

N = 4 * 64 * 64  # bytes of each matrix
GIVEN = {"x": t(64, 64), "w": t(64, 64)}


def use(given: Any, *calls: Any, **more: Any) -> MemoryUse:
    program = program_of_calls(given, *calls, **more)
    return compiled_memory_use(program, Plans(program, HOPPER))


def held(timeline: Timeline | None) -> list[tuple[Any, ...]]:
    """All but what is given to the program."""
    assert timeline is not None
    return [tuple(one) for one in timeline.held if one.kind != "input"]


RELU = ("a", "relu.default", "x")


def test_what_kernels_of_libraries_leave_free_is_used_again() -> None:
    """The second product gets the memory of the relu, and the sine is written over it."""
    products = ("b", "mm.default", "a", "w"), ("c", "mm.default", "b", "w")
    found = use(GIVEN, RELU, *products, ("d", "sin.default", "c"))
    assert held(found.inference) == [("b", "value", 1, 2, N), ("a", "value", 0, 3, N)]
    assert (found.inference.rows, found.inference.gradients_from) == ((0, 1, 2, 3), None)
    assert (found.forward.bytes, found.training, found.step) == (4 * N, None, None)


def test_what_is_returned_is_kept() -> None:
    products = ("a", "mm.default", "x", "w"), ("b", "mm.default", "a", "w"), ("c", "mm.default", "b", "w")
    found = use(GIVEN, *products, results=("a", "c"))
    assert held(found.inference) == [
        ("b", "value", 1, 2, N),
        ("a", "value", 0, 2, N),
        ("c", "value", 2, 2, N),
    ]
    assert found.forward.bytes == 5 * N


def test_many_tensors_are_joined_in_memory_that_is_there_from_the_first() -> None:
    given = {f"x{place}": t(4, 16) for place in range(9)}
    join = ("c", "cat.default", tuple(given), 1)
    found = use(given | {"w": t(144, 4)}, join, ("d", "mm.default", "c", "w"))
    whole = 4 * 4 * 16 * 9
    assert held(found.inference) == [
        ("c", "value", 0, 9, whole),  # nine copies, each a kernel
        ("d", "value", 9, 9, 4 * 16),
    ]
    assert found.inference.rows == (0,) * 9 + (1,)
    assert found.forward.bytes == whole + 4 * 144 * 4 + whole + 4 * 16


def test_copies_and_the_workspace_of_a_convolution_live_until_it_ends() -> None:
    image, weight, out = 2 * 2 * 12 * 256, 2 * 16 * 12 * 9, 2 * 2 * 16 * 196
    given = {"x": t(2, 12, 16, 16, dtype="bfloat16"), "w": t(16, 12, 3, 3, dtype="bfloat16")}
    found = use(given, ("y", "conv2d.default", "x", "w"))
    assert held(found.inference) == [
        ("y", "workspace", 2, 2, (image + weight) * 16 // 12),  # with 16 channels
        ("y input", "value", 0, 2, image),
        ("y weight", "value", 1, 2, weight),
        ("y", "value", 2, 2, out),
    ]


def test_an_image_is_returned_in_the_order_of_eager_execution() -> None:
    """Inside, its channels are last, so that it is not written over what it is computed from."""
    out, given = 4 * 2 * 16 * 14 * 14, {"x": t(2, 8, 16, 16), "w": t(16, 8, 3, 3)}
    calls = ("y", "conv2d.default", "x", "w"), ("z", "relu.default", "y")
    found = held(use(given, *calls).inference)
    assert [one for one in found if one[0] in ("y", "z")] == [
        ("y", "value", 2, 3, out),
        ("z", "value", 3, 3, out),
    ]
    then = ("a", "conv2d.default", "z", "v")
    inside = held(use(given | {"v": t(16, 16, 3, 3)}, *calls, then).inference)
    assert [one[0] for one in inside if one[4] == out] == ["y"]


def test_a_training_step_of_two_products_by_one_weight() -> None:
    """Of each product the gradient of the weight; the first one's is added in the kernel of the other."""
    given = {"x": t(64, 64), "w": g(64, 64)}
    products = ("a", "mm.default", "x", "w"), ("b", "sin.default", "a"), ("c", "mm.default", "b", "w")
    found = use(given, *products)
    assert held(found.inference) == [("a", "value", 0, 2, N), ("c", "value", 2, 2, N)]
    assert found.step is not None
    assert (found.step.rows, found.step.gradients_from) == ((0, 1, 2, 2, 2, 1, 0), 3)
    assert held(found.step) == [
        ("b", "value", 1, 3, N),
        ("c", "gradient", 3, 4, N),
        ("a", "value", 0, 5, N),
        ("w", "gradient", 3, 6, N),
        ("b", "gradient", 4, 6, N),  # over it that of the sine's operand
        ("c", "value", 2, 6, N),
        ("w", "gradient", 6, 6, N),
    ]
    assert found.training is not None
    assert found.training.bytes == 7 * N  # x, w, a, b, c and its gradient, and that of the weight


def test_a_truth_value_is_saved_for_each_element_of_a_relu() -> None:
    given = {"x": t(64, 64), "w": g(64, 64)}
    found = use(given, ("a", "mm.default", "x", "w"), ("b", "relu.default", "a"))
    assert held(found.inference) == [("a", "value", 0, 1, N)]  # the relu is written over the product
    assert held(found.step) == [
        ("b", "saved", 1, 2, N // 4),
        ("b", "gradient", 2, 3, N),
        ("a", "value", 0, 3, N),
        ("w", "gradient", 3, 3, N),
    ]


def test_a_dropout_saves_its_mask() -> None:
    found = use({"x": g(64, 64)}, ("y", "dropout.default", "x", 0.1, True), ("z", "sin.default", "y"))
    assert held(found.inference) == [("z", "value", 0, 0, N)]
    assert held(found.step) == [
        ("y", "saved", 0, 1, N // 4),
        ("z", "value", 0, 1, N),
        ("z", "gradient", 1, 1, N),  # the operand's gradient is written over it
    ]


def test_programs_with_recurrent_layers_run_eagerly() -> None:
    shapes = {"h": (1, 2, 5), "c": (1, 2, 5), "i": (20, 8), "w": (20, 5), "a": (20,), "b": (20,)}
    given = {"x": t(6, 2, 8)} | {name: t(*shape) for name, shape in shapes.items()}
    more = (("h", "c"), ("i", "w", "a", "b"), True, 1, 0.0, True, False, False)
    found = use(
        given, ("y n m", "lstm.input", "x", *more), ("s", "sin.default", "y"), ("r", "sin.default", "s")
    )
    assert [name for name, kind, *_ in held(found.inference) if kind == "value"] == ["n", "m", "y", "s", "r"]


def test_cells_are_calls_of_a_library_in_compiled_programs() -> None:
    """Both sines are one kernel, which writes over the cell's result."""
    given = {"x": t(3, 8), "h": t(3, 5), "i": t(15, 8), "w": t(15, 5)}
    cell = ("y", "gru_cell.default", "x", "h", "i", "w")
    found = use(given, cell, ("s", "sin.default", "y"), ("r", "sin.default", "s"))
    assert [name for name, kind, *_ in held(found.inference) if kind == "value"] == ["y"]


@pytest.mark.parametrize(("dtype", "tensors"), [("float32", 2), ("bfloat16", 1)])
def test_a_dropout_is_written_over_random_numbers_of_its_size(dtype: str, tensors: int) -> None:
    """These are in float32, and inside of the kernel: the operand is free after it."""
    given = {"x": t(64, 64, dtype=dtype), "w": t(64, 64, dtype=dtype)}
    found = use(given, ("y", "mm.default", "x", "w"), ("z", "dropout.default", "y", 0.5, True))
    assert len(held(found.inference)) == tensors


def test_nothing_is_written_over_what_is_added_to_in_place() -> None:
    given = {"x": t(64, 64), "i": t(8, dtype="int64"), "v": t(8, 64)}
    found = use(given, ("y", "index_add.default", "x", 0, "i", "v"), ("z", "exp.default", "y"))
    assert held(found.inference) == [("y", "value", 0, 2, 4 * 4096), ("z", "value", 2, 2, 4 * 4096)]


@pytest.mark.parametrize(
    ("kind", "more", "needed"), [("extern", {"workspace": 8}, 40 + 8), ("pointwise", {}, 0)]
)
def test_a_call_that_runs_a_graph_needs_its_peak_once(kind: str, more: Any, needed: int) -> None:
    """Kernels that inductor writes beside it, as copies of what it reads, are of the same call."""
    plan: Any = SimpleNamespace(joint=joint(sizes={}, results=set()))
    run = _Run(plan, None, {"y": 40})  # type: ignore[arg-type]
    assert run.workspace(Kernel((op(kind, "y", "x", **more),), ("y",), (), ("x",))) == needed
