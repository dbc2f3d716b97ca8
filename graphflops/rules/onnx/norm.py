"""Normalisation by the batch, by groups, by rows, by neighbouring channels; for training dropout, losses, optimizers.

onnxruntime's norms are fused with the additions before them and the activations after them. The optimizers' operands are
spelled as in ONNX's preview of training: (rate, step, tensors, gradients, states).
"""

from collections.abc import Sequence

from graphflops.base.record import replace
from graphflops.cost import Estimate, free
from graphflops.dims import broadcast, meet, mod, prod, total
from graphflops.errors import shown
from graphflops.rules.creation import masked
from graphflops.rules.elementwise import WORK, Work
from graphflops.rules.loss import cross_entropy_loss, likelihood
from graphflops.rules.norm import MEAN_SQUARE, STATISTICS, group_norm, normalised, scaled, updated
from graphflops.rules.onnx.activation import only_value
from graphflops.rules.onnx.entries import Outputs, chosen_axes, fused, is_wanted, onnx_dtype, work
from graphflops.rules.operands import Operands
from graphflops.rules.quantized import DEQUANTIZE, QUANTIZE
from graphflops.rules.registry import require, require_known, rule
from graphflops.rules.shapes import axis_of, only_result, reduced, tensors_of
from graphflops.tensor import BOOL, FLOAT32, INT32, DType, TensorType


@rule("onnx.BatchNormalization").takes("x scale bias mean var; training_mode=0 is_test=0")
def batch_normalization(of: Operands, *, outputs: Outputs = (True,), by_results: bool = False) -> Estimate:
    """In inference one scale and one shift per element; in training seven operations, and new running statistics."""
    x, scale, bias, *statistics = of
    trains = not of.is_test and any(outputs[1:]) if by_results else of.training_mode
    times = 1 if trains and not by_results else 2
    out = tuple(part.like() for part in (x, *statistics * times))
    if not trains:
        return replace(scaled(*of), transcendentals=of.var.numel, out=out)
    running = [given if is_wanted(outputs, place) else None for place, given in enumerate(statistics, 1)]
    return replace(updated(normalised(x, of.var.numel, scale, bias), *running), out=out, writes=None)


rule(*(f"onnx.BatchNormalization.{version}" for version in (1, 6, 7, 9))).derived(
    batch_normalization,
    says="As the newest version; it trains if statistics are wanted: the running ones, and the batch's "
    "for the backward pass.",
    by_results=True,
)


rule("onnx.GroupNormalization").derived(group_norm, order="x weight bias")  # of groups or of channels


@rule("onnx.LayerNormalization").takes("x scale bias?; axis=-1 stash_type=1")
def by_rows(of: Operands, *, statistics: int = STATISTICS, kept: int = 2) -> Estimate:
    """Seven operations per element with a bias, four by the root mean square, a root per row. kept: results beside `x`."""
    x, scale, bias = of
    rows = x.shape[: axis_of(of.axis, x.rank)]
    for part in (scale, bias):
        wide = x.shape if part is None else broadcast(part.shape, x.shape)
        problem = f"a scale or bias {part} for [{', '.join(map(str, x.shape))}]"
        require(len(wide) == x.rank, problem)
        for whole, size in zip(wide, x.shape, strict=True):
            meet(whole, size, problem)
    statistic = x.like((*rows, *(1,) * (x.rank - len(rows))), onnx_dtype(of.stash_type))
    out = x.like(dtype=None if statistics == STATISTICS else scale.dtype)
    return replace(normalised(x, prod(rows), scale, bias, statistics), out=(out, *(statistic,) * kept))


rule("onnx.RMSNormalization").derived(by_rows, order="x scale", statistics=MEAN_SQUARE, kept=0)
rule("onnx.SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization").derived(
    by_rows, order="x scale", statistics=MEAN_SQUARE, kept=1
)


@rule("onnx.LpNormalization")
def lp_normalization(x: TensorType, *, axis: int = -1, p: int = 2) -> Estimate:
    """A magnitude or a square, a sum and a division per element; a root per row of squares."""
    rows = prod(reduced(x.shape, axis))
    return Estimate((x.like(),), vector_flops=3 * x.numel, transcendentals=rows if p == 2 else 0, reads=(x,))


@rule("onnx.MeanVarianceNormalization")
def mean_variance_normalization(x: TensorType, *, axes: tuple[int, ...] = (0, 2, 3)) -> Estimate:
    """Five operations per element, a root per group."""
    return normalised(x, prod(reduced(x.shape, chosen_axes(axes, x.rank))))


@rule("onnx.LRN")
def local_response_normalization(x: TensorType, *, size: int) -> Estimate:
    """Squares of neighbouring channels summed; scaled, shifted, raised to a power, and divided by, per element."""
    require(size > 0 and size % 2 == 1, f"{size} neighbouring channels have no middle")
    return Estimate((x.like(),), vector_flops=(size + 4) * x.numel, transcendentals=x.numel, reads=(x,))


@rule("onnx.Dropout").takes("x ratio? training_mode?")
def dropout(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """In training three operations per element; an unknown mode counts as training."""
    mode = of.training_mode
    training = mode is not None and only_value(mode) != 0 and only_value(of.ratio) != 0
    return _dropped(of.x, training, outputs, BOOL)


@rule("onnx.Dropout.1", "onnx.Dropout.6")
def dropout_unless_tested(
    x: TensorType, *, is_test: int = 0, ratio: float = 0.5, outputs: Outputs = (True,)
) -> Estimate:
    """Three operations per element, or none with `is_test`, which writes no mask."""
    return _dropped(x, not is_test and ratio != 0, (True,) if is_test else outputs, x.dtype)


def _dropped(
    x: TensorType, training: bool = False, outputs: Outputs = (True,), mask: DType | None = None
) -> Estimate:
    """Free: this version is inference only; a mask is of the operand's own type, or later of truth values."""
    if not training and not is_wanted(outputs, 1):
        return free(replace(x.view(x.shape), value=x.value))
    return masked(x, x.dtype if mask is None else mask, training)


rule("onnx.Dropout.7").derived(_dropped, order="x", training=False)
rule("onnx.Dropout.10").derived(_dropped, order="x", training=False, mask=BOOL)


KIND = "normalisation"


@rule("com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm").takes("x gamma beta skip? bias?")
def skip_group_norm(of: Operands, *, activation: int, groups: int, channels_last: int = 1) -> Estimate:
    """Seven operations per element, of the sum with `skip` and a bias, a reciprocal root per group; and an optional silu."""
    channels = of.x.shape[-1 if channels_last else 1]
    meet(mod(channels, groups), 0, f"{channels} channels do not make {groups} groups")
    norm = normalised(of.x, of.x.shape[0] * groups, of.gamma, of.beta)
    done = norm.plus(WORK["silu" if activation else "identity"].on(of.x.numel))
    if of.skip is None:
        return done
    added = tuple(part for part in (of.skip, of.bias) if part is not None)
    return done.plus(out=(of.x.like(), of.x.like()), vector_flops=len(added) * of.x.numel, reads=added)


@rule("com.microsoft.BranchwiseRMSNorm")
def branchwise_rms_norm(x: TensorType, scale: TensorType | None = None, *, num_branches: int = 0) -> Estimate:
    """An RMS norm of every branch; branches may be flattened into the last axis."""
    return normalised(x, prod(x.shape[:-1]) * (num_branches or 1), scale, statistics=MEAN_SQUARE)


@rule("com.microsoft.QOrderedLayerNormalization").takes("x scale_x scale bias? scale_y")
def qordered_layer_normalization(of: Operands, *, axis: int = -1) -> Estimate:
    """A layer norm between a conversion from integers and one back."""
    norm = normalised(of.x, prod(of.x.shape[: axis_of(axis, of.x.rank)]), of.scale, of.bias)
    converting = work((DEQUANTIZE - 1 + QUANTIZE - 1) * of.x.numel)
    return fused((of.x.like(),), norm, converting, reads=(*of,))


@rule("com.microsoft.EmbedLayerNormalization").takes(
    "ids segments? words positions of_segments? gamma beta mask? places?"
)
def embed_layer_normalization(of: Operands) -> Estimate:
    """Normalised sums of word, position and segment rows; each sequence's length, one addition per position; the sums."""
    total = of.words.like((*of.ids.shape, of.words.shape[-1]))
    used = of.positions.like((*(of.ids.shape[1:] if of.places is None else of.places.shape), total.shape[-1]))
    rows = (total, used, of.of_segments and of.of_segments.like(total.shape))
    norm = normalised(total.like(dtype=of.gamma.dtype), of.ids.numel, of.gamma, of.beta)
    sums = (1 + (of.of_segments is not None)) * total.numel + (0 if of.mask is None else of.mask.numel)
    reads = (of.ids, of.segments, *rows, of.gamma, of.beta, of.places, of.mask)
    return fused((total, of.ids.like(of.ids.shape[:1], INT32), total), norm, work(sums), reads=reads)


@rule("com.microsoft.QEmbedLayerNormalization").takes(
    "ids segments? words positions of_segments? gamma beta mask? words_scale? positions_scale? segments_scale? "
    "gamma_scale? beta_scale? words_zero? positions_zero? segments_zero? gamma_zero? beta_zero?"
)
def qembed_layer_normalization(of: Operands) -> Estimate:
    """As EmbedLayerNormalization of integers: three operations dequantize every used element."""
    plain = "ids segments words positions of_segments gamma beta mask"
    made, parameters = embed_layer_normalization(*of.named(plain)), of.but(plain)
    rows, lengths, _ = tensors_of(made.out)
    used = rows.numel * (2 + (of.of_segments is not None)) + of.gamma.numel + of.beta.numel
    results = (rows.like(dtype=FLOAT32), lengths)
    return fused(results, made, work(DEQUANTIZE * used), reads=(*made.reads, *parameters))


REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def code_of(reduction: str) -> int:
    """The reduction's number in the shared formulas."""
    require_known(reduction in REDUCTIONS, f"unknown reduction {reduction!r}")
    return REDUCTIONS[reduction]


@rule("onnx.NegativeLogLikelihoodLoss").takes("x target weight?")
def negative_log_likelihood_loss(of: Operands, *, reduction: str = "mean") -> Estimate:
    """Negate, compare and weight per picked score."""
    x, target, weight = of
    return likelihood(x, target, weight, code_of(reduction))


@rule("onnx.SoftmaxCrossEntropyLoss").takes("x target weight?")
def softmax_cross_entropy_loss(of: Operands, *, reduction: str = "mean") -> Estimate:
    """The logarithm of the softmax, which may be a result of its own, then a pick."""
    loss = cross_entropy_loss(*of, reduction=code_of(reduction))
    return replace(loss, out=(only_result(loss), of.x.like()))


KIND = "optimizer"

REGULARISED = WORK["l2_penalty"].flops
# v = a * v + b * g; x -= rate * v, or rate * (g + a * v)
MOMENTUM = WORK["sgd"].more(WORK["momentum"].flops + 1)
NESTEROV = MOMENTUM.more(WORK["momentum"].flops)


def optimized(
    rate: TensorType,
    count: TensorType,
    *tensors: TensorType,
    step: Work,
    states: int = 1,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Estimate:
    """New tensors and states, of all tensors, then all gradients, then `states` of each; norms add operations."""
    groups = 2 + states
    require(len(tensors) % groups == 0, f"{len(tensors)} operands do not make {groups} for each tensor")
    many = len(tensors) // groups
    kept = (*tensors[:many], *tensors[2 * many :])
    regular = REGULARISED * (norm_coefficient != 0) + (norm_coefficient_post != 0)
    updated = Estimate(tuple(x.like() for x in kept), reads=(rate, count, *tensors))
    return updated.plus(step.more(regular).on(total(x.numel for x in tensors[:many])))


rule("ai.onnx.preview.training.Adagrad").derived(
    optimized,
    says="Six operations and a root per element, two more for a norm's gradient.",
    step=WORK["adagrad"],
)
rule("ai.onnx.preview.training.Adam").derived(
    optimized,
    says="Eleven operations and a root per element, two more for a norm's gradient, one for shrinking afterwards.",
    step=WORK["adam_uncorrected"],
    states=2,
)


@rule("ai.onnx.preview.training.Momentum")
def momentum(*operands: TensorType, mode: str, norm_coefficient: float) -> Estimate:
    """Five operations per element, seven where the step looks ahead, two more for a norm's gradient."""
    step = NESTEROV if mode == "nesterov" else MOMENTUM
    return optimized(*operands, step=step, norm_coefficient=norm_coefficient)


@rule("ai.onnx.preview.training.Gradient")
def gradient(*operands: TensorType, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> Estimate:
    """A gradient for each of `xs`; the work is unknown: it is that of the calls between these and `y`."""
    given, named = len(operands), len(xs) + len(zs)
    require(given == named, f"{given} values are given for {named} names")
    work = f"its work is that of the calls that lead to {shown(y)}, run backwards; the operands do not determine it"
    return Estimate(tuple(x.like() for x in operands[: len(xs)]), unknown=work)
