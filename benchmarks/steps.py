"""Steps and prompts of decoders that are spelled in several ways, as CUDA graphs: measured and predicted.

    python -m benchmarks.steps [--device h100]       # predicts what benchmarks/measured/h200_steps.csv has; no GPU
    python -m benchmarks.steps --measure steps.csv   # measures on this machine's GPU, with torch alone

Heads that are shared, expanded or interleaved; caches that are joined, sliced, indexed or masked; norms of one kernel or
spelled; experts, windows, states, an encoder. Constants of h200.json were fitted to kernels of the decoders marked `fit`
and to single products at many sizes, some of them those of judged decoders. Constants of grouped products and of
matrix-vector ones were set by hand, with kernels of a judged mixture of experts and of a judged encoder and decoder in view.
No constant was fitted to a step of an H100; what a bias costs a product of few rows was measured there alone.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.decoding import measured

MEASURED = {name: Path(__file__).parent / "measured" / f"{name}_steps.csv" for name in ("h200", "h100")}


class Sizes(NamedTuple):
    """A decoder. cache: joined, slice, index (index_copy) or put; share: gqa, expand or interleave; mixed: one layer of so
    many attends, the others keep a state; cross: places of an encoder.
    """

    layers: int
    hidden: int
    heads: int
    kv: int
    head: int
    mlp: int
    vocabulary: int
    cache: str = "joined"
    share: str = "gqa"
    norm: str = "fused"
    bias: bool = False
    head_norms: bool = False
    merged: bool = False
    mask: str = ""
    window: int = 0
    experts: int = 0
    top: int = 0
    cross: int = 0
    gelu: bool = False
    mixed: int = 0


class Norm(nn.Module):
    """A norm of one kernel, or a root-mean-square norm as transformers spells it."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        """The normalised rows."""
        if self.kind == "layer":
            return functional.layer_norm(x, (self.width,), self.weight, self.bias)
        if self.kind == "fused":
            return functional.rms_norm(x, (self.width,), self.weight, 1e-6)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Experts(nn.Module):
    """Tokens sorted by expert, and one grouped product for each matrix."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.count, self.top = of.experts, of.top
        self.router = nn.Linear(of.hidden, of.experts, bias=False)
        self.up = nn.Parameter(torch.empty(of.experts, of.hidden, 2 * of.mlp))
        self.down = nn.Parameter(torch.empty(of.experts, of.mlp, of.hidden))

    def forward(self, x: Tensor) -> Tensor:
        """What the chosen experts make of each token."""
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).float().softmax(-1).topk(self.top)
        order = chosen.flatten().argsort()
        ends = functional.one_hot(chosen.flatten(), self.count).sum(0).cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(flat[order // self.top], self.up, ends).chunk(2, -1)
        rows = torch._grouped_mm(functional.silu(gate) * up, self.down, ends)
        rows = rows * weights.to(x.dtype).flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, order // self.top, rows).view(x.shape)


class Layer(nn.Module):
    """A layer of a decoder. keeps: whether it keeps a state in place of keys and values."""

    def __init__(self, of: Sizes, keeps: bool) -> None:
        super().__init__()
        self.of, self.keeps = of, keeps
        wide, narrow = of.heads * of.head, of.kv * of.head
        parts = [wide + 2 * narrow] if of.merged else [wide, narrow, narrow]
        self.qkv = nn.ModuleList(nn.Linear(of.hidden, width, bias=of.bias) for width in parts)
        self.o = nn.Linear(wide, of.hidden, bias=of.bias and of.norm == "layer")
        self.first, self.second = Norm(of.hidden, of.norm), Norm(of.hidden, of.norm)
        self.head_norms = nn.ModuleList(Norm(of.head, of.norm) for _ in range(2 * of.head_norms))
        if keeps:
            self.decay = nn.Linear(of.hidden, of.heads, bias=False)
        if of.cross:
            self.third = Norm(of.hidden, of.norm)
            self.cross = nn.ModuleList([nn.Linear(of.hidden, wide, False), nn.Linear(wide, of.hidden, False)])
        if of.experts:
            self.experts = Experts(of)
        else:
            ups = [of.mlp] if of.gelu else [2 * of.mlp] if of.merged else [of.mlp, of.mlp]
            self.ups = nn.ModuleList(nn.Linear(of.hidden, width, bias=of.bias and of.gelu) for width in ups)
            self.down = nn.Linear(of.mlp, of.hidden, bias=of.bias and of.gelu)

    def forward(
        self, x: Tensor, angles: Tensor | None, mask: Tensor | None, at: Tensor | None, cache: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The layer's result, and what it keeps where that is new."""
        of, (batch, time, _) = self.of, x.shape
        y, new = self.first(x), ()
        narrow = of.kv * of.head
        made = [each(y) for each in self.qkv]
        if of.merged:
            made = [*made[0].split([of.heads * of.head, narrow, narrow], -1)]
        q, k, v = (each.view(batch, time, -1, of.head) for each in made)
        if of.head_norms:
            q, k = (norm(each) for norm, each in zip(self.head_norms, (q, k), strict=True))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if angles is not None and not self.keeps:
            q, k = rotated(q, angles), rotated(k, angles)
        if self.keeps:
            kept = cache[0] * torch.sigmoid(self.decay(y)).view(batch, of.heads, 1, 1)
            kept = kept + k.transpose(-1, -2) * v
            a, new = q @ kept, (kept,)
        else:
            if cache is not None:
                k, v, new = self.stored(k, v, cache, at)
            a = self.attended(q, k, v, mask, cache is None)
        x = x + self.o(a.transpose(1, 2).reshape(batch, time, -1))
        if of.cross:
            q = self.cross[0](self.third(x)).view(batch, time, -1, of.head).transpose(1, 2)
            a = functional.scaled_dot_product_attention(q, cache[2], cache[3])
            x = x + self.cross[1](a.transpose(1, 2).reshape(batch, time, -1))
        y = self.second(x)
        if of.experts:
            return x + self.experts(y), new
        if of.gelu:
            return x + self.down(functional.gelu(self.ups[0](y))), new
        gate, up = self.ups[0](y).chunk(2, -1) if of.merged else (each(y) for each in self.ups)
        return x + self.down(functional.silu(gate) * up), new

    def stored(self, k: Tensor, v: Tensor, cache: Any, at: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """All keys and values, and which of them are new tensors."""
        keys, values = cache[:2]
        if self.of.cache == "joined":
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            if self.of.window:
                keys, values = keys[:, :, -self.of.window :], values[:, :, -self.of.window :]
            return keys, values, (keys, values)
        for whole, one in ((keys, k), (values, v)):
            if self.of.cache == "slice":
                whole[:, :, -1:] = one
            elif self.of.cache == "index":
                whole.index_copy_(2, at, one)
            else:
                whole[:, :, at] = one
        return keys, values, ()

    def attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        """Attention, after copies of heads that queries share where the decoder makes them."""
        is_shared, each = self.of.heads != self.of.kv, self.of.heads // self.of.kv
        if is_shared and self.of.share == "expand":
            shape = (k.shape[0], self.of.kv, each, *k.shape[2:])
            k, v = (x[:, :, None].expand(shape).reshape(shape[0], -1, *shape[3:]) for x in (k, v))
        elif is_shared and self.of.share == "interleave":
            k, v = (x.repeat_interleave(each, 1) for x in (k, v))
        is_grouped = is_shared and self.of.share == "gqa"
        return functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, enable_gqa=is_grouped
        )


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Positions, rotated in."""
    first, second = x.chunk(2, -1)
    return x * angles + torch.cat((-second, first), -1) * angles


class Decoder(nn.Module):
    """An embedding, layers and a head for the last token."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.of = of
        self.embedding = nn.Embedding(of.vocabulary, of.hidden)
        keeps = [bool(of.mixed and (place + 1) % of.mixed) for place in range(of.layers)]
        self.layers = nn.ModuleList(Layer(of, each) for each in keeps)
        self.norm = Norm(of.hidden, of.norm)
        self.head = nn.Linear(of.hidden, of.vocabulary, bias=False)

    def forward(self, ids: Tensor, angles: Tensor | None, at: Tensor | None, caches: Any) -> Any:
        """The scores of the next token, and what the layers keep."""
        x, mask, made = self.embedding(ids), None, []
        if self.of.mask and at is not None:
            mask = (torch.arange(caches[-1][0].shape[2], device=ids.device) <= at[:, None])[None, None]
        if mask is not None and self.of.mask == "float":
            mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(~mask, float("-inf"))
        for place, layer in enumerate(self.layers):
            x, new = layer(x, angles, mask, at, None if caches is None else caches[place])
            made.extend(new)
        return self.head(self.norm(x[:, -1:])), made


def inputs(of: Sizes, batch: int, length: int, tokens: int) -> tuple[Any, ...]:
    """What a step or a prompt takes, on the default device."""
    angles = None if of.gelu else torch.ones(1, 1, tokens, of.head)
    ids = torch.zeros(batch, tokens, dtype=torch.int64)
    if tokens > 1:
        return ids, angles, None, None
    kept, state = (batch, of.kv, length, of.head), (batch, of.heads, of.head, of.head)
    caches = []
    for place in range(of.layers):
        shapes = [state] if of.mixed and (place + 1) % of.mixed else [kept, kept]
        shapes += [(batch, of.heads, of.cross, of.head)] * 2 if of.cross else []
        caches.append(tuple(torch.randn(shape) for shape in shapes))
    return ids, angles, torch.full((1,), length - 1, dtype=torch.int64), caches


def model_of(of: Sizes, dtype: str, device: str) -> Decoder:
    """The decoder with random weights."""
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device(device):
        model = Decoder(of).eval()
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.02)
    torch.set_default_dtype(torch.float32)
    return model


def arguments(of: Sizes, dtype: str, device: str, row: dict[str, str]) -> tuple[Any, ...]:
    """What the step or prompt of a row of the table takes."""
    torch.set_default_dtype(getattr(torch, dtype))
    with torch.device(device):
        found = inputs(of, int(row["batch"]), int(row["length"]), int(row["tokens"]))
    torch.set_default_dtype(torch.float32)
    return found


def predicted(of: Sizes, dtype: str, row: dict[str, str], device: str) -> Any:
    """The predicted time, from the program that is exported without memory."""
    from graphflops import analyze

    program = torch.export.export(model_of(of, dtype, "meta"), arguments(of, dtype, "meta", row))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pt2"
        torch.export.save(program, path)
        return analyze(path, device=device, execution="graph").totals.time


def summary(name: str, found: list[tuple[float, bool]]) -> str:
    """The errors of some steps as a line."""
    errors = [abs(error) for error, _ in found]
    inside = sum(is_inside for _, is_inside in found)
    return (
        f"{name:16}{len(found):4}: mean {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}, "
        f"worst {max(errors):.0%}, {inside} within the 90 % interval"
    )


def main() -> None:
    """Measure, or predict and compare."""
    from benchmarks.step_cells import CELLS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", type=Path, help="the table to write, of times on this GPU")
    parser.add_argument("--only", default="", help="decoders whose name holds the word")
    parser.add_argument("--device", choices=MEASURED, default="h200")
    given = parser.parse_args()
    with MEASURED[given.device].open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if given.only in row["decoder"]]
    if given.measure:
        with given.measure.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            for row in rows:
                _, dtype, of = CELLS[row["decoder"]]
                model, args = model_of(of, dtype, "cuda"), arguments(of, dtype, "cuda", row)
                writer.writerow({**row, "ms": f"{measured(model, args) * 1e3:.4g}"})
                del model, args
                torch.cuda.empty_cache()
        return
    print(f"NVIDIA {given.device.upper()}, torch 2.11.0+cu130, CUDA graphs: measured and predicted\n")
    print(
        f"{'decoder':30}{'for':7}{'type':10}{'batch':>5}{'cache':>7}{'tokens':>7}{'measured':>12}{'predicted':>12}"
    )
    found: dict[str, list[tuple[float, bool]]] = {}
    for row in rows:
        use, dtype, of = CELLS[row["decoder"]]
        seconds, time = float(row["ms"]) / 1e3, predicted(of, dtype, row, given.device)
        error = time.seconds / seconds - 1
        part = f"{use}, {'step' if row['tokens'] == '1' else 'prompt'}s"
        found.setdefault(part, []).append((error, time.low <= seconds <= time.high))
        sizes = f"{row['batch']:>5}{row['length']:>7}{row['tokens']:>7}"
        times = f"{seconds * 1e3:9.3f} ms{time.seconds * 1e3:9.3f} ms{error:+7.1%}"
        print(f"{row['decoder']:30}{use:7}{dtype:10}{sizes}{times}", flush=True)
    print()
    for part, errors in sorted(found.items()):
        print(summary(part, errors))


if __name__ == "__main__":
    main()
