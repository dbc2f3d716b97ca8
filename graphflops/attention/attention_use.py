"""One attention of a program, as reports give it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from graphflops.base.record import Record
from graphflops.dims import Dim

_TILE = 128  # queries and keys of one tile of a fused kernel

Masking = Literal["none", "structure", "constant", "stated", "tensor"]


class AttentionUse(Record, frozen=True):
    """One attention: an operator, or the calls that spell it.

    calls: rows of the report that it is made of, the operator's or from the first product to the second. op: the operator;
    "" where it is spelled out.
    batch, heads, kv_heads, queries, keys, width, value_width: its sizes; heads are those of the queries, width is that of
    queries and keys.
    mask: what hides scores: nothing; a structure that the operator knows or the program computes (causal, a window); a
    tensor that the file stores; an input whose mask the user states; or an unknown tensor.
    pattern: the form of what is visible, where it has a name: `causal`, `causal, window 128`.
    flops: both products, dense. masked_flops: the part on pairs that a known mask hides.
    score_bytes: traffic of scores and probabilities between the products, which a fused kernel keeps on chip.
    repeated_bytes: traffic of writing out keys and values once for each query head that shares them.
    kv_bytes: keys and values, each read once at their own heads.
    times: how often it runs.
    kernel, kernel_reason: the kernel that PyTorch chooses on a GPU, and why no faster one; "" where that is not asked for.
    partial_blocks, full_blocks: blocks of the scores that run, with some or with only visible pairs; None where attention is
    not done in blocks of a mask, or their number is not known.
    """

    calls: tuple[str, ...]
    op: str
    module: str
    source: str
    batch: Dim
    heads: Dim
    kv_heads: Dim
    queries: Dim
    keys: Dim
    width: Dim
    value_width: Dim
    mask: Masking
    flops: Dim
    masked_flops: Dim = 0
    score_bytes: Dim = 0
    repeated_bytes: Dim = 0
    kv_bytes: Dim = 0
    times: Dim = 1
    kernel: str = ""
    kernel_reason: str = ""
    partial_blocks: Dim | None = None
    full_blocks: Dim | None = None
    pattern: str = ""

    @property
    def is_fused(self) -> bool:
        """Whether it is one operator."""
        return bool(self.op)


KERNEL = ("kernel", "kernel_reason")
BLOCKS = ("partial_blocks", "full_blocks")
SIZES = tuple(
    name
    for name in AttentionUse.__struct_fields__
    if name not in ("calls", "op", "module", "source", "mask", "pattern", *KERNEL, *BLOCKS)
)


class Hidden(NamedTuple):
    """What masks hide.

    doubled: 2 x the hidden pairs, summed over `problems` distinct (batch, head) slices; the remaining slices repeat these.
    inputs: names of the program's inputs that mask, where it is not known what they hide.
    pattern: the form of what is visible, where it has a name.
    """

    doubled: Dim = 0
    problems: int = 1
    mask: Masking = "none"
    inputs: tuple[str, ...] = ()
    pattern: str = ""


def causal_fraction(queries: int, keys: int) -> float:
    """The fraction of all pairs in tiles that a fused kernel multiplies: those that a causal mask does not hide whole."""
    rows, columns = -(-queries // _TILE), -(-keys // _TILE)
    below = min(rows, columns)
    run = below * (below + 1) // 2 + (rows - below) * columns
    return run / (rows * columns) if run else 1.0
