"""Random numbers, and dropout. Drawing bits is not counted; turning them into a distribution is.

A normal number costs two function evaluations and a product (Box and Muller: a logarithm, a root, a sine and
a cosine make two of them); a distribution drawn by rejection counts as one evaluation per element.
"""

from __future__ import annotations

from collections.abc import Callable

from graphflops.cost import Estimate, Value, free
from graphflops.dims import Dim
from graphflops.rules.elementwise import DEFAULT_FLOAT, differentiate, elementwise, float_result
from graphflops.rules.registry import Backward, ForwardCall, backward, rule
from graphflops.rules.shapes import Shape, tensors_of
from graphflops.rules.work import WORK, Work
from graphflops.tensor import BOOL, INT64, UINT8, DType, TensorType

KIND = "random"

UNIFORM, NORMAL, MOVED = (
    (work.flops, work.transcendentals)
    for work in (Work("uniform"), WORK["normal_number"], WORK["moved_normal_number"])
)
SCALED = MOVED[0] - NORMAL[0]  # the product and sum that move a standard distribution


def drawn(out: TensorType, flops: int, transcendentals: int, *reads: TensorType) -> Estimate:
    """A tensor of that type with every element drawn independently."""
    n = out.numel
    return Estimate((out,), vector_flops=flops * n, transcendentals=transcendentals * n, reads=reads)


@rule("aten.normal")
def normal(mean: Value, std: Value = 1.0) -> Estimate:
    """Normal numbers, scaled and shifted by tensors that are read."""
    return elementwise(WORK["moved_normal_number"], mean, std, result=float_result)


@rule("aten.binomial")
def binomial(count: TensorType, prob: TensorType) -> Estimate:
    """One evaluation per element."""
    return elementwise(WORK["rejected_number"], count, prob)


@rule("aten.multinomial")
def multinomial(a: TensorType, num_samples: Dim, replacement: bool = False) -> Estimate:
    """Without replacement an exponential, a division and a comparison per weight; with it running sums."""
    out = a.like((*a.shape[:-1], num_samples), INT64)
    if replacement:
        return Estimate((out,), vector_flops=3 * a.numel, reads=(a,))
    return Estimate((out,), vector_flops=4 * a.numel, transcendentals=a.numel, reads=(a,))


# Non-differentiable samples have no gradient; that of a gamma number goes through its sampler.
backward("aten.bernoulli", "aten.normal", "aten.poisson", "aten.binomial")(differentiate(WORK["sample"]))
backward("aten._standard_gamma")(differentiate(WORK["standard_gamma"]))


# Counter-based generators: the state is an operand.


@rule("rngprims.philox_rand")
def philox_rand(size: Shape, seed: TensorType, offset: TensorType, *, dtype: DType | None = None) -> Estimate:
    """Uniform numbers, and the offset of the next draw."""
    out = TensorType(tuple(size), dtype or DEFAULT_FLOAT)
    return Estimate((out, offset.like((), INT64)), reads=(seed, offset))


@rule("aten._philox_key_split")
def philox_key_split(key: TensorType, num_splits: Dim) -> Estimate:
    """Splits one key into several."""
    return Estimate((key.like((num_splits, *key.shape)),), reads=(key,))


@rule("aten._sobol_engine_ff_", "aten._sobol_engine_scramble_", "aten._sobol_engine_initialize_state_")
def sobol_engine_state(state: TensorType, *arguments: Value) -> Estimate:
    """Bit mixing per element of the state."""
    return Estimate((state,), vector_flops=state.numel, reads=(state, *tensors_of(arguments)), alias=True)


# Dropout: training zeroes elements at random and scales the others; inference does nothing.

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


def undropped(kept: Callable[[TensorType], TensorType | Dim], flops: int = 1) -> Backward:
    """The backward rule of what multiplies by noise that is kept; the gradient itself if nothing was dropped."""

    def priced(call: ForwardCall) -> Estimate:
        grad = call.out
        if call.estimate.alias:
            return free(grad)
        return Estimate((grad.like(),), vector_flops=flops * grad.numel, reads=(grad.like(), kept(grad)))

    return priced


# Selected by the stored mask and scaled.
backward("aten.dropout", "aten.native_dropout", "aten._fused_dropout")(
    undropped(lambda grad: grad.like(dtype=BOOL), UNDROP)
)
backward("aten.feature_dropout", "aten.feature_alpha_dropout")(undropped(lambda grad: channels(grad).nbytes))
backward("aten.alpha_dropout")(undropped(lambda grad: grad.like().nbytes))
