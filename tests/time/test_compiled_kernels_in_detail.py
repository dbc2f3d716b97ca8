"""Kernels that torch.compile runs of a few calls: their work, which is in loads of one element, and bytes, by hand.

An element of a loop takes 3 beside its loads, one that is reduced 4, and 0.75 for each of its loads.
"""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.inductor.plan import Plans
from graphflops.time.compiled import CompiledLauncher
from graphflops.time.exchanges import Launches
from tests.inductor.several_calls import program_of_calls
from tests.one_call import g
from tests.support import t
from tests.time.test_compiled_by_hand import COSTS

HALF: dict[str, Any] = {"dtype": "bfloat16"}


def launches(given: Any, *calls: Any, back: bool = False, **more: Any) -> list[Launches]:
    """Of a phase, but what is of no call."""
    program = program_of_calls(given, *calls, **more)
    launcher = CompiledLauncher(program, {}, Plans(program, HOPPER), COSTS)
    found = launcher.backward() if back else launcher.forward(records=program.training is not None)
    return [launch for launch in found if launch.row >= 0]


def kernels(given: Any, *calls: Any, **more: Any) -> list[tuple[Any, ...]]:
    """Family, work, and bytes read and written of each kernel."""
    found = [kernel for launch in launches(given, *calls, **more) for kernel in launch.kernels or ()]
    return [(k.family, k.vector_flops, k.read_bytes, k.written_bytes) for k in found]


def loop(work: float, read: int, written: int) -> tuple[Any, ...]:
    return ("elementwise", work, read, written)


def test_rows_and_costs_of_calls_in_order() -> None:
    """Kernels that inductor writes and those of libraries cost the CPU different times."""
    products = ("b", "mm.default", "a", "w"), ("c", "mm.default", "b", "w")
    given = {"x": t(8, 64), "w": t(64, 64)}
    found = launches(given, ("a", "relu.default", "x"), *products, ("d", "sin.default", "c"))
    assert [(launch.row, launch.host_seconds, launch.times) for launch in found] == [
        (0, 100.0, 1),
        (1, 1e4, 1),
        (2, 1e4, 1),
        (3, 100.0, 1),
    ]
    assert [kernel.family for launch in found for kernel in launch.kernels or ()] == [
        "elementwise",
        "matmul",
        "matmul",
        "elementwise",
    ]


@pytest.mark.parametrize("channels", [2, 8, 96])
def test_images_are_copied_with_their_channels_innermost(channels: int) -> None:
    image, weight, out = 2 * channels * 256, 96 * channels * 9, 2 * 96 * 196
    given = {"x": t(2, channels, 16, 16), "w": t(96, channels, 3, 3), "b": t(96)}
    found = kernels(given, ("y", "conv2d.default", "x", "w", "b"))
    apart = 22 if channels < 8 else 0  # few channels of a pixel: a block writes them to sectors of their own
    assert [each for each in found if each[0] == "elementwise"] == [
        loop(image * (4 + apart), 4 * image, 4 * image),
        loop(weight * 4, 4 * weight, 4 * weight),
        loop(
            out * (4 + 0.75), 4 * (out + 96), 4 * out
        ),  # a number for each channel is three quarters of a load
    ]


def test_a_bias_of_columns_is_three_quarters_of_a_load() -> None:
    given = {"x": t(8, 64), "w": t(16, 64), "b": t(16)}
    found = kernels(given, ("y", "linear.default", "x", "w", "b"), ("z", "relu.default", "y"))
    assert found[-1] == loop(128 * (4 + 0.75), 4 * (128 + 16), 4 * 128)


def test_gradients_of_a_convolution_whose_channels_are_last() -> None:
    """The gradient of the weight is copied into its order; that of the bias is a sum along outer axes."""
    weight, out = 128 * 96 * 9, 2 * 128 * 36
    given = {"x": g(2, 96, 8, 8), "w": g(128, 96, 3, 3), "b": g(128)}
    found = launches(given, ("y", "conv2d.default", "x", "w", "b"), back=True)
    assert [launch.host_seconds for launch in found] == [2e7, 1e3]
    image, filters, copy = found[0].kernels or ()
    assert [(k.sizes.phase, k.sizes.channels_last) for k in (image, filters)] == [  # type: ignore[union-attr]
        ("input_gradient", True),
        ("weight_gradient", True),
    ]
    assert (copy.family, copy.variant, copy.read_bytes, copy.written_bytes) == (
        "copy",
        "strided",
        4 * weight,
        4 * weight,
    )
    (added,) = found[1].kernels or ()
    assert (added.variant, added.vector_flops) == ("fused.outer", int(2.2 * out))
    assert (added.read_bytes, added.written_bytes) == (4 * out, 4 * 128)


def test_the_gradient_of_an_image_of_one_channel_is_copied_first() -> None:
    """It has its channels last, as those of the program have, but the kernel wants them first."""
    given = {"x": t(2, 96, 8, 8), "w": g(128, 96, 3, 3), "s": t(2, 1, 8, 8), "v": g(128, 1, 3, 3)}
    calls = (
        ("y", "conv2d.default", "x", "w"),
        ("z", "conv2d.default", "s", "v"),
        ("q", "add.Tensor", "y", "z"),
    )
    found = {launch.row: launch.kernels or () for launch in launches(given, *calls, back=True)}
    out = 4 * 2 * 128 * 36
    assert [kernel.family for kernel in found[1]] == ["copy", "convolution"]
    assert (found[1][0].read_bytes, found[1][0].written_bytes, found[1][0].variant) == (out, out, "strided")
    assert [kernel.family for kernel in found[0]] == ["convolution", "copy"]
    there = {launch.row: launch.kernels or () for launch in launches(given, *calls)}
    assert [kernel.family for kernel in there[1]] == ["convolution"]
    sequence = {"x": t(2, 96, 8, 8), "w": g(128, 96, 3, 3), "s": t(2, 8, 50), "v": g(4, 8, 3)}
    calls = calls[0], ("z", "conv1d.default", "s", "v")
    found = {
        launch.row: launch.kernels or ()
        for launch in launches(sequence, *calls, back=True, results=("y", "z"))
    }
    assert [kernel.family for kernel in found[1]] == ["convolution"]


@pytest.mark.parametrize(
    ("columns", "held", "passes"),
    [
        (1024, 1024, 1),
        (1000, 1024, 1),
        (513, 1024, 1),
        (1025, 2048, 4.15),
        (2048, 2048, 4.15),
        (2049, 4096, 4.15),
    ],
)
def test_rows_that_a_block_keeps_are_gone_through_once(columns: int, held: int, passes: float) -> None:
    """A block keeps a power of two, up to 1,024 elements. It loops over longer rows by 2,048, twice to store a result."""
    count = 8 * columns
    (found,) = kernels({"x": t(8, columns)}, ("y", "layer_norm.default", "x", (columns,)))
    assert found == ("reduction", int(count * passes * (held / columns)), 4 * count, 4 * count)
    (found,) = kernels({"x": t(8, columns)}, ("y", "sum.dim_IntList", "x", (1,)))
    summed = (
        8 * held if columns <= 1024 else count
    )  # nothing of that length is left, and zeros need not be added
    assert found == ("reduction", summed, 4 * count, 4 * 8)


def test_functions_that_a_kernel_computes_inside() -> None:
    """Two exponentials for each element of their sum, at a tenth of a load."""
    calls = ("a", "exp.default", "x"), ("b", "exp.default", "u"), ("c", "add.Tensor", "a", "b")
    assert kernels({"x": t(8, 64), "u": t(8, 64)}, *calls) == [
        loop(int(512 * (0.25 + 2 + 0.2)), 2 * 2048, 2048)
    ]


def test_parts_of_a_tensor_are_loads_of_their_own() -> None:
    parts = ("a", "slice.Tensor", "x", 0, 0, 2), ("b", "slice.Tensor", "x", 0, 4, 6)
    assert kernels({"x": t(10, 64)}, *parts, ("c", "add.Tensor", "a", "b")) == [loop(128 * 5, 2 * 512, 512)]
    whole = ("c", "add.Tensor", "a", "x")
    one = ("a", "slice.Tensor", "x", 0, 0, 1)
    assert kernels({"x": t(10, 64)}, one, whole) == [loop(640 * 1.25, 2560, 2560)]  # a row of it, and all


def test_what_is_added_by_index_is_added_to_a_copy() -> None:
    given = {"x": t(100, 64), "i": t(20, dtype="int64"), "v": t(20, 64)}
    added, table, indices = 20 * 64, 100 * 64, 8 * 20
    assert kernels(given, ("y", "index_add.default", "x", 0, "i", "v")) == [
        loop(table * 1.25, 4 * table, 4 * table),
        loop(added * (5 + 0.75), 2 * 4 * added + indices, 4 * added),
    ]


def test_a_part_that_is_written_where_it_lies() -> None:
    """Of the 10 rows that are given 2 are written."""
    calls = ("s", "slice.Tensor", "x", 0, 0, 2), ("y", "copy_.default", "s", "n"), ("z", "exp.default", "x")
    found = kernels({"x": t(10, 64), "n": t(2, 64)}, *calls)
    assert found[-1] == loop(int(640 * (1.25 + 0.1)), 2560, 2560)


@pytest.mark.parametrize(("is_written", "apart"), [(False, 0), (True, 22)])
def test_a_copy_across_what_was_written_in_place_has_no_tiles(is_written: bool, apart: int) -> None:
    """Two heads share their keys: each element of the repeated copy is loaded from a sector of its own, without tiles."""
    given = {"q": t(2, 4, 1, 8), "k": t(2, 16, 2, 8), "n": t(2, 1, 2, 8)}
    write = ("s", "slice.Tensor", "k", 1, 3, 4), ("p", "copy_.default", "s", "n")
    repeat = (
        ("u", "unsqueeze.default", "k", 3),
        ("e", "expand.default", "u", (2, 16, 2, 2, 8)),
        ("r", "reshape.default", "e", (2, 16, 4, 8)),
        ("a", "permute.default", "r", (0, 2, 3, 1)),
        ("z", "matmul.default", "q", "a"),
    )
    *_, copied, product = kernels(given, *(write if is_written else ()), *repeat)
    count = 2 * 4 * 8 * 16
    assert (copied, product[0]) == (loop(count * (4 + apart), 2 * count, 4 * count), "matmul")


def test_random_numbers_are_drawn_by_the_kernel_that_reads_them() -> None:
    """Each takes as long as ten loads."""
    call = ("y", "dropout.default", "x", 0.5, True)
    assert kernels({"x": g(8, 64)}, call) == [loop(512 * (1.25 + 10), 2048, 2048 + 512)]
    found = launches({"x": g(8, 64)}, call, back=True)
    (kernel,) = found[0].kernels or ()
    assert (kernel.vector_flops, kernel.read_bytes, kernel.written_bytes) == (512 * 2.25, 2048 + 512, 2048)


def test_attention_is_the_kernel_of_its_library_alone() -> None:
    given = {name: g(2, 4, 256, 64, **HALF) for name in "qkv"}
    attention = ("y", "scaled_dot_product_attention.default", "q", "k", "v")
    for back in (False, True):
        (found,) = launches(given, attention, back=back)
        assert [kernel.family for kernel in found.kernels or ()] == ["attention"]
        assert found.host_seconds == 1e6


@pytest.mark.parametrize(("parameters", "seconds"), [(0, 0), (1, 1e9), (2, 2e9)])
def test_gradients_of_parameters_are_given_over_one_by_one(parameters: int, seconds: float) -> None:
    program = program_of_calls({"x": g(8, 64), "w": g(64, 64)}, ("y", "mm.default", "x", "w"))
    launcher = CompiledLauncher(program, {}, Plans(program, HOPPER), COSTS)
    launcher.parameters = frozenset(["x", "w"][:parameters])
    *_, last = launcher.backward()
    assert (last.row, last.kernels, last.host_seconds) == (-1, (), seconds)


@pytest.mark.parametrize(("rows", "length", "apart"), [(64, 128, 0), (64, 129, 22), (10_000, 129, 0)])
def test_blocks_that_share_rows_along_an_outer_axis_load_sectors(rows: int, length: int, apart: int) -> None:
    """Of few rows that are longer than the 128 elements of a block a load, and a store, takes as long as 22."""
    (found,) = kernels({"x": t(length, rows)}, ("y", "cumsum.default", "x", 0))
    count = length * rows
    assert found == ("reduction", int(2.2 * count + 2 * apart * count), 4 * count, 4 * count)
