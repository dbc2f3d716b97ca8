"""One kernel as a device runs it: its work, its traffic and the sizes that decide how fast it is."""

from __future__ import annotations

from math import prod
from typing import Literal, Union

from msgspec import Struct

from graphflops.base.record import replace
from graphflops.tensor import DTYPES

# copy: layout conversions, casts and concatenations. transfer: copies from and to the host's memory. other: anything
# without a model of its own, timed by its traffic.
Family = Literal[
    "matmul", "convolution", "attention", "recurrence", "decomposition", "fft", "elementwise", "copy", "gather",
    "scatter", "random", "optimizer", "normalization", "softmax", "reduction", "pool", "scan", "sort", "collective",
    "transfer", "other",
]  # fmt: skip
# flash is torch's own kernel, flash3 that of the package flash-attn 3, for Hopper.
AttentionKernel = Literal["flash", "flash3", "efficient", "cudnn", "math"]
# grouped: each row is multiplied by one of several matrices. column: matrices by one column each. Of float32 with a bias:
# long, few blocks for a long sum; long_in_parts, whose parts are added up; tn, all others. int8, int8_across: kernels of
# older GPUs, by the layout of the weight. scaled_rows: each row has a scale of its own.
ProductAlgorithm = Literal[
    "", "grouped", "column", "long", "long_in_parts", "tn", "int8", "int8_across", "scaled_rows"
]
# one_by_one: each group is a kernel of its own; direct, long: one without matrix units, long for long windows of sequences.
# Other kernels without matrix units: scalar, a pointwise one; tiled, a product in tiles; line, cuDNN's depthwise one of
# sequences; shared, that of images whose tiles are in shared memory; grouped_direct, one for all groups;
# transposed, one_by_one with conversions by a slow kernel. few: fewer channels than tensor cores read at a time, channels
# last and not padded; few_scalar: the same without tensor cores.
_OfGroups = Literal["one_by_one", "transposed", "direct", "grouped_direct", "long"]
ConvolutionAlgorithm = Union[
    _OfGroups, Literal["", "scalar", "tiled", "line", "shared", "per_channel", "few", "few_scalar"]
]
# masked: a tensor is added to the scores; row: one row for all queries; uneven: its rows are not aligned. dropout: weights
# are dropped at random.
Masking = Literal["", "masked", "row", "uneven", "dropout", "masked_dropout"]
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
    algorithm: ProductAlgorithm = ""  # "" if the other sizes decide it
    # Whether the same kernel runs repeatedly, as in a benchmark, with operands from memory: each launch starts while the one
    # before ends. Among other kernels a product takes about a tenth longer.
    is_alone: bool = False

    @property
    def for_a(self) -> Product:
        """The product that computes the gradient of the first factor: grad x b^T."""
        return replace(self, n=self.k, k=self.n, layout="nn" if self.layout == "tn" else "tn")

    @property
    def for_b(self) -> Product:
        """The product that computes the gradient of the second factor: a^T x grad."""
        return replace(self, m=self.n, n=self.k, k=self.m, layout="nt")


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
    masking: Masking = ""


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
    algorithm: ConvolutionAlgorithm = ""  # "" for one kernel on matrix units
    phase: Pass = "forward"
    is_patches: bool = False  # windows of several positions that neither overlap nor reach into padding
    is_dilated: bool = False  # the positions of a window lie apart

    @property
    def product(self) -> Product:
        """The product of pixels and filters that it is if windows are single positions, and channels lie innermost."""
        product = Product(self.batch * prod(self.result), self.filters, self.channels)
        return {"input_gradient": product.for_a, "weight_gradient": product.for_b}.get(self.phase, product)


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


class Windows(Struct, frozen=True):
    """A pooling: the results, and the positions in each one's window. In a gradient, the results are operand elements."""

    results: int
    positions: float


class Transfer(Struct, frozen=True):
    """A copy from or to the host's memory. is_pinned: whether the bus reads and writes that memory itself."""

    to_host: bool
    is_pinned: bool = False


Sizes = Union[Product, Attention, Convolution, Rows, Recurrence, Exchange, Chunks, Strided, Windows, Transfer]


class Kernel(Struct, frozen=True):
    """One kernel launch."""

    family: Family
    dtype: str  # element type of the matrix product, or of the largest operand
    flops: int = 0  # multiply-adds on matrix units, each 2 FLOPs
    vector_flops: int = 0  # other arithmetic; a transcendental counts as one
    read_bytes: int = 0
    written_bytes: int = 0
    sizes: Sizes | None = None
    # The kernel's name among those of its family that their sizes do not tell apart: the function of a library, "strided" if
    # it computes an address for each element, "outer" if rows are not contiguous, "fused" if torch.compile generated it.
    variant: str = ""
    launches: int = 1  # how many kernels the CPU launches for it: those of each group, or of each matrix

    @property
    def is_launched(self) -> bool:
        """False for a matrix product, convolution or attention whose result is empty."""
        return self.written_bytes > 0 or not isinstance(self.sizes, (Product, Convolution, Attention))


def bytes_of(dtype: str) -> float:
    """Bytes of an element; 4 for names that are no element types, such as TF32."""
    return DTYPES[dtype].bits / 8 if dtype in DTYPES else 4
