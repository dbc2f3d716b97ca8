"""Short-time Fourier transforms: a window and a transform per frame; on the way back overlaps add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, floor_div, prod
from graphflops.rules.elementwise import complex_of, real_of
from graphflops.rules.fourier import real_transform, transform
from graphflops.rules.registry import require, rule

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

KIND = "fourier"


def spectrum(
    x: TensorType,
    n_fft: Dim,
    hop_length: Dim | None,
    window: TensorType | None,
    start: Dim,
    onesided: bool | None,
    return_complex: bool | None,
) -> Estimate:
    """A product with the window and a transform per frame; the first frame takes up `start` samples."""
    *batch, samples = x.shape
    complex_input = x.dtype.kind == "complex" or (window is not None and window.dtype.kind == "complex")
    halved = (not complex_input) if onesided is None else onesided
    require(not at_least(start, samples + 1), f"a frame takes {start} samples of a signal of {samples}")
    hop = floor_div(n_fft, 4) if hop_length is None else hop_length
    frames = floor_div(samples - start, hop) + 1
    shape = (*batch, floor_div(n_fft, 2) + 1 if halved else n_fft, frames)
    as_complex = complex_input or bool(return_complex)
    dtype = complex_of(x.dtype) if as_complex else real_of(x.dtype)
    windowing = 0 if window is None else n_fft * (2 if x.dtype.kind == "complex" else 1)
    work = prod(batch) * frames * (windowing + (transform if complex_input else real_transform)(n_fft))
    return Estimate(
        (x.like(shape if as_complex else (*shape, 2), dtype),), vector_flops=work, reads=(x, window)
    )


@rule("aten.stft")
def stft(
    x: TensorType,
    n_fft: Dim,
    hop_length: Dim | None = None,
    win_length: Dim | None = None,
    window: TensorType | None = None,
    *,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Estimate:
    """A product with the window and a transform per frame."""
    start = win_length if align_to_window and win_length is not None else n_fft
    return spectrum(x, n_fft, hop_length, window, start, onesided, return_complex)


@rule("aten.stft.center")
def stft_center(
    x: TensorType,
    n_fft: Dim,
    hop_length: Dim | None = None,
    win_length: Dim | None = None,
    window: TensorType | None = None,
    center: bool = True,
    *,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Estimate:
    """As `stft`; centred frames reach half their length past both ends of the signal."""
    if not center:
        return stft(
            x,
            n_fft,
            hop_length,
            win_length,
            window,
            onesided=onesided,
            return_complex=return_complex,
            align_to_window=align_to_window,
        )
    start = n_fft - 2 * floor_div(n_fft, 2)
    return spectrum(x, n_fft, hop_length, window, start, onesided, return_complex)


@rule("aten.istft")
def istft(
    x: TensorType,
    n_fft: Dim,
    hop_length: Dim | None = None,
    *,
    window: TensorType | None = None,
    center: bool = True,
    length: Dim | None = None,
    return_complex: bool = False,
) -> Estimate:
    """Per frame a transform, a product with the window, its square and two sums; a division per sample."""
    *batch, _, frames = x.shape if x.dtype.kind == "complex" else x.shape[:-1]
    spanned = n_fft + (frames - 1) * (floor_div(n_fft, 4) if hop_length is None else hop_length)
    cut = floor_div(n_fft, 2) if center else 0
    samples = spanned - 2 * cut if length is None else length
    dtype = complex_of(x.dtype) if return_complex else real_of(x.dtype)
    per_frame = (transform if return_complex else real_transform)(n_fft) + 2 * n_fft  # windowed and added up
    envelope = frames * 2 * n_fft  # the window's square, added up once for the whole batch
    work = prod(batch) * (frames * per_frame + samples) + envelope
    return Estimate((x.like((*batch, samples), dtype),), vector_flops=work, reads=(x, window))
