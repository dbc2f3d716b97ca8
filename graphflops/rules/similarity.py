"""Operators made of vector norms: cosine similarity, weight normalisation, renormalisation.

A norm costs as in `vector_norm`: two operations per element, a power where the order needs one, a root
per vector.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import broadcast, prod
from graphflops.rules.elementwise import float_result, result_of
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.rules.shapes import axis, reduced
from graphflops.rules.vector_norm import of_vectors
from graphflops.tensor import BFLOAT16, FLOAT32, TensorType

KIND = "distance"

COSINE = 4  # two divisions, a product and a sum
PER_PAIR = 2  # both norms clamped away from zero


@rule("aten.cosine_similarity")
def cosine_similarity(x1: TensorType, x2: TensorType, dim: int = 1) -> Estimate:
    """Both norms, both divisions by them, and the product's sum: eight operations per element."""
    shape = broadcast(x1.shape, x2.shape)
    out = TensorType(reduced(shape, dim), float_result(x1, x2))
    elements = out.like(shape).numel
    norms = [of_vectors(out.like(shape), 2, dim, False, None) for _ in (x1, x2)]
    return Estimate(
        (out,),
        vector_flops=sum(norm.vector_flops for norm in norms) + COSINE * elements + PER_PAIR * out.numel,
        transcendentals=sum(norm.transcendentals for norm in norms),
        reads=(x1, x2),
    )


def slice_norms(x: TensorType, order: float, dim: int) -> Estimate:
    """One norm for each slice along an axis."""
    slices = x.shape[dim]
    rest = prod(size for place, size in enumerate(x.shape) if place != dim)
    return of_vectors(x.like((slices, rest)), order, 1, False, None)


@rule("aten.renorm")
def renorm(x: TensorType, p: float, dim: int) -> Estimate:
    """The norm of each slice, its comparison and ratio, and a product per element."""
    norms = slice_norms(x, p, axis(dim, x.rank))
    work = norms.vector_flops + 2 * x.shape[dim] + x.numel
    return Estimate((x.like(),), vector_flops=work, transcendentals=norms.transcendentals, reads=(x,))


@rule("aten.norm_except_dim")
def norm_except_dim(v: TensorType, pow: int = 2, dim: int = 0) -> Estimate:
    """A norm for each slice along the axis, kept as an axis among ones; a single norm for -1."""
    if dim == -1:
        return of_vectors(v, pow, None, False, None)
    kept = axis(dim, v.rank)
    shape = (size if place == kept else 1 for place, size in enumerate(v.shape))
    return replace(slice_norms(v, pow, kept), out=(v.like(shape),), reads=(v,))


@rule("aten._weight_norm")
def weight_norm(v: TensorType, g: TensorType, dim: int = 0) -> Estimate:
    """The norm of each slice, its ratio to the wanted one, and a product per element."""
    norm = norm_except_dim(v, 2, dim)
    slices = norm.transcendentals
    work = norm.vector_flops + slices + v.numel
    return Estimate((v.like(),), vector_flops=work, transcendentals=slices, reads=(v, g))


@rule("aten._weight_norm_interface")
def weight_norm_interface(v: TensorType, g: TensorType, dim: int = 0) -> Estimate:
    """As `_weight_norm`, with the norms kept."""
    estimate = weight_norm(v, g, dim)
    return replace(estimate, out=(*estimate.out, g.like(dtype=FLOAT32 if g.dtype == BFLOAT16 else g.dtype)))


@rule("aten._weight_norm_interface_backward", "aten._weight_norm_differentiable_backward")
def weight_norm_backward(
    grad_w: TensorType, saved_v: TensorType, saved_g: TensorType, saved_norms: TensorType
) -> Estimate:
    """The product of gradient and value summed 2, both scaled 2, their difference 1."""
    return Estimate(
        (saved_v.like(), saved_g.like()),
        vector_flops=5 * saved_v.numel,
        reads=(grad_w, saved_v, saved_g, saved_norms),
    )


@backward("aten._weight_norm", "aten._weight_norm_interface")
def weight_norm_gradient(call: ForwardCall) -> Estimate:
    """The product of gradient and value summed 2; for the value both scaled 2 and their difference 1."""
    given, out = call.arguments, result_of(call)
    gradients = tuple(given[name].like() for name in ("v", "g") if name in call.wants)
    per_element = 2 + 3 * ("v" in call.wants)
    return Estimate(
        gradients, vector_flops=per_element * out.numel, reads=(out.like(), given["v"], given["g"])
    )


@backward("aten.cosine_similarity")
def cosine_similarity_gradient(call: ForwardCall) -> Estimate:
    """For each operand both vectors normalised, one less its part along the other, scaled: five each."""
    given, out = call.arguments, result_of(call)
    elements = out.like(broadcast(given["x1"].shape, given["x2"].shape)).numel
    gradients = tuple(given[name].like() for name in ("x1", "x2") if name in call.wants)
    return Estimate(
        gradients,
        vector_flops=5 * len(gradients) * elements,
        reads=(out.like(), out, given["x1"], given["x2"]),
    )
