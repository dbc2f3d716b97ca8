"""onnxruntime's mixtures of experts: every token goes through the `k` experts that its router rates highest.

FLOPs are those of the chosen experts only; weights are read of at most as many experts as tokens can choose.
Dequantizing is counted once for each weight that is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphflops.cost import Estimate
from graphflops.dims import Dim, dim_min, floor_div, prod, same
from graphflops.rules.lapack import n_log_n
from graphflops.rules.onnx.fused import fused, work
from graphflops.rules.operands import Operands, takes
from graphflops.rules.quantized import DEQUANTIZE
from graphflops.rules.registry import rule
from graphflops.rules.softmax import SOFTMAX
from graphflops.rules.work import activation
from graphflops.rules.work_functions import Work
from graphflops.tensor import TensorType

KIND = "product"

COMBINED = 2  # an expert's result times its weight, added to the others'


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """One layer of all experts: weights (experts, ...), bias, quantization parameters, and weights per stored element."""

    weights: TensorType
    bias: TensorType | None = None
    parameters: tuple[TensorType | None, ...] = ()
    packed: int = 1

    def per_expert(self, experts: Dim) -> Dim:
        """The number of weights of one expert."""
        return floor_div(self.packed * self.weights.numel, experts)

    def read(self, experts: Dim, touched: Dim) -> tuple[TensorType | None, ...]:
        """The tensors read for that many experts; a tensor without an expert axis is read whole."""
        return tuple(
            x.like((touched, *x.shape[1:]))
            if x is not None and x.rank > 0 and same(x.shape[0], experts)
            else x
            for x in (self.weights, self.bias, *self.parameters)
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """The activation of an expert between its layers."""

    kind: str
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None

    @property
    def work(self) -> Work:
        """Work per hidden element; swiglu also scales, shifts and clamps where its attributes say so."""
        row = activation(self.kind)
        if self.kind != "swiglu":
            return row
        return row.more((self.alpha != 1) + (self.beta != 0) + 3 * (self.limit is not None))


def mixture(
    x: TensorType,
    router: TensorType,
    layers: tuple[ExpertLayer, ...],
    k: int,
    gate: Gate,
    normalised: bool,
    *more: TensorType | None,
) -> Estimate:
    """The layers to the hidden elements and back, and an optional third one in parallel with the first."""
    tokens, hidden, experts = prod(x.shape[:-1]), x.shape[-1], router.shape[-1]
    used, touched = k * tokens, dim_min(experts, k * tokens)
    sizes = [layer.per_expert(experts) for layer in layers]
    packed = [size for layer, size in zip(layers, sizes, strict=True) if layer.parameters]
    inner = floor_div(sizes[1], hidden)
    widths = (floor_div(sizes[0], hidden), hidden, inner)
    row = gate.work.more(len(layers) > 2 and gate.kind != "swiglu")
    biased = sum(width for layer, width in zip(layers, widths, strict=False) if layer.bias is not None)
    parts = (
        Estimate(matrix_flops=2 * used * sum(sizes)),
        routing(tokens, experts, k, normalised),
        work(used * (row.flops * inner + biased + COMBINED * hidden), used * row.transcendentals * inner),
        work(DEQUANTIZE * touched * sum(packed)),
    )
    reads = (read for layer in layers for read in layer.read(experts, touched))
    return fused((x.like(),), *parts, reads=(x, router, *reads, *more))


def routing(tokens: Dim, experts: Dim, k: int, normalised: bool) -> Estimate:
    """Softmax over the experts and selection of the best `k`, optionally with weights normalised to sum one."""
    per_token = (SOFTMAX + 1) * experts + n_log_n(k) + (2 * k if normalised else 0)
    return work(tokens * per_token, tokens * experts)


@rule("com.microsoft.MoE", product=("x", "fc1"))
@takes("x router_probs fc1 fc1_bias? fc2 fc2_bias? fc3? fc3_bias?")
def moe(
    of: Operands,
    *,
    k: int = 1,
    activation_type: str = "relu",
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    normalize_routing_weights: int = 0,
    swiglu_limit: float | None = None,
) -> Estimate:
    """The layers of the chosen experts for every token."""
    given = ((of.fc1, of.fc1_bias), (of.fc2, of.fc2_bias), (of.fc3, of.fc3_bias))
    layers = tuple(ExpertLayer(*layer) for layer in given if layer[0] is not None)
    gate = Gate(activation_type, activation_alpha, activation_beta, swiglu_limit)
    return mixture(of.x, of.router_probs, layers, k, gate, normalize_routing_weights != 0)


def layers_of_few_bits(of: Operands, bits: tuple[int, ...]) -> tuple[ExpertLayer, ...]:
    """The layers, with weights of so many bits; narrow floats are stored one to an element."""
    stored = (
        (of.fc1, of.fc1_bias, (of.fc1_scales, of.fc1_zero_points, of.fc1_global_scale)),
        (of.fc2, of.fc2_bias, (of.fc2_scales, of.fc2_zero_points, of.fc2_global_scale)),
        (of.fc3, of.fc3_bias, (of.fc3_scales, of.fc3_zero_points)),
    )
    return tuple(
        ExpertLayer(*layer, layer[0].dtype.bits // (8 if layer[0].dtype.is_floating else width))
        for layer, width in zip(stored, bits, strict=True)
        if layer[0] is not None
    )


@rule("com.microsoft.QMoE", product=("x", "fc1"))
@takes(
    "x router_probs fc1 fc1_scales? fc1_bias? fc2 fc2_scales? fc2_bias? fc3? fc3_scales? fc3_bias? fc1_zero_points? "
    "fc2_zero_points? fc3_zero_points? router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? "
    "fc2_act_scale? fc1_act_block_scale? fc2_act_block_scale?"
)
def qmoe(
    of: Operands,
    *,
    k: int = 1,
    activation_type: str = "relu",
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    normalize_routing_weights: int = 0,
    swiglu_limit: float | None = None,
    expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int = 0,
    fc2_expert_weight_bits: int = 0,
    fc3_expert_weight_bits: int = 0,
) -> Estimate:
    """As MoE with weights of few bits, several to a byte, which become the activations' type for the products."""
    given = (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)
    layers = layers_of_few_bits(of, tuple(bits or expert_weight_bits for bits in given))
    gate = Gate(activation_type, activation_alpha, activation_beta, swiglu_limit)
    read = of.named("router_weights fc1_act_scale fc2_act_scale fc1_act_block_scale fc2_act_block_scale")
    return mixture(of.x, of.router_probs, layers, k, gate, normalize_routing_weights != 0, *read)
