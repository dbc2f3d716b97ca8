"""Helpers of all kernels: loading and storing tiles, products, and the order of tiles."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    source, batch, head, row, strides, length, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr, EVEN: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Rows `row` to `row + ROWS` of one head, zero past the end.

    source: a tensor descriptor, or a pointer. strides: of batch entries, heads, rows, columns. EVEN: no tile sticks out.
    """
    if DESCRIPTOR:
        return source.load([batch, head, row, 0]).reshape(ROWS, BLOCK_WIDTH)
    else:
        start = source + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
        start += row.to(tl.int64) * strides[2]
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_WIDTH)
        places = start + rows[:, None] * strides[2] + columns[None, :] * strides[3]
        if EVEN:
            if WIDTH == BLOCK_WIDTH:
                return tl.load(places)
            else:
                return tl.load(places, mask=columns[None, :] < WIDTH, other=0.0)
        else:
            inside = (row + rows[:, None] < length) & (columns[None, :] < WIDTH)
            return tl.load(places, mask=inside, other=0.0)


@triton.jit
def store_tile(
    target, values, batch, head, row, strides, length, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the rows of one head, without rows past its end."""
    start = target + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    start += row.to(tl.int64) * strides[2]
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    places = start + rows[:, None] * strides[2] + columns[None, :] * strides[3]
    inside = (row + rows[:, None] < length) & (columns[None, :] < WIDTH)
    tl.store(places, values.to(target.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """Matrix product of a and b. UPCAST: in single precision, for types that Triton cannot multiply."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def add_product(sum, a, b, PRECISION: tl.constexpr, UPCAST: tl.constexpr):
    """The sum with the matrix product of a and b added."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sum, input_precision=PRECISION, out_dtype=sum.dtype)
    else:
        return tl.dot(a, b, sum, input_precision=PRECISION, out_dtype=sum.dtype)


@triton.jit
def tile_start(
    first, places, step, SPLIT: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    CONTIGUOUS: tl.constexpr,
):  # fmt: skip
    """First query or key of a tile in a line: each listed block has SPLIT tiles; `first` is the first of the line."""
    if CONTIGUOUS:
        return first + step * TILE
    else:
        return tl.load(places + step // SPLIT) * BLOCK + (step % SPLIT) * TILE


@triton.jit
def program_place(pid, lines, all_heads, TOGETHER: tl.constexpr, REVERSED: tl.constexpr):
    """Line of tiles, and batch entry and head as one number, of a program.

    TOGETHER heads share the second-level cache; among them the same line of every head runs at the same time.
    REVERSED: from the last line on, so that under a causal mask the longest runs first.
    """
    per_group = lines * TOGETHER
    group = pid // per_group
    within = pid % per_group
    heads = tl.minimum(all_heads - group * TOGETHER, TOGETHER)
    line = within // heads
    if REVERSED:
        line = lines - 1 - line
    return line, group * TOGETHER + within % heads
