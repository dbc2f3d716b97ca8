"""Matrix products to be measured: sizes, layouts and alignments that models use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from graphflops.kernels.kernel import Kernel, Product
from graphflops.runtime.profile.trial import Calls, Clock, Trial, random, spread

# By element type: products as `linear` runs them, the same with odd sizes, of other layouts (each), and batched.
_COUNTS = {
    "bfloat16": (170, 40, 25, 40), "float32": (70, 20, 15, 30), "float16": (30, 8, 0, 6),
    "float8_e4m3fn": (50, 0, 0, 0), "int8": (20, 0, 0, 0),
}  # fmt: skip
_CPU_COUNTS = {"float32": (90, 10, 15, 40), "bfloat16": (45, 0, 8, 20)}
_MOST_FLOPS = {"cuda": 4e12, "cpu": 2e10}
_MOST_BYTES = {"cuda": 2e9, "cpu": 2e8}


def products(clock: Clock) -> Iterator[Trial]:
    """Products in every element type that the device may have."""
    for dtype, counts in (_COUNTS if clock.device == "cuda" else _CPU_COUNTS).items():
        for sizes in _sizes(dtype, counts):
            trial = _trial(dtype, sizes, clock)
            if trial.kernel.flops <= _MOST_FLOPS[clock.device] * (0.1 if dtype == "float32" else 1):
                yield trial


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


def _trial(dtype: str, sizes: Product, clock: Clock) -> Trial:
    kind = getattr(torch, dtype)
    m, n, k, batch = sizes.m, sizes.n, sizes.k, sizes.batch
    written = batch * m * n * (4 if dtype == "int8" else max(2, kind.itemsize))
    kernel = Kernel(
        *("matmul", dtype, 2 * batch * m * n * k, 0),
        *(batch * k * (m + n) * kind.itemsize, written, sizes),
        is_alone=clock.device == "cuda",
    )
    return Trial(kernel, partial(_prepare, kind, sizes, clock))


def _prepare(kind: torch.dtype, sizes: Product, clock: Clock) -> Calls:
    m, n, k = sizes.m, sizes.n, sizes.k
    lead = (sizes.batch,) if sizes.batch > 1 else ()
    weight_bytes = sizes.batch * n * k * kind.itemsize
    if weight_bytes + sizes.batch * m * (n + k) * kind.itemsize > _MOST_BYTES[clock.device]:
        return ()
    a = _matrix(kind, lead, m, k, sizes.layout != "nt", clock.device)
    sets, is_row_major = clock.sets(weight_bytes), sizes.layout != "tn"
    weights = [_matrix(kind, lead, k, n, is_row_major, clock.device) for _ in range(sets)]
    return [_call(kind, a, weight) for weight in weights]


def _matrix(
    kind: torch.dtype, lead: tuple[int, ...], rows: int, columns: int, is_row_major: bool, device: str
) -> torch.Tensor:
    if is_row_major:
        return random((*lead, rows, columns), kind, device)
    return random((*lead, columns, rows), kind, device).transpose(-1, -2)


def _call(kind: torch.dtype, a: torch.Tensor, b: torch.Tensor) -> partial[torch.Tensor]:
    if kind == torch.float8_e4m3fn:
        one = torch.ones((), device=a.device)
        return partial(torch._scaled_mm, a, b, one, one, out_dtype=torch.bfloat16)
    if kind == torch.int8:
        return partial(torch._int_mm, a, b)
    return partial(torch.matmul, a, b)
