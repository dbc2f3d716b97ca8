"""Functions that kernels call: loading and storing tiles, products, the blocks of a mask, the order of tiles.

C has the compile-time constants (`launch.Constants`). Other functions are for generated code, where Triton has no operator
with torch's semantics.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    source, batch, head, row, strides, length, KEYS: tl.constexpr, VALUES: tl.constexpr,
    DESCRIPTOR: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Load a tile of one head that begins at a row: of queries or keys, as wide as these or as values. Zero past the end.

    source: a tensor descriptor, or a pointer. strides: of batch entries, heads, rows, columns.
    """
    ROWS: tl.constexpr = C.COLUMNS if KEYS else C.ROWS
    WIDTH: tl.constexpr = C.VALUE_WIDTH if VALUES else C.WIDTH
    BLOCK_WIDTH: tl.constexpr = C.BLOCK_VALUE_WIDTH if VALUES else C.BLOCK_WIDTH
    if DESCRIPTOR:
        return source.load([batch, head, row, 0]).reshape(ROWS, BLOCK_WIDTH)
    else:
        start = source + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
        start += row.to(tl.int64) * strides[2]
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_WIDTH)
        places = start + rows[:, None] * strides[2] + columns[None, :] * strides[3]
        if C.EVEN_KEYS if KEYS else C.EVEN_QUERIES:
            if WIDTH == BLOCK_WIDTH:
                return tl.load(places)
            else:
                return tl.load(places, mask=columns[None, :] < WIDTH, other=0.0)
        else:
            inside = (row + rows[:, None] < length) & (columns[None, :] < WIDTH)
            return tl.load(places, mask=inside, other=0.0)


@triton.jit
def store_tile(
    target, values, batch, head, row, strides, length, KEYS: tl.constexpr, VALUES: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """Store a tile of one head, without rows past its end."""
    start = target + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    start += row.to(tl.int64) * strides[2]
    rows = tl.arange(0, C.COLUMNS if KEYS else C.ROWS)
    columns = tl.arange(0, C.BLOCK_VALUE_WIDTH if VALUES else C.BLOCK_WIDTH)
    places = start + rows[:, None] * strides[2] + columns[None, :] * strides[3]
    inside = (row + rows[:, None] < length) & (columns[None, :] < (C.VALUE_WIDTH if VALUES else C.WIDTH))
    tl.store(places, values.to(target.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, C: tl.constexpr):
    """Matrix product of a and b. With UPCAST it is in single precision, for types that Triton cannot multiply."""
    if C.UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=C.PRECISION)
    else:
        return tl.dot(a, b, input_precision=C.PRECISION)


@triton.jit
def add_product(sum, a, b, C: tl.constexpr):
    """The sum with the matrix product of a and b added."""
    if C.UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sum, input_precision=C.PRECISION, out_dtype=sum.dtype)


@triton.jit
def line_of_blocks(lists, meta, entry, head, line, SIZE: tl.constexpr, MASKED: tl.constexpr):
    """For one kind of blocks in a line of the mask: their number, where their list is, and where the first block begins."""
    most, mask_heads = meta[0 if MASKED else 1], meta[3]
    listed = ((entry % meta[2]) * mask_heads + head % mask_heads) * meta[4] + line
    places = lists[1 if MASKED else 3] + listed.to(tl.int64) * most
    return tl.load(lists[0 if MASKED else 2] + listed), places, tl.load(places) * SIZE


@triton.jit
def tile_start(first, places, step, KEYS: tl.constexpr, MASKED: tl.constexpr, C: tl.constexpr):
    """The first query or key of a tile in a line whose first block begins at `first`. Blocks may have several tiles."""
    TILE: tl.constexpr = C.COLUMNS if KEYS else C.ROWS
    BLOCK: tl.constexpr = C.BLOCK_COLUMNS if KEYS else C.BLOCK_ROWS
    SPLIT: tl.constexpr = BLOCK // TILE
    if C.PARTIAL_CONTIGUOUS if MASKED else C.FULL_CONTIGUOUS:
        return first + step * TILE
    else:
        return tl.load(places + step // SPLIT) * BLOCK + (step % SPLIT) * TILE


@triton.jit
def kept(
    entry, head, q_index, kv_index, inside, buffers, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    MASK: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Which scores of a tile are not masked. inside: where there are keys."""
    if C.HAS_MASK:
        keep = tl.broadcast_to(MASK(entry, head, q_index, kv_index, buffers), (HEIGHT, WIDTH))
        return keep if C.EVEN_KEYS else keep & inside
    else:
        return tl.broadcast_to(inside, (HEIGHT, WIDTH))


@triton.jit
def number_of(pairs):
    """How many pairs are true."""
    return tl.sum(tl.sum(pairs.to(tl.int32), 1), 0).to(tl.int64)


@triton.jit
def program_place(batch, heads, length, KEYS: tl.constexpr, C: tl.constexpr):
    """Where a program's tile, of queries or keys, begins; its batch entry and its head.

    Heads together share the L2 cache: the same line of each of them runs at the same time. The last line of queries runs
    first, which is the longest under a causal mask.
    """
    TILE: tl.constexpr = C.COLUMNS if KEYS else C.ROWS
    lines = tl.cdiv(length, TILE)
    per_group = lines * C.TOGETHER
    group = tl.program_id(0) // per_group
    within = tl.program_id(0) % per_group
    together = tl.minimum(batch * heads - group * C.TOGETHER, C.TOGETHER)
    line = within // together
    head = group * C.TOGETHER + within % together
    return (line if KEYS else lines - 1 - line) * TILE, head // heads, head % heads


@triton.jit
def store_counts(counts, full_tiles, partial_tiles, visible, C: tl.constexpr):
    """Store how many tiles a program computed, and how many pairs of them are visible, where they are counted."""
    if C.COUNT > 0:
        place = counts + tl.program_id(0).to(tl.int64) * 3
        tl.store(place, full_tiles)
        tl.store(place + 1, partial_tiles)
        tl.store(place + 2, visible)


@triton.jit
def floor_divide(a, b):
    """Integer division towards minus infinity; Triton's own is towards zero."""
    quotient = a // b
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def remainder(a, b):
    """Integer remainder with the divisor's sign; Triton's own has the dividend's."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_remainder(a, b):
    """Remainder of floating numbers with the divisor's sign."""
    return a - b * tl.floor(a / b)


@triton.jit
def trunc(x):
    """Rounding towards zero."""
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))


@triton.jit
def round_half_even(x):
    """Rounding to the nearest integer, halves to the even one."""
    near = tl.floor(x + 0.5)
    odd = near - 2 * tl.floor(near * 0.5) != 0
    return tl.where((near - x == 0.5) & odd, near - 1, near)


@triton.jit
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0, 1, 0) - tl.where(x < 0, 1, 0)


@triton.jit
def tanh(x):
    """Hyperbolic tangent; a series near zero, where the quotient would lose digits."""
    s = x * x
    series = -17 / 315 + s * (62 / 2835 + s * (-1382 / 155925 + s * (21844 / 6081075)))
    near = x + x * s * (-1 / 3 + s * (2 / 15 + s * series))
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def expm1(x):
    """exp(x) - 1; a series near zero."""
    near = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7))))))
    return tl.where(tl.abs(x) < 0.25, near, tl.exp(x) - 1)


@triton.jit
def log1p(x):
    """log(1 + x), corrected for the rounding of 1 + x."""
    y = 1 + x
    return tl.where(y == 1, x, tl.log(y) * (x / tl.where(y == 1, 1, y - 1)))


@triton.jit
def power(x, y):
    """The power x ** y; NaN for a negative base and a fractional exponent."""
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    size = tl.where(y == 0, 1, size)
    whole = tl.floor(y) == y
    odd = whole & (y - 2 * tl.floor(y * 0.5) != 0)
    signed = tl.where(odd, -size, size)
    return tl.where(x < 0, tl.where(whole, signed, float("nan")), size)
