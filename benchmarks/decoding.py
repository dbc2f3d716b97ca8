"""Steps of decoders that make one token, on this machine's GPU, as CUDA graphs: measured and predicted.

    python -m benchmarks.decoding [--device h200]

Layers of published sizes at several batches and lengths of the cache: heads that are shared or repeated, caches that are
joined or written in place, masks, weights k x n, experts. Nothing that is fitted comes from these programs: the constants
of a device are fitted on single kernels of other sizes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphflops import analyze


class Cell(NamedTuple):
    """A step of a decoder: its layers, its element type, tokens at once, and tokens that the cache holds."""

    name: str
    decoder: type[nn.Module]
    sizes: dict[str, Any]
    dtype: str
    batch: int
    length: int


class Llama(nn.Module):
    """A layer with rotated positions. cache: joined, or written in place; repeats: heads are copied for their queries."""

    def __init__(self, hidden: int, heads: int, kv: int, head: int, mlp: int, cache: str) -> None:
        super().__init__()
        self.heads, self.kv, self.head, self.cache = heads, kv, head, cache
        self.q = nn.Linear(hidden, heads * head, bias=False)
        self.k, self.v = (nn.Linear(hidden, kv * head, bias=False) for _ in range(2))
        self.o = nn.Linear(heads * head, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, hidden, bias=False)
        self.scale = nn.Parameter(torch.ones(hidden))

    def norm(self, x: Tensor) -> Tensor:
        """The norm as transformers spells it."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.scale * wide.to(x.dtype)

    def rotated(self, x: Tensor, angle: Tensor) -> Tensor:
        """Positions, rotated in."""
        first, second = x.chunk(2, -1)
        return x * angle + torch.cat((-second, first), -1) * angle

    def forward(
        self, x: Tensor, angle: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's result, and its keys and values with those of the new token."""
        batch, y = x.shape[0], self.norm(x)
        q, k, v = (f(y).view(batch, 1, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.rotated(q, angle), self.rotated(k, angle)
        if self.cache == "static":
            keys[:, :, -1:], values[:, :, -1:] = k, v
        else:
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        k, v = keys, values
        is_shared = self.heads != self.kv
        if self.cache == "repeated" and is_shared:
            shape = (batch, self.kv, self.heads // self.kv, k.shape[2], self.head)
            k, v = (each[:, :, None].expand(shape).flatten(1, 2) for each in (k, v))
            is_shared = False
        a = functional.scaled_dot_product_attention(q, k, v, enable_gqa=is_shared)
        x = x + self.o(a.transpose(1, 2).reshape(batch, 1, -1))
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), keys, values


class Columns(nn.Module):
    """A linear layer whose weight is k x n, as that of GPT-2."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(rows, columns)), nn.Parameter(torch.empty(columns))

    def forward(self, x: Tensor) -> Tensor:
        """The product and the bias."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Gpt(nn.Module):
    """A layer with layer norms, a mask, and a feed-forward layer or all of a number of experts."""

    def __init__(self, hidden: int, heads: int, experts: int = 0) -> None:
        super().__init__()
        self.heads, self.experts = heads, experts
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.o = Columns(3 * hidden, hidden), Columns(hidden, hidden)
        if experts:
            self.router = nn.Linear(hidden, experts)
            self.rise = nn.Parameter(torch.empty(experts, hidden, 2 * hidden))
            self.fall = nn.Parameter(torch.empty(experts, 2 * hidden, hidden))
        else:
            self.rise, self.fall = Columns(4 * hidden, hidden), Columns(hidden, 4 * hidden)

    def forward(self, x: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's result, and its keys and values with those of the new token."""
        batch, _, width = x.shape
        parts = self.qkv(self.first(x)).split(width, 2)
        q, k, v = (each.view(batch, 1, self.heads, -1).transpose(1, 2) for each in parts)
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        a = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(a.transpose(1, 2).reshape(batch, 1, width))
        y = self.second(x)
        if not self.experts:
            return x + self.fall(functional.gelu(self.rise(y), approximate="tanh")), k, v
        share = self.router(y).softmax(-1).view(batch, self.experts)
        every = torch.bmm(y.view(1, batch, width).expand(self.experts, -1, -1), self.rise)
        every = torch.bmm(functional.gelu(every), self.fall)
        return x + (every * share.t()[:, :, None]).sum(0).view(batch, 1, width), k, v


class Decoder(nn.Module):
    """An embedding, layers and a head."""

    def __init__(
        self, layer: type[nn.Module], layers: int, hidden: int, vocabulary: int, **sizes: Any
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(layer(hidden, **sizes) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, ids: Tensor, extra: Tensor, caches: list[tuple[Tensor, Tensor]]) -> tuple[Any, ...]:
        """The scores of the next token, and the caches."""
        x, kept = self.embedding(ids), []
        for layer, (keys, values) in zip(self.layers, caches, strict=True):
            x, keys, values = layer(x, extra, keys, values)
            kept += [keys, values]
        return self.head(x), *kept


def _llama(name: str, cache: str, cells: list[tuple[int, int]], dtype: str = "bfloat16") -> list[Cell]:
    hidden, heads, kv, head, mlp, vocabulary = LLAMAS[name]
    sizes = {"layers": 4, "hidden": hidden, "vocabulary": vocabulary, "heads": heads, "kv": kv}
    sizes |= {"head": head, "mlp": mlp, "cache": cache}
    return [Cell(f"{name}, {cache}", Llama, sizes, dtype, batch, length) for batch, length in cells]


def _gpt(name: str, dtype: str, cells: list[tuple[int, int]], **sizes: int) -> list[Cell]:
    return [Cell(name, Gpt, dict(layers=4, **sizes), dtype, batch, length) for batch, length in cells]


LLAMAS = {  # hidden, heads, their keys and values, width of a head, of the feed-forward layer, vocabulary
    "8B": (4096, 32, 8, 128, 14336, 128256),
    "7B": (3584, 28, 4, 128, 18944, 152064),
    "1B": (2048, 32, 8, 64, 8192, 128256),
    "7B without shared heads": (4096, 32, 32, 128, 11008, 32000),
    "9B, wide heads": (3584, 16, 8, 256, 14336, 256000),
    "14B": (5120, 40, 10, 128, 13824, 100352),
    "0.5B": (896, 14, 2, 64, 4864, 151936),
}
CELLS = [
    *_llama(
        "8B", "repeated", [(1, 1024), (2, 1024), (4, 1024), (8, 1024), (16, 1024), (64, 1024), (128, 512)]
    ),
    *_llama("8B", "repeated", [(1, 65535), (8, 8191)]),
    *_llama("7B", "joined", [(1, 1024), (16, 1024), (4, 4095), (32, 2047)]),
    *_llama("1B", "static", [(1, 1024), (8, 1024), (32, 4096)]),
    *_llama("7B without shared heads", "joined", [(1, 511), (4, 2048), (16, 1024)], "float16"),
    *_llama("9B, wide heads", "repeated", [(1, 1024), (8, 4095)]),
    *_llama("14B", "joined", [(1, 3000), (6, 300), (24, 3000), (96, 1500)]),
    *_llama("14B", "static", [(2, 6000)]),
    *_llama("0.5B", "repeated", [(1, 700), (10, 5000)]),
    *_llama("1B", "repeated", [(1, 1024), (8, 1024)], "float32"),
    *_gpt("GPT-2", "bfloat16", [(1, 299), (6, 1023), (48, 511)], hidden=768, heads=12, vocabulary=50257),
    *_gpt("GPT-2", "float32", [(1, 500), (6, 1023)], hidden=768, heads=12, vocabulary=50257),
    *_gpt("GPT-2 XL", "float16", [(1, 999), (12, 2047)], hidden=1600, heads=25, vocabulary=50257),
    *_gpt(
        "16 experts", "bfloat16", [(1, 1000), (8, 3000)], hidden=2048, heads=16, vocabulary=32000, experts=16
    ),
]


def made(cell: Cell, device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """The decoder of a cell with random weights, and what its step takes."""
    torch.set_default_dtype(getattr(torch, cell.dtype))
    sizes, batch = cell.sizes, cell.batch
    with torch.device(device):
        model = Decoder(cell.decoder, **sizes).eval()
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.02)
        kv, head = sizes.get("kv", sizes["heads"]), sizes.get("head", sizes["hidden"] // sizes["heads"])
        extra = torch.zeros(batch, 1, 1, cell.length + 1 if cell.decoder is Gpt else head)
        cache = (batch, kv, cell.length, head)
        caches = [(torch.randn(cache), torch.randn(cache)) for _ in range(sizes["layers"])]
        args = (torch.zeros(batch, 1, dtype=torch.int64), extra, caches)
    torch.set_default_dtype(torch.float32)
    return model, args


def measured(model: nn.Module, args: tuple[Any, ...], times: int = 30) -> float:
    """Seconds of a step as a CUDA graph, the median of several."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(2):
            model(*args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        model(*args)
    for _ in range(10):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    pairs = pairwise(events)
    return statistics.median(before.elapsed_time(after) for before, after in pairs) / 1e3


def predicted(cell: Cell, device: str) -> Any:
    """The predicted time of a step, from the program that is exported without memory."""
    model, args = made(cell, "meta")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pt2"
        torch.export.save(torch.export.export(model, args), path)
        return analyze(path, device=device, execution="graph").totals.time


def main() -> None:
    """Measure and predict every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="h200", help="whose profile predicts")
    device = parser.parse_args().device
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, predicted for {device}")
    print(f"\n{'decoder':34}{'type':10}{'batch':>6}{'cache':>7}{'measured':>11}{'predicted':>11}{'error':>7}")
    errors, inside = [], 0
    for cell in CELLS:
        model, args = made(cell, "cuda")
        seconds = measured(model, args)
        del model, args
        torch.cuda.empty_cache()
        time = predicted(cell, device)
        error = time.seconds / seconds - 1
        errors.append(abs(error))
        inside += time.low <= seconds <= time.high
        row = f"{cell.name:34}{cell.dtype:10}{cell.batch:6}{cell.length:7}"
        print(f"{row}{seconds * 1e3:8.3f} ms{time.seconds * 1e3:8.3f} ms{100 * error:+6.0f}%", flush=True)
    print(f"\n{len(errors)} steps: mean {100 * statistics.mean(errors):.1f} %, ", end="")
    print(f"median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.0f} %, ", end="")
    print(f"{inside} within the 90 % interval")


if __name__ == "__main__":
    main()
