"""One token at a time: products of few rows, attention of one query, and sums along few rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from graphflops import analyze
from graphflops.devices import complete, device
from graphflops.kernels.kernel import Kernel, Product, Rows, Strided
from graphflops.time.predict import predict
from graphflops.time.predict_traffic import in_turn, rows_of_thread
from tests.support import t
from tests.time.one_call import forward, launched

H200 = complete(device("h200"))


@pytest.mark.parametrize("dtype, width", [("bfloat16", 2), ("float16", 2)])
@pytest.mark.parametrize("n, k", [(14336, 4096), (4096, 14336), (128256, 4096)])
def test_a_few_rows_take_as_long_as_one(n: int, k: int, dtype: str, width: int) -> None:
    """As long as the weight takes to read, at 0.7 to 0.95 of the bandwidth."""
    times = []
    for m in (1, 2, 4, 8, 16, 32):
        moved = width * k * (m + n), width * m * n
        kernel = Kernel("matmul", dtype, 2 * m * n * k, 0, *moved, Product(m, n, k))
        times.append(predict(kernel, H200).seconds)
    least = width * n * k / H200.bandwidth
    assert least / 0.95 < min(times) < max(times) < least / 0.65
    assert max(times) < 1.1 * times[0]


# Rows and columns -> elements that one thread adds up: columns over the threads of a row, which are 512 over the rows of a
# block (a power of two, at most 16). From 16 for each of the block's warps on, these share the row too.
@pytest.mark.parametrize(
    "rows, columns, each",
    [
        (1, 4096, 4096 // 512),
        (2, 4096, 4096 // 256),
        (4, 4096, 4096 // 128),
        (8, 4096, 4096 // 64),
        (16, 4096, 4096 // 32),
        (128, 4096, 4096 // 32),
        (16, 8192, 8192 // 32 // 16),
        (128, 16384, 16384 // 32 // 16),
    ],
)
def test_what_a_thread_adds_up(rows: int, columns: int, each: int) -> None:
    assert in_turn(Rows(rows, columns)) == 32 * each


@pytest.mark.parametrize(
    ("channels", "rows", "each"),
    [
        (512, 65536, 65536 // (16 * 128)),  # 16 rows of 32 channels a block, at most 128 blocks
        (512, 16 * 16 * 8, 16),  # 8 blocks, whose threads have 16 rows each
        (512, 16 * 16 * 7, 7 * 16),  # 7 are too few: one block goes through all
        (8, 64 * 16 * 10, 16),  # 64 rows of 8 channels
        (8, 5, 5),
    ],
)
def test_rows_that_a_thread_goes_through(channels: int, rows: int, each: int) -> None:
    assert rows_of_thread(channels, rows) == each


class Step(nn.Module):
    """Attention of one query over a cache, whose heads are copied for the queries or shared."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.copies:
            k, v = (each[:, :, None].expand(8, 4, 4, 4096, 128).reshape(8, 16, 4096, 128) for each in (k, v))
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=not self.copies)


def test_copied_heads_are_read_whole(tmp_path: Path) -> None:
    half = {"dtype": torch.bfloat16, "device": "meta"}
    args = torch.zeros(8, 16, 1, 128, **half), *(torch.zeros(8, 4, 4096, 128, **half) for _ in range(2))
    seconds = {}
    for copies in (True, False):
        path = tmp_path / "step.pt2"
        torch.export.save(torch.export.export(Step(copies), args), path)
        rows = analyze(path, device="h200", execution="graph").rows
        (seconds[copies],) = (row.time.seconds for row in rows if row.time and row.time.kernel == "attention")
    shared = 2 * (8 * 4 * 4096 * 128) * 2  # bytes of keys and values
    assert shared / 4.8e12 < seconds[False] < 2 * shared / 4.8e12
    assert 4 * shared / 4.8e12 < seconds[True] < 2 * 4 * shared / 4.8e12


def test_repeated_heads_are_copied_as_an_expanded_tensor_is() -> None:
    (kernel,) = launched("aten.repeat_interleave.self_int", t(8, 4, 512, 128), 4, 1)
    assert kernel.sizes == Strided(8 * 4 * 4 * 512 * 128, 3, 2)  # batch and heads, repeats, and the rest


def test_what_is_put_into_a_cache_is_all_that_is_worked_on(tmp_path: Path) -> None:
    class Put(nn.Module):
        def forward(self, cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
            cache[:, :, at] = new
            return cache

    seconds = []
    for length in (64, 65536):
        with torch.device("meta"):  # a cache of 1 GB, which would be stored as an example
            args = (
                torch.zeros(8, 4, length, 128),
                torch.zeros(1, dtype=torch.int64),
                torch.zeros(8, 4, 1, 128),
            )
        torch.export.save(torch.export.export(Put(), args), tmp_path / "put.pt2")
        rows = analyze(tmp_path / "put.pt2", device="h200", execution="graph").rows
        seconds.append(sum(row.time.seconds for row in rows if row.time and "index_put" in row.op))
    assert seconds[0] == seconds[1] > 0


@pytest.mark.parametrize("tokens, read", [(1, 1.0), (2, 2 - 1 / 4)])
def test_as_many_experts_are_read_as_rows_fall_to_on_average(tokens: int, read: float) -> None:
    """Two rows fall to the same of four experts one time in four."""
    rows, weight = t(tokens, 64, dtype="bfloat16"), t(4, 64, 32, dtype="bfloat16")
    *_, kernel = forward("aten._grouped_mm.default", rows, weight, t(4, dtype="int32"))
    beside = 2 * tokens * 64 + 4 * 4  # the rows, and where groups end
    assert kernel.read_bytes == pytest.approx(beside + read * 2 * 64 * 32)


@pytest.mark.parametrize("length, variant", [(32, "warp"), (33, "block"), (4096, "block"), (4097, "radix")])
def test_short_rows_are_sorted_by_kernels_of_their_own(length: int, variant: str) -> None:
    *before, kernel = forward("aten.argsort.default", t(length, dtype="int64"))
    assert kernel.variant == variant
    # In place: values are copied, and places counted, repeated and copied.
    assert [each.written_bytes for each in before] == ([] if length > 4096 else [8 * length] * 4)


@pytest.mark.parametrize("n, k", [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)])
def test_up_to_a_tile_of_rows_none_takes_longer_than_more(n: int, k: int) -> None:
    times = []
    for m in (1, 2, 4, 8):
        kernel = Kernel("matmul", "bfloat16", 2 * m * n * k, 0, 2 * k * (m + n), 2 * m * n, Product(m, n, k))
        times.append(predict(kernel, H200).seconds)
    assert times == sorted(times)
