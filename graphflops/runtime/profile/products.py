"""Products, attention and convolutions to measure, in sizes, layouts and alignments that models use; also gradients."""

from collections.abc import Iterator
from functools import partial
from math import prod
from random import Random

import torch

from graphflops.base.record import replace
from graphflops.kernels.kernel import Attention, AttentionKernel, Convolution, Kernel, Pass, Product
from graphflops.runtime.profile.trial import Calls, Clock, Trial, random, spread

# By element type, numbers of products: as `linear` runs them, with odd sizes, in each other layout, and batched.
_COUNTS = {
    "cuda": {
        "bfloat16": (170, 40, 25, 40), "float32": (70, 20, 15, 30), "float16": (30, 8, 0, 6),
        "float8_e4m3fn": (50, 0, 0, 0), "int8": (20, 0, 0, 0),
    },
    "cpu": {"float32": (90, 10, 15, 40), "bfloat16": (45, 0, 8, 20)},
}  # fmt: skip
_MOST_FLOPS = {"cuda": 4e12, "cpu": 2e10}
_MOST_BYTES = {"cuda": 2e9, "cpu": 2e8}


def products(clock: Clock) -> Iterator[Trial]:
    """Products in every element type that the device may have."""
    for dtype, counts in _COUNTS[clock.device].items():
        kind = getattr(torch, dtype)
        for sizes in _sizes(dtype, counts):
            m, n, k, batch = sizes.m, sizes.n, sizes.k, sizes.batch
            read, written = batch * k * (m + n), batch * m * n
            moved = read * kind.itemsize, written * (4 if dtype == "int8" else max(2, kind.itemsize))
            flops = 2 * batch * m * n * k
            alone = replace(sizes, is_alone=clock.device == "cuda")
            kernel = Kernel("matmul", dtype, flops, 0, *moved, alone)
            if flops <= _MOST_FLOPS[clock.device] * (0.1 if dtype == "float32" else 1):
                yield Trial(kernel, partial(_prepare, kind, sizes, clock))


def _sizes(dtype: str, counts: tuple[int, int, int, int]) -> Iterator[Product]:
    aligned, odd, other, batched = counts
    for m, n, k in spread(aligned, (1, 40000), (4, 6000), (4, 2500)):
        is_whole = dtype in ("float8_e4m3fn", "int8")
        yield Product(-(-max(m, 32) // 16) * 16 if is_whole else m, 16 * n, 16 * k)
    for m, n, k in spread(odd, (8, 8000), (50, 30000), (50, 8000)):
        yield Product(m, n, k if n % 2 else -(-k // 8) * 8)
    for layout in ("nn", "nt"):
        for m, n, k in spread(other, (8, 3000), (8, 1500), (8, 1500)):
            yield Product(8 * m, 8 * n, 8 * k, layout=layout)
    for batch, m, n, k in spread(batched, (4, 1024), (1, 2048), (16, 2048), (16, 1024)):
        yield Product(m, 8 * (n // 8), 8 * (k // 8), batch, "tn" if (m + n) % 2 else "nn")


def _prepare(kind: torch.dtype, sizes: Product, clock: Clock) -> Calls:
    m, n, k = sizes.m, sizes.n, sizes.k
    lead = (sizes.batch,) if sizes.batch > 1 else ()
    weight_bytes = sizes.batch * n * k * kind.itemsize
    if weight_bytes + sizes.batch * m * (n + k) * kind.itemsize > _MOST_BYTES[clock.device]:
        return ()

    def matrix(rows: int, columns: int, is_row_major: bool) -> torch.Tensor:
        if is_row_major:
            return random((*lead, rows, columns), kind, clock.device)
        return random((*lead, columns, rows), kind, clock.device).transpose(-1, -2)

    a = matrix(m, k, sizes.layout != "nt")
    weights = [matrix(k, n, sizes.layout != "tn") for _ in range(clock.sets(weight_bytes))]
    if kind != torch.float8_e4m3fn:
        multiply = torch._int_mm if kind == torch.int8 else torch.matmul
        return [partial(multiply, a, weight) for weight in weights]
    ones = [torch.ones((), device=a.device)] * 2
    return [partial(torch._scaled_mm, a, weight, *ones, out_dtype=torch.bfloat16) for weight in weights]


# Kernel, element type, forward and backward calls. A CPU's only kernel has the name of a GPU's for the element type.
_ATTENTION_COUNTS: dict[str, tuple[tuple[AttentionKernel, str, int, int], ...]] = {
    "cuda": (
        ("flash", "bfloat16", 90, 40), ("efficient", "float32", 40, 20), ("efficient", "bfloat16", 30, 10),
        ("cudnn", "bfloat16", 40, 20),
    ),
    "cpu": (("efficient", "float32", 70, 0), ("cudnn", "bfloat16", 30, 0)),
}  # fmt: skip
_MOST_ATTENTION_FLOPS = {"cuda": 1.5e12, "cpu": 1e10}
_MOST_SCORES = 2**31
_ATTENTION_BATCHES = {"cuda": (1, 2, 4, 8, 16, 32, 64, 256), "cpu": (1, 1, 2, 4)}


def attentions(clock: Clock) -> Iterator[Trial]:
    """Attention by every kernel that torch has on a GPU, and by the one that it has on a CPU."""
    batches = _ATTENTION_BATCHES[clock.device]
    for kernel, dtype, forward, backward in _ATTENTION_COUNTS[clock.device]:
        chance = Random(kernel + dtype)
        for index in range(forward + backward):
            sizes = _attention_sizes(chance, kernel, index >= forward, batches)
            kind, rows = getattr(torch, dtype), sizes.batch * sizes.width
            queries = rows * sizes.heads * sizes.queries * kind.itemsize
            keys = 2 * rows * sizes.kv_heads * sizes.keys * kind.itemsize
            flops = int(4 * rows * sizes.heads * sizes.queries * sizes.keys * sizes.computed)
            work = (flops, 0, queries + keys, queries)
            if sizes.phase == "backward":
                work = (flops * 5 // 2, 0, 3 * queries + keys, queries + keys)
            if work[0] < _MOST_ATTENTION_FLOPS[clock.device] * (0.2 if dtype == "float32" else 1):
                calls = partial(_attention_calls, kind, sizes, clock.device)
                yield Trial(Kernel("attention", dtype, *work, sizes), calls)


def _attention_sizes(
    chance: Random, kernel: AttentionKernel, is_backward: bool, batches: tuple[int, ...]
) -> Attention:
    batch, heads = chance.choice(batches), chance.choice((4, 8, 12, 16, 32, 48))
    width = chance.choice((32, 64, 64, 64, 80, 128, 128))
    keys = chance.choice((32, 49, 77, 128, 197, 256, 512, 577, 1024, 1500, 2048, 4096, 8192))
    is_flash = kernel == "flash" and not is_backward
    shapes = ("self", "self", "causal", "decode") if is_flash else ("self", "causal")
    shape = chance.choice(shapes)
    if shape == "decode":
        keys *= chance.choice((1, 4))
    queries = 1 if shape == "decode" else keys
    batch = max(1, min(batch, _MOST_SCORES // (heads * queries * keys), 2**29 // (heads * keys * width)))
    shared = chance.choice((1, 1, 4)) if is_flash else 1
    computed = 0.5 * (1 + 1 / queries) if shape == "causal" else 1.0
    phase: Pass = "backward" if is_backward else "forward"
    return Attention(batch, heads, heads // shared, queries, keys, width, computed, kernel, phase)


def _attention_calls(kind: torch.dtype, sizes: Attention, device: str) -> Calls:
    is_causal, of_flash = sizes.computed < 1, sizes.kernel == "flash"
    q = random((sizes.batch, sizes.queries, sizes.heads, sizes.width), kind, device).transpose(1, 2)
    shape = (sizes.batch, sizes.keys, sizes.kv_heads, sizes.width)
    k, v = (random(shape, kind, device).transpose(1, 2) for _ in range(2))
    if device == "cpu":
        return [partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, is_causal=is_causal)]
    name = f"_scaled_dot_product_{sizes.kernel}_attention"
    bias = () if of_flash else (None, sizes.phase == "backward")
    forward = partial(getattr(torch.ops.aten, name), q, k, v, *bias, 0.0, is_causal)
    if sizes.phase == "forward":
        return [forward]
    saved = forward()
    inputs = random(saved[0].shape, kind, device), q, k, v
    backward = partial(getattr(torch.ops.aten, f"{name}_backward"), *inputs)
    if sizes.kernel == "efficient":
        return [partial(backward, None, *saved, 0.0, [True, True, True, False], is_causal)]
    out, lse, *lengths, seed, offset = saved[:8]
    if of_flash:
        return [partial(backward, out, lse, *lengths, 0.0, is_causal, seed, offset)]
    return [partial(backward, out, lse, seed, offset, None, *lengths, 0.0, is_causal)]


# By element type: numbers of forward calls, and of gradients of each operand.
_CONVOLUTION_COUNTS = {
    "cuda": {"bfloat16": (150, 40), "float32": (90, 20)},
    "cpu": {"float32": (120, 0), "bfloat16": (30, 0)},
}
_MOST_CONVOLUTION_FLOPS = {"cuda": 2e12, "cpu": 5e9}
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
# Sides of images, and their channels, as at the stages of networks.
_IMAGES = (
    (7, 512), (14, 256), (14, 512), (28, 128), (28, 256), (56, 64), (56, 128), (112, 32), (112, 64), (64, 320),
)  # fmt: skip


def convolutions(clock: Clock) -> Iterator[Trial]:
    """Convolutions in every element type, and gradients of some of them."""
    for dtype, (forward, backward) in _CONVOLUTION_COUNTS[clock.device].items():
        chance = Random(dtype)
        for index in range(forward + 2 * backward):
            phase: Pass = "forward"
            if index >= forward:
                phase = "input_gradient" if index % 2 else "weight_gradient"
            sizes, stride = _convolution_sizes(chance, phase, clock.device)
            kind, taps = getattr(torch, dtype), sizes.channels // sizes.groups * prod(sizes.filter)
            image = sizes.batch * sizes.channels * prod(sizes.image)
            result, weight = sizes.batch * sizes.filters * prod(sizes.result), sizes.filters * taps
            read, written = {
                "input_gradient": (result + weight, image),
                "weight_gradient": (result + image, weight),
            }.get(phase, (image + weight, result))
            moved, flops = (read * kind.itemsize, written * kind.itemsize), 2 * result * taps
            if flops <= _MOST_CONVOLUTION_FLOPS[clock.device]:
                kernel = Kernel("convolution", dtype, flops, 0, *moved, sizes)
                yield Trial(kernel, partial(_convolution_calls, kind, sizes, stride, clock))


def _convolution_sizes(chance: Random, phase: Pass, device: str) -> tuple[Convolution, int]:
    """One convolution of a kind that models use, and its stride."""
    batch = chance.choice(_BATCHES if device == "cuda" else _BATCHES[:4])
    kinds = ("pointwise", "dense", "grouped", "stem", "sequence", "volume")
    kind, rank, stride, groups = chance.choices(kinds, (6, 8, 5, 2, 2, 1))[0], 2, 1, 1
    if kind in kinds[:3]:
        side, channels = chance.choice(_IMAGES)
    match kind:
        case "pointwise":
            channels *= chance.choice((1, 1, 2, 3))
            filters, width = chance.choice((channels, 2 * channels, 4 * channels, channels // 4)), 1
        case "dense":
            filters, width = chance.choice((channels, channels, 2 * channels)), chance.choice((3, 3, 3, 5))
            stride = chance.choice((1, 1, 2))
        case "grouped":
            groups, filters = chance.choice((channels, channels, channels, channels, 32)), channels
            width, stride = chance.choice((3, 3, 5, 7)), chance.choice((1, 1, 2))
        case "stem":
            width, side, channels = chance.choice((3, 7, 4, 16)), 224, 3
            filters, stride = chance.choice((32, 64, 96, 768)), width if width % 2 == 0 else 2
        case "sequence":
            rank, channels = 1, chance.choice((64, 384, 768))
            groups, filters = channels if chance.random() < 0.3 else 1, channels
            side, width = chance.choice((256, 1500, 3000, 16000)), chance.choice((1, 3, 7))
        case "volume":
            rank, channels, width = 3, chance.choice((32, 64, 128)), 3
            side, filters = chance.choice((14, 28, 56)), channels
    pad = 0 if stride == width else width // 2
    result = (side + 2 * pad - width) // stride + 1
    is_last = chance.random() < 0.4 and rank > 1
    axes = ((side,) * rank, (result,) * rank, (width,) * rank)
    batch = min(batch, 8) if rank == 3 else batch
    is_patches = stride == width > 1
    sizes = Convolution(batch, channels, filters, *axes, groups, is_last, phase=phase, is_patches=is_patches)
    return sizes, stride


def _convolution_calls(kind: torch.dtype, sizes: Convolution, stride: int, clock: Clock) -> Calls:
    rank = len(sizes.image)
    layout = torch.contiguous_format
    if sizes.channels_last:
        layout = torch.channels_last if rank == 2 else torch.channels_last_3d

    def make(shape: tuple[int, ...]) -> torch.Tensor:
        return random(shape, kind, clock.device).to(memory_format=layout)

    image = make((sizes.batch, sizes.channels, *sizes.image))
    weight = make((sizes.filters, sizes.channels // sizes.groups, *sizes.filter))
    pad = 0 if stride == sizes.filter[0] else sizes.filter[0] // 2
    shape = ([stride] * rank, [pad] * rank, [1] * rank, False, [0] * rank, sizes.groups)
    if sizes.phase == "forward":
        return [partial(torch.ops.aten.convolution.default, image, weight, None, *shape)]
    gradient = make((sizes.batch, sizes.filters, *sizes.result))
    wanted = [sizes.phase == "input_gradient", sizes.phase == "weight_gradient", False]
    backward = torch.ops.aten.convolution_backward.default
    return [partial(backward, gradient, image, weight, None, *shape, wanted)]
