"""Flexible attention as our own Triton kernels, forward and backward, which count the tiles they multiply."""

from graphflops.runtime.flex.attention import (
    Attention,
    FlexCounts,
    counted,
    flex_attention,
    prepare,
    scaled_dot_product_attention,
    sdpa,
)
from graphflops.runtime.flex.blocks import Blocks, Prediction, predicted_tiles
from graphflops.runtime.flex.configs import Tiles, override

__all__ = [
    "Attention",
    "Blocks",
    "FlexCounts",
    "Prediction",
    "Tiles",
    "counted",
    "flex_attention",
    "override",
    "predicted_tiles",
    "prepare",
    "scaled_dot_product_attention",
    "sdpa",
]
