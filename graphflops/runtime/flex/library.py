"""Functions that kernels call: loading and storing tiles, products, the order of tiles.

And those that generated code calls where Triton has no operator with torch's semantics.
"""

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
    """The power y of x; not a number for a negative base and a fractional exponent."""
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    size = tl.where(y == 0, 1, size)
    whole = tl.floor(y) == y
    odd = whole & (y - 2 * tl.floor(y * 0.5) != 0)
    signed = tl.where(odd, -size, size)
    return tl.where(x < 0, tl.where(whole, signed, float("nan")), size)
