"""Discrete Fourier transforms: 5*n*log2(n) real operations per complex transform, half for a real one.

FFT libraries use this count to report their speed (https://www.fftw.org/speed/method.html), whatever the algorithm
does and scaling included; rounded down where n is no power of two. No matrix is multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, floor_div, prod, same, total
from graphflops.rules.counts import n_log_n
from graphflops.rules.elementwise import DEFAULT_FLOAT, complex_of, float_result, real_of
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import axes, replaced
from graphflops.tensor import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

KIND = "fourier"

Sizes = tuple[Dim, ...]


def transform(n: Dim) -> Dim:
    """Operations of one complex transform of n."""
    return n_log_n(n, 5)


def real_transform(n: Dim) -> Dim:
    """Operations of one transform of n whose input or output is real: half of a complex one."""
    return floor_div(n_log_n(n, 5), 2)


def without(shape: Sizes, place: int) -> Dim:
    """The number of transforms along an axis: elements divided by its length."""
    return prod(replaced(shape, place))


def complex_work(shape: Sizes, dims: Iterable[int]) -> Dim:
    """Operations of complex transforms along these axes, one after another."""
    return total(transform(shape[dim]) * without(shape, dim) for dim in dims)


# The three basic transforms.


@rule("aten._fft_c2c", "prims.fft_c2c")
def fft_c2c(x: TensorType, dim: Sequence[int]) -> Estimate:
    """A complex transform of every lane along each named axis."""
    out = x.like(dtype=complex_of(x.dtype))
    return Estimate((out,), vector_flops=complex_work(x.shape, axes(dim, x.rank)), reads=(x,))


@rule("aten._fft_r2c", "prims.fft_r2c")
def fft_r2c(x: TensorType, dim: Sequence[int], *, onesided: bool) -> Estimate:
    """Real transforms along the last named axis, which give half the frequencies; complex ones along the others."""
    require(len(dim) > 0, f"no axis to transform in a tensor of {x.rank}")
    *others, last = axes(dim, x.rank)
    half = replaced(x.shape, last, floor_div(x.shape[last], 2) + 1)
    work = real_transform(x.shape[last]) * without(x.shape, last) + complex_work(half, others)
    out = x.like(half if onesided else x.shape, complex_of(x.dtype))
    return Estimate((out,), vector_flops=work, reads=(x,))


@rule("aten._fft_c2r", "prims.fft_c2r")
def fft_c2r(x: TensorType, dim: Sequence[int], *, last_dim_size: Dim) -> Estimate:
    """Complex transforms along all named axes except the last, then complex-to-real transforms along the last."""
    require(len(dim) > 0, f"no axis to transform in a tensor of {x.rank}")
    *others, last = axes(dim, x.rank)
    out = x.like(replaced(x.shape, last, last_dim_size), real_of(x.dtype))
    work = complex_work(x.shape, others) + real_transform(last_dim_size) * without(out.shape, last)
    return Estimate((out,), vector_flops=work, reads=(x,))


# The public operators: each crops or pads its operand to the given sizes, then transforms it.


def padded(
    x: TensorType, sizes: Sizes | None, places: tuple[int, ...], halved: bool
) -> tuple[TensorType, Dim]:
    """The operand cut or filled up to the sizes (-1 keeps one), and the last size.

    halved: the operand holds half the frequencies of its last axis; sizes are those of the whole.
    """
    wanted: list[Dim] = list(sizes) if sizes else [-1] * len(places)
    require(len(wanted) == len(places), f"{len(wanted)} sizes for {len(places)} axes to transform")
    for order, place in enumerate(places):
        half = halved and place == places[-1]
        if same(wanted[order], -1):
            wanted[order] = 2 * (x.shape[place] - 1) if half else x.shape[place]
        x = x.like(replaced(x.shape, place, floor_div(wanted[order], 2) + 1 if half else wanted[order]))
    return x.like(dtype=float_result(x)), wanted[-1] if wanted else 0


def transformed(x: TensorType, kind: str, sizes: Sizes | None, dim: int | tuple[int, ...] | None) -> Estimate:
    """Complex ("c2c"), real to half the frequencies ("r2c") or half the frequencies to real ("c2r")."""
    if dim is None and sizes is not None:
        dim = tuple(range(-len(sizes), 0))
    places = axes(dim, x.rank)
    operand, last = padded(x, sizes, places, halved=kind == "c2r")
    if kind == "c2c":
        estimate = fft_c2c(operand, places)
    elif kind == "r2c":
        estimate = fft_r2c(operand, places, onesided=True)
    else:
        estimate = fft_c2r(operand.like(dtype=complex_of(operand.dtype)), places, last_dim_size=last)
    return replace(estimate, reads=(x,))


def along(kind: str, default: int | tuple[int, ...] | None) -> Callable[..., Estimate]:
    """A transform along the named axes; without names along those of `default`, all if that is None."""

    def fft(
        x: TensorType, sizes: Dim | Sizes | None = None, dim: int | tuple[int, ...] | None = default
    ) -> Estimate:
        """5*n*log2(n) operations per lane of each axis, half of that to or from real numbers."""
        return transformed(x, kind, sizes if sizes is None or isinstance(sizes, tuple) else (sizes,), dim)

    return fft


for _names, _kind in ((("fft", "ifft"), "c2c"), (("rfft", "ihfft"), "r2c"), (("irfft", "hfft"), "c2r")):
    for _name in _names:
        rule(f"aten.fft_{_name}")(along(_kind, -1))
        rule(f"aten.fft_{_name}2")(along(_kind, (-2, -1)))
        rule(f"aten.fft_{_name}n")(along(_kind, None))


@rule("aten.fft_fftshift", "aten.fft_ifftshift")
def fftshift(x: TensorType, dim: int | tuple[int, ...] | None = None) -> Estimate:
    """A copy with rotated axes; no arithmetic."""
    axes(dim, x.rank)
    return Estimate((x.like(),), reads=(x,))


@rule("aten.fft_fftfreq")
def fftfreq(n: Dim, *, dtype: DType | None = None) -> Estimate:
    """One multiplication per frequency."""
    return Estimate((TensorType((n,), dtype or DEFAULT_FLOAT),), vector_flops=n)


@rule("aten.fft_rfftfreq")
def rfftfreq(n: Dim, *, dtype: DType | None = None) -> Estimate:
    """One multiplication per frequency."""
    return fftfreq(floor_div(n, 2) + 1, dtype=dtype)
