"""Public deployments of Llama 3.1 8B on one GPU beside the predicted time of a token.

    python -m benchmarks.serving

Rows: benchmarks/measured/serving_llama_3.1_8b.csv. Nothing in graphflops was fitted to them: a step is the predicted time of
its kernels in a CUDA graph, caches grow in place, and prefills of new requests delay it as often as they come.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphflops import serve

ROWS = Path(__file__).parent / "measured" / "serving_llama_3.1_8b.csv"
_DEVICES = {"h100_sxm": "h100", "h200_sxm": "h200"}


class Layer(nn.Module):
    """A layer with grouped heads. Without caches it is causal; with them, it reads all of the cache."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, mlp: int) -> None:
        super().__init__()
        self.each = hidden // heads
        self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(hidden, kv_heads * self.each, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, hidden, bias=False)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """The result, and the keys and values with the new ones."""
        y = self.first(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.each)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), k, v


class Decoder(nn.Module):
    """Token ids and, in a step, the caches of the layers -> logits of the last token, and the caches."""

    def __init__(
        self, layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, mlp) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)

    def forward(
        self, ids: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """One program for the prompt, and one for a step."""
        x, made = self.embedding(ids), []
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x, k, v = layer(x, cache)
            made.append((k, v))
        return self.head(self.norm(x[:, -1])), made


def export(
    folder: Path, layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocabulary: int
) -> tuple[Path, Path]:
    """Writes `step.pt2` and `prompt.pt2` in bfloat16, with open axes of requests and tokens; no weight is made."""
    open_ = torch.export.Dim.DYNAMIC
    with torch.device("meta"):
        model = Decoder(layers, hidden, heads, kv_heads, mlp, vocabulary).to(torch.bfloat16).eval()
        shape = (3, kv_heads, 1024, hidden // heads)
        caches = [tuple(torch.zeros(shape, dtype=torch.bfloat16) for _ in range(2)) for _ in range(layers)]
        prompt, token = (torch.zeros(3, tokens, dtype=torch.int64) for tokens in (64, 1))
    axes = {0: open_, 2: open_}
    step = torch.export.export(
        model, (token, caches), dynamic_shapes=({0: open_}, [(axes, axes) for _ in range(layers)])
    )
    first = torch.export.export(model, (prompt,), dynamic_shapes=({0: open_, 1: open_},))
    paths = folder / "step.pt2", folder / "prompt.pt2"
    for path, program in zip(paths, (step, first), strict=True):
        torch.export.save(program, path)
    return paths


def main() -> None:
    """Prints each deployment beside its prediction, and the median error by engine."""
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        step, prompt = export(Path(folder), 32, 4096, 32, 8, 14336, 128_256)
        print("engine   device  input  output  requests  measured ms  predicted ms   error")
        with ROWS.open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            tokens, output, batch = (int(row[name]) for name in ("isl", "osl", "concurrency"))
            plan = serve(
                step,
                device=_DEVICES[row["system"]],
                prefill=prompt,
                batch=[batch],
                context=[tokens],
                output_tokens=output,
                engine=row["backend"],
            )
            (cell,) = plan.cells
            if cell.each is None:
                print(
                    f"{row['backend']:8} {row['system'][:4]:6} {tokens:6} {output:7} {batch:9}  does not fit"
                )
                continue
            error = cell.each * 1e3 / float(row["tpot_ms"]) - 1
            errors.setdefault(row["backend"], []).append(error)
            print(
                f"{row['backend']:8} {row['system'][:4]:6} {tokens:6} {output:7} {batch:9}"
                f"  {float(row['tpot_ms']):11.2f}  {cell.each * 1e3:12.2f}  {error:+6.1%}"
            )
    for engine, found in errors.items():
        middle = statistics.median(abs(error) for error in found)
        print(
            f"{engine}: {len(found)} deployments, median error {middle:.1%}, worst {max(map(abs, found)):.1%}"
        )


if __name__ == "__main__":
    main()
