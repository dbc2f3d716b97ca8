"""ATen's losses that call other ATen functions (Loss.cpp). They are found by name."""

from math import pi

from graphflops.execution.composed import pairwise_distance
from graphflops.execution.composites import MEAN, Calls, Given, Operand, composite, expanded, gradient, kernel

__all__ = ["expanded"]  # importing it from here registers all composites


def _less(t: Calls, number: float, x: Operand) -> Operand:
    """A number minus a tensor; ATen first fills a tensor with the number."""
    return t.sub_(t.full_like(x, number), x)


composite("l1_loss")(lambda t, x, target, reduction=MEAN: t.reduced(t.abs(t.sub(x, target)), reduction))


@composite("kl_div")
def kl_div(t: Calls, x: Operand, target: Operand, reduction: int = MEAN, log_target: bool = False) -> Operand:
    if log_target:
        return t.reduced(t.mul(t.exp(target), t.sub(target, x)), reduction)
    return t.reduced(t.sub(t.xlogy(target, target), t.mul(target, x)), reduction)


@composite("poisson_nll_loss")
def poisson_nll_loss(
    t: Calls, x: Operand, target: Operand, log_input: bool, full: bool, eps: float, reduction: int
) -> Operand:
    rate, logarithm = (t.exp(x), x) if log_input else (x, t.log(t.add(x, eps)))
    loss = t.sub(rate, t.mul(target, logarithm))
    if full:
        loss = t.add_(loss, t.masked_fill(t.inside(_stirling, target), t.le(target, 1), 0))
    return t.reduced(loss, reduction)


def _stirling(t: Calls, target: Operand) -> Operand:
    half = t.mul(t.log(t.mul(target, 2 * pi)), 0.5)
    return t.add(t.sub(t.mul(target, t.log(target)), target), half)


@composite("hinge_embedding_loss")
def hinge_embedding_loss(
    t: Calls, x: Operand, target: Operand, margin: float = 1.0, reduction: int = MEAN
) -> Operand:
    zeros = t.zeros_like(x)
    above = t.clamp_min_(_less(t, margin, x), 0)
    loss = t.add(t.where(t.ne(target, 1), above, zeros), t.where(t.ne(target, -1), x, zeros))
    return t.reduced(loss, reduction)


@composite("margin_ranking_loss")
def margin_ranking_loss(
    t: Calls, input1: Operand, input2: Operand, target: Operand, margin: float = 0.0, reduction: int = MEAN
) -> Operand:
    above = t.inside(lambda t: t.add(t.mul(t.neg(target), t.sub(input1, input2)), margin))
    return t.reduced(t.clamp_min_(above, 0), reduction)


@composite("cosine_embedding_loss")
def cosine_embedding_loss(
    t: Calls, input1: Operand, input2: Operand, target: Operand, margin: float = 0.0, reduction: int = MEAN
) -> Operand:
    pairs = ((input1, input2), (input1, input1), (input2, input2))
    product, *squares = [t.inside(lambda t, a, b: t.sum(t.mul(a, b), (-1,)), *pair) for pair in pairs]
    one, other = [t.add(square, 1e-12) for square in squares]
    cosine = t.div(product, t.sqrt_(t.mul(one, other)))
    zeros = t.zeros_like(cosine)
    alike, unlike = _less(t, 1, cosine), t.clamp_min_(t.sub(cosine, margin), 0)
    loss = t.add(t.where(t.eq(target, 1), alike, zeros), t.where(t.eq(target, -1), unlike, zeros))
    return t.reduced(loss, reduction)


@composite("triplet_margin_loss")
def triplet_margin_loss(
    t: Calls, anchor: Operand, positive: Operand, negative: Operand, margin: float = 1.0,
    p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: int = MEAN,
) -> Operand:  # fmt: skip
    near, far = (t.inside(pairwise_distance, anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = t.minimum(far, t.inside(pairwise_distance, positive, negative, p, eps))
    return t.reduced(t.clamp_min(t.sub(t.add(near, margin), far), 0), reduction)


# A single call to autograd


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    t: Calls, x: Operand, target: Operand, weight: Given = None, pos_weight: Given = None,
    reduction: int = MEAN,
) -> Operand:  # fmt: skip
    logarithm = t.log_sigmoid(x)
    if pos_weight is not None:
        t.inside(lambda t: t.mul_(logarithm, t.add_(t.mul(t.sub(pos_weight, 1), target), 1)))
    loss = t.sub_(t.mul_(t.sub_(t.full_like(target, 1), target), x), logarithm)
    return t.reduced(loss if weight is None else t.mul_(loss, weight), reduction)


@gradient("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits_backward(
    t: Calls, x: Operand, target: Operand, weight: Given = None, pos_weight: Given = None,
    reduction: int = MEAN,
) -> None:  # fmt: skip
    def slope(t: Calls) -> Operand:
        if pos_weight is None:
            return t.sub(t.sigmoid(x), target)
        share = t.mul(pos_weight, target)
        return t.sub(t.mul(t.sub(t.add(share, 1), target), t.sigmoid(x)), share)

    def of_target(t: Calls) -> Operand:
        if pos_weight is None:
            return t.neg(x)
        return t.sub(t.log_sigmoid(t.neg(x)), t.mul(pos_weight, t.log_sigmoid(x)))

    for operand, found in ((x, slope), (target, of_target)):
        if operand.is_wanted:
            made = t.mul(t.inside(found), t.g)
            made = made if weight is None else t.mul_(made, weight)
            if reduction == MEAN:
                t.div_(made, 1.0)
