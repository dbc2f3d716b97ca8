"""Flexible attention in our own Triton kernels, forward and backward, which count the tiles that they compute."""

from graphflops.runtime.flex.attention import (
    PreparedAttention,
    counted,
    flex_attention,
    prepare,
    scaled_dot_product_attention,
    sdpa,
)
from graphflops.runtime.flex.blocks import FlexCounts, MaskBlocks, Tiles, override, predicted_tiles

__all__ = [
    "FlexCounts", "MaskBlocks", "PreparedAttention", "Tiles", "counted", "flex_attention",
    "override", "predicted_tiles", "prepare", "scaled_dot_product_attention", "sdpa",
]  # fmt: skip
