"""The attention kernels. A program computes one tile of the result, and loops over the mask's listed blocks.

The order of the blocks is fixed, so results are reproducible.
"""

import triton
import triton.language as tl

from graphflops.runtime.flex.library import (
    add_product,
    kept,
    line_of_blocks,
    load_tile,
    number_of,
    product,
    program_place,
    store_counts,
    store_tile,
    tile_start,
)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward_kernel(
    q, k, v, out, lse, counts, lists, buffers, q_strides, k_strides, v_strides, out_strides, meta, sizes,
    SCORE: tl.constexpr, MASK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Rows of the output and their log-sum-exp. SCORE, MASK: generated functions. C: as of the library."""
    batch, heads, queries, keys = sizes
    row, entry, head = program_place(batch, heads, queries, False, C)
    rows = row + tl.arange(0, C.ROWS)
    query = load_tile(q, entry, head, row, q_strides, queries, False, False, C.DESCRIPTORS, C)
    top = tl.full([C.ROWS], float("-inf"), C.SUM)
    total = tl.full([C.ROWS], 0.0, C.SUM)
    values = tl.full([C.ROWS, C.BLOCK_VALUE_WIDTH], 0.0, C.SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    SPLIT: tl.constexpr = C.BLOCK_COLUMNS // C.COLUMNS
    # Without a score function, scale and base change are one factor, applied inside the exponent.
    FOLD: tl.constexpr = (not C.HAS_SCORE) and C.SCALE > 0
    FACTOR: tl.constexpr = C.SCALE * LOG2E if FOLD else LOG2E
    key_head = head // C.SHARING
    q_index = (tl.minimum(rows, queries - 1) if C.CLAMP else rows)[:, None]
    # Online softmax over the listed blocks; scores are in base 2, so that `exp2` and one multiply-add suffice.
    for MASKED in tl.static_range(2):  # blocks whose scores are all visible, then the others
        if C.HAS_PARTIAL if MASKED else C.HAS_FULL:
            blocks, places, first = line_of_blocks(
                lists, meta, entry, head, row // C.BLOCK_ROWS, C.BLOCK_COLUMNS, MASKED
            )
            for step in tl.range(0, blocks * SPLIT, num_stages=C.STAGES):
                start = tile_start(first, places, step, True, MASKED, C)
                key = load_tile(k, entry, key_head, start, k_strides, keys, True, False, C.DESCRIPTORS, C)
                score = product(query, key.T, C)
                columns = start + tl.arange(0, C.COLUMNS)
                inside = (columns < keys)[None, :]
                kv_index = (tl.minimum(columns, keys - 1) if C.CLAMP else columns)[None, :]
                if not FOLD:
                    score = score * C.SCALE
                if C.HAS_SCORE:
                    score = SCORE(score, entry, head, q_index, kv_index, buffers)
                    score = tl.broadcast_to(score, (C.ROWS, C.COLUMNS))
                if MASKED:
                    keep = kept(entry, head, q_index, kv_index, inside, buffers, C.ROWS, C.COLUMNS, MASK, C)
                    score = tl.where(keep, score, float("-inf"))
                elif not C.EVEN_KEYS:
                    score = tl.where(inside, score, float("-inf"))
                if C.COUNT == 2:
                    real = (rows < queries)[:, None] & inside
                    visible += number_of(real & keep if MASKED else real)
                highest = tl.maximum(top, tl.max(score, 1) * FACTOR)
                # Without an unmasked score so far, minus infinity less itself would give NaN.
                base = (
                    highest
                    if not MASKED and not C.HAS_SCORE
                    else tl.where(highest == float("-inf"), 0.0, highest)
                )
                weight = tl.exp2(score * FACTOR - base[:, None])
                shrink = tl.exp2(top - base)
                total = total * shrink + tl.sum(weight, 1)
                values = values * shrink[:, None]
                value = load_tile(v, entry, key_head, start, v_strides, keys, True, True, C.DESCRIPTORS, C)
                values = add_product(values, weight.to(value.dtype), value, C)
                top = highest
                partial_tiles += 1 if MASKED else 0
                full_tiles += 0 if MASKED else 1
    # A fully masked row is zero, and its log-sum-exp is minus infinity.
    values = values / tl.where(total == 0, 1, total)[:, None]
    store_tile(out, values, entry, head, row, out_strides, queries, False, True, C)
    logarithm = tl.where(total == 0, float("-inf"), (top + tl.log2(total)) / LOG2E)
    place = (entry * heads + head).to(tl.int64) * queries + rows
    tl.store(lse + place, logarithm, mask=rows < queries)
    store_counts(counts, full_tiles, partial_tiles, visible, C)


@triton.jit
def query_kernel(
    q, k, v, grad, out, lse, grad_lse, delta, grad_q, counts, lists, buffers, q_strides, k_strides, v_strides,
    grad_strides, out_strides, grad_q_strides, meta, sizes, SCORE: tl.constexpr, GRADIENT: tl.constexpr,
    MASK: tl.constexpr, HAS_GRAD_LSE: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Rows of the query's gradient, over the listed blocks of keys; parameters as of the forward kernel.

    delta: written here for `key_kernel`: output times its gradient, summed by row, less the log-sum-exp's gradient.
    """
    batch, heads, queries, keys = sizes
    row, entry, head = program_place(batch, heads, queries, False, C)
    rows = row + tl.arange(0, C.ROWS)
    query = load_tile(q, entry, head, row, q_strides, queries, False, False, C.DESCRIPTORS, C)
    upper = load_tile(grad, entry, head, row, grad_strides, queries, False, True, C.DESCRIPTORS, C)
    place = (entry * heads + head).to(tl.int64) * queries + rows
    logarithm = tl.load(lse + place, mask=rows < queries, other=float("inf")) * LOG2E
    logarithm = tl.where(logarithm == float("-inf"), float("inf"), logarithm)
    result = load_tile(out, entry, head, row, out_strides, queries, False, True, False, C)
    offset = tl.sum(result.to(C.SUM) * upper.to(C.SUM), 1)
    if HAS_GRAD_LSE:
        offset -= tl.load(grad_lse + place, mask=rows < queries, other=0.0)
    tl.store(delta + place, offset, mask=rows < queries)
    sums = tl.full([C.ROWS, C.BLOCK_WIDTH], 0.0, C.SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    SPLIT: tl.constexpr = C.BLOCK_COLUMNS // C.COLUMNS
    FACTOR: tl.constexpr = LOG2E if C.HAS_SCORE else C.SCALE * LOG2E
    key_head = head // C.SHARING
    q_index = (tl.minimum(rows, queries - 1) if C.CLAMP else rows)[:, None]
    # What the listed blocks of keys add; weights are recomputed from the log-sum-exp.
    for MASKED in tl.static_range(2):  # blocks whose scores are all visible, then the others
        if C.HAS_PARTIAL if MASKED else C.HAS_FULL:
            blocks, places, first = line_of_blocks(
                lists, meta, entry, head, row // C.BLOCK_ROWS, C.BLOCK_COLUMNS, MASKED
            )
            for step in tl.range(0, blocks * SPLIT, num_stages=C.STAGES):
                start = tile_start(first, places, step, True, MASKED, C)
                key = load_tile(k, entry, key_head, start, k_strides, keys, True, False, C.DESCRIPTORS, C)
                value = load_tile(v, entry, key_head, start, v_strides, keys, True, True, C.DESCRIPTORS, C)
                given = product(query, key.T, C)
                columns = start + tl.arange(0, C.COLUMNS)
                inside = (columns < keys)[None, :]
                kv_index = (tl.minimum(columns, keys - 1) if C.CLAMP else columns)[None, :]
                score = given
                if C.HAS_SCORE:
                    given = given * C.SCALE
                    score = SCORE(given, entry, head, q_index, kv_index, buffers)
                    score = tl.broadcast_to(score, (C.ROWS, C.COLUMNS))
                weight = tl.exp2(score * FACTOR - logarithm[:, None])
                if MASKED:
                    keep = kept(entry, head, q_index, kv_index, inside, buffers, C.ROWS, C.COLUMNS, MASK, C)
                    weight = tl.where(keep, weight, 0.0)
                elif not C.EVEN_KEYS:
                    weight = tl.where(inside, weight, 0.0)
                if C.COUNT == 2:
                    real = (rows < queries)[:, None] & inside
                    visible += number_of(real & keep if MASKED else real)
                slope = weight * (product(upper, value.T, C) - offset[:, None])
                if C.HAS_SCORE:
                    slope = GRADIENT(given, entry, head, q_index, kv_index, slope, buffers)
                    slope = tl.broadcast_to(slope, (C.ROWS, C.COLUMNS))
                    if MASKED:
                        slope = tl.where(keep, slope, 0.0)
                sums = add_product(sums, slope.to(key.dtype), key, C)
                partial_tiles += 1 if MASKED else 0
                full_tiles += 0 if MASKED else 1
    store_tile(grad_q, sums * C.SCALE, entry, head, row, grad_q_strides, queries, False, False, C)
    store_counts(counts, full_tiles, partial_tiles, visible, C)


@triton.jit
def key_kernel(
    q, k, v, grad, lse, delta, grad_k, grad_v, counts, lists, buffers, q_strides, k_strides, v_strides,
    grad_strides, grad_k_strides, grad_v_strides, meta, sizes, SCORE: tl.constexpr, GRADIENT: tl.constexpr,
    MASK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Rows of the key's and value's gradients, over the query heads that share them and the listed blocks of queries."""
    batch, heads, queries, keys = sizes
    start, entry, key_head = program_place(batch, heads // C.SHARING, keys, True, C)
    columns = start + tl.arange(0, C.COLUMNS)
    key = load_tile(k, entry, key_head, start, k_strides, keys, True, False, C.DESCRIPTORS, C)
    value = load_tile(v, entry, key_head, start, v_strides, keys, True, True, C.DESCRIPTORS, C)
    key_sums = tl.full([C.COLUMNS, C.BLOCK_WIDTH], 0.0, C.SUM)
    value_sums = tl.full([C.COLUMNS, C.BLOCK_VALUE_WIDTH], 0.0, C.SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    SPLIT: tl.constexpr = C.BLOCK_ROWS // C.ROWS
    FACTOR: tl.constexpr = LOG2E if C.HAS_SCORE else C.SCALE * LOG2E
    inside = (columns < keys)[:, None]
    kv_index = (tl.minimum(columns, keys - 1) if C.CLAMP else columns)[:, None]
    for sharer in range(C.SHARING):
        head = key_head * C.SHARING + sharer
        place = (entry * heads + head).to(tl.int64) * queries
        # What the listed blocks of queries add; scores are transposed, keys down and queries across.
        for MASKED in tl.static_range(2):  # blocks whose scores are all visible, then the others
            if C.HAS_PARTIAL if MASKED else C.HAS_FULL:
                blocks, places, first = line_of_blocks(
                    lists, meta, entry, head, start // C.BLOCK_COLUMNS, C.BLOCK_ROWS, MASKED
                )
                for step in tl.range(0, blocks * SPLIT, num_stages=C.STAGES):
                    row = tile_start(first, places, step, False, MASKED, C)
                    query = load_tile(q, entry, head, row, q_strides, queries, False, False, C.DESCRIPTORS, C)
                    rows = row + tl.arange(0, C.ROWS)
                    if C.EVEN_QUERIES:
                        logarithm = tl.load(lse + place + rows) * LOG2E
                        offset = tl.load(delta + place + rows)
                    else:
                        logarithm = (
                            tl.load(lse + place + rows, mask=rows < queries, other=float("inf")) * LOG2E
                        )
                        offset = tl.load(delta + place + rows, mask=rows < queries, other=0.0)
                    logarithm = tl.where(logarithm == float("-inf"), float("inf"), logarithm)
                    given = product(key, query.T, C)
                    q_index = (tl.minimum(rows, queries - 1) if C.CLAMP else rows)[None, :]
                    score = given
                    if C.HAS_SCORE:
                        given = given * C.SCALE
                        score = SCORE(given, entry, head, q_index, kv_index, buffers)
                        score = tl.broadcast_to(score, (C.COLUMNS, C.ROWS))
                    weight = tl.exp2(score * FACTOR - logarithm[None, :])
                    if MASKED:
                        keep = kept(
                            entry, head, q_index, kv_index, inside, buffers, C.COLUMNS, C.ROWS, MASK, C
                        )
                        weight = tl.where(keep, weight, 0.0)
                    if C.COUNT == 2:
                        real = (rows < queries)[None, :] & inside
                        visible += number_of(real & keep if MASKED else real)
                    upper = load_tile(
                        grad, entry, head, row, grad_strides, queries, False, True, C.DESCRIPTORS, C
                    )
                    value_sums = add_product(value_sums, weight.to(upper.dtype), upper, C)
                    slope = weight * (product(value, upper.T, C) - offset[None, :])
                    if C.HAS_SCORE:
                        slope = GRADIENT(given, entry, head, q_index, kv_index, slope, buffers)
                        slope = tl.broadcast_to(slope, (C.COLUMNS, C.ROWS))
                        if MASKED:
                            slope = tl.where(keep, slope, 0.0)
                    key_sums = add_product(key_sums, slope.to(query.dtype), query, C)
                    partial_tiles += 1 if MASKED else 0
                    full_tiles += 0 if MASKED else 1
    store_tile(grad_k, key_sums * C.SCALE, entry, key_head, start, grad_k_strides, keys, True, False, C)
    store_tile(grad_v, value_sums, entry, key_head, start, grad_v_strides, keys, True, True, C)
    store_counts(counts, full_tiles, partial_tiles, visible, C)
