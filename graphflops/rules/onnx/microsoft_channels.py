"""onnxruntime's convolutions and pools in channels-last and blocked layouts, with fused sums and activations.

Channels stand at the end (`Nhwc...`, and all of `com.ms.internal.nhwc`) or in blocks (`com.microsoft.nchwc`); weights
keep ONNX's order, but those of `NhwcConv` need not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import differ, mod, same
from graphflops.rules.onnx.conv import Ints, convolution, transposed_convolution
from graphflops.rules.onnx.entries import literals, unknown
from graphflops.rules.onnx.fused import Outputs, fused, work
from graphflops.rules.onnx.fused import activation as activated
from graphflops.rules.onnx.pool import average_pool, global_average_pool, global_max_pool, max_pool
from graphflops.rules.onnx.resize import resize_by_factors
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import find, require, rule
from graphflops.rules.shapes import only_result
from graphflops.tensor import TensorType


def channels_first(x: TensorType) -> TensorType:
    """The operand (batch, *sizes, channels) with its channels after the batch."""
    require(x.rank > 2, f"no spatial axes in {x}")
    return x.view((x.shape[0], x.shape[-1], *x.shape[1:-1]))


def to_the_end(x: TensorType) -> TensorType:
    """The operand (batch, channels, *sizes) with its channels at the end."""
    return x.view((x.shape[0], *x.shape[2:], x.shape[1]))


def moved(estimate: Estimate) -> Estimate:
    """The same with the channels of its results at the end."""
    out = tuple(to_the_end(x) if isinstance(x, TensorType) else x for x in estimate.out)
    return replace(estimate, out=out)


def either_way(price: Callable[[TensorType], Estimate], x: TensorType, channels_last: int) -> Estimate:
    """The price of an operand whose channels stand after the batch or at the end, as those of the result then do."""
    return moved(price(channels_first(x))) if channels_last else price(x)


# Fused into a convolution: the sum with another tensor, and an activation.


@rule("com.microsoft.FusedConv", "com.microsoft.nchwc.Conv", product=("x", "w"))
@takes("x w bias? added?")
def fused_convolution(of: Operands, *, activation: str = "", **geometry: Any) -> Estimate:
    """As Conv; then an optional addition and an activation."""
    product = convolution(of.x, of.w, of.bias, **geometry)
    out = only_result(product)
    summed = work(out.numel if of.added is not None else 0)
    return fused((out,), product, summed, activated(activation, out), reads=(*product.reads, of.added))


@rule("com.microsoft.NhwcConv", "com.microsoft.NhwcFusedConv", product=("x", "w"))
def channels_last_convolution(
    x: TensorType, w: TensorType, *operands: TensorType | None, **named: Any
) -> Estimate:
    """As FusedConv with channels last; the weight may have its channels last too."""
    turned = differ(w.shape[1] * named.get("group", 1), x.shape[-1])
    return moved(fused_convolution(channels_first(x), channels_first(w) if turned else w, *operands, **named))


@rule("com.microsoft.ConvTransposeWithDynamicPads", product=("x", "w"))
@takes("x w pads? bias?")
def transposed_convolution_with_pads(of: Operands, **geometry: Any) -> Estimate:
    """As ConvTranspose with pads as an operand; if they are unknown, so are the output sizes."""
    known = () if of.pads is None else literals(of.pads)
    estimate = transposed_convolution(of.x, of.w, of.bias, pads=known or (), **geometry)
    if known is None:
        out = only_result(estimate)
        sizes = (unknown("unpadded", place) for place in range(2, of.x.rank))
        estimate = replace(estimate, out=(out.like((*out.shape[:2], *sizes)),))
    return replace(estimate, reads=(*estimate.reads, of.pads))


@rule("com.microsoft.NhwcMaxPool", kind="pooling")
def channels_last_max_pool(x: TensorType, **geometry: Any) -> Estimate:
    """As MaxPool, channels at the end."""
    return moved(max_pool(channels_first(x), **geometry))


@rule("com.microsoft.MaxpoolWithMask", kind="pooling")
def masked_max_pool(x: TensorType, mask: TensorType, **geometry: Any) -> Estimate:
    """As MaxPool, with a choice by the mask per window element."""
    pooled = max_pool(x, **geometry)
    return replace(pooled, vector_flops=2 * pooled.vector_flops, reads=(x, mask))


# A domain with channels last: ONNX's operators on the permuted operand.


def register_channels_last(name: str) -> None:
    """Register an operator whose first operand, and result, have their channels at the end."""

    @rule(f"com.ms.internal.nhwc.{name}")
    def turned(
        x: TensorType, *operands: TensorType | None, outputs: Outputs = (True,), **attributes: Any
    ) -> Estimate:
        """As the operator with channels after the batch."""
        found = find(f"onnx.{name}") or find(f"com.microsoft.{name}")
        assert found is not None
        if "outputs" in found.parameters:
            attributes["outputs"] = outputs
        return moved(found.price(found.key, channels_first(x), *operands, **attributes))


for _name in (
    *("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool"),
    *("GlobalLpPool", "BatchNormalization", "InstanceNormalization", "LRN", "DepthToSpace", "SpaceToDepth"),
    *("GridSample", "QLinearConv", "QLinearAveragePool"),
):
    register_channels_last(_name)


# Channels in blocks, whose sizes depend on the machine.

BLOCK = 16  # the largest block: a multiple of it is never padded

rule("com.microsoft.nchwc.MaxPool")(max_pool)
rule("com.microsoft.nchwc.AveragePool")(average_pool)
rule("com.microsoft.nchwc.GlobalMaxPool")(global_max_pool)
rule("com.microsoft.nchwc.GlobalAveragePool")(global_average_pool)


@rule("com.microsoft.nchwc.ReorderInput", kind="movement")
def reorder_input(x: TensorType, *, channels_last: int = 0) -> Estimate:
    """A copy into blocks of channels, padded to whole ones."""
    first = channels_first(x) if channels_last else x
    channels = first.shape[1]
    padded = channels if same(mod(channels, BLOCK), 0) else data_dependent("padded_channels")
    return Estimate((x.like((first.shape[0], padded, *first.shape[2:])),), reads=(x,))


@rule("com.microsoft.nchwc.ReorderOutput", kind="movement")
def reorder_output(x: TensorType, *, channels: int = 0, channels_last: int = 0) -> Estimate:
    """A copy out of blocks of channels, without their padding."""
    out = x.like((x.shape[0], channels or x.shape[1], *x.shape[2:]))
    return Estimate((to_the_end(out).like() if channels_last else out,), reads=(out,))


@rule("com.microsoft.nchwc.Upsample", kind="resampling")
def upsample(x: TensorType, *, scales: Ints, mode: str = "nearest") -> Estimate:
    """Repeats every element, or in linear mode interpolates between neighbours."""
    return resize_by_factors(x, tuple(map(float, scales)), mode=mode)
