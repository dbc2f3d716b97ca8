"""The forward kernel: one program for each tile of queries, over the key blocks that the mask lists."""

import triton
import triton.language as tl

from graphflops.runtime.flex.tiles import (
    add_product,
    load_tile,
    product,
    program_place,
    store_tile,
    tile_start,
)

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward_kernel(
    q, k, v, out, lse, counts, lists, buffers, q_strides, k_strides, v_strides, out_strides, meta, sizes,
    SCORE: tl.constexpr, MASK: tl.constexpr, HAS_SCORE: tl.constexpr, HAS_MASK: tl.constexpr,
    SCALE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, SHARING: tl.constexpr, TOGETHER: tl.constexpr, HAS_PARTIAL: tl.constexpr,
    HAS_FULL: tl.constexpr, PARTIAL_CONTIGUOUS: tl.constexpr, FULL_CONTIGUOUS: tl.constexpr,
    EVEN_QUERIES: tl.constexpr, EVEN_KEYS: tl.constexpr, CLAMP: tl.constexpr, COUNT: tl.constexpr,
    DESCRIPTORS: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Rows of the output and their log-sum-exp.

    SCORE, MASK: generated functions. SHARING: query heads to a key head. CLAMP: keep indices inside buffers.
    COUNT: 0 nothing, 1 tiles, 2 tiles and visible scores. SUM: the type sums are kept in.
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
    top = tl.full([ROWS], float("-inf"), SUM)
    total = tl.zeros([ROWS], SUM)
    values = tl.zeros([ROWS, BLOCK_VALUE_WIDTH], SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    listed = ((entry % mask_batch) * mask_heads + head % mask_heads) * mask_lines + row // BLOCK_ROWS
    SPLIT: tl.constexpr = BLOCK_COLUMNS // COLUMNS
    # Without a score function, scale and base change are one factor, applied inside the exponent.
    FOLD: tl.constexpr = (not HAS_SCORE) and SCALE > 0
    FACTOR: tl.constexpr = SCALE * LOG2E if FOLD else LOG2E
    key_head = head // SHARING
    q_index = tl.minimum(rows, queries - 1) if CLAMP else rows
    # Online softmax over the listed blocks; scores are in base 2, so that `exp2` and one multiply-add suffice.
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
                score = product(query, key.T, PRECISION, UPCAST)
                columns = start + tl.arange(0, COLUMNS)
                kv_index = tl.minimum(columns, keys - 1) if CLAMP else columns
                if not FOLD:
                    score = score * SCALE
                if HAS_SCORE:
                    score = SCORE(score, entry, head, q_index[:, None], kv_index[None, :], buffers)
                    score = tl.broadcast_to(score, (ROWS, COLUMNS))
                if MASKED:
                    if HAS_MASK:
                        keep = MASK(entry, head, q_index[:, None], kv_index[None, :], buffers)
                        keep = tl.broadcast_to(keep, (ROWS, COLUMNS))
                        if not EVEN_KEYS:
                            keep = keep & (columns < keys)[None, :]
                    else:
                        keep = tl.broadcast_to((columns < keys)[None, :], (ROWS, COLUMNS))
                    score = tl.where(keep, score, float("-inf"))
                elif not EVEN_KEYS:
                    score = tl.where((columns < keys)[None, :], score, float("-inf"))
                if COUNT == 2:
                    real = (rows < queries)[:, None] & (columns < keys)[None, :]
                    if MASKED:
                        real = real & keep
                    visible += tl.sum(tl.sum(real.to(tl.int32), 1), 0).to(tl.int64)
                highest = tl.maximum(top, tl.max(score, 1) * FACTOR)
                # No unmasked score so far: subtracting minus infinity from itself would give NaN.
                base = (
                    highest
                    if not MASKED and not HAS_SCORE
                    else tl.where(highest == float("-inf"), 0.0, highest)
                )
                weight = tl.exp2(score * FACTOR - base[:, None])
                shrink = tl.exp2(top - base)
                total = total * shrink + tl.sum(weight, 1)
                values = values * shrink[:, None]
                value = load_tile(
                    v, entry, key_head, start, v_strides, keys,
                    COLUMNS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_KEYS, DESCRIPTORS,
                )  # fmt: skip
                values = add_product(values, weight.to(value.dtype), value, PRECISION, UPCAST)
                top = highest
                if MASKED:
                    partial_tiles += 1
                else:
                    full_tiles += 1
    # A fully masked row is zero, and its log-sum-exp is minus infinity.
    values = values / tl.where(total == 0, 1, total)[:, None]
    store_tile(out, values, entry, head, row, out_strides, queries, ROWS, VALUE_WIDTH, BLOCK_VALUE_WIDTH)
    logarithm = tl.where(total == 0, float("-inf"), (top + tl.log2(total)) / LOG2E)
    tl.store(lse + head_index.to(tl.int64) * queries + rows, logarithm, mask=rows < queries)
    if COUNT > 0:
        place = counts + tl.program_id(0).to(tl.int64) * 3
        tl.store(place, full_tiles)
        tl.store(place + 1, partial_tiles)
        tl.store(place + 2, visible)
