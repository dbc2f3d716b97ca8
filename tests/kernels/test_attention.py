"""Attention, one question at a time: what each kernel reads, writes and multiplies, and the bytes that it needs beside."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.attention.kernel import Choice, Operand, Problem
from graphflops.execution.strides import row_major
from graphflops.kernels.attention import (
    AttentionMemory,
    computed_fraction,
    cut,
    fused_memory,
)
from graphflops.kernels.kernel import Attention, Kernel
from tests.memory.one_call import eager
from tests.one_call import g
from tests.support import t
from tests.time.one_call import backward, forward, one_call

SDPA = "aten.scaled_dot_product_attention.default"
BATCH, HEADS, SHARED, QUERIES, KEYS, WIDTH, VALUES = 2, 6, 2, 40, 24, 16, 32
QUERY = (BATCH, HEADS, QUERIES, WIDTH)
KEY, VALUE = (BATCH, HEADS, KEYS, WIDTH), (BATCH, HEADS, KEYS, VALUES)
FEW_KEY, FEW_VALUE = (BATCH, SHARED, KEYS, WIDTH), (BATCH, SHARED, KEYS, VALUES)


def count(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ((QUERY, KEY, VALUE), (BATCH, HEADS, HEADS, QUERIES, KEYS, VALUES)),
        ((QUERY[1:], KEY[1:], VALUE[1:]), (1, HEADS, HEADS, QUERIES, KEYS, VALUES)),
        ((QUERY[2:], KEY[2:], VALUE[2:]), (1, 1, 1, QUERIES, KEYS, VALUES)),
        ((QUERY, KEY, KEY), (BATCH, HEADS, HEADS, QUERIES, KEYS, WIDTH)),
        (((3, *QUERY), (3, *KEY), (3, *VALUE)), (3 * BATCH, HEADS, HEADS, QUERIES, KEYS, VALUES)),
    ],
)
@pytest.mark.parametrize("kernel", [None, "flash"])
def test_sizes_of_attention(shapes: tuple[Any, ...], expected: tuple[int, ...], kernel: Any) -> None:
    """Where no kernel is chosen it is the one that needs the least."""
    given = [g(*shape, dtype="bfloat16") for shape in shapes]
    (there,) = forward(SDPA, *given, kernel=kernel)
    (back,) = backward(SDPA, *given, kernel=kernel)
    assert there.sizes == Attention(*expected)
    assert back.sizes == Attention(*expected, phase="backward")
    assert (there.vector_flops, back.vector_flops) == (0, 0)
    assert (there.sizes.masking, there.dtype) == ("", "bfloat16")


def test_the_gradient_of_a_mask_is_added_up_and_moved_out_of_rows_that_were_filled_up() -> None:
    """Two images share a mask, whose rows of 22 are filled up to 24 for the kernel."""
    keys = 22
    given = [
        g(*shape, dtype="bfloat16") for shape in (QUERY, (*QUERY[:2], keys, WIDTH), (*QUERY[:2], keys, WIDTH))
    ]
    scores = HEADS * QUERIES * keys
    _, summed, zeros, *copies = backward(
        SDPA, *given, g(1, HEADS, QUERIES, keys, dtype="bfloat16"), kernel="efficient"
    )
    assert (summed.family, summed.read_bytes, summed.written_bytes) == (
        "reduction",
        2 * 2 * scores,
        2 * scores,
    )
    assert zeros.written_bytes == 2 * HEADS * QUERIES * 24
    assert [(copy.family, copy.written_bytes) for copy in copies] == [("copy", 2 * scores)] * 2
    whole = [g(*shape, dtype="bfloat16") for shape in (QUERY, KEY, KEY)]
    mask = g(BATCH, HEADS, QUERIES, KEYS, dtype="bfloat16")
    assert len(backward(SDPA, *whole, mask, kernel="efficient")) == 1


def test_keys_and_values_that_heads_share_have_one_gradient() -> None:
    """Each of three heads gives its own; their sums are additions of all that is read."""
    given = [g(*shape, dtype="bfloat16") for shape in (QUERY, FEW_KEY, FEW_VALUE)]
    _, summed = backward(SDPA, *given, enable_gqa=True, kernel="flash")
    elements = count(FEW_KEY) + count(FEW_VALUE)
    assert summed == Kernel(
        "reduction", "bfloat16", 0, 3 * elements, 2 * 3 * elements, 2 * elements, variant="heads"
    )
    for shapes in ((QUERY, KEY, VALUE), (QUERY[2:], KEY[2:], VALUE[2:])):
        assert len(backward(SDPA, *[g(*shape) for shape in shapes], kernel="flash")) == 1


@pytest.mark.parametrize(
    ("kernel", "keys", "masking"),
    [
        *[("cudnn", keys, "masked" if keys % 2 == 0 else "uneven") for keys in (20, 21, 22, 23, 24)],
        ("flash", 21, "masked"),
        ("efficient", 21, "masked"),
    ],
)
def test_rows_of_a_mask_that_do_not_align(kernel: Any, keys: int, masking: str) -> None:
    """cuDNN loads four keys of a mask at a time; for the efficient kernel rows are filled up to a multiple of 8."""
    given = [g(BATCH, HEADS, rows, WIDTH, dtype="bfloat16") for rows in (QUERIES, keys, keys)]
    *filled, there = forward(SDPA, *given, t(QUERIES, keys, dtype="bfloat16"), kernel=kernel)
    if kernel == "efficient":  # rows of 24 keys
        sizes = [(each.family, each.read_bytes, each.written_bytes) for each in filled]
        assert sizes == [
            ("elementwise", 0, 2 * QUERIES * 24),
            ("copy", 2 * QUERIES * keys, 2 * QUERIES * keys),
        ]
    else:
        assert not filled
    (back,) = backward(SDPA, *given, t(QUERIES, keys, dtype="bfloat16"), kernel=kernel)
    assert (there.sizes.masking, back.sizes.masking) == (masking, "masked")
    (there,) = forward(SDPA, *given, kernel=kernel)
    assert there.sizes.masking == ""


def test_operands_with_gaps_or_repeats() -> None:
    """A view that repeats a head is read once; one that lies in memory with all heads is read with all of them."""
    given = [t(*shape) for shape in (QUERY, KEY, VALUE)]
    whole = 4 * (count(QUERY) + count(KEY) + count(VALUE))
    (plain,) = forward(SDPA, *given, kernel="flash")
    assert plain.read_bytes == whole
    repeated = (HEADS * KEYS * WIDTH, 0, WIDTH, 1)
    (kernel,) = forward(SDPA, *given, kernel="flash", strides={1: repeated})
    assert kernel.read_bytes == whole


@pytest.mark.parametrize(
    ("queries", "keys", "fraction"),
    [(256, 256, 3 / 4), (384, 128, 1.0), (0, 256, 1.0), (256, 0, 1.0), (128, 256, 1 / 2)],
)
def test_the_part_that_a_causal_mask_leaves(queries: int, keys: int, fraction: float) -> None:
    """Of tiles of 128 x 128; without pairs there is nothing to leave out."""
    call = one_call(SDPA, *[t(1, 1, rows, 8) for rows in (queries, keys, keys)], is_causal=True)
    assert computed_fraction(call, queries, keys) == fraction
    whole = one_call(SDPA, *[t(1, 1, rows, 8) for rows in (queries, keys, keys)])
    assert computed_fraction(whole, queries, keys) == 1


def operand(shape: tuple[int, ...], dtype: str = "bfloat16", **fields: Any) -> Operand:
    kind = t(*shape, dtype=dtype, **fields)
    return Operand(kind, row_major(shape))


def memory(
    kernel: Any,
    *operands: Operand,
    mask: Operand | None = None,
    out_bytes: int = 0,
) -> AttentionMemory:
    return fused_memory(Problem(*operands, mask), Choice(kernel, ""), out_bytes)


HALVES = [operand(shape) for shape in (QUERY, KEY, VALUE)]
FLOATS = [operand(shape, "float32") for shape in (QUERY, KEY, VALUE)]
FEW = [operand(shape, "float32") for shape in (QUERY, FEW_KEY, FEW_VALUE)]
SCORES = 4 * BATCH * HEADS * QUERIES * KEYS
IN_FLOAT = [4 * count(shape) for shape in (QUERY, KEY, VALUE)]  # bytes of each operand in float32


@pytest.mark.parametrize(
    ("mask", "kernel", "copied"),
    [
        (None, "efficient", 0),
        (operand((QUERIES, 24)), "efficient", 0),  # rows of three times eight keys
        (operand((QUERIES, 20)), "efficient", 2 * QUERIES * 24),
        (operand((QUERIES, 25)), "efficient", 2 * QUERIES * 32),
        (operand((HEADS, QUERIES, 20)), "efficient", 2 * HEADS * QUERIES * 24),
        (operand((QUERIES, 20)), "flash", 0),
        (operand((QUERIES, 20), "bool"), "flash", 2 * QUERIES * 20),
        (operand((QUERIES, 20), "bool"), "efficient", 2 * QUERIES * 24),
        (operand((QUERIES, 24), "bool"), "efficient", 2 * QUERIES * 24),
        (operand((), "bool"), "flash", 2),
        (operand(()), "flash", 0),
        (operand((), "bool"), "efficient", 2 * 8),  # one key
    ],
)
def test_masks_that_are_copied(mask: Operand | None, kernel: Any, copied: int) -> None:
    found = memory(kernel, *HALVES, mask=mask)
    assert (found.mask_copy, found.forward) == (copied, copied)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        # A row of float32 for each query and one number more; the efficient kernel has 64 by 64 and four locks.
        ("flash", 4 * BATCH * HEADS * QUERIES * (WIDTH + 1)),
        ("cudnn", 4 * BATCH * HEADS * QUERIES * (WIDTH + 1)),
        ("efficient", 4 * BATCH * HEADS * (64 * 64 + 4 + QUERIES)),
    ],
)
def test_what_fused_gradients_need(kernel: Any, expected: int) -> None:
    assert memory(kernel, *HALVES).backward == expected
    assert memory(kernel, *HALVES).gradient_parts == (0, 0)


# Allocated by `_scaled_dot_product_efficient_attention_backward` on an H200, for 6 heads of so many queries and keys.
@pytest.mark.parametrize(
    ("dtype", "rows", "width", "expected"),
    [
        ("float32", 21, 8, 98_400),
        ("float32", 100, 64, 196_800),
        ("float32", 150, 80, 786_816),
        ("float32", 300, 160, 1_770_336),
        ("float16", 200, 32, 393_600),
        ("float16", 300, 96, 1_179_936),
        ("float16", 100, 160, 2_162_976),
        ("float16", 300, 256, 6_292_608),
    ],
)
def test_blocks_of_the_efficient_kernel_are_whole(dtype: str, rows: int, width: int, expected: int) -> None:
    found = memory("efficient", *[operand((2, 3, rows, width), dtype)] * 3).backward
    assert found == expected + 6 * rows * 4  # one number for each query beside them


def test_gradients_of_shared_keys_and_values_for_each_head() -> None:
    few = [operand(shape) for shape in (QUERY, FEW_KEY, FEW_VALUE)]
    found = memory("flash", *few)
    shared = 2 * BATCH * HEADS * KEYS * (WIDTH + VALUES)
    assert found.backward == 4 * BATCH * HEADS * QUERIES * (WIDTH + 1) + shared
    assert found.gradient_parts == (shared // 2, shared // 2)


@pytest.mark.parametrize(("keys", "padded"), [(16, 16), (17, 32), (24, 32), (33, 48)])
def test_the_gradient_of_a_mask_has_rows_of_a_multiple_of_16_keys(keys: int, padded: int) -> None:
    given = [HALVES[0], operand((BATCH, HEADS, keys, WIDTH)), operand((BATCH, HEADS, keys, VALUES))]
    wanted = operand((QUERIES, keys), requires_grad=True)
    of_mask, own = 2 * BATCH * HEADS * QUERIES * padded, 4 * BATCH * HEADS * (64 * 64 + 4 + QUERIES)
    assert memory("efficient", *given, mask=wanted).backward == own + of_mask
    for mask in (operand((QUERIES, keys)), None):
        assert memory("efficient", *given, mask=mask).backward == own
    # With a row for each head and query, what the kernel fills is the gradient itself and its padding.
    whole = operand((BATCH, HEADS, QUERIES, keys), requires_grad=True)
    beside = 2 * BATCH * HEADS * QUERIES * (padded - keys)
    assert memory("efficient", *given, mask=whole).backward == own + beside


@pytest.mark.parametrize(
    ("size", "parts", "expected"),
    [(10, (3, 4), [3, 4, 3]), (7, (3, 4), [3, 4]), (5, (3, 4), [3, 2]), (0, (3,), []), (4, (), [4]), (6, (3, 0, 3), [3, 3])],
)  # fmt: skip
def test_so_many_bytes_in_parts(size: int, parts: tuple[int, ...], expected: list[int]) -> None:
    assert cut(size, parts) == expected


def test_only_calls_that_choose_their_kernel_have_such_memory() -> None:
    x = g(2, 4, 16, 8, dtype="bfloat16")
    execution, call = eager(SDPA, x, x, x)
    found = AttentionMemory.of(call, execution.layouts, True)
    assert found is not None
    assert [operand.strides for operand in found.problem.operands] == [(512, 128, 8, 1)] * 3
    turned, call = eager(SDPA, x, x, x, lies={"x1": (512, 8, 32, 1)})
    found = AttentionMemory.of(call, turned.layouts, True)
    assert found is not None
    assert found.problem.key.strides == (512, 8, 32, 1)
    for op, given in (("aten.relu.default", (x,)), (SDPA, [g(16, 8)] * 3)):
        execution, call = eager(op, *given)
        assert AttentionMemory.of(call, execution.layouts, True) is None
    execution, call = eager(SDPA, x, x, x)
    execution.layouts.values = {**execution.layouts.values, "y0": None}
    assert AttentionMemory.of(call, execution.layouts, True) is None
