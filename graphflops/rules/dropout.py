"""Dropout: training zeroes elements at random and scales the others; inference does nothing.

Work per element: the draw compared with the rate 1, the selection 1, the scale 1. Drawing itself is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable

from graphflops.cost import Estimate, free
from graphflops.dims import Dim
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.tensor import BOOL, UINT8, DType, TensorType

KIND = "elementwise"

DROPOUT = 3  # compare 1, select 1, scale 1
UNDROP = 2  # select 1, scale 1
AFFINE_DRAW = 5  # alpha dropout, per draw: compare 1, and a scale and a shift that keep mean and variance 4
AFFINE = 2  # multiply 1, add 1


def drop(x: TensorType, p: float, train: bool, flops: Dim, aside: Dim) -> Estimate:
    """`x` with random decisions applied, which need `aside` bytes of workspace; `x` itself if nothing is dropped."""
    if not train or p == 0 or x.numel == 0:
        return free(x.view(x.shape))
    return Estimate((x.like(),), vector_flops=flops, reads=(x,), workspace=aside)


def channels(x: TensorType) -> TensorType:
    """One number for each feature map of a batch."""
    return x.like(x.shape[:2])


@rule("aten.dropout")
def dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """Three operations per element; the mask takes a byte each."""
    return drop(x, p, train, DROPOUT * x.numel, x.like(dtype=BOOL).nbytes)


@rule("aten.feature_dropout")
def feature_dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """One decision and one scale per channel, one product per element."""
    noise = channels(x)
    return drop(x, p, train, 2 * noise.numel + x.numel, noise.nbytes)


@rule("aten.alpha_dropout")
def alpha_dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """A decision, its scale and shift and their application per element."""
    return drop(x, p, train, (AFFINE_DRAW + AFFINE) * x.numel, 2 * x.like().nbytes)


@rule("aten.feature_alpha_dropout")
def feature_alpha_dropout(x: TensorType, p: float, train: bool) -> Estimate:
    """A decision with its scale and shift per channel, their application per element."""
    noise = channels(x)
    return drop(x, p, train, AFFINE_DRAW * noise.numel + AFFINE * x.numel, 2 * noise.nbytes)


@rule("aten.native_dropout")
def native_dropout(x: TensorType, *, train: bool | None) -> Estimate:
    """Three operations per element and a stored mask; in inference only a mask of ones is written."""
    return masked(x, BOOL, train is not False)


def masked(x: TensorType, dtype: DType, train: bool) -> Estimate:
    """Three operations per element and a stored mask; in inference `x` itself and a mask of ones."""
    mask = x.like(dtype=dtype)
    if not train:
        return Estimate((x, mask), writes=(mask,), alias=True)
    return Estimate((x.like(), mask), vector_flops=DROPOUT * x.numel, reads=(x,))


rule("aten._fused_dropout", kind="dropout").derived(
    masked,
    says="Three operations per element and a stored mask; `p` is the probability of keeping.",
    order="x",
    dtype=UINT8,
    train=True,
)


@backward("aten.dropout", "aten.native_dropout", "aten._fused_dropout")
def dropout_backward(call: ForwardCall) -> Estimate:
    """The gradient selected by the stored mask and scaled; the gradient itself if nothing was dropped."""
    grad = call.out
    if call.estimate.alias:
        return free(grad)
    mask = grad.like(dtype=BOOL)
    return Estimate((grad.like(),), vector_flops=UNDROP * grad.numel, reads=(grad.like(), mask))


def scaled_back(noise: Callable[[TensorType], TensorType]) -> Callable[[ForwardCall], Estimate]:
    """The backward rule of what multiplies by noise, which is stored; the gradient itself if nothing was drawn."""

    def priced(call: ForwardCall) -> Estimate:
        grad = call.out
        if call.estimate.alias:
            return free(grad)
        return Estimate((grad.like(),), vector_flops=grad.numel, reads=(grad.like(), noise(grad).nbytes))

    return priced


backward("aten.feature_dropout", "aten.feature_alpha_dropout")(scaled_back(channels))
backward("aten.alpha_dropout")(scaled_back(lambda grad: grad.like()))
