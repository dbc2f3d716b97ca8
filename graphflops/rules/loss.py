"""Losses that compare elements, whose work per element is in work.txt, and losses of class scores; their gradients.

`reduction` is 0 for a result per element, 1 for their mean, 2 for their sum: the sum of n is n operations,
the mean divides once. A weight is one product more per element. A target that names classes picks one score per element:
negate 1, compare with the ignored class 1, weight 1 where there is one. Only the picked scores and weights are read.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from graphflops.base.record import replace
from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast, differ, dim_max, floor_div, meet, prod, total
from graphflops.rules.distance import pairwise_distance
from graphflops.rules.elementwise import WORK, Work, float_result, real_of, result_type, wanted
from graphflops.rules.operands import Operands, takes
from graphflops.rules.reduce import LOG_SOFTMAX_GRADIENT, log_softmax
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, Tensors, have_shape, only_result, reduced, replaced, results
from graphflops.tensor import TensorType

KIND = "loss"

MEAN = 1


def total_of(
    full: TensorType, reduction: int, flops: Dim, functions: Dim, reads: tuple[TensorType | None, ...]
) -> Estimate:
    """A loss whose elements, of the shape of `full`, take `flops` and `functions` together; then the reduction."""
    each = Estimate((full,), vector_flops=flops, transcendentals=functions, reads=reads)
    summed = full.numel + (reduction == MEAN)
    return each.plus(out=(full.like(()),), vector_flops=summed) if reduction else each


def work_of(name: str, given: Mapping[str, Any], gradient: str = "") -> Work:
    """The work of a loss per element, given its arguments. gradient: `_backward` for the work of the gradient."""
    if (name == "kl_div" and given.get("log_target")) or (name == "poisson_nll_loss" and given["log_input"]):
        name += "_of_logs"
    work = WORK[name + gradient]
    if given.get("full") and not gradient:
        work = work.more(WORK["stirling"].flops, WORK["stirling"].transcendentals)
    # `pos_weight` takes two operations beside its product: 1 is subtracted from it, and 1 is added.
    return work if given.get("pos_weight") is None or gradient else work.more(2)


@takes("x target * weight? pos_weight? log_target? log_input? full?")
def compared(of: Operands, *, reduction: int = MEAN, name: str) -> Estimate:
    """The work of the loss per element of the operands broadcast, a product for each weight, then the reduction."""
    tensors = tuple(x for x in of.named("x target weight pos_weight") if x is not None)
    dtype = of.x.dtype if name == "binary_cross_entropy" else result_type(*tensors)
    full, work = TensorType(broadcast(*(x.shape for x in tensors)), dtype), work_of(name, of.given)
    flops = (work.flops + len(tensors) - 2) * full.numel
    return total_of(full, reduction, flops, work.transcendentals * full.numel, tensors)


def gradients_of(work: Work, grad: TensorType, into: Tensors, *operands: TensorType | None) -> Estimate:
    """The gradients of some operands, summed over the repeats of a broadcast one; operands after the first two are weights.

    into: the operands that want a gradient; if none are named, the first, with the shape of the loss.
    """
    tensors = tuple(x for x in operands if x is not None)
    full = TensorType(broadcast(*(x.shape for x in tensors)), result_type(*tensors))
    wanted = into or (full,)
    each = [work.flops + len(tensors) - 2 + (x.numel != full.numel) for x in wanted]
    return Estimate(
        tuple(x.like() for x in wanted),
        vector_flops=sum(each) * full.numel,
        transcendentals=work.transcendentals * full.numel * len(wanted),
        reads=(grad, *tensors),
    )


@takes("grad x target * weight?")
def gradient(of: Operands, *, name: str) -> Estimate:
    """The work of the gradient per element, and a product for a weight."""
    return gradients_of(WORK[f"{name}_backward"], of.grad, (), *of.but("grad"))


def gradient_of_call(call: ForwardCall, name: str) -> Estimate:
    """The gradients of the wanted operands of a forward call."""
    work, into = work_of(name, call.arguments, "_backward"), tuple(x for _, x in wanted(call))
    return gradients_of(work, call.out.like(), into, *map(call.get, ("x", "target", "weight", "pos_weight")))


for _name in (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "hinge_embedding_loss"),
):
    rule(f"aten.{_name}").derived(compared, name=_name)
    if f"{_name}_backward" in WORK:
        backward(f"aten.{_name}")(partial(gradient_of_call, name=_name))
for _name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
    rule(f"aten.{_name}_backward").derived(gradient, order="grad x target _", name=_name)
rule("aten.binary_cross_entropy_backward").derived(gradient, name="binary_cross_entropy")


@rule("aten.margin_ranking_loss").takes("input1 input2 target")
def margin_ranking_loss(of: Operands, *, reduction: int = MEAN) -> Estimate:
    """Negate, subtract, product, add, clamp: five operations per element."""
    full = TensorType(broadcast(*(x.shape for x in of)), float_result(*of))
    return total_of(full, reduction, 5 * full.numel, 0, (*of,))


@rule("aten.cosine_embedding_loss").takes("input1 input2 target")
def cosine_embedding_loss(of: Operands, *, reduction: int = MEAN) -> Estimate:
    """Three products and their sums per element, twelve operations and a root per row."""
    shape = broadcast(of.input1.shape, of.input2.shape)
    full = TensorType(broadcast(shape[:-1], of.target.shape), result_type(*of))
    return total_of(full, reduction, 6 * full.like(shape).numel + 12 * full.numel, full.numel, (*of,))


@rule("aten.triplet_margin_loss").takes(f"anchor positive negative; p=2.0 swap=False reduction={MEAN}")
def triplet_margin_loss(of: Operands) -> Estimate:
    """Two distances, with `swap` a third; add, subtract and clamp per row, with `swap` the smaller of two."""
    anchor, positive, negative = of
    pairs = [(anchor, positive), (anchor, negative), *([(positive, negative)] if of.swap else [])]
    shape = reduced(broadcast(anchor.shape, positive.shape, negative.shape), -1)
    full = TensorType(shape, real_of(float_result(anchor, positive, negative)))
    loss = total_of(full, of.reduction, (3 + of.swap) * full.numel, 0, (anchor, positive, negative))
    return loss.plus(*(pairwise_distance(a, b, of.p) for a, b in pairs))


# Connectionist temporal classification: a recursion over time and the label sequence with blanks in between.
# A state is one place of one extended label (twice its length and one) at one time step. It takes the log of a
# sum of three: largest 2, subtract 3, three exponentials, add 2, a logarithm, add back 1, and the step's own
# log probability 1.

STATE = 9
STATE_FUNCTIONS = 4
Lengths = TensorType | Shape


def states(log_probs: TensorType, targets: TensorType, inputs: Lengths, labels: Lengths) -> Dim:
    """States of the whole batch; unknown lengths are bounded by the padded sizes."""
    steps, batch = log_probs.shape[0], samples(log_probs)
    for lengths in (inputs, labels):
        count = len(lengths) if isinstance(lengths, tuple) else lengths.numel
        meet(count, batch, f"{count} lengths for {batch} sequences")
    if targets.rank == 1 and isinstance(labels, tuple):
        meet(total(labels), targets.numel, f"labels of {total(labels)} classes in {targets}")
    if isinstance(inputs, tuple) and isinstance(labels, tuple):
        return total(step * (2 * label + 1) for step, label in zip(inputs, labels, strict=True))
    if targets.rank == 1:
        return steps * (2 * targets.numel + batch)
    return steps * batch * (2 * targets.shape[1] + 1)


def samples(log_probs: TensorType) -> Dim:
    """Sequences in the batch."""
    return log_probs.shape[1] if log_probs.rank == 3 else 1


@rule("aten.ctc_loss").takes("log_probs targets input_lengths? target_lengths?")
def ctc_loss(of: Operands, *, reduction: int = MEAN) -> Estimate:
    """Nine operations and four functions per state; a mean divides by each label's length."""
    full, visited = of.log_probs.like(of.log_probs.shape[1:-1]), states(*of)
    flops = STATE * visited + full.numel * (reduction == MEAN)
    return total_of(full, reduction, flops, STATE_FUNCTIONS * visited, (of.log_probs, of.targets))


@rule("aten._ctc_loss").takes("log_probs targets input_lengths= target_lengths=")
def ctc_loss_forward(of: Operands) -> Estimate:
    """Nine operations and four functions per state; all states are kept."""
    log_probs, visited, batch = of.log_probs, states(*of), samples(of.log_probs)
    lengths = of.target_lengths if isinstance(of.target_lengths, tuple) else ()
    longest = dim_max(*lengths) if lengths else data_dependent("longest_label")
    kept = log_probs.like((batch, log_probs.shape[0], 2 * longest + 1))
    return Estimate(
        (log_probs.like((batch,)), kept),
        vector_flops=STATE * visited,
        transcendentals=STATE_FUNCTIONS * visited,
        reads=(log_probs, of.targets),
    )


@rule("aten._ctc_loss_backward").takes(
    "grad log_probs targets input_lengths? target_lengths? neg_log_likelihood log_alpha"
)
def ctc_loss_backward(of: Operands) -> Estimate:
    """The recursion backward in time, each state added to its class; all classes at every step."""
    visited = states(*of.named("log_probs targets input_lengths target_lengths"))
    return Estimate(
        (of.log_probs.like(),),
        vector_flops=(STATE + 5) * visited + 5 * of.log_probs.numel,
        transcendentals=(STATE_FUNCTIONS + 3) * visited + 2 * of.log_probs.numel,
        reads=of.but("input_lengths target_lengths"),
    )


@rule("aten._cudnn_ctc_loss", "aten.miopen_ctc_loss").takes(
    "log_probs targets input_lengths= target_lengths="
)
def cudnn_ctc_loss(of: Operands) -> Estimate:
    """Both recursions: the loss and its gradient."""
    loss = of.log_probs.like((samples(of.log_probs),))
    gradient = ctc_loss_backward(loss, *of, loss, of.log_probs)
    both = Estimate((loss, of.log_probs.like()), reads=(of.log_probs, of.targets))
    return both.plus(ctc_loss_forward(*of), gradient)


@backward("aten.ctc_loss", "aten._ctc_loss")
def ctc_loss_gradient(call: ForwardCall) -> Estimate:
    """The recursion backward in time over the kept states."""
    operands = [call[name] for name in ("log_probs", "targets", "input_lengths", "target_lengths")]
    _, kept = ctc_loss_forward(*operands).out
    return ctc_loss_backward(call.out.like(), *operands, call.out.like(), kept)


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
    return total_of(full, reduction, flops, 0, (full, target, weight and weight.like(full.shape)))


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward").takes("grad x target weight?")
def likelihood_gradient(of: Operands) -> Estimate:
    """Zeros except at the picked scores, which get the scaled gradient."""
    grad, x, target, weight = of
    reads = (grad, target, weight and weight.like(target.shape))
    return Estimate((x.like(),), vector_flops=(PICK + (weight is not None)) * target.numel, reads=reads)


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
    return Estimate(
        call.gradients("x", "target"),
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
    product, biased = 2 * scores.numel * of.x.shape[1], 0 if of.linear_bias is None else scores.numel
    reads = of.named("x linear_weight target linear_bias weight")
    return scores, replace(loss.plus(matrix_flops=product, vector_flops=biased), reads=reads)


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
    x, weight, (scores, estimate) = of.x, of.linear_weight, classified(of)
    asked = "compute_input_grad compute_linear_weight_grad compute_linear_bias_grad"
    for_x, for_weight, for_bias = of.named(asked)
    gradient = LOG_SOFTMAX_GRADIENT * (for_x or for_weight or for_bias) + for_bias
    shapes = ((), x.shape if for_x else (0, 0), weight.shape if for_weight else (0, 0))
    return replace(
        estimate,
        out=(*map(x.like, shapes), x.like(weight.shape[:1] if for_bias else (0,))),
        matrix_flops=estimate.matrix_flops * (1 + for_x + for_weight),
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
    forward, scores = call.estimate, floor_div(call.estimate.matrix_flops, 2 * call["x"].shape[1])
    return Estimate(
        call.gradients(*_LINEAR),
        matrix_flops=forward.matrix_flops * (1 + len(call.wants & {"x", "linear_weight"})),
        vector_flops=forward.vector_flops + LOG_SOFTMAX_GRADIENT * scores,
        transcendentals=forward.transcendentals,
        reads=(*forward.reads, call.out.like()),
    )
