"""Connectionist temporal classification: a recursion over time and the label sequence with blanks in between.

A state is one place of one extended label (twice its length and one) at one time step. It takes the log of a
sum of three: largest 2, subtract 3, three exponentials, add 2, a logarithm, add back 1, and the step's own
log probability 1.
"""

from __future__ import annotations

from graphflops.cost import Estimate, data_dependent, free
from graphflops.dims import Dim, dim_max, total
from graphflops.rules.elementwise import result_of
from graphflops.rules.loss import MEAN, total_of
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.tensor import TensorType

KIND = "loss"

STATE = 9
STATE_FUNCTIONS = 4
Lengths = TensorType | tuple[Dim, ...]


def states(log_probs: TensorType, targets: TensorType, inputs: Lengths, labels: Lengths) -> Dim:
    """States of the whole batch; unknown lengths are bounded by the padded sizes."""
    steps, batch = log_probs.shape[0], samples(log_probs)
    if isinstance(inputs, tuple) and isinstance(labels, tuple):
        return total(step * (2 * label + 1) for step, label in zip(inputs, labels, strict=True))
    if targets.rank == 1:
        return steps * (2 * targets.numel + batch)
    return steps * batch * (2 * targets.shape[1] + 1)


def samples(log_probs: TensorType) -> Dim:
    """Sequences in the batch."""
    return log_probs.shape[1] if log_probs.rank == 3 else 1


def longest_label(labels: Lengths) -> Dim:
    """The length of the longest label sequence."""
    return dim_max(*labels) if isinstance(labels, tuple) else data_dependent("longest_label")


@rule("aten.ctc_loss")
def ctc_loss(
    log_probs: TensorType,
    targets: TensorType,
    input_lengths: Lengths,
    target_lengths: Lengths,
    *,
    reduction: int = MEAN,
) -> Estimate:
    """Nine operations and four functions per state; a mean divides by each label's length."""
    full = log_probs.like(log_probs.shape[1:-1])
    visited = states(log_probs, targets, input_lengths, target_lengths)
    flops = STATE * visited + full.numel * (reduction == MEAN)
    return total_of(full, reduction, flops, STATE_FUNCTIONS * visited, (log_probs, targets))


@rule("aten._ctc_loss")
def ctc_loss_forward(
    log_probs: TensorType, targets: TensorType, input_lengths: Lengths, target_lengths: Lengths
) -> Estimate:
    """Nine operations and four functions per state; all states are kept."""
    visited, batch = states(log_probs, targets, input_lengths, target_lengths), samples(log_probs)
    kept = log_probs.like((batch, log_probs.shape[0], 2 * longest_label(target_lengths) + 1))
    return Estimate(
        (log_probs.like((batch,)), kept),
        vector_flops=STATE * visited,
        transcendentals=STATE_FUNCTIONS * visited,
        reads=(log_probs, targets),
    )


@rule("aten._ctc_loss_backward")
def ctc_loss_backward(
    grad: TensorType,
    log_probs: TensorType,
    targets: TensorType,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: TensorType,
    log_alpha: TensorType,
) -> Estimate:
    """The recursion backward in time, each state added to its class; all classes at every step."""
    visited = states(log_probs, targets, input_lengths, target_lengths)
    return Estimate(
        (log_probs.like(),),
        vector_flops=(STATE + 5) * visited + 5 * log_probs.numel,
        transcendentals=(STATE_FUNCTIONS + 3) * visited + 2 * log_probs.numel,
        reads=(grad, log_probs, targets, neg_log_likelihood, log_alpha),
    )


@rule("aten._cudnn_ctc_loss", "aten.miopen_ctc_loss")
def cudnn_ctc_loss(
    log_probs: TensorType, targets: TensorType, input_lengths: Lengths, target_lengths: Lengths
) -> Estimate:
    """Both recursions: the loss and its gradient."""
    forward = ctc_loss_forward(log_probs, targets, input_lengths, target_lengths)
    loss = log_probs.like((samples(log_probs),))
    gradient = ctc_loss_backward(loss, log_probs, targets, input_lengths, target_lengths, loss, log_probs)
    return Estimate(
        (loss, log_probs.like()),
        vector_flops=forward.vector_flops + gradient.vector_flops,
        transcendentals=forward.transcendentals + gradient.transcendentals,
        reads=(log_probs, targets),
    )


@rule("aten._use_cudnn_ctc_loss", "aten._use_miopen_ctc_loss")
def use_cudnn_ctc_loss(log_probs: TensorType, targets: TensorType) -> Estimate:
    """Free: a query which implementation runs, whose answer is not known here."""
    return free(None, alias=False)


@backward("aten.ctc_loss", "aten._ctc_loss")
def ctc_loss_gradient(call: ForwardCall) -> Estimate:
    """The recursion backward in time over the kept states."""
    given, loss = call.arguments, result_of(call).like()
    lengths = given["input_lengths"], given["target_lengths"]
    kept = ctc_loss_forward(given["log_probs"], given["targets"], *lengths).out[1]
    assert isinstance(kept, TensorType)
    return ctc_loss_backward(loss, given["log_probs"], given["targets"], *lengths, loss, kept)
