"""Gradients that a forward call would cost, of losses, paddings, selections and random numbers."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.cost import Estimate
from graphflops.rules.registry import ForwardCall, find_backward
from graphflops.tensor import TensorType
from tests.support import price, shapes, t


def gradient(op: str, wants: str, **arguments: Any) -> Estimate:
    """What the gradients of the wanted arguments of a forward call cost."""
    rule = find_backward(op)
    assert rule is not None
    return rule(ForwardCall(price(op, **arguments), arguments, frozenset(wants.split())))


def trained(*shape: int) -> TensorType:
    return t(*shape, requires_grad=True)


X, BATCH, CHANNEL = trained(8), trained(2, 6, 5), trained(6)
PLANE = trained(2, 3, 8, 8)
RUNNING = {"running_mean": t(6), "running_var": t(6), "momentum": 0.1, "eps": 1e-5}
NORMED = {"x": BATCH, "weight": CHANNEL, "bias": CHANNEL, **RUNNING}
POISSON = {"x": X, "target": t(8), "full": False, "eps": 1e-8, "reduction": 1}
ONE_LAYER = {"num_layers": 1, "dropout": 0.0}
ONE_LAYER |= {"train": True, "bidirectional": False, "batch_first": False}
FOLDED = {
    "output_size": (8, 8),
    "kernel_size": (2, 2),
    "dilation": (1, 1),
    "padding": (0, 0),
    "stride": (2, 2),
}


@pytest.mark.parametrize(
    ("op", "wants", "arguments", "flops", "evaluations"),
    [
        ("l1_loss", "x", {"x": X, "target": t(8)}, 3 * 8, 0),
        ("l1_loss", "x target", {"x": X, "target": X}, 2 * 3 * 8, 0),
        ("smooth_l1_loss", "x", {"x": X, "target": t(8)}, 8 * 8, 0),
        ("huber_loss", "x", {"x": X, "target": t(8)}, 6 * 8, 0),
        ("soft_margin_loss", "x", {"x": X, "target": t(8)}, 6 * 8, 8),
        ("binary_cross_entropy", "x", {"x": X, "target": t(8)}, 6 * 8, 0),
        ("poisson_nll_loss", "x", {**POISSON, "log_input": True}, 2 * 8, 8),
        ("poisson_nll_loss", "x", {**POISSON, "log_input": False}, 4 * 8, 0),
        ("alpha_dropout", "x", {"x": X, "p": 0.5, "train": True}, 8, 0),
        # For each operand: both vectors normalised, one less its part along the other, scaled.
        ("cosine_similarity", "x1", {"x1": trained(4, 8), "x2": t(4, 8)}, 5 * 32, 0),
        ("cosine_similarity", "x1 x2", {"x1": trained(4, 8), "x2": trained(4, 8)}, 2 * 5 * 32, 0),
        # Every result's gradient is added where its element came from.
        ("cartesian_prod", "tensors", {"tensors": (trained(3), trained(4))}, 3 * 4 * 2, 0),
        ("combinations", "x", {"x": trained(4)}, 6 * 2, 0),
        ("broadcast_tensors", "tensors", {"tensors": (trained(4, 1), trained(1, 8))}, 2 * 32, 0),
        ("meshgrid", "tensors", {"tensors": (trained(3), trained(4))}, 2 * 12, 0),
        ("_pad_circular", "x", {"x": trained(2, 3, 8), "pad": (1, 2)}, 2 * 3 * 11, 0),
        ("replication_pad1d", "x", {"x": trained(2, 3, 8), "padding": (1, 2)}, 2 * 3 * 11, 0),
        ("reflection_pad2d", "x", {"x": PLANE, "padding": (1, 2, 1, 1)}, 2 * 3 * 11 * 10, 0),
        # A choice or a rearrangement has no arithmetic in its gradient.
        ("constant_pad_nd", "x", {"x": trained(2, 3, 8), "pad": (1, 2)}, 0, 0),
        ("col2im", "x", {"x": trained(2, 12, 16), **FOLDED}, 0, 0),
        ("masked_select", "x", {"x": trained(4), "mask": t(4, dtype="bool")}, 0, 0),
        ("kthvalue", "x", {"x": trained(4, 8), "k": 2}, 0, 0),
        ("mode", "x", {"x": trained(4, 8)}, 0, 0),
        ("trace", "x", {"x": trained(4, 4)}, 0, 0),
        # Random numbers do not depend on their parameters as torch differentiates them, but for the gamma distribution.
        ("bernoulli", "a", {"a": trained(4)}, 0, 0),
        ("normal", "mean", {"mean": trained(4), "std": t(4)}, 0, 0),
        ("poisson", "a", {"a": trained(4)}, 0, 0),
        ("binomial", "count", {"count": trained(4), "prob": t(4)}, 0, 0),
        ("_standard_gamma", "a", {"a": trained(4)}, 4, 4),
        ("_batch_norm_with_update", "x weight bias", NORMED, 8 * 60, 0),
        ("_batch_norm_with_update_functional", "x weight bias", NORMED, 8 * 60, 0),
        ("_native_batch_norm_legit_no_training", "x weight bias", NORMED, 5 * 60, 0),
        ("_batch_norm_no_update", "x weight bias", NORMED, 5 * 60, 0),
    ],
)
def test_arithmetic_of_gradients(
    op: str, wants: str, arguments: dict[str, Any], flops: int, evaluations: int
) -> None:
    estimate = gradient(f"aten.{op}", wants, **arguments)
    assert (estimate.vector_flops, estimate.transcendentals, estimate.matrix_flops) == (flops, evaluations, 0)
    given = [arguments[name] for name in wants.split()]
    operands = [x for x in given if isinstance(x, TensorType)] or list(given[0])
    assert shapes(estimate) == [x.shape for x in operands]


# Operations per hidden unit and row: the gradient of a sigmoid or tanh is 3, that of a relu 1.
BACK = [
    ("rnn_relu", 1, 1),
    ("rnn_tanh", 1, 3),
    ("lstm", 4, 3 * 3 + 2 * 3 + 7),  # of the output gate and of tanh(c') 3, of the other gates and of c 4
    ("gru", 3, 2 * 3 + 3 + 6),  # of the new state 2, of z, of r, of the hidden part and of h 1 each
]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("kind", "gates", "per_unit"), BACK)
def test_the_gradient_of_a_sequence_is_its_products_twice(
    kind: str, gates: int, per_unit: int, biases: bool
) -> None:
    weights = (trained(4 * gates, 8), trained(4 * gates, 4))
    weights += (trained(4 * gates), trained(4 * gates)) * biases
    state = (trained(1, 3, 4), trained(1, 3, 4)) if kind == "lstm" else trained(1, 3, 4)
    arguments = {"x": trained(5, 3, 8), "hx": state, **ONE_LAYER, "params": weights, "has_biases": biases}
    estimate = gradient(f"aten.{kind}.input", "x hx params", **arguments)
    assert estimate.matrix_flops == 2 * (2 * 5 * 3 * (4 * gates) * (8 + 4))
    # The gradient of a bias is a sum; both have the same.
    assert estimate.vector_flops == (5 * 3 * 4) * (per_unit + gates * biases)
    assert estimate.transcendentals == 5 * 3 * 4 * (kind == "lstm")  # tanh(c') is evaluated again


# 6 steps of 2 samples, 5 classes, 3 labels: 2 * 3 + 1 states at each step.
SCORES, LABELS = t(6, 2, 5, requires_grad=True), t(2, 3, dtype="int64")
VISITED = 6 * 2 * 7
ALIGNED = {"log_probs": SCORES, "targets": LABELS, "input_lengths": (6, 6), "target_lengths": (3, 3)}


def test_alignments_are_differentiated_by_the_recursion_backward() -> None:
    """A state costs 9 operations and 4 evaluations as in the forward, 5 and 3 to add it to its class; a class 5 and 2."""
    forward = price("aten._ctc_loss.default", SCORES, LABELS, (6, 6), (3, 3))
    assert (forward.vector_flops, forward.transcendentals) == (9 * VISITED, 4 * VISITED)
    back = (9 + 5) * VISITED + 5 * 60, (4 + 3) * VISITED + 2 * 60
    estimate = gradient("aten.ctc_loss", "log_probs", **ALIGNED)
    assert (estimate.vector_flops, estimate.transcendentals) == back
    arguments = (LABELS, (6, 6), (3, 3))
    spelled = price("aten._ctc_loss_backward.default", t(2), SCORES, *arguments, t(2), t(2, 6, 7), 0)
    assert (spelled.vector_flops, spelled.transcendentals) == back
    for both in (
        price("aten._cudnn_ctc_loss.default", SCORES, *arguments, 0, False, False),
        price("aten.miopen_ctc_loss.default", SCORES, *arguments, 0, False, False),
    ):
        assert (both.vector_flops, both.transcendentals) == (9 * VISITED + back[0], 4 * VISITED + back[1])
        assert shapes(both) == [(2,), (6, 2, 5)]
    assert not price("aten._use_cudnn_ctc_loss.default", SCORES, *arguments, 0).cost


def test_a_contraction_of_three_is_one_product_for_each_factor() -> None:
    """Of a[n, i] * b[o, i, j] * c[n, j], summed over i and j: for each factor one product over all four axes."""
    arguments = {"a": trained(4, 8), "b": trained(16, 8, 6), "c": trained(4, 6), "sumdim": (2, 3)}
    places = {"expand1": (1, 3), "expand2": (0,), "expand3": (1, 2)}
    estimate = gradient("aten._trilinear", "a b c", **arguments, **places)
    assert shapes(estimate) == [(4, 8), (16, 8, 6), (4, 6)]
    assert estimate.matrix_flops == 3 * (2 * 4 * 16 * 8 * 6)


# 4 rows of 8 features meet 10 classes.
CLASSES = {"x": trained(4, 8), "linear_weight": trained(10, 8), "target": t(4, dtype="int64")}
CLASSES |= {"linear_bias": trained(10), "weight": None, "ignore_index": -100, "batch_chunk_size": 2}
CLASSES |= {"acc_policy": "", "acc_dtype": None}
FACTORS, PRODUCT = "x linear_weight linear_bias", 2 * 4 * 8 * 10


def test_a_fused_layer_and_loss_finds_its_gradients_in_the_forward_and_scales_them() -> None:
    named = {f"compute_{name}_grad": True for name in ("input", "linear_weight", "linear_bias")}
    named |= {"reduction": "mean", "label_smoothing": 0.0, "allow_retain_graph": False}
    op = "torch_nn._linear_cross_entropy_batch_chunked"
    assert price(op, **CLASSES, **named).matrix_flops == 3 * PRODUCT
    scaled = gradient(op, FACTORS, **CLASSES, **named)
    assert (scaled.matrix_flops, scaled.vector_flops) == (0, 4 * 8 + 10 * 8 + 10)


def test_without_a_reduction_the_scores_are_made_again() -> None:
    op = "torch_nn._linear_cross_entropy_batch_chunked_no_reduction"
    assert price(op, **CLASSES).matrix_flops == PRODUCT
    assert gradient(op, FACTORS, **CLASSES).matrix_flops == 3 * PRODUCT
    assert gradient(op, "linear_weight", **CLASSES).matrix_flops == 2 * PRODUCT
