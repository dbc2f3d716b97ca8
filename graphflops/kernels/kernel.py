"""One kernel as a device runs it: its work, its traffic and the sizes that decide how fast it is."""

from __future__ import annotations

from math import prod
from typing import Literal, Union

from msgspec import Struct

from graphflops.kernels.choices import all_constants
from graphflops.tensor import DTYPES

# copy: layout conversions, casts and concatenations. transfer: copies from and to the host's memory. other: anything
# without a model of its own, timed by its traffic.
Family = Literal[
    "matmul",
    "convolution",
    "attention",
    "elementwise",
    "copy",
    "normalization",
    "softmax",
    "reduction",
    "gather",
    "scatter",
    "pool",
    "random",
    "optimizer",
    "scan",
    "sort",
    "recurrence",
    "fft",
    "decomposition",
    "collective",
    "transfer",
    "other",
]
# flash is the kernel of torch, flash3 that of the package flash-attn 3, for Hopper.
AttentionKernel = Literal["flash", "flash3", "efficient", "cudnn", "math"]
GROUPED = "grouped"  # variant of a product whose rows pick one of several matrices each
COLUMN = "column"  # of matrices times a column each
# The same of products with a bias in float32: in long sums that few blocks share, in parts that are added up, or as others.
LONG, PARTS, WHOLE = "long", "long_in_parts", "tn"
DIRECT = "direct"  # variant of a convolution without matrix units, on tensors as they lie
SCALAR = "scalar"  # the same of pointwise ones
TILED = "tiled"  # the same of windows, as a product in tiles
LINE = "line"  # depthwise ones of cuDNN for sequences
SHARED = "shared"  # depthwise ones of cuDNN, whose tiles lie in shared memory
# Bits of an element in half precision and in float32; bytes of a float32, and of an index; axes of sequences and of images.
HALF, SINGLE, FLOAT_BYTES, INDEX_BYTES, SEQUENCE_RANK, IMAGE_RANK = 16, 32, 4, 8, 3, 4
Pass = Literal["forward", "input_gradient", "weight_gradient", "backward"]
Layout = Literal["tn", "nn", "nt", "tt"]


class Product(Struct, frozen=True):
    """`batch` products of an m x k by a k x n matrix."""

    m: int
    n: int
    k: int
    batch: int = 1
    # Whether k is the contiguous axis of a and b: "tn" for `linear`, whose weight is n x k; "nn" for two row-major
    # matrices; "nt" for the gradient of a weight.
    layout: Layout = "tn"


class Attention(Struct, frozen=True):
    """Scaled dot-product attention."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    computed: float = 1.0  # fraction of the pairs in tiles that it multiplies; 1 without a mask it can skip
    kernel: AttentionKernel = "flash"
    phase: Pass = "forward"


class Convolution(Struct, frozen=True):
    """A convolution."""

    batch: int
    channels: int
    filters: int
    image: tuple[int, ...]  # sizes along the spatial axes, as of the next two
    result: tuple[int, ...]
    filter: tuple[int, ...]
    groups: int = 1
    channels_last: bool = False
    is_looped: bool = False  # each group is a kernel of its own
    phase: Pass = "forward"
    is_patches: bool = False  # windows of several positions that neither overlap nor reach into padding


class Rows(Struct, frozen=True):
    """Rows of a normalization, softmax, reduction, scan or sort. is_inner: a row is contiguous in memory."""

    rows: int
    columns: int
    is_inner: bool = True


class Recurrence(Struct, frozen=True):
    """An LSTM, GRU or RNN, or all its gradients. gates: 4, 3 or 1."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    layers: int = 1
    directions: int = 1
    phase: Pass = "forward"


class Exchange(Struct, frozen=True):
    """A collective. sent_bytes: by each device. devices: that take part. stride: between their ranks."""

    sent_bytes: int
    devices: int = 2
    stride: int = 1


class Chunks(Struct, frozen=True):
    """Parts of many tensors, each worked through by one thread block. longest: elements of the longest."""

    blocks: int
    longest: int


class Strided(Struct, frozen=True):
    """A pointwise kernel or copy that computes an address for each element."""

    elements: int
    axes: int  # those that are left after axes in which all tensors lie alike are merged
    tensors: int  # read and written
    waste: float = 0.0  # bytes that are loaded for an element beside those of its operands
    has_casts: bool = False  # of operands to another element type
    gaps: int = 0  # bytes of sectors that the memory moves beside elements that lie apart


class Windows(Struct, frozen=True):
    """A pooling: results, and positions of the window of each. In a gradient each element of the operand is a result."""

    results: int
    positions: float


Sizes = Union[Product, Attention, Convolution, Rows, Recurrence, Exchange, Chunks, Strided, Windows]


class Kernel(Struct, frozen=True):
    """One kernel."""

    family: Family
    dtype: str  # element type of the matrix product, or of the largest operand
    flops: int = 0  # multiply-adds on matrix units, each 2 FLOPs
    vector_flops: int = 0  # other arithmetic, a transcendental counted as one
    read_bytes: int = 0
    written_bytes: int = 0
    sizes: Sizes | None = None
    # What tells kernels of a family apart: "strided" where an elementwise kernel computes an address for each element,
    # "outer" where rows are not contiguous, "masked" where an attention adds a tensor to its scores, "uneven" where rows
    # of that do not align, "fused" where torch.compile wrote the kernel, else the name of the operator.
    variant: str = ""
    # The same kernel runs again and again, as in a benchmark: each starts while the one before ends. Among other kernels
    # a product takes about a tenth longer.
    is_alone: bool = False

    @property
    def is_launched(self) -> bool:
        """False for a matrix product, convolution or attention whose result has no elements."""
        return self.written_bytes > 0 or not isinstance(self.sizes, (Product, Convolution, Attention))

    @property
    def launches(self) -> int:
        """How many kernels the CPU starts: one, or those of each group and its conversions of operand, weight and result."""
        sizes = self.sizes
        if self.family == "decomposition" and isinstance(sizes, Rows):  # all matrices, or one after the other
            of_all = all_constants("aten_2", "launches.decomposition").get(self.variant, 1)
            return int(of_all + all_constants("aten_2", "launches.matrix").get(self.variant, 0) * sizes.rows)
        if not isinstance(sizes, Convolution) or not sizes.is_looped:
            return 1
        is_pointwise = prod(sizes.filter) == 1
        if self.variant == DIRECT or (is_pointwise and self.dtype == "float32"):
            return sizes.groups
        return sizes.groups * (3 if is_pointwise or sizes.channels_last else 4)


def bytes_of(dtype: str) -> float:
    """Bytes of an element; 4 where no element type has the name, as of TF32."""
    return DTYPES[dtype].bits / 8 if dtype in DTYPES else 4
