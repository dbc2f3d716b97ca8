"""Discrete Fourier transforms: 5*n*log2(n) real operations per complex transform, half for a real one.

FFT libraries use this count to report their speed (https://www.fftw.org/speed/method.html), whatever the algorithm; it
includes scaling and is rounded down if n is no power of two. It is all vector work. A short-time transform is a
window and a transform per frame; on the way back overlaps add up.
"""

from collections.abc import Iterable, Sequence

from graphflops.base.record import replace
from graphflops.cost import Estimate
from graphflops.dims import Dim, Expr, at_least, floor_div, prod, same, total
from graphflops.rules.elementwise import complex_of, float_result, real_of
from graphflops.rules.lapack import n_log_n
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Axes, Shape, axes, replaced
from graphflops.tensor import TensorType

KIND = "fourier"


@rule("aten.stft.center").takes(
    "x n_fft= * hop_length? win_length? window? onesided? return_complex? align_to_window?"
)
def stft(of: Operands, *, center: bool = True) -> Estimate:
    """A product with the window and a transform per frame; centred ones reach half their length past the signal's ends."""
    x, n_fft, hop_length, win_length, window, onesided, return_complex, align_to_window = of
    start = win_length if align_to_window and win_length is not None else n_fft
    start = n_fft - 2 * floor_div(n_fft, 2) if center else start  # samples that the first frame takes up
    *batch, samples = x.shape
    complex_input = x.dtype.kind == "complex" or (window is not None and window.dtype.kind == "complex")
    halved = (not complex_input) if onesided is None else onesided
    require(not at_least(start, samples + 1), f"a frame takes {start} samples of a signal of {samples}")
    hop = floor_div(n_fft, 4) if hop_length is None else hop_length
    frames = floor_div(samples - start, hop) + 1
    shape = (*batch, floor_div(n_fft, 2) + 1 if halved else n_fft, frames)
    as_complex = complex_input or bool(return_complex)
    out = x.like(shape, complex_of(x.dtype)) if as_complex else x.like((*shape, 2), real_of(x.dtype))
    windowing = 0 if window is None else n_fft * (2 if x.dtype.kind == "complex" else 1)
    work = prod(batch) * frames * (windowing + transform(n_fft, real=not complex_input))
    return Estimate((out,), vector_flops=work, reads=(x, window))


rule("aten.stft").derived(stft, says="A product with the window and a transform per frame.", center=False)


@rule("aten.istft").takes("x n_fft= hop_length? * window? length?")
def istft(of: Operands, *, center: bool = True, return_complex: bool = False) -> Estimate:
    """Per frame a transform, a product with the window, its square and two sums; a division per sample."""
    x, n_fft, hop_length, window, length = of
    *batch, _, frames = x.shape if x.dtype.kind == "complex" else x.shape[:-1]
    spanned = n_fft + (frames - 1) * (floor_div(n_fft, 4) if hop_length is None else hop_length)
    cut = floor_div(n_fft, 2) if center else 0
    samples = spanned - 2 * cut if length is None else length
    dtype = complex_of(x.dtype) if return_complex else real_of(x.dtype)
    per_frame = transform(n_fft, real=not return_complex) + 2 * n_fft  # windowed and added up
    envelope = frames * 2 * n_fft  # the window's square, added up once for the whole batch
    work = prod(batch) * (frames * per_frame + samples) + envelope
    return Estimate((x.like((*batch, samples), dtype),), vector_flops=work, reads=(x, window))


def transform(n: Dim, real: bool = False) -> Dim:
    """Operations of one complex transform of n; half of them where its input or output is real."""
    return floor_div(n_log_n(n, 5), 2) if real else n_log_n(n, 5)


def complex_work(shape: Shape, dims: Iterable[int]) -> Dim:
    """Operations of complex transforms along these axes, one after another."""
    return total(transform(shape[dim]) * prod(replaced(shape, dim)) for dim in dims)


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
    work = transform(x.shape[last], real=True) * prod(replaced(x.shape, last)) + complex_work(half, others)
    out = x.like(half if onesided else x.shape, complex_of(x.dtype))
    return Estimate((out,), vector_flops=work, reads=(x,))


@rule("aten._fft_c2r", "prims.fft_c2r")
def fft_c2r(x: TensorType, dim: Sequence[int], *, last_dim_size: Dim) -> Estimate:
    """Complex transforms along all named axes except the last, then complex-to-real transforms along the last."""
    require(len(dim) > 0, f"no axis to transform in a tensor of {x.rank}")
    *others, last = axes(dim, x.rank)
    out = x.like(replaced(x.shape, last, last_dim_size), real_of(x.dtype))
    work = transform(last_dim_size, real=True) * prod(replaced(out.shape, last))
    return Estimate((out,), vector_flops=work + complex_work(x.shape, others), reads=(x,))


# The public operators: each crops or pads its operand to the given sizes, then transforms it.


def transformed(
    x: TensorType, sizes: Dim | Shape | None = None, dim: Axes = None, *, kind: str, default: Axes
) -> Estimate:
    """5*n*log2(n) operations per lane of each axis, half of that to or from real numbers.

    kind: complex ("c2c"), real to half the frequencies ("r2c") or half the frequencies to real ("c2r").
    default: the axes where none are named; None: as many as there are sizes, else all.
    """
    given, dim = (sizes,) if isinstance(sizes, (int, Expr)) else sizes, default if dim is None else dim
    places = axes(tuple(range(-len(given), 0)) if dim is None and given is not None else dim, x.rank)
    wanted: list[Dim] = list(given) if given else [-1] * len(places)  # -1 keeps a size
    require(len(wanted) == len(places), f"{len(wanted)} sizes for {len(places)} axes to transform")
    operand = x
    for order, place in enumerate(places):
        half = kind == "c2r" and place == places[-1]  # half the frequencies of the last axis are given
        if same(wanted[order], -1):
            wanted[order] = 2 * (operand.shape[place] - 1) if half else operand.shape[place]
        size = floor_div(wanted[order], 2) + 1 if half else wanted[order]
        operand = operand.like(replaced(operand.shape, place, size))
    operand = operand.like(dtype=float_result(operand))
    if kind == "c2c":
        estimate = fft_c2c(operand, places)
    elif kind == "r2c":
        estimate = fft_r2c(operand, places, onesided=True)
    else:
        operand, last = operand.like(dtype=complex_of(operand.dtype)), wanted[-1] if wanted else 0
        estimate = fft_c2r(operand, places, last_dim_size=last)
    return replace(estimate, reads=(x,))


@backward("aten._fft_c2c", "aten._fft_c2r", "aten._fft_r2c")
def gradient(call: ForwardCall) -> Estimate:
    """The transform the other way, which is as much work and reads nothing of the forward."""
    return Estimate((call["x"].like(),), vector_flops=call.estimate.vector_flops, reads=(call.out.like(),))


for _names, _kind in ((("fft", "ifft"), "c2c"), (("rfft", "ihfft"), "r2c"), (("irfft", "hfft"), "c2r")):
    for _name in _names:
        for _rank, _axes in (("", -1), ("2", (-2, -1)), ("n", None)):
            rule(f"aten.fft_{_name}{_rank}").derived(transformed, kind=_kind, default=_axes)
            backward(f"aten.fft_{_name}{_rank}")(gradient)
