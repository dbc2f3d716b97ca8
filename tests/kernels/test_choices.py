"""Choices of libraries: trees that name facts and ways that there are, and memory and time that take the same way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.kernels import cudnn
from graphflops.kernels.choices import Choice, chosen, library
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.memory.strides import row_major
from graphflops.tensor import BFLOAT16, FLOAT32, TensorType
from graphflops.time.concrete import Tensor
from graphflops.time.lowering.convolution_problem import Problem

CHOICES = library("cudnn_9").choices
OF_GROUPS = ("direct", "packed", "one_by_one")
OF_ONE_GROUP = (
    *("as_it_lies", "converted", "operands_converted", "by_entry"),
    *("split", "converted_split", "operands_converted_split"),
)


def parts(tree: Any) -> Iterator[Any]:
    yield tree
    if not isinstance(tree, str):
        yield from parts(tree[2])
        yield from parts(tree[3])


@pytest.mark.parametrize("name", CHOICES)
def test_a_tree_names_facts_and_ways_that_there_are(name: str) -> None:
    choice: Choice = CHOICES[name]
    assert choice.measured > 0
    assert 0 < choice.held_out_error < 0.5
    for part in parts(choice.tree):
        if isinstance(part, str):
            assert part in (OF_GROUPS if name.startswith("groups") else OF_ONE_GROUP)
        else:
            fact, limit, _, _ = part
            assert hasattr(Convolution, fact)
            assert isinstance(limit, int)


def test_a_fact_at_its_limit_takes_the_first_branch() -> None:
    class Facts:
        size, is_half = 8, True

    assert chosen(["size", 8, "few", "many"], Facts) == "few"
    assert chosen(["size", 7, "few", ["is_half", 0, "many", "many halves"]], Facts) == "many halves"


def problem(phase: str, dtype: str, x: tuple[int, ...], weight: tuple[int, ...], side: int) -> Problem:
    def tensor(shape: tuple[int, ...]) -> Tensor:
        kind = BFLOAT16 if dtype == "bfloat16" else FLOAT32
        found = TensorType(shape, kind)
        assert isinstance(found.nbytes, int)
        return Tensor(shape, dtype, kind.bits, row_major(shape), found.nbytes)  # type: ignore[arg-type]

    stride = (x[2] // side,) * 2
    out = (x[0], weight[0], side, side)
    return Problem(tensor(x), tensor(weight), tensor(out), 1, stride, False, phase)  # type: ignore[arg-type]


def test_what_time_converts_is_what_memory_holds() -> None:
    """A product of 32 images of 14 x 14 by 1024 x 1024 in half precision: operand and result once more."""
    image = 32 * 1024 * 14 * 14 * 2
    found = problem("forward", "bfloat16", (32, 1024, 14, 14), (1024, 1024, 1, 1), 14)
    held = cudnn.workspace(found.choice, "forward", Layout(), HOPPER)
    converted = found.converted(found.x, found.weight, found.out)
    assert held == sum(kernel.written_bytes for kernel in converted if kernel.family == "copy")
    assert held in (0, 2 * image)


@pytest.mark.parametrize("phase", ["forward", "input_gradient", "weight_gradient"])
def test_memory_and_time_take_the_same_way(phase: str) -> None:
    chance = random.Random(phase)
    ways = set()
    for _ in range(200):
        batch, side = chance.choice((1, 4, 32)), chance.choice((7, 14, 28, 56))
        channels, results = chance.choice((16, 64, 256, 1024)), chance.choice((32, 64, 512))
        window, dtype = chance.choice((1, 3)), chance.choice(("bfloat16", "float32"))
        found = problem(
            phase, dtype, (batch, channels, side, side), (results, channels, window, window), side
        )
        conv, way = found.choice, found.way
        ways.add(way)
        held = cudnn.workspace(conv, phase, Layout(), HOPPER)
        written = sum(kernel.written_bytes for kernel in found.converted(found.x, found.weight, found.out))
        assert isinstance(held, int)
        if way in ("as_it_lies", "converted", "operands_converted"):
            assert held == written
        else:
            assert held > written  # the rest are parts of sums
    assert len(ways) > 2
