"""onnxruntime's elementwise operators: activations after a bias, gated sums, dropout after bias and residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import ceil_div, floor_div
from graphflops.rules.onnx.activation import gelu, pointwise, rows_of, swish
from graphflops.rules.onnx.fused import Outputs, applied, chosen, fused, is_wanted, work
from graphflops.rules.onnx.norm import dropout
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import rule
from graphflops.rules.softmax import SOFTMAX
from graphflops.rules.work import WORK
from graphflops.rules.work import gelu as gelu_work
from graphflops.rules.work_functions import Work
from graphflops.tensor import UINT32, TensorType

KIND = "elementwise"


rule("com.microsoft.Gelu")(gelu)


@rule("com.microsoft.BiasGelu")
def bias_gelu(x: TensorType, bias: TensorType) -> Estimate:
    """An addition, one erf and the arithmetic around it."""
    return biased(x, bias, "none")


@rule("com.microsoft.FastGelu")
def fast_gelu(x: TensorType, bias: TensorType | None = None) -> Estimate:
    """An addition where there is a bias, one tanh and the arithmetic around it."""
    return biased(x, bias, "tanh")


def biased(x: TensorType, bias: TensorType | None, approximate: str) -> Estimate:
    """Gelu of the sum with a bias, which is as long as the last axis."""
    biased = gelu_work(approximate).more(0 if bias is None else WORK["add"].flops)
    return fused((x.like(),), applied(biased, x), reads=(x, bias))


@rule("com.microsoft.QuickGelu")
def quick_gelu(x: TensorType, *, alpha: float = 1.702) -> Estimate:
    """A product with the sigmoid of the scaled operand."""
    return swish(x, alpha=alpha)


@rule("com.microsoft.ScaledSiLU")
def scaled_silu(x: TensorType, scale: TensorType | None = None, *, alpha: float = 1.0) -> Estimate:
    """An optional scale, and a product with the sigmoid."""
    estimate = swish(x, alpha=alpha if scale is None else 2.0)
    return replace(estimate, reads=(x, scale))


@rule("com.microsoft.BiasSplitGelu")
def bias_split_gelu(x: TensorType, bias: TensorType) -> Estimate:
    """An addition to every element, gelu of one half, and a product of both halves."""
    out = x.like((*x.shape[:-1], floor_div(x.shape[-1], 2)))
    parts = (applied(row, of) for row, of in ((WORK["add"], x), (WORK["gelu"], out), (WORK["mul"], out)))
    return fused((out,), *parts, reads=(x, bias))


@rule("com.microsoft.BiasAdd")
def bias_add(x: TensorType, bias: TensorType, skip: TensorType) -> Estimate:
    """Two additions per element."""
    return fused((x.like(),), applied(WORK["add"].times(2), x), reads=(x, bias, skip))


@rule("com.microsoft.BiasSoftmax")
def bias_softmax(x: TensorType, bias: TensorType, *, axis: int = 1) -> Estimate:
    """An addition, and softmax over all axes from the one named on."""
    rows_of(x, axis)
    return Estimate((x.like(),), 0, (1 + SOFTMAX) * x.numel, x.numel, reads=(x, bias))


@rule("com.microsoft.GatedAdd")
def gated_add(x: TensorType, y: TensorType, gate: TensorType) -> Estimate:
    """A product and a sum per element."""
    return pointwise(WORK["mul"].more(WORK["add"].flops), x, y, gate)


@rule("com.microsoft.LinearAttentionGate")
@takes("a bias scale b?")
def linear_attention_gate(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """A sum, softplus and a product for the decay; a sigmoid for the update rate."""
    decay = applied(WORK["softplus"].more(WORK["add"].flops + WORK["mul"].flops), of.a)
    sigmoid = of.b if is_wanted(outputs, 1) else None
    rate = work(0) if sigmoid is None else applied(WORK["sigmoid"], sigmoid)
    out = chosen(outputs, of.a.like(), None if of.b is None else of.b.like())
    return fused(out, decay, rate, reads=(of.a, of.bias, of.scale, sigmoid))


@rule("com.microsoft.ComplexMul", "com.microsoft.ComplexMulConj")
def complex_mul(a: TensorType, b: TensorType) -> Estimate:
    """Six operations per complex number, whose two parts are the last axis: three for each part."""
    return pointwise(Work("complex_mul", 3), a, b)


# Dropout: active in training only; additions before and after it always count.


@rule("com.microsoft.BitmaskDropout")
@takes("x ratio? training_mode?")
def bitmask_dropout(of: Operands, *, outputs: Outputs = (True,)) -> Estimate:
    """As Dropout, its mask a bit per element in words of 32."""
    estimate = dropout(*of, outputs=outputs)
    out, mask = estimate.out if len(estimate.out) > 1 else (*estimate.out, None)
    if mask is None:
        return estimate
    words = of.x.like((ceil_div(of.x.numel, 32),), UINT32)
    writes = (words,) if estimate.alias else None
    return replace(estimate, out=(out, words), writes=writes)


@takes("x bias residual? ratio? training_mode?")
def bias_dropout(
    of: Operands, *, outputs: Outputs = (True,), form: Callable[..., Estimate] = dropout
) -> Estimate:
    """One addition per element for the bias, a dropout, and one addition for a residual: `x` is never the result."""
    dropped = form(of.x, of.ratio, of.training_mode, outputs=outputs)
    sums = work((1 + (of.residual is not None)) * of.x.numel)
    return fused((of.x.like(), *dropped.out[1:]), dropped, sums, reads=of.named("x bias residual"))


rule("com.microsoft.BiasDropout").derived(bias_dropout, form=dropout)
rule("com.microsoft.BitmaskBiasDropout").derived(bias_dropout, form=bitmask_dropout)
