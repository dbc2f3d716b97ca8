"""Choices of libraries: trees that name facts and ways that there are, and memory and time that take the same way."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphflops
from graphflops.devices import HOPPER
from graphflops.execution.strides import row_major
from graphflops.kernels import cudnn
from graphflops.kernels.call import Tensor
from graphflops.kernels.choices import Choice, chosen, library
from graphflops.kernels.convolution import Convolution, Layout
from graphflops.kernels.cudnn import Problem
from graphflops.kernels.kernel import Convolution as Sizes
from graphflops.kernels.matrices import _WAYS
from graphflops.rules.elementwise import WORK
from graphflops.tensor import BFLOAT16, FLOAT32, TensorType
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, one_call

PACKAGE = Path(graphflops.__file__).parent
CHOICES = library("cudnn_9").choices
ONE = Convolution(*[TensorType((8, 8, 8), BFLOAT16)] * 3, (1,), (0,), 1, False)  # type: ignore[arg-type]
WAYS = {
    "groups": ("direct", "packed", "one_by_one"),
    "few_channels": ("as_it_lies", "copied", "padded"),
    "depthwise": ("shared", "per_channel"),
    "transposes": ("one_by_one", "transposed"),
}
OF_ONE_GROUP = (
    *("as_it_lies", "converted", "operands_converted", "by_entry", "scalar"),
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
            assert part in WAYS.get(name.partition(".")[0], OF_ONE_GROUP)
        else:
            fact, limit, _, _ = part
            assert hasattr(ONE, fact)
            assert isinstance(limit, int)


@pytest.mark.parametrize("file", ["aten_2", "cudnn_9", "inductor_2"])
def test_each_limit_is_read_by_code_and_says_what_it_counts(file: str) -> None:
    """Code names a family and a word."""
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    code = "".join(text for text in texts if "limits(" in text or "constants(" in text)
    texts = [each.value for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Constant)]
    words = {word for text in texts if isinstance(text, str) for word in text.split()}
    found = library(file)
    assert found.limits
    for name, limit in (*found.limits.items(), *found.constants.items()):
        family, _, word = name.rpartition(".")
        if name.startswith("pointwise."):  # and a function, with its form if it has several
            family, word = "pointwise", "none" if name.split(".")[1] in WORK else name
        if family.startswith("launches."):  # and a way in which matrices are decomposed
            word = family if word in _WAYS else name
        if family.startswith("grouped_direct."):  # and a phase of a convolution with its layout
            family = "grouped_direct"
        if family in ("function", "function_gradient"):  # and an operator
            assert word in (*WORK, "softmax", "log_softmax")
            word = family
        assert f'"{family}"' in code or f'"{family}.' in code, name
        assert word in words, name
        assert limit.value > 0
        assert getattr(limit, "since", "") in ("", *found.releases)
        assert len(limit.unit) > 3
        assert len(limit.source) > 9


def test_a_fact_at_its_limit_takes_the_first_branch() -> None:
    class Facts:
        size, is_half = 8, True

    assert chosen(["size", 8, "few", "many"], Facts) == "few"
    assert chosen(["size", 7, "few", ["is_half", 0, "many", "many halves"]], Facts) == "many halves"


def problem(phase: str, dtype: str, x: tuple[int, ...], weight: tuple[int, ...], side: int) -> Problem:
    kind = BFLOAT16 if dtype == "bfloat16" else FLOAT32
    types = [TensorType(shape, kind) for shape in (x, weight, (x[0], weight[0], side, side))]
    tensors = [
        Tensor(each.shape, dtype, kind.bits, row_major(each.shape), each.nbytes)  # type: ignore[arg-type]
        for each in types
    ]
    stride, padding = (x[2] // side,) * 2, (weight[2] // 2,) * 2
    return Problem(Convolution(*types, stride, padding, 1, False), *tensors, phase=phase)  # type: ignore[arg-type]


def test_what_time_converts_is_what_memory_holds() -> None:
    """A product of 32 images of 14 x 14 by 1024 x 1024 in half precision: operand and result once more."""
    image = 32 * 1024 * 14 * 14 * 2
    found = problem("forward", "bfloat16", (32, 1024, 14, 14), (1024, 1024, 1, 1), 14)
    held = cudnn.workspace(found.conv, "forward", Layout(), HOPPER)
    converted = found.converted("xwo")
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
        conv, way = found.conv, found.way
        ways.add(way)
        held = cudnn.workspace(conv, phase, Layout(), HOPPER)
        written = sum(kernel.written_bytes for kernel in found.converted("xwo"))
        assert isinstance(held, int)
        if way in ("as_it_lies", "converted", "operands_converted", "scalar"):
            assert held == written
        else:
            assert held > written  # the rest are parts of sums
    assert len(ways) > 2


def test_float32_is_padded_to_four_channels() -> None:
    """20 channels lie as they must: a profiler shows no zeros before the conversions of 20 and 44 (H200, PyTorch 2.11)."""
    found = problem("input_gradient", "float32", (8, 20, 56, 56), (44, 20, 3, 3), 56)
    kinds = [kernel.family for kernel in found.kernels(2 * 8 * 56 * 56 * 9 * 20 * 44)]
    assert kinds == ["copy", "copy", "convolution", "copy"]


def test_padding_makes_no_patches() -> None:
    """Of an image of 4 with a padding of 2, windows of 4 see positions that the padding fills, though one would do."""
    conv = {}
    for padding in (0, 2):
        found = Problem.of(
            one_call("aten.conv2d.default", t(1, 3, 4, 4), t(8, 3, 4, 4), None, (4, 4), (padding,) * 2)
        )
        assert found is not None
        conv[padding] = found.conv
    assert conv[0].is_patch
    assert not conv[2].is_patch


def test_recorded_gradients_are_those_of_the_convolution() -> None:
    grad, x, weight = t(2, 8, 16, 16), g(2, 4, 16, 16), g(8, 4, 3, 3)
    options: tuple[Any, ...] = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    op, both = (
        "aten.convolution_backward.default",
        backward("aten.convolution.default", x, weight, None, *options),
    )
    recorded = forward(
        op, grad, t(*x.shape), t(*weight.shape), None, *options, (True, True, False), outputs=3
    )
    assert [each.sizes for each in recorded] == [each.sizes for each in both]
    assert [each.flops for each in recorded] == [each.flops for each in both]
    phases = [each.sizes.phase for each in recorded if isinstance(each.sizes, Sizes)]
    assert phases == ["input_gradient", "weight_gradient"]
