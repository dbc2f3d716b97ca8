"""Losses of class scores: negative log likelihood, cross entropy, margins between classes.

A target that names classes picks one score per element: negate 1, compare with the ignored class 1, weight 1
where there is one. Only the picked scores and weights are read; a mean or a sum also sums the picked weights.
"""

from __future__ import annotations

from msgspec.structs import replace

from graphflops.cost import Estimate
from graphflops.dims import differ, floor_div, prod
from graphflops.rules.elementwise import result_type
from graphflops.rules.loss import MEAN, total_of
from graphflops.rules.operands import Operands
from graphflops.rules.reduce import LOG_SOFTMAX_GRADIENT, log_softmax
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, have_shape, only_result, replaced, results
from graphflops.tensor import TensorType

KIND = "loss"

PICK = 2  # negate, compare


def class_axis(x: TensorType) -> int:
    """The axis of classes: the second, or the only one."""
    return min(1, x.rank - 1)


def require_fitting(x: TensorType, target: TensorType, shape: Shape, weight: TensorType | None) -> None:
    """Raise ShapeError for a target of another shape, or for weights that are not one for each class."""
    fits = have_shape(shape, target) and have_shape(x.shape[class_axis(x) :][:1], weight)
    require(fits, f"target {target} does not fit scores {x}, or weights {weight} do not")


@rule("aten.nll_loss", "aten.nll_loss2d", "aten.nll_loss_nd")
def likelihood(
    x: TensorType, target: TensorType, weight: TensorType | None = None, reduction: int = MEAN
) -> Estimate:
    """Negate, compare and weight per picked score."""
    kept = replaced(x.shape, class_axis(x))
    is_one = target.rank + x.rank <= 2 and not differ(target.numel, 1)
    require_fitting(x, target, target.shape if is_one else kept, weight)
    full = x.like(kept)
    flops = (PICK + (weight is not None) + (reduction != 0)) * full.numel
    weights = weight.like(full.shape) if weight is not None else None
    return total_of(full, reduction, flops, 0, (full, target, weights))


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def likelihood_gradient(
    grad_output: TensorType, x: TensorType, target: TensorType, weight: TensorType | None
) -> Estimate:
    """Zeros except at the picked scores, which get the scaled gradient."""
    flops = (PICK + (weight is not None)) * target.numel
    weights = weight.like(target.shape) if weight is not None else None
    return Estimate((x.like(),), vector_flops=flops, reads=(grad_output, target, weights))


# The second result is the sum of the picked weights.
rule("aten.nll_loss_forward", "aten.nll_loss2d_forward").derived(
    likelihood, lambda found: replace(found, out=(*found.out, only_result(found).like(())))
)


backward("aten.nll_loss nll_loss2d nll_loss_nd nll_loss_forward nll_loss2d_forward")(
    lambda call: likelihood_gradient(call.out.like(), call["x"], call["target"], call.get("weight"))
)


def probabilities_given(x: TensorType, target: TensorType) -> bool:
    """True if the target is a distribution over the classes, not a class index."""
    return target.dtype.is_floating and target.rank == x.rank


@rule("aten.cross_entropy_loss").takes("x target weight?")
def cross_entropy_loss(of: Operands, *, reduction: int = MEAN, label_smoothing: float = 0.0) -> Estimate:
    """The log of the softmax, then a pick, or a product and a sum per class for a target of probabilities.

    Label smoothing adds up all classes, weighted, and mixes the sums in: 1, 1 for a weight, and 3 per row;
    given probabilities it scales and shifts them.
    """
    x, target, weight = of
    logs = log_softmax(x, class_axis(x))
    weights = int(weight is not None)
    if probabilities_given(x, target):
        require_fitting(x, target, x.shape, weight)
        full = TensorType(replaced(x.shape, class_axis(x)), result_type(x, target))
        classes = 2 + weights + 2 * (label_smoothing > 0)
        loss = total_of(full, reduction, classes * x.numel + full.numel, 0, (x, target, weight))
    else:
        loss = likelihood(x, target, weight, reduction)
        smoothing = (1 + weights) * x.numel + 3 * target.numel if label_smoothing > 0 else 0
        loss = replace(loss, vector_flops=loss.vector_flops + smoothing, reads=(x, target, weight))
    return loss.plus(logs, workspace=x.nbytes)


@backward("aten.cross_entropy_loss")
def cross_entropy_gradient(call: ForwardCall) -> Estimate:
    """The gradient of the picked scores or of the product with given probabilities, then that of the log-softmax."""
    x, target, weight = call["x"], call["target"], call.get("weight")
    dense = 1 + (weight is not None) if probabilities_given(x, target) else 0
    dense += "target" in call.wants
    picked = 0 if dense else PICK * target.numel
    gradients = call.gradients("x", "target")
    return Estimate(
        gradients,
        vector_flops=(LOG_SOFTMAX_GRADIENT + dense) * x.numel + picked,
        transcendentals=x.numel,
        reads=(call.out.like(), x.like(), target, weight),
        workspace=x.nbytes,  # the gradient of the logarithms
    )


def rows_of(x: TensorType) -> TensorType:
    """A tensor with one element per row of scores; a single row is a batch of one."""
    return x.like((x.shape[0] if x.rank > 1 else 1,))


@rule("aten.multi_margin_loss").takes("x target * weight?")
def multi_margin_loss(of: Operands, *, p: float = 1, reduction: int = MEAN) -> Estimate:
    """Subtract, add, clamp, select, sum per score; a product for p = 2 and for a weight; divide per row."""
    rows = rows_of(of.x)
    flops = (5 + (p == 2) + (of.weight is not None)) * of.x.numel + rows.numel
    return total_of(rows, reduction, flops, 0, (*of,))


@rule("aten.multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad_output: TensorType, x: TensorType, target: TensorType, p: float, *, weight: TensorType | None = None
) -> Estimate:
    """Subtract, add, compare, select, scale and sum per score, a product for p = 2 and one for a weight."""
    flops = (6 + (p == 2) + (weight is not None)) * x.numel
    return Estimate((x.like(),), vector_flops=flops, reads=(grad_output, x, target, weight))


@rule("aten.multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(x: TensorType, target: TensorType, reduction: int = MEAN) -> Estimate:
    """Subtract, add, clamp, select and sum per pair of a possible label, any class, with a class; divide."""
    rows, pairs = rows_of(x), x.numel * prod(x.shape[-1:])
    loss = total_of(rows, reduction, 5 * pairs + rows.numel, 0, (x, target))
    return replace(loss, out=(*loss.out, x.like()))


rule("aten.multilabel_margin_loss").derived(multilabel_margin_loss_forward, results(0))


def classified(of: Operands) -> tuple[TensorType, Estimate]:
    """Scores of a linear layer, and the work of its product and of the cross entropy of the scores."""
    scores = of.x.like((of.x.shape[0], of.linear_weight.shape[0]))
    loss = cross_entropy_loss(scores, of.target, of.weight, reduction=0)
    return scores, replace(
        loss,
        matrix_flops=2 * scores.numel * of.x.shape[1],
        vector_flops=loss.vector_flops + (scores.numel if of.linear_bias is not None else 0),
        reads=of.named("x linear_weight target linear_bias weight"),
    )


@rule("torch_nn._linear_cross_entropy_batch_chunked_no_reduction").takes(
    "x linear_weight target linear_bias? weight? ignore_index? batch_chunk_size? acc_policy? acc_dtype?"
)
def linear_cross_entropy_rows(of: Operands) -> Estimate:
    """The product with the weights and the cross entropy of its rows; the full scores are never stored."""
    return replace(classified(of)[1], out=(of.x.like(of.x.shape[:1]),))


@rule("torch_nn._linear_cross_entropy_batch_chunked").takes(
    "x linear_weight target linear_bias? weight? reduction? ignore_index? label_smoothing? batch_chunk_size? acc_policy? "
    "acc_dtype? allow_retain_graph? compute_input_grad? compute_linear_weight_grad? compute_linear_bias_grad?"
)
def linear_cross_entropy(of: Operands) -> Estimate:
    """The product, its cross entropy, and in the same pass the requested gradients: one product for each."""
    x, linear_weight, (scores, estimate) = of.x, of.linear_weight, classified(of)
    products = 1 + of.compute_input_grad + of.compute_linear_weight_grad
    wanted = of.compute_input_grad or of.compute_linear_weight_grad or of.compute_linear_bias_grad
    gradient = LOG_SOFTMAX_GRADIENT * wanted + of.compute_linear_bias_grad
    return replace(
        estimate,
        out=(
            x.like(()),
            x.like(None if of.compute_input_grad else (0, 0)),
            x.like(linear_weight.shape if of.compute_linear_weight_grad else (0, 0)),
            x.like(linear_weight.shape[:1] if of.compute_linear_bias_grad else (0,)),
        ),
        matrix_flops=estimate.matrix_flops * products,
        vector_flops=estimate.vector_flops + gradient * scores.numel + of.target.numel,
    )


_LINEAR = ("x", "linear_weight", "linear_bias")


@backward("torch_nn._linear_cross_entropy_batch_chunked")
def linear_cross_entropy_gradient(call: ForwardCall) -> Estimate:
    """The gradients that the forward pass computed, scaled."""
    gradients = call.gradients(*_LINEAR)
    work = sum(gradient.numel for gradient in gradients)
    return Estimate(gradients, vector_flops=work, reads=(call.out.like(), *gradients))


@backward("torch_nn._linear_cross_entropy_batch_chunked_no_reduction")
def linear_cross_entropy_rows_gradient(call: ForwardCall) -> Estimate:
    """Recomputes the scores; one product for the input and one for the weights."""
    forward = call.estimate
    gradients = call.gradients(*_LINEAR)
    products = 1 + ("x" in call.wants) + ("linear_weight" in call.wants)
    scores = floor_div(forward.matrix_flops, 2 * call["x"].shape[1])
    return Estimate(
        gradients,
        matrix_flops=forward.matrix_flops * products,
        vector_flops=forward.vector_flops + LOG_SOFTMAX_GRADIENT * scores,
        transcendentals=forward.transcendentals,
        reads=(*forward.reads, call.out.like()),
    )
