"""Public deployments of decoders on 1 to 8 GPUs beside the predicted time of a token.

    python -m benchmarks.serving [--rows] [MODEL ...]

Rows: benchmarks/measured/serving.csv. A step is the predicted time of its kernels in a CUDA graph, caches grow in place, and
prefills of new requests delay it as often as they come. The latency of an engine's own all-reduce was chosen on the rows of
Llama 3.1 8B under TensorRT-LLM, SGLang's own work for each request on those of Qwen3 32B on 4 GPUs; nothing else was fitted.
Prints the errors by engine and model, with --rows each deployment. What the first tokens of two tables say of their clients
(CLIENTS) is told to the plan; a star marks these rows, which are printed without it too.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphflops import serve
from graphflops.capturing.configurations import to_float8

ROWS = Path(__file__).parent / "measured" / "serving.csv"
# Layers, hidden size, heads, heads of keys, size of the MLP, vocabulary, size of a head.
MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": (32, 4096, 32, 8, 14336, 128_256, 128),
    "nvidia/Llama-3.1-8B-Instruct-FP8": (32, 4096, 32, 8, 14336, 128_256, 128),
    "meta-llama/Llama-3.1-70B": (80, 8192, 64, 8, 28672, 128_256, 128),
    "Qwen/Qwen3-32B": (64, 5120, 64, 8, 25600, 151_936, 128),
}
# First tokens of one are as late as those of requests that begin together, which half of all prefills come before. Those
# of the other come too soon for prompts of their own: three quarters in common were chosen on the 4 rows of 4 GPUs.
CLIENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("Qwen/Qwen3-32B", "sglang"): {"together": True},
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "vllm"): {"shared_prefix": 0.75},
}


class Layer(nn.Module):
    """A layer with grouped heads. Without caches it is causal; with them, it reads all of the cache."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, mlp: int, each: int) -> None:
        super().__init__()
        self.each = each
        self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q, self.o = (
            nn.Linear(hidden, heads * each, bias=False),
            nn.Linear(heads * each, hidden, bias=False),
        )
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
        self, layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, each: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, kv_heads, mlp, each) for _ in range(layers))
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
    folder: Path,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    mlp: int,
    vocabulary: int,
    each: int | None = None,
    is_float8: bool = False,
) -> tuple[Path, Path]:
    """Writes `step.pt2` and `prompt.pt2` in bfloat16, with open axes of requests and tokens; no weight is made."""
    open_ = torch.export.Dim.DYNAMIC
    each = each or hidden // heads
    with torch.device("meta"):
        model = Decoder(layers, hidden, heads, kv_heads, mlp, vocabulary, each).to(torch.bfloat16).eval()
        if is_float8:
            to_float8(model, [model.head])
        shape = (3, kv_heads, 1024, each)
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


def predicted(
    rows: list[dict[str, str]], programs: tuple[Path, Path], client: dict[str, Any]
) -> dict[tuple[int, int], float | None]:
    """Seconds of a token by input length and requests, None where they do not fit. rows: of one engine and device."""
    first = rows[0]
    plan = serve(
        programs[0],
        prefill=programs[1],
        device=first["system"].partition("_")[0],
        devices=int(first["gpus"]),
        batch=sorted({int(row["concurrency"]) for row in rows}),
        context=sorted({int(row["isl"]) for row in rows}),
        output_tokens=int(first["osl"]),
        engine=first["backend"],
        **client,
    )
    return {(cell.context, cell.batch): cell.each for cell in plan.cells}


def groups(*names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """The rows, by the values of some columns."""
    found = defaultdict(list)
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            found[tuple(row[name] for name in names)].append(row)
    return dict(sorted(found.items()))


def main() -> None:
    """Prints each deployment beside its prediction, and the errors by engine, model and number of GPUs."""
    listed, chosen = "--rows" in sys.argv, [each for each in sys.argv[1:] if each != "--rows"]
    errors: dict[tuple[str, ...], list[float]] = defaultdict(list)
    unfit = 0
    for (model, gemm), named in groups("model", "gemm").items():
        if chosen and model not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            programs = export(Path(folder), *MODELS[model], is_float8=gemm == "fp8")
            cases: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
            for row in named:
                cases[row["system"], row["backend"], row["gpus"], row["osl"]].append(row)
            for (system, engine, gpus, output), rows in sorted(cases.items()):
                told = CLIENTS.get((model, engine))
                for client, mark in [({}, ""), *([(told, "*")] if told else [])]:
                    times = predicted(rows, programs, client)
                    for row in rows:
                        seconds = times[int(row["isl"]), int(row["concurrency"])]
                        if seconds is None:
                            unfit += not mark
                            continue
                        error = seconds * 1e3 / float(row["tpot_ms"]) - 1
                        errors[engine + mark, model.split("/")[1], gemm, system[:4], gpus].append(error)
                        if listed:
                            case = f"{model} {gemm} {engine}{mark} {system[:4]} x{gpus}"
                            case += f" {row['isl']}+{output} {row['concurrency']}"
                            print(
                                f"{case:78} {float(row['tpot_ms']):8.2f} {seconds * 1e3:8.2f} {error:+7.1%}"
                            )
    print("engine   model                      products  device  GPUs  rows  median   mean error  worst")
    for (engine, name, gemm, system, gpus), found in sorted(errors.items()):
        middle, worst = statistics.median(map(abs, found)), max(map(abs, found))
        case = f"{engine:8} {name:26} {gemm:8}  {system:6}  {gpus:>4} {len(found):5}"
        print(f"{case}  {middle:6.1%}    {statistics.mean(found):+10.1%}  {worst:5.1%}")
    for engine in sorted({key[0] for key in errors}):
        found = [abs(error) for key, some in errors.items() if key[0] == engine for error in some]
        print(f"{engine}: {len(found)} deployments, median error {statistics.median(found):.1%}")
    print(f"{unfit} deployments do not fit, by the plan")


if __name__ == "__main__":
    main()
