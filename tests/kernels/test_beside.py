"""What kernels take beside operands and results: buffers of reductions and copies of operands, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.dims import evaluate, symbol
from graphflops.execution.strides import row_major
from graphflops.kernels.beside import (
    _is_read_by_blas,
    largest_power,
    merged,
    reduction_buffers,
    reduction_bytes,
)
from tests.memory.one_call import eager
from tests.one_call import g
from tests.support import t

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shape", "strides", "read"),
    [
        ((4, 8), (8, 1), True),
        ((4, 8), (10, 1), True),  # rows with gaps
        ((4, 8), (7, 1), False),  # rows that overlap
        ((4, 8), (1, 4), True),
        ((4, 8), (1, 5), True),
        ((4, 8), (1, 3), False),
        ((4, 8), (16, 2), False),  # neither rows nor columns lie together
        ((4, 8), (2, 8), False),
        ((1, 8), (0, 1), True),  # of one row there is no next one
        ((1, 8), (3, 1), True),
        ((1, 8), (5, 2), True),  # a column of one
        ((2, 8), (5, 2), False),
        ((4, 1), (1, 0), True),
        ((4, 1), (1, 3), True),
        ((4, 1), (2, 5), True),
        ((4, 2), (2, 5), False),
        ((2, 2), (2, 1), True),
        ((2, 2), (1, 1), False),
        ((1, 1), (5, 5), True),
        ((4, 8), (0, 1), False),  # one row repeated
        ((4, 8), (1, 0), False),
    ],
)
def test_matrices_that_blas_reads(shape: tuple[int, int], strides: tuple[int, int], read: bool) -> None:
    assert _is_read_by_blas(shape, strides) is read


@pytest.mark.parametrize(
    ("shape", "steps", "order", "expected"),
    [  # size, and the stride in each tensor
        ((4, 6, 8), [(48, 8, 1)], (2, 1), [(48, (1,))]),
        ((4, 6, 8), [(48, 8, 1)], (2, 1, 0), [(192, (1,))]),
        ((4, 6, 8), [(48, 8, 1)], (2, 0), [(8, (1,)), (4, (48,))]),
        ((4, 6, 8), [(48, 8, 1), (8, 0, 1)], (2, 0), [(8, (1, 1)), (4, (48, 8))]),
        ((4, 1, 8), [(8, 8, 1), (8, 0, 1)], (2, 0), [(32, (1, 1))]),
        ((4, 6), [(1, 4)], (0, 1), [(24, (1,))]),
        ((4, 6), [(1, 5)], (0, 1), [(4, (1,)), (6, (5,))]),
        ((4, 6), [(1, 4), (6, 1)], (1, 0), [(6, (4, 1)), (4, (1, 6))]),  # together in one of them alone
        ((4, 6), [(6, 1)], (), []),
    ],
)
def test_axes_that_lie_together(shape: Shape, steps: Any, order: Shape, expected: Any) -> None:
    assert merged(shape, steps, order) == expected


@pytest.mark.parametrize(
    ("elements", "blocks"),
    [
        # 512 threads; from 256 values of a thread on, blocks share them: 16 for each thread, 132 * 4 blocks at once.
        (512 * 255, 0),
        (512 * 255 + 1, 16),
        (512 * 256, 16),
        (512 * 16 * 100, 100),
        (512 * 16 * 528, 528),
        (512 * 16 * 529, 528),
        (512 * 256 * 600, 600),  # no thread has more than 256
    ],
)
def test_sums_of_all_elements(elements: int, blocks: int) -> None:
    """One result: a partial one of each block, and a semaphore of four bytes."""
    found = reduction_buffers((elements,), (1,), {0}, 4, HOPPER)
    assert found == ((4 * blocks, 4) if blocks else ())
    assert reduction_bytes((elements,), (1,), {0}, 16, HOPPER) == (16 * blocks + 4 if blocks else 0)
    assert reduction_buffers((elements,), (2,), {0}, 4, HOPPER) == found


@pytest.mark.parametrize(
    ("rows", "values", "blocks"),
    [
        # Of eight rows a block has 64 threads each, which add 131072 / 64 / 8 values: as many rows as blocks share.
        (8, 2**17, 16),
        (8, 255 * 512 + 1, 16),
        (8, 255 * 512, 0),
        (1, 2**17, 16),
        (2, 2**17, 16),
        (264, 2**17, 2),  # 528 blocks at once
        (265, 2**17, 2),
        (527, 2**17, 2),
        (528, 2**17, 0),
        (529, 2**17, 0),
    ],
)
def test_sums_over_rows(rows: int, values: int, blocks: int) -> None:
    found = reduction_buffers((rows, values), (values, 1), {1}, 4, HOPPER)
    assert found == ((4 * rows * blocks, 4 * rows) if blocks else ())


@pytest.mark.parametrize(
    ("columns", "strides", "blocks", "threads", "groups"),
    [
        # Threads along columns have four, two or one of them, whatever divides sizes and steps. Of 64 columns these are 16
        # threads, and 8 along the rows, which have 512 values each.
        (64, (64, 1), 32, 16 * 4, 1),
        (62, (62, 1), 16, 16 * 2, 2),
        (63, (63, 1), 16, 32, 2),
        (64, (66, 1), 32, 32 * 2, 1),
        (64, (67, 1), 16, 32, 2),
        (64, (128, 2), 16, 32, 2),
        (256, (256, 1), 64, 32 * 4, 2),
    ],
)
def test_sums_over_columns(
    columns: int, strides: tuple[int, int], blocks: int, threads: int, groups: int
) -> None:
    """Of 4096 rows: partial results of all threads, a semaphore for each group of columns."""
    found = reduction_buffers((4096, columns), strides, {0}, 4, HOPPER)
    assert found == (4 * columns * blocks * threads, 4 * groups)


def test_nothing_is_buffered_where_nothing_is_added_up() -> None:
    assert reduction_buffers((4, 2**20), (2**20, 1), set(), 4, HOPPER) == ()
    assert reduction_buffers((0, 2**20), (2**20, 1), {1}, 4, HOPPER) == ()
    assert reduction_buffers((1, 1), (1, 1), {0}, 4, HOPPER) == ()


@pytest.mark.parametrize("shape", [("n", 64), (64, "n"), ("n",), (8, "n")])
@pytest.mark.parametrize("axis", [0, -1])
def test_open_sizes_count_as_large(shape: tuple[Any, ...], axis: int) -> None:
    """Formulas of them give the bytes of any large size."""
    if axis == -1 and len(shape) == 1:
        return
    large = 2**21
    axes = {axis % len(shape)}
    opened = tuple(symbol(size) if isinstance(size, str) else size for size in shape)
    known = tuple(large if isinstance(size, str) else size for size in shape)
    found = reduction_buffers(opened, row_major(opened), axes, 4, HOPPER)
    expected = reduction_buffers(known, row_major(known), axes, 4, HOPPER)
    if shape[axis % len(shape)] == "n":
        assert [evaluate(size, {"n": large}) for size in found] == [*expected]
        assert expected


def copies(
    op: str, *given: Any, lies: dict[str, Any] | None = None, **more: Any
) -> dict[str, tuple[bool, bool]]:
    """Of each copy, by the operand: whether gradients read it, and whether they make it again."""
    execution, call = eager(f"aten.{op}.default", *given, lies=lies, **more)
    return {name: (one.is_kept, one.is_again) for name, one in execution.operand_copies(call).items()}


TURNED = (32, 1, 4)  # of (2, 4, 8), its last two axes exchanged
SWAPPED = (8, 16, 1)  # of (2, 4, 8), its first two axes exchanged
GAPS = (64, 16, 2)  # neither rows nor columns lie together


@pytest.mark.parametrize(
    ("op", "given", "lies", "expected"),
    [
        ("linear", (g(2, 4, 8), g(6, 8)), {}, {}),
        # Rows that are not evenly apart are merged by a copy, which the weight's gradient reads.
        ("linear", (g(2, 4, 8), g(6, 8)), {"x0": SWAPPED}, {"x0": (True, False)}),
        ("linear", (g(2, 4, 8), t(6, 8)), {"x0": SWAPPED}, {"x0": (False, False)}),
        ("linear", (t(2, 4, 8), g(6, 8)), {"x0": SWAPPED}, {"x0": (True, False)}),
        # What BLAS cannot read is copied for each product that reads it.
        ("linear", (g(2, 4, 8), g(6, 8)), {"x0": GAPS}, {"x0": (False, True)}),
        ("linear", (g(2, 4, 8), t(6, 8)), {"x0": GAPS}, {"x0": (False, False)}),
        ("linear", (g(4, 8), g(6, 8)), {"x0": (16, 2)}, {"x0": (False, True)}),
        ("linear", (g(8), g(6, 8)), {"x0": (2,)}, {}),  # a vector is read with any step
        ("matmul", (g(2, 4, 8), g(8, 6)), {"x0": SWAPPED}, {"x0": (True, False)}),
        ("matmul", (g(2, 4, 8), g(2, 8, 6)), {"x0": SWAPPED}, {}),  # a batch of matrices
        ("matmul", (g(2, 4, 8), g(2, 8, 6)), {"x0": GAPS}, {"x0": (False, True)}),
        ("matmul", (g(2, 3, 4, 8), g(2, 3, 8, 6)), {"x0": (24, 8, 48, 1)}, {}),
        ("matmul", (g(2, 3, 4, 8), g(2, 3, 8, 6)), {"x0": (32, 64, 8, 1)}, {"x0": (True, False)}),
        # One matrix for the whole batch is copied once where BLAS cannot read it, not merged with the batch.
        ("matmul", (t(4, 8), g(2, 8, 6)), {"x0": (16, 2)}, {"x0": (False, True)}),
        ("matmul", (t(4, 8), g(2, 8, 6)), {}, {}),
        ("bmm", (g(2, 4, 8), g(2, 8, 6)), {"x0": SWAPPED}, {}),
        ("bmm", (g(2, 4, 8), g(2, 8, 6)), {"x1": (96, 12, 2)}, {"x1": (False, True)}),
        ("mm", (g(4, 8), g(8, 6)), {"x0": (1, 4)}, {}),
        ("mm", (g(4, 8), g(8, 6)), {"x0": (16, 2), "x1": (12, 2)}, {"x0": (False, True), "x1": (False, True)}),
        ("relu", (g(2, 4, 8),), {"x0": GAPS}, {}),
        ("mul", (g(2, 4, 8), g(2, 4, 8)), {"x0": GAPS}, {}),
    ],
)  # fmt: skip
def test_copies_of_factors(op: str, given: Any, lies: dict[str, Any], expected: Any) -> None:
    if op == "mul":
        execution, call = eager("aten.mul.Tensor", *given, lies=lies)
        assert execution.operand_copies(call) == {}
        return
    assert copies(op, *given, lies=lies) == expected


@pytest.mark.parametrize(
    ("op", "given", "expected"),
    [
        ("layer_norm", ((2, 4, 8), (8,)), (False, True)),
        ("rms_norm", ((2, 4, 8), (8,)), (False, True)),
        ("group_norm", ((2, 4, 8), 2), (True, False)),
        ("softmax", ((2, 4, 8), -1), (False, False)),
        ("batch_norm", ((2, 4, 8), None, None, None, None, True, 0.1, 1e-5, True), (True, False)),
    ],
)
@pytest.mark.parametrize("is_trained", [True, False])
def test_copies_of_what_is_normalised(op: str, given: Any, expected: Any, is_trained: bool) -> None:
    """A group norm keeps its copy for the gradient, as a batch norm of cuDNN does; a layer norm makes another."""
    shape, *rest = given
    x = g(*shape) if is_trained else t(*shape)
    spelled = "aten.softmax.int" if op == "softmax" else f"aten.{op}.default"
    execution, call = eager(spelled, x, *rest, lies={"x0": TURNED})
    found = {name: (one.is_kept, one.is_again) for name, one in execution.operand_copies(call).items()}
    assert tuple(found.values()) == (tuple(each and is_trained for each in expected),)
    execution, call = eager(spelled, x, *rest)
    assert execution.operand_copies(call) == {}


@pytest.mark.parametrize(
    ("op", "size", "lies", "expected"),
    [
        ("max_pool2d", (2, 2), (192, 64, 1, 8), (False, True)),
        ("avg_pool2d", (2, 2), (192, 64, 1, 8), (False, True)),
        ("adaptive_avg_pool2d", (2, 2), (192, 64, 1, 8), (False, False)),
        ("adaptive_avg_pool2d", (1, 1), (192, 64, 1, 8), None),  # a mean
        ("max_pool2d", (1, 1), (192, 64, 1, 8), (False, True)),
        ("max_pool2d", (2, 2), (192, 1, 24, 3), None),  # channels last
        ("max_pool2d", (2, 2), None, None),
    ],
)
def test_copies_of_what_is_pooled(op: str, size: Any, lies: Any, expected: Any) -> None:
    found = copies(op, g(2, 3, 8, 8), size, lies={"x0": lies} if lies else {})
    assert found == ({} if expected is None else {"x0": expected})


@pytest.mark.parametrize(
    ("size", "power"),
    [(1, 1), (2, 2), (3, 2), (511, 256), (512, 512), (600, 512), (0, 512), (symbol("n"), 512)],
)
def test_the_largest_power_of_two_up_to_a_size(size: Any, power: int) -> None:
    assert largest_power(size, 512) == power
