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
# flash is torch's own kernel, flash3 that of the package flash-attn 3, for Hopper.
AttentionKernel = Literal["flash", "flash3", "efficient", "cudnn", "math"]
GROUPED = "grouped"  # variant of a product that multiplies each row by one of several matrices
COLUMN = "column"  # variant of products of matrices by one column each
# Variants of float32 products with a bias: few blocks for a long sum; the same with its parts added up; all others.
LONG, PARTS, WHOLE = "long", "long_in_parts", "tn"
DIRECT = "direct"  # variant of a convolution without matrix units that converts no layouts
SCALAR = "scalar"  # variant of a pointwise convolution without matrix units
TILED = "tiled"  # variant of a convolution without matrix units that is a product in tiles
LINE = "line"  # variant of cuDNN's depthwise convolutions of sequences
SHARED = "shared"  # variant of cuDNN's depthwise convolutions whose tiles are in shared memory
# Bits of half precision and float32 elements; bytes of a float32 and of an index; ranks of sequences and of images.
HALF, SINGLE, FLOAT_BYTES, INDEX_BYTES, SEQUENCE_RANK, IMAGE_RANK = 16, 32, 4, 8, 3, 4
Pass = Literal["forward", "input_gradient", "weight_gradient", "backward"]
Layout = Literal["tn", "nn", "nt", "tt"]


class Product(Struct, frozen=True):
    """`batch` products of an m x k and a k x n matrix."""

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
    computed: float = 1.0  # fraction of all pairs that it computes; 1 without a mask that skips tiles
    kernel: AttentionKernel = "flash"
    phase: Pass = "forward"


class Convolution(Struct, frozen=True):
    """A convolution."""

    batch: int
    channels: int
    filters: int
    image: tuple[int, ...]  # spatial sizes, as in the next two
    result: tuple[int, ...]
    filter: tuple[int, ...]
    groups: int = 1
    channels_last: bool = False
    is_looped: bool = False  # each group is a kernel of its own
    phase: Pass = "forward"
    is_patches: bool = False  # windows of several positions that neither overlap nor reach into padding
    is_dilated: bool = False  # the positions of a window lie apart


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
    """A collective. sent_bytes: by each device. devices: how many take part. stride: between their ranks."""

    sent_bytes: int
    devices: int = 2
    stride: int = 1


class Chunks(Struct, frozen=True):
    """Parts of many tensors; each is processed by one thread block. longest: elements of the longest part."""

    blocks: int
    longest: int


class Strided(Struct, frozen=True):
    """A pointwise kernel or copy that computes an address for each element."""

    elements: int
    axes: int  # number of axes after merging those that are contiguous in all tensors
    tensors: int  # tensors read and written
    waste: float = 0.0  # bytes loaded for each element that belong to no operand of it
    has_casts: bool = False  # whether operands have another element type
    gaps: int = 0  # bytes moved beside elements that are not contiguous: memory moves whole sectors


class Windows(Struct, frozen=True):
    """A pooling: the results, and the positions in each one's window. In a gradient, the results are operand elements."""

    results: int
    positions: float


Sizes = Union[Product, Attention, Convolution, Rows, Recurrence, Exchange, Chunks, Strided, Windows]


class Kernel(Struct, frozen=True):
    """One kernel launch."""

    family: Family
    dtype: str  # element type of the matrix product, or of the largest operand
    flops: int = 0  # multiply-adds on matrix units, each 2 FLOPs
    vector_flops: int = 0  # other arithmetic; a transcendental counts as one
    read_bytes: int = 0
    written_bytes: int = 0
    sizes: Sizes | None = None
    # Tells kernels of a family apart: "strided" for an elementwise kernel that computes an address for each element,
    # "outer" for rows that are not contiguous, "masked" for an attention that adds a tensor to its scores, "uneven" if the
    # rows of that tensor are not aligned, "fused" for a kernel that torch.compile generated, else the operator's name.
    variant: str = ""
    # Whether the same kernel runs repeatedly, as in a benchmark, so that each launch starts while the one before ends.
    # Among other kernels a product takes about a tenth longer.
    is_alone: bool = False

    @property
    def is_launched(self) -> bool:
        """False for a matrix product, convolution or attention whose result is empty."""
        return self.written_bytes > 0 or not isinstance(self.sizes, (Product, Convolution, Attention))

    @property
    def launches(self) -> int:
        """How many kernels the CPU launches: one, or for each group a kernel and its conversions."""
        sizes = self.sizes
        if self.family == "decomposition" and isinstance(sizes, Rows):  # for all matrices, or for each
            of_all = all_constants("aten_2", "launches.decomposition").get(self.variant, 1)
            return int(of_all + all_constants("aten_2", "launches.matrix").get(self.variant, 0) * sizes.rows)
        if not isinstance(sizes, Convolution) or not sizes.is_looped:
            return 1
        is_pointwise = prod(sizes.filter) == 1
        if self.variant == DIRECT or (is_pointwise and self.dtype == "float32"):
            return sizes.groups
        return sizes.groups * (3 if is_pointwise or sizes.channels_last else 4)


def bytes_of(dtype: str) -> float:
    """Bytes of an element; 4 for names that are no element types, such as TF32."""
    return DTYPES[dtype].bits / 8 if dtype in DTYPES else 4
