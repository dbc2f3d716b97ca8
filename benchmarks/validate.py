"""Validation of the samples and of a decoder with flexible attention: what the analysis says against what happens.

`python -m benchmarks.validate --device cuda` prints one line a program. The decoder shares each key head among four query
heads and takes turns with three masks: causal, a window of 1,024, and causal within documents.
"""

from __future__ import annotations

import argparse
import platform
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import graphflops
from graphflops.base.units import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphflops.runtime.validation import Validation

SAMPLES = Path(__file__).parent.parent / "samples"


class Layer(torch.nn.Module):
    """Attention with grouped heads under one mask, then two linear layers."""

    def __init__(self, width: int, heads: int, kv_heads: int, mask: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.each = heads, kv_heads, width // heads
        self.norm, self.second = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.q = torch.nn.Linear(width, width, bias=False)
        self.k, self.v = (torch.nn.Linear(width, kv_heads * self.each, bias=False) for _ in range(2))
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q = self.q(y).unflatten(-1, (self.heads, self.each)).transpose(1, 2)
        k, v = (f(y).unflatten(-1, (self.kv_heads, self.each)).transpose(1, 2) for f in (self.k, self.v))
        found = flex_attention(q, k, v, block_mask=self.mask, enable_gqa=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.silu(self.up(self.second(x))))


class Decoder(torch.nn.Module):
    """Four layers; the documents are of unequal lengths."""

    def __init__(self, length: int, device: torch.device, width: int = 1024, window: int = 1024) -> None:
        super().__init__()
        ends = torch.tensor([length // 7, length // 3, length // 2 + 5, length - 3])
        documents = torch.bucketize(torch.arange(length), ends, right=True).to(device)
        masks = (
            lambda b, h, i, j: i >= j,
            lambda b, h, i, j: (i >= j) & (i - j < window),
            lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]),
            lambda b, h, i, j: i >= j,
        )
        blocks = [create_block_mask(mask, None, None, length, length, device=str(device)) for mask in masks]
        self.embedding = torch.nn.Embedding(32_000, width)
        self.layers = torch.nn.ModuleList(Layer(width, 16, 4, mask) for mask in blocks)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def programs(
    device: torch.device, length: int, repeats: int
) -> Iterator[tuple[str, Callable[[], Validation]]]:
    """Each program by name, and what validates it."""
    for path in sorted(SAMPLES.glob("*.pt2")):
        yield path.name, lambda path=path: graphflops.validate(path, device=str(device), repeats=repeats)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    yield (
        f"decoder, {length} places",
        lambda: graphflops.validate(_decoder(device, dtype, length), device=str(device), repeats=repeats),
    )


def _decoder(device: torch.device, dtype: torch.dtype, length: int) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    model = (
        Decoder(length, device, width=1024 if length > 1000 else 256)
        .to(device, dtype)
        .eval()
        .requires_grad_(False)
    )
    return graphflops.capture(model, (torch.zeros(1, length, dtype=torch.int64, device=device),))


def line(name: str, found: Validation) -> str:
    """What happened, in one line."""
    checks = [check for node in found.nodes for check in node.checks]
    kinds = []
    for what in ("type", "flops", "tiles", "visible"):
        of = [check for check in checks if check.what == what]
        kinds.append(f"{sum(check.verdict == 'equal' for check in of)}/{len(of)}")
    verdicts = " ".join(f"{found.verdicts[v]:5}" for v in ("equal", "explained", "different", "not executed"))
    peak = (
        ""
        if not found.peak_bytes or not found.predicted_peak_bytes
        else f"{found.peak_bytes / found.predicted_peak_bytes:.2f}"
    )
    seconds = "" if found.seconds is None else f"{1e3 * found.seconds:.2f}"
    cells = "  ".join(f"{kind:>9}" for kind in kinds)
    return f"{name:24} {verdicts}   {cells}  {memory(found.peak_bytes or 0):>10} {peak:>5} {seconds:>8}"


def main() -> int:
    """Print the table; the exit code is 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    print(f"{name}, torch {torch.__version__.partition('+')[0]}, Python {platform.python_version()}")
    print(
        f"{'program':24} equal expl. diff. not r.       types      FLOPs      tiles    visible        peak /pred       ms"
    )
    holds = True
    for program, run in programs(device, options.length, options.repeats):
        found = run()
        holds = holds and found.holds
        print(line(program, found), flush=True)
        for node in found.nodes:
            if node.verdict not in ("equal", "not executed") or any(
                c.verdict == "not executed" for c in node.checks
            ):
                print(f"    {node.verdict}: {node.node} ({node.op}): {node.reason}")
    print("every count holds" if holds else "some counts differ")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
