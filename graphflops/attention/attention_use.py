"""One attention of a program, as reports give it."""

from typing import Literal

from graphflops.base.record import Record
from graphflops.dims import Dim

_TILE = 128  # queries and keys of one tile of a fused kernel

Masking = Literal["none", "structure", "constant", "stated", "tensor"]


class AttentionUse(Record, frozen=True):
    """One attention: an operator, or the calls that spell it."""

    # Rows of the report that it is made of: the operator's, or from the first product to the second.
    calls: tuple[str, ...]
    op: str  # "" where it is spelled out
    module: str
    source: str
    batch: Dim
    heads: Dim  # of the queries
    kv_heads: Dim
    queries: Dim
    keys: Dim
    width: Dim  # of queries and keys
    value_width: Dim
    # What hides scores: nothing; a structure that the operator knows or the program computes (causal, a window); a tensor
    # that the file stores; an input whose mask the user states; or an unknown tensor.
    mask: Masking
    flops: Dim  # both products, dense
    masked_flops: Dim = 0  # the part on pairs that a known mask hides
    # Traffic of scores and probabilities between the products, which a fused kernel keeps on chip.
    score_bytes: Dim = 0
    repeated_bytes: Dim = 0  # traffic of writing keys and values once for each query head that shares them
    kv_bytes: Dim = 0  # keys and values, each read once at their own heads
    times: Dim = 1  # how often it runs
    kernel: str = ""  # that PyTorch chooses on a GPU; "" where that is not asked for
    kernel_reason: str = ""  # why no faster one
    # Blocks of the scores that run, with some or with only visible pairs; None: no blocks of a mask, or number not known.
    partial_blocks: Dim | None = None
    full_blocks: Dim | None = None
    pattern: str = ""  # the form of what is visible, where it has a name: `causal`, `causal, window 128`

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


class Hidden(Record, frozen=True):
    """What masks hide."""

    doubled: Dim = 0  # 2 x the hidden pairs, summed over `problems`
    problems: int = 1  # distinct (batch, head) slices; the remaining slices repeat these
    mask: Masking = "none"
    inputs: tuple[str, ...] = ()  # names of program inputs that mask, where it is not known what they hide
    pattern: str = ""  # the form of what is visible, where it has a name
    unfollowed: tuple[str, ...] = ()  # operators that may hide some, and are not followed
    is_whole: bool = True  # whether all that masks hide is known
    needs_sizes: bool = False  # whether more may be known where queries and keys have numbers


def causal_fraction(queries: int, keys: int) -> float:
    """The fraction of all pairs in tiles that a fused kernel multiplies: those that a causal mask does not hide whole."""
    rows, columns = -(-queries // _TILE), -(-keys // _TILE)
    below = min(rows, columns)
    run = below * (below + 1) // 2 + (rows - below) * columns
    return run / (rows * columns) if run else 1.0


def window(before: Dim, after: Dim) -> str:
    """The name of a window around a query's own place."""
    return f"causal, window {before + 1}" if after == 0 else f"window {before} before, {after} after"
