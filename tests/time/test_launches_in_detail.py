"""What programs with collectives, parameters and attentions launch, call by call, with the CPU's time."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.kernels.kernel import Strided
from graphflops.time.exchanges import Launches
from tests.inductor.several_calls import program_of_calls
from tests.one_call import g
from tests.support import t
from tests.time.test_launches_by_hand import hosts, launcher, node, program

COSTS = {"forward.collective": 500.0, "backward.collective": 700.0}


def reduced(out: str, x: str) -> tuple[Any, ...]:
    return (f"{out}_", "_c10d_functional.all_reduce.default", x, "sum", "0")


def gathered(out: str, x: str) -> tuple[Any, ...]:
    return (f"{out}_", "_c10d_functional.all_gather_into_tensor.default", x, 2, "0")


def wait(out: str) -> tuple[Any, ...]:
    return (out, "_c10d_functional.wait_tensor.default", f"{out}_")


def launched(given: Any, *calls: Any, back: bool = False, **more: Any) -> list[tuple[Any, ...]]:
    """Row, CPU time, part, and families of the kernels of each launch after the first."""
    priced = program_of_calls(given, *calls, **more)
    one = launcher(priced, **COSTS)
    found = one.backward() if back else one.forward(records=priced.training is not None)
    return [shown(launch) for launch in found[1:]]


def shown(launch: Launches) -> tuple[Any, ...]:
    families = [kernel.family for kernel in launch.kernels or ()]
    return (launch.row, launch.host_seconds, f"{launch.part}{launch.ticket or ''}", " ".join(families))


SIN, RELU = ("m", "sin.default", "x"), ("y", "relu.default", "a")
GIVEN = {"x": t(4, 8)}


def test_a_collective_that_is_waited_for_at_once_is_waited_for_where_it_is_read() -> None:
    """Its operand is copied first; the CPU then waits for nothing. Half of its time for the call comes after the start."""
    assert launched(GIVEN, reduced("a", "x"), wait("a"), RELU) == [
        (0, (500 + 7) / 2, "all", "copy"),
        (0, (500 + 7) / 2, "start1", "collective"),
        (1, 3, "all", ""),
        (0, 0, "wait1", "collective"),
        (2, 100, "all", "elementwise"),
    ]


def test_a_collective_that_is_waited_for_later_costs_less() -> None:
    """Without the tensor that waits where it is read."""
    assert launched(GIVEN, reduced("a", "x"), SIN, wait("a"), RELU) == [
        (0, 13 / 2, "all", "copy"),
        (0, 13 / 2, "start1", "collective"),
        (1, 100, "all", "elementwise"),
        (0, 0, "wait1", "collective"),
        (2, 3, "all", ""),
        (3, 100, "all", "elementwise"),
    ]


def test_two_collectives_are_waited_for_by_themselves() -> None:
    calls = reduced("a", "x"), gathered("b", "x"), SIN, wait("b"), wait("a"), RELU
    assert launched(GIVEN, *calls, ("z", "relu.default", "b"), results=("y", "z")) == [
        (0, 13 / 2, "all", "copy"),
        (0, 13 / 2, "start1", "collective"),
        (1, 13 / 2, "all", ""),
        (1, 13 / 2, "start2", "collective"),
        (2, 100, "all", "elementwise"),
        (1, 0, "wait2", "collective"),
        (3, 3, "all", ""),
        (0, 0, "wait1", "collective"),
        (4, 3, "all", ""),
        (5, 100, "all", "elementwise"),
        (6, 100, "all", "elementwise"),
    ]


def test_a_view_of_what_a_collective_makes_waits_for_nothing() -> None:
    view, read = ("v", "view.default", "a", (32,)), ("y", "relu.default", "v")
    found = launched(GIVEN, reduced("a", "x"), wait("a"), view, SIN, read, results=("y", "m"))
    assert found[2:] == [
        (1, 3, "all", ""),
        (2, 3, "all", ""),
        (3, 100, "all", "elementwise"),
        (0, 0, "wait1", "collective"),
        (4, 100, "all", "elementwise"),
    ]


def test_what_nothing_reads_is_waited_for_at_the_end() -> None:
    found = launched(GIVEN, ("y", "relu.default", "x"), reduced("a", "x"), wait("a"), results=("y", "a"))
    assert found == [
        (0, 100, "all", "elementwise"),
        (1, 507 / 2, "all", "copy"),
        (1, 507 / 2, "start1", "collective"),
        (2, 3, "all", ""),
        (1, 0, "wait1", "collective"),
    ]


def test_collectives_of_a_training_step() -> None:
    """Autograd records them; a gradient is summed by a call of the backward, and nothing runs beside it."""
    calls = SIN, reduced("a", "m"), wait("a"), ("y", "sin.default", "a")
    assert launched({"x": g(4, 8)}, *calls) == [
        (0, 150, "all", "elementwise"),
        (1, 557 / 2, "all", "copy"),
        (1, 557 / 2, "start1", "collective"),
        (2, 53, "all", ""),
        (1, 0, "wait1", "collective"),
        (3, 150, "all", "elementwise"),
    ]
    assert launched({"x": g(4, 8)}, *calls, back=True) == [
        (3, 200 + 23, "all", "elementwise elementwise"),  # cosine, and its product with the gradient
        (2, 5, "all", ""),
        (1, 700 + 23, "all", "copy collective"),
        (0, 200 + 23, "all", "elementwise elementwise"),
    ]


LINEAR = node("y", "linear.default", "x", "w", "b")


@pytest.mark.parametrize(
    ("wanting", "parameters", "count"),
    [
        ("xwb", ("w", "b"), 2),
        ("xw", ("w",), 1),
        ("xwb", (), 0),
        ("wb", ("w", "b"), 2),
        ("w", ("w", "b"), 1),  # one wants no gradient
        ("xwb", ("x", "w", "b"), 3),
    ],
)
def test_gradients_of_parameters_cost_further_time(
    wanting: str, parameters: tuple[str, ...], count: int
) -> None:
    shapes = {"x": (4, 8), "w": (6, 8), "b": (6,)}
    given = {name: (g if name in wanting else t)(*shape) for name, shape in shapes.items()}
    _, found = launcher(program(LINEAR, given=given, parameters=parameters)).backward()
    kernels = len(found.kernels or ())
    assert found.host_seconds == 200 + 23 * (kernels - 1) + 0.125 * count


def test_a_value_that_three_calls_read_has_two_sums() -> None:
    """Each sum reads two gradients and writes one, of 32 numbers."""
    calls = (
        node("a", "sin.default", "x"),
        node("b", "sin.default", "x"),
        node("c", "sin.default", "x"),
        node("d", "add.Tensor", "a", "b"),
        node("y", "add.Tensor", "d", "c"),
    )
    found = launcher(program(*calls, given={"x": g(4, 8)})).backward()[1:]
    sums = {
        launch.row: [
            (kernel.vector_flops, kernel.read_bytes, kernel.written_bytes)
            for kernel in (launch.kernels or ())[2:]
        ]
        for launch in found
        if launch.row < 3
    }
    assert sums == {2: [], 1: [(32, 256, 128)], 0: [(32, 256, 128)]}


def test_the_gradient_of_a_mean_lies_in_order_beside_channels_that_are_last() -> None:
    """Channels, pixels and images are axes of the sum, which would have one if both lay alike."""
    cut = ("x", "permute.default", "w", (0, 3, 1, 2))
    calls = (("m", "mean.dim", "x", (2, 3), True), ("y", "mul.Tensor", "x", "m"))
    priced = program_of_calls({"w": g(2, 4, 4, 8, dtype="bfloat16")}, cut, *calls)
    (found,) = (each for each in launcher(priced).backward() if each.row == 1)
    assert (found.kernels or ())[-1].sizes == Strided(256, 3, 3)


@pytest.mark.parametrize(("records", "expected"), [(False, "cudnn"), (True, "cudnn")])
def test_equal_attentions_are_lowered_once(records: bool, expected: str) -> None:
    make = g if records else t
    given = {name: make(2, 4, 256, 64, dtype="bfloat16") for name in "qkv"}
    calls = [(out, "scaled_dot_product_attention.default", "q", "k", "v") for out in "ab"]
    priced = program_of_calls(given, *calls, ("y", "add.Tensor", "a", "b"))
    one = launcher(priced)
    _, first, second, _ = one.forward(records=records)
    (kernel,) = first.kernels or ()
    assert first.kernels is second.kernels
    assert kernel.sizes.kernel == expected  # type: ignore[union-attr]
    assert hosts([first, second]) == [100 + 50 * records] * 2


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_an_attention_is_lowered_anew_for_gradients(order: tuple[bool, bool]) -> None:
    """cuDNN has no gradients of masks, and is taken where none is wanted; the efficient kernel has."""
    given = {name: g(2, 4, 256, 64, dtype="bfloat16") for name in "qkv"}
    given["m"] = g(2, 4, 256, 256, dtype="bfloat16")
    one = launcher(program_of_calls(given, ("y", "scaled_dot_product_attention.default", *"qkvm")))
    found = {}
    for records in order:
        (kernel,) = one.forward(records=records)[1].kernels or ()
        found[records] = kernel.sizes.kernel  # type: ignore[union-attr]
    assert found == {False: "cudnn", True: "efficient"}
