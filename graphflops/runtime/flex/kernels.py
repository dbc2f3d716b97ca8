"""The kernels: one program for each tile of the result, over the blocks that the mask lists, which it adds in one order.

So results are reproducible.
"""

import triton
import triton.language as tl

from graphflops.runtime.flex.library import (
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


@triton.jit
def key_kernel(
    q, k, v, grad, lse, delta, grad_k, grad_v, counts, lists, buffers, q_strides, k_strides, v_strides,
    grad_strides, grad_k_strides, grad_v_strides, meta, sizes, SCORE: tl.constexpr, GRADIENT: tl.constexpr,
    MASK: tl.constexpr, HAS_SCORE: tl.constexpr, HAS_MASK: tl.constexpr, SCALE: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr, SHARING: tl.constexpr, TOGETHER: tl.constexpr, HAS_PARTIAL: tl.constexpr,
    HAS_FULL: tl.constexpr, PARTIAL_CONTIGUOUS: tl.constexpr, FULL_CONTIGUOUS: tl.constexpr,
    EVEN_QUERIES: tl.constexpr, EVEN_KEYS: tl.constexpr, CLAMP: tl.constexpr, COUNT: tl.constexpr,
    DESCRIPTORS: tl.constexpr, STAGES: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Rows of the key's and value's gradients, over the query heads that share them and the listed blocks of queries."""
    partial_counts, partial_places, full_counts, full_places = lists
    partial_most, full_most, mask_batch, mask_heads, mask_lines = meta
    batch, heads, queries, keys = sizes
    key_heads = heads // SHARING
    line, head_index = program_place(
        tl.program_id(0), tl.cdiv(keys, COLUMNS), batch * key_heads, TOGETHER, False
    )
    entry = head_index // key_heads
    key_head = head_index % key_heads
    start = line * COLUMNS
    columns = start + tl.arange(0, COLUMNS)
    key = load_tile(
        k, entry, key_head, start, k_strides, keys, COLUMNS, WIDTH, BLOCK_WIDTH, EVEN_KEYS, DESCRIPTORS
    )
    value = load_tile(
        v, entry, key_head, start, v_strides, keys,
        COLUMNS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_KEYS, DESCRIPTORS,
    )  # fmt: skip
    key_sums = tl.zeros([COLUMNS, BLOCK_WIDTH], SUM)
    value_sums = tl.zeros([COLUMNS, BLOCK_VALUE_WIDTH], SUM)
    full_tiles = 0
    partial_tiles = 0
    visible = tl.zeros([], tl.int64)
    SPLIT: tl.constexpr = BLOCK_ROWS // ROWS
    FACTOR: tl.constexpr = LOG2E if HAS_SCORE else SCALE * LOG2E
    kv_index = tl.minimum(columns, keys - 1) if CLAMP else columns
    for sharer in range(SHARING):
        head = key_head * SHARING + sharer
        listed = (entry % mask_batch) * mask_heads + head % mask_heads
        listed = listed * mask_lines + start // BLOCK_COLUMNS
        place = (entry * heads + head).to(tl.int64) * queries
        # What the listed blocks of queries add; scores stand transposed, keys down and queries across.
        for MASKED in tl.static_range(2):  # blocks whose scores are all visible, then the others
            if HAS_PARTIAL if MASKED else HAS_FULL:
                blocks = tl.load((partial_counts if MASKED else full_counts) + listed)
                places = partial_places if MASKED else full_places
                places += listed.to(tl.int64) * (partial_most if MASKED else full_most)
                first = tl.load(places) * BLOCK_ROWS
                for step in tl.range(0, blocks * SPLIT, num_stages=STAGES):
                    row = tile_start(
                        first, places, step, SPLIT, BLOCK_ROWS, ROWS,
                        PARTIAL_CONTIGUOUS if MASKED else FULL_CONTIGUOUS,
                    )  # fmt: skip
                    query = load_tile(
                        q, entry, head, row, q_strides, queries,
                        ROWS, WIDTH, BLOCK_WIDTH, EVEN_QUERIES, DESCRIPTORS,
                    )  # fmt: skip
                    rows = row + tl.arange(0, ROWS)
                    if EVEN_QUERIES:
                        logarithm = tl.load(lse + place + rows) * LOG2E
                        offset = tl.load(delta + place + rows)
                    else:
                        logarithm = (
                            tl.load(lse + place + rows, mask=rows < queries, other=float("inf")) * LOG2E
                        )
                        offset = tl.load(delta + place + rows, mask=rows < queries, other=0.0)
                    logarithm = tl.where(logarithm == float("-inf"), float("inf"), logarithm)
                    given = product(key, query.T, PRECISION, UPCAST)
                    q_index = tl.minimum(rows, queries - 1) if CLAMP else rows
                    score = given
                    if HAS_SCORE:
                        given = given * SCALE
                        score = SCORE(given, entry, head, q_index[None, :], kv_index[:, None], buffers)
                        score = tl.broadcast_to(score, (COLUMNS, ROWS))
                    weight = tl.exp2(score * FACTOR - logarithm[None, :])
                    if MASKED:
                        if HAS_MASK:
                            keep = MASK(entry, head, q_index[None, :], kv_index[:, None], buffers)
                            keep = tl.broadcast_to(keep, (COLUMNS, ROWS))
                            if not EVEN_KEYS:
                                keep = keep & (columns < keys)[:, None]
                        else:
                            keep = tl.broadcast_to((columns < keys)[:, None], (COLUMNS, ROWS))
                        weight = tl.where(keep, weight, 0.0)
                    if COUNT == 2:
                        real = (rows < queries)[None, :] & (columns < keys)[:, None]
                        if MASKED:
                            real = real & keep
                        visible += tl.sum(tl.sum(real.to(tl.int32), 1), 0).to(tl.int64)
                    upper = load_tile(
                        grad, entry, head, row, grad_strides, queries,
                        ROWS, VALUE_WIDTH, BLOCK_VALUE_WIDTH, EVEN_QUERIES, DESCRIPTORS,
                    )  # fmt: skip
                    value_sums = add_product(value_sums, weight.to(upper.dtype), upper, PRECISION, UPCAST)
                    slope = weight * (product(value, upper.T, PRECISION, UPCAST) - offset[None, :])
                    if HAS_SCORE:
                        slope = GRADIENT(
                            given, entry, head, q_index[None, :], kv_index[:, None], slope, buffers
                        )
                        slope = tl.broadcast_to(slope, (COLUMNS, ROWS))
                        if MASKED:
                            slope = tl.where(keep, slope, 0.0)
                    key_sums = add_product(key_sums, slope.to(query.dtype), query, PRECISION, UPCAST)
                    if MASKED:
                        partial_tiles += 1
                    else:
                        full_tiles += 1
    store_tile(
        grad_k, key_sums * SCALE, entry, key_head, start, grad_k_strides, keys, COLUMNS, WIDTH, BLOCK_WIDTH
    )
    store_tile(
        grad_v, value_sums, entry, key_head, start, grad_v_strides,
        keys, COLUMNS, VALUE_WIDTH, BLOCK_VALUE_WIDTH,
    )  # fmt: skip
    if COUNT > 0:
        target = counts + tl.program_id(0).to(tl.int64) * 3
        tl.store(target, full_tiles)
        tl.store(target + 1, partial_tiles)
        tl.store(target + 2, visible)
