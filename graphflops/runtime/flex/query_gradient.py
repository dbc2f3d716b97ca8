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
    q, k, v, grad, out, lse, grad_lse, delta, grad_q, counts, lists, buffers, q_strides, k_strides, v_strides,
    grad_strides, out_strides, grad_q_strides, meta, sizes, SCORE: tl.constexpr, GRADIENT: tl.constexpr,
    MASK: tl.constexpr, HAS_GRAD_LSE: tl.constexpr, HAS_SCORE: tl.constexpr, HAS_MASK: tl.constexpr,
    SCALE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, SHARING: tl.constexpr, TOGETHER: tl.constexpr, HAS_PARTIAL: tl.constexpr,
    HAS_FULL: tl.constexpr, PARTIAL_CONTIGUOUS: tl.constexpr, FULL_CONTIGUOUS: tl.constexpr,
    EVEN_QUERIES: tl.constexpr, EVEN_KEYS: tl.constexpr, CLAMP: tl.constexpr, COUNT: tl.constexpr,
    DESCRIPTORS: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Rows of the query's gradient, over the listed blocks of keys; parameters as of the forward kernel.

    delta: written here for the key's kernel: output times its gradient, summed by row, less the log-sum-exp's gradient.
    """
    partial_counts, partial_places, full_counts, full_places = lists
    partial_most, full_most, mask_batch, mask_heads, mask_lines = meta
    batch, heads, queries, keys = sizes
    line, head_index = program_place(tl.program_id(0), tl.cdiv(queries, ROWS), batch * heads, TOGETHER, True)
    entry = head_index // heads
    head = head_index % heads
    row = line * ROWS
    rows = row + tl.arange(0, ROWS)
    query = load_tile(
        q, entry, head, row, q_strides, queries, ROWS, WIDTH, BLOCK_WIDTH, EVEN_QUERIES, DESCRIPTORS
    )
    upper = load_tile(
        grad, entry, head, row, grad_strides, queries,
        ROWS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_QUERIES, DESCRIPTORS,
    )  # fmt: skip
    place = head_index.to(tl.int64) * queries + rows
    logarithm = tl.load(lse + place, mask=rows < queries, other=float("inf")) * LOG2E
    logarithm = tl.where(logarithm == float("-inf"), float("inf"), logarithm)
    result = load_tile(
        out, entry, head, row, out_strides, queries, ROWS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_QUERIES, False
    )
    offset = tl.sum(result.to(SUM) * upper.to(SUM), 1)
    if HAS_GRAD_LSE:
        offset -= tl.load(grad_lse + place, mask=rows < queries, other=0.0)
    tl.store(delta + place, offset, mask=rows < queries)
    sums = tl.zeros([ROWS, BLOCK_WIDTH], SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    listed = ((entry % mask_batch) * mask_heads + head % mask_heads) * mask_lines + row // BLOCK_ROWS
    SPLIT: tl.constexpr = BLOCK_COLUMNS // COLUMNS
    FACTOR: tl.constexpr = LOG2E if HAS_SCORE else SCALE * LOG2E
    key_head = head // SHARING
    q_index = tl.minimum(rows, queries - 1) if CLAMP else rows
    # What the listed blocks of keys add; weights come again from the log-sum-exp.
    for MASKED in tl.static_range(2):  # blocks whose scores are all visible, then the others
        if HAS_PARTIAL if MASKED else HAS_FULL:
            blocks = tl.load((partial_counts if MASKED else full_counts) + listed)
            places = partial_places if MASKED else full_places
            places += listed.to(tl.int64) * (partial_most if MASKED else full_most)
            first = tl.load(places) * BLOCK_COLUMNS
            for step in tl.range(0, blocks * SPLIT, num_stages=STAGES):
                start = tile_start(
                    first, places, step, SPLIT, BLOCK_COLUMNS, COLUMNS,
                    PARTIAL_CONTIGUOUS if MASKED else FULL_CONTIGUOUS,
                )  # fmt: skip
                key = load_tile(
                    k, entry, key_head, start, k_strides, keys,
                    COLUMNS, WIDTH, BLOCK_WIDTH, EVEN_KEYS, DESCRIPTORS,
                )  # fmt: skip
                value = load_tile(
                    v, entry, key_head, start, v_strides, keys,
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
                if MASKED:
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
                    if MASKED:
                        real = real & keep
                    visible += tl.sum(tl.sum(real.to(tl.int32), 1), 0).to(tl.int64)
                slope = weight * (product(upper, value.T, PRECISION, UPCAST) - offset[:, None])
                if HAS_SCORE:
                    slope = GRADIENT(given, entry, head, q_index[:, None], kv_index[None, :], slope, buffers)
                    slope = tl.broadcast_to(slope, (ROWS, COLUMNS))
                    if MASKED:
                        slope = tl.where(keep, slope, 0.0)
                sums = add_product(sums, slope.to(key.dtype), key, PRECISION, UPCAST)
                if MASKED:
                    partial_tiles += 1
                else:
                    full_tiles += 1
    store_tile(grad_q, sums * SCALE, entry, head, row, grad_q_strides, queries, ROWS, WIDTH, BLOCK_WIDTH)
    if COUNT > 0:
        target = counts + tl.program_id(0).to(tl.int64) * 3
        tl.store(target, full_tiles)
        tl.store(target + 1, partial_tiles)
        tl.store(target + 2, visible)
