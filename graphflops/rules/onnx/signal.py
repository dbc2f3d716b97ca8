"""Fourier transforms, windows and the mel scale; complex numbers are pairs along the last axis.

A transform is 5*n*log2(n) real operations, half of that from or to real numbers.
"""

from __future__ import annotations

from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, floor_div
from graphflops.rules.fourier import real_transform, transform, without
from graphflops.rules.onnx.entries import Numbers, literals, onnx_dtype, size, unknown
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.shapes import axis as axis_of
from graphflops.rules.shapes import replaced
from graphflops.tensor import TensorType

KIND = "fourier"


@rule("onnx.DFT")
def dft(
    x: TensorType,
    dft_length: TensorType | None = None,
    axis: Numbers = -2,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Estimate:
    """A transform of every lane along an axis, cut or filled up to a length."""
    places = literals(axis)
    require_known(bool(places) and x.rank > 1, f"which axis of {x} to transform depends on data")
    along = axis_of((places or (0,))[0], x.rank)
    real_result = bool(onesided and inverse)
    whole = 2 * (x.shape[along] - 1) if real_result else x.shape[along]
    length = whole if dft_length is None else _known(dft_length, "dft")
    halved = onesided and not inverse
    kept = floor_div(length, 2) + 1 if halved else length
    out = x.like((*replaced(x.shape, along, kept)[:-1], 1 if real_result else 2))
    real = real_result or x.shape[-1] == 1
    lanes = without(x.shape[:-1], along)
    work = (real_transform if real else transform)(length) * lanes
    reads = (x, dft_length, axis if isinstance(axis, TensorType) else None)
    return Estimate((out,), vector_flops=work, reads=reads)


@rule("onnx.DFT.17")
def dft_along_attribute(
    x: TensorType, dft_length: TensorType | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Estimate:
    """As the newest, along the second axis by default."""
    return dft(x, dft_length, axis, inverse=inverse, onesided=onesided)


def _known(x: TensorType, what: str) -> Dim:
    """The size that a tensor of one element holds, or a name for it."""
    held = size(x)
    return unknown(what, 0) if held is None else held


@rule("onnx.STFT")
@takes("signal frame_step window? frame_length?")
def stft(of: Operands, *, onesided: int = 1) -> Estimate:
    """A product with the window and a transform per frame."""
    require(of.signal.rank in (2, 3), f"a batch of signals has two or three axes, not {of.signal.rank}")
    batch, samples = of.signal.shape[:2]
    length = of.window.shape[0] if of.window is not None else samples
    if of.frame_length is not None:
        length = _known(of.frame_length, "frame")
    require(not at_least(length, samples + 1), f"a frame takes {length} samples of a signal of {samples}")
    frames = floor_div(samples - length, _known(of.frame_step, "step")) + 1
    parts = 1 if of.signal.rank == 2 or of.signal.shape[2] == 1 else 2
    bins = floor_div(length, 2) + 1 if onesided else length
    windowing = 0 if of.window is None else length * parts
    per_frame = windowing + (real_transform if parts == 1 else transform)(length)
    out = of.signal.like((batch, frames, bins, 2))
    return Estimate((out,), vector_flops=batch * frames * per_frame, reads=(*of,))


def window(length: TensorType, *, output_datatype: int = 1, flops: int, cosines: int) -> Estimate:
    """`flops` operations and `functions` cosines per sample."""
    samples = _known(length, "window")
    out = TensorType((samples,), onnx_dtype(output_datatype))
    return Estimate((out,), vector_flops=flops * samples, transcendentals=cosines * samples, reads=(length,))


# Each takes one product for the angle; a weighted cosine is a product and a sum.
rule("onnx.HannWindow", "onnx.HammingWindow").derived(window, flops=3, cosines=1)
rule("onnx.BlackmanWindow").derived(window, flops=6, cosines=2)


@rule("onnx.MelWeightMatrix")
@takes("num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz")
def mel_weight_matrix(of: Operands, *, output_datatype: int = 1) -> Estimate:
    """Per weight two slopes, their minimum and a clamp at zero; per edge of a triangle a power."""
    bins, length = _known(of.num_mel_bins, "mel"), _known(of.dft_length, "dft")
    out = TensorType((floor_div(length, 2) + 1, bins), onnx_dtype(output_datatype))
    return Estimate((out,), vector_flops=6 * out.numel, transcendentals=bins + 2, reads=(*of,))
