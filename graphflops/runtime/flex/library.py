"""Functions that generated code calls where Triton has no operator with torch's semantics."""

import triton
import triton.language as tl


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
