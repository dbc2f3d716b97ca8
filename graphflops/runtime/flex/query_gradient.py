"""The kernel of the query's gradient: one program sums each gradient in one order, so that results are reproducible."""

import triton
import triton.language as tl

from graphflops.runtime.flex.forward import LOG2E
from graphflops.runtime.flex.tiles import (
    add_product,
    load_tile,
    product,
    program_place,
    store_tile,
    tile_start,
)


@triton.jit
def query_kernel(
    q,
    k,
    v,
    grad,
    out,
    lse,
    grad_lse,
    delta,
    grad_q,
    counts,
    partial_counts,
    partial_places,
    full_counts,
    full_places,
    buffers,
    q_batch,
    q_head,
    q_row,
    q_column,
    k_batch,
    k_head,
    k_row,
    k_column,
    v_batch,
    v_head,
    v_row,
    v_column,
    grad_batch,
    grad_head,
    grad_row,
    grad_column,
    out_batch,
    out_head,
    out_row,
    out_column,
    grad_q_batch,
    grad_q_head,
    grad_q_row,
    grad_q_column,
    partial_most,
    full_most,
    mask_batch,
    mask_heads,
    mask_lines,
    batch,
    heads,
    queries,
    keys,
    SCORE: tl.constexpr,
    GRADIENT: tl.constexpr,
    MASK: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    HAS_SCORE: tl.constexpr,
    HAS_MASK: tl.constexpr,
    SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    SHARING: tl.constexpr,
    TOGETHER: tl.constexpr,
    HAS_PARTIAL: tl.constexpr,
    HAS_FULL: tl.constexpr,
    PARTIAL_CONTIGUOUS: tl.constexpr,
    FULL_CONTIGUOUS: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    CLAMP: tl.constexpr,
    COUNT: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    STAGES: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Rows of the query's gradient, over the listed blocks of keys; parameters as of the forward kernel.

    delta: written here for the key's kernel: output times its gradient, summed by row, less the log-sum-exp's gradient.
    """
    line, head_index = program_place(tl.program_id(0), tl.cdiv(queries, ROWS), batch * heads, TOGETHER, True)
    entry = head_index // heads
    head = head_index % heads
    row = line * ROWS
    rows = row + tl.arange(0, ROWS)
    query = load_tile(
        q, entry, head, row, q_batch, q_head, q_row, q_column, queries,
        ROWS, WIDTH, BLOCK_WIDTH, EVEN_QUERIES, DESCRIPTORS,
    )  # fmt: skip
    upper = load_tile(
        grad, entry, head, row, grad_batch, grad_head, grad_row, grad_column, queries,
        ROWS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_QUERIES, DESCRIPTORS,
    )  # fmt: skip
    place = head_index.to(tl.int64) * queries + rows
    logarithm = tl.load(lse + place, mask=rows < queries, other=float("inf")) * LOG2E
    logarithm = tl.where(logarithm == float("-inf"), float("inf"), logarithm)
    result = load_tile(
        out, entry, head, row, out_batch, out_head, out_row, out_column, queries,
        ROWS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_QUERIES, False,
    )  # fmt: skip
    offset = tl.sum(result.to(SUM) * upper.to(SUM), 1)
    if HAS_GRAD_LSE:
        offset -= tl.load(grad_lse + place, mask=rows < queries, other=0.0)
    tl.store(delta + place, offset, mask=rows < queries)
    sums = tl.zeros([ROWS, BLOCK_WIDTH], SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    listed = ((entry % mask_batch) * mask_heads + head % mask_heads) * mask_lines + row // BLOCK_ROWS
    if HAS_FULL:
        sums, full_tiles, visible = sweep_keys(
            sums, visible, query, upper, logarithm, offset, k, v, buffers, entry, head, rows,
            tl.load(full_counts + listed), full_places + listed.to(tl.int64) * full_most,
            k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, queries, keys,
            SCORE, GRADIENT, MASK, HAS_SCORE, HAS_MASK, SCALE,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH,
            ROWS, COLUMNS, BLOCK_COLUMNS, SHARING, True, FULL_CONTIGUOUS, EVEN_KEYS, CLAMP, COUNT,
            DESCRIPTORS, STAGES, PRECISION, UPCAST,
        )  # fmt: skip
    if HAS_PARTIAL:
        sums, partial_tiles, visible = sweep_keys(
            sums, visible, query, upper, logarithm, offset, k, v, buffers, entry, head, rows,
            tl.load(partial_counts + listed), partial_places + listed.to(tl.int64) * partial_most,
            k_batch, k_head, k_row, k_column, v_batch, v_head, v_row, v_column, queries, keys,
            SCORE, GRADIENT, MASK, HAS_SCORE, HAS_MASK, SCALE,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH,
            ROWS, COLUMNS, BLOCK_COLUMNS, SHARING, False, PARTIAL_CONTIGUOUS, EVEN_KEYS, CLAMP, COUNT,
            DESCRIPTORS, STAGES, PRECISION, UPCAST,
        )  # fmt: skip
    store_tile(
        grad_q, sums * SCALE, entry, head, row, grad_q_batch, grad_q_head, grad_q_row, grad_q_column, queries,
        ROWS, WIDTH, BLOCK_WIDTH,
    )  # fmt: skip
    if COUNT > 0:
        target = counts + tl.program_id(0).to(tl.int64) * 3
        tl.store(target, full_tiles)
        tl.store(target + 1, partial_tiles)
        tl.store(target + 2, visible)


@triton.jit
def sweep_keys(
    sums,
    visible,
    query,
    upper,
    logarithm,
    offset,
    k,
    v,
    buffers,
    entry,
    head,
    rows,
    blocks,
    places,
    k_batch,
    k_head,
    k_row,
    k_column,
    v_batch,
    v_head,
    v_row,
    v_column,
    queries,
    keys,
    SCORE: tl.constexpr,
    GRADIENT: tl.constexpr,
    MASK: tl.constexpr,
    HAS_SCORE: tl.constexpr,
    HAS_MASK: tl.constexpr,
    SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    SHARING: tl.constexpr,
    FULL: tl.constexpr,
    CONTIGUOUS: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    CLAMP: tl.constexpr,
    COUNT: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """What the listed blocks of keys add to the query's gradient; weights come again from the log-sum-exp."""
    SPLIT: tl.constexpr = BLOCK_COLUMNS // COLUMNS
    FACTOR: tl.constexpr = LOG2E if HAS_SCORE else SCALE * LOG2E
    executed = 0
    key_head = head // SHARING
    q_index = tl.minimum(rows, queries - 1) if CLAMP else rows
    first = tl.load(places) * BLOCK_COLUMNS
    for step in tl.range(0, blocks * SPLIT, num_stages=STAGES):
        start = tile_start(first, places, step, SPLIT, BLOCK_COLUMNS, COLUMNS, CONTIGUOUS)
        key = load_tile(
            k, entry, key_head, start, k_batch, k_head, k_row, k_column, keys,
            COLUMNS, WIDTH, BLOCK_WIDTH, EVEN_KEYS, DESCRIPTORS,
        )  # fmt: skip
        value = load_tile(
            v, entry, key_head, start, v_batch, v_head, v_row, v_column, keys,
            COLUMNS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_KEYS, DESCRIPTORS,
        )  # fmt: skip
        given = product(query, key.T, PRECISION, UPCAST)
        columns = start + tl.arange(0, COLUMNS)
        kv_index = tl.minimum(columns, keys - 1) if CLAMP else columns
        score = given
        if HAS_SCORE:
            given = given * SCALE
            score = SCORE(given, entry, head, q_index[:, None], kv_index[None, :], buffers)
            score = tl.broadcast_to(score, (ROWS, COLUMNS))
        weight = tl.exp2(score * FACTOR - logarithm[:, None])
        if not FULL:
            if HAS_MASK:
                keep = MASK(entry, head, q_index[:, None], kv_index[None, :], buffers)
                keep = tl.broadcast_to(keep, (ROWS, COLUMNS))
                if not EVEN_KEYS:
                    keep = keep & (columns < keys)[None, :]
            else:
                keep = tl.broadcast_to((columns < keys)[None, :], (ROWS, COLUMNS))
            weight = tl.where(keep, weight, 0.0)
        elif not EVEN_KEYS:
            weight = tl.where((columns < keys)[None, :], weight, 0.0)
        if COUNT == 2:
            real = (rows < queries)[:, None] & (columns < keys)[None, :]
            if not FULL:
                real = real & keep
            visible += tl.sum(tl.sum(real.to(tl.int32), 1), 0).to(tl.int64)
        slope = weight * (product(upper, value.T, PRECISION, UPCAST) - offset[:, None])
        if HAS_SCORE:
            slope = GRADIENT(given, entry, head, q_index[:, None], kv_index[None, :], slope, buffers)
            slope = tl.broadcast_to(slope, (ROWS, COLUMNS))
            if not FULL:
                slope = tl.where(keep, slope, 0.0)
        sums = add_product(sums, slope.to(key.dtype), key, PRECISION, UPCAST)
        executed += 1
    return sums, executed, visible
