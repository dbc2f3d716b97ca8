"""The largest batch, length or number of requests that runs on a GPU below a memory limit, against the prediction.

`python -m benchmarks.fits` (`--limit 4GiB`) exports each model with an open size, limits PyTorch's allocator with
`set_per_process_memory_fraction`, looks for the largest size that runs three times without running out of memory, and
compares it with `fits(..., vary=...)`: inference, and training steps of several optimizers. Then, without a limit, the
largest size whose requested bytes stay below it, against the formula's. Models have random weights in bfloat16, which are
moved to the GPU in that type. Each model has a process of its own, `--jobs` of them at once.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import logging
import multiprocessing
import os
import queue
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import graphflops
from benchmarks import memory_models as models
from graphflops.budget.amounts import amount
from graphflops.derived.resize import values_at
from graphflops.devices import device
from graphflops.dims import evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.memory_models import Built

OPTIMIZERS: dict[str, tuple[graphflops.Training, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (graphflops.Training(optimizer="sgd"), lambda all_: torch.optim.SGD(all_, 1e-4)),
    "momentum": (
        graphflops.Training(optimizer="momentum"),
        lambda all_: torch.optim.SGD(all_, 1e-4, momentum=0.9),
    ),
    "adamw": (graphflops.Training(optimizer="adamw"), lambda all_: torch.optim.AdamW(all_, 1e-4)),
    "adamw fused": (
        graphflops.Training(optimizer="adamw", implementation="fused"),
        lambda all_: torch.optim.AdamW(all_, 1e-4, fused=True),
    ),
}
_RUNS = 3
_STEP, _CLOSE = 0.06, 0.01  # how far the search goes at once, and how near it ends
_MOST_OFF = 5  # sizes that the formula's is compared with, on each side


class Cached(nn.Module):
    """Four layers of a decoder that adds a token to the cached keys and values of each request."""

    def __init__(self, width: int = 1024, heads: int = 16, tokens: int = 32_000) -> None:
        super().__init__()
        self.heads = heads
        self.embedding, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(8))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(4))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(4))

    def forward(self, ids: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> Any:
        x = self.embedding(ids)
        caches = []
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            packed = self.qkv[layer](self.norms[2 * layer](x)).unflatten(-1, (3, self.heads, -1))
            q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
            k, v = torch.cat([key, k], 2), torch.cat([value, v], 2)
            y = functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out[layer](y.transpose(1, 2).flatten(2))
            x = x + self.down[layer](functional.gelu(self.up[layer](self.norms[2 * layer + 1](x))))
            caches += [k, v]
        return self.head(x), caches


class Named(nn.Module):
    """A model with one input, which `torch.export` wants to have a name where its size is open."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)


def _requests(length: int) -> Built:
    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        keys, values = ([torch.randn(2, 16, length, 64) for _ in range(4)] for _ in range(2))
        return Cached(), (models.ids(2, 1), keys, values), {}

    return build


@dataclass(frozen=True)
class Case:
    """A model whose inputs grow along an axis: it infers, and trains with these optimizers."""

    built: Built
    optimizers: tuple[str, ...] = ("adamw",)
    axis: int = 0


_LLAMA = models.decoder(6, 1024, 16, 4)
CASES: dict[str, Case] = {
    "resnet50": Case(models.vision("resnet50", 2), ("adamw", "momentum")),
    "vgg16": Case(models.vision("vgg16", 2)),
    "convnext": Case(models.vision("convnext_tiny", 2)),
    "efficientnet": Case(models.vision("efficientnet_b0", 2)),
    "swin": Case(models.vision("swin_t", 2)),
    "vit_b_16": Case(models.vision("vit_b_16", 2), ("adamw", "sgd")),
    "unet": Case(models.own(models.Unet, models.pixels(2, 64))),
    "bert": Case(models.hugging("Bert", models.text(2, 256)), ("adamw", "adamw fused")),
    "gpt2": Case(models.hugging("GPT2", models.text(2, 256), "LMHeadModel")),
    "llama": Case(models.hugging("Llama", models.text(2, 512), "ForCausalLM", **_LLAMA), ("adamw", "sgd")),
    "llama length": Case(
        models.hugging("Llama", models.text(1, 512), "ForCausalLM", **_LLAMA), ("momentum",), 1
    ),
    "qwen3": Case(models.hugging("Qwen3", models.text(2, 512), "ForCausalLM", **_LLAMA), ("adamw fused",)),
    "gpt": Case(models.own(models.Gpt, models.text(2, 512))),
    "lstm": Case(models.own(models.Lstm, models.text(2, 256))),
    "cache 1024": Case(_requests(1024), ()),
    "cache 8192": Case(_requests(8192), ()),
}


class Row(NamedTuple):
    """Sizes of one phase: the largest that ran, that `fits` allows, by requested bytes, and by their formula."""

    name: str
    phase: str
    ran: int = 0
    allowed: int = 0
    requested: int = 0
    formula: int = 0
    error: str = ""


def ready(model: nn.Module, place: str) -> nn.Module:
    """The model in bfloat16, in eval mode but for recurrent layers: cuDNN has no backward of these otherwise."""
    model = model.to(torch.bfloat16).eval().to(place)
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.train()
    return model


class OnDevice:
    """A model on the GPU, its weights moved there in their own type."""

    def __init__(self, case: Case) -> None:
        model, args, kwargs = case.built()
        self.axis, self.inputs = case.axis, (args, kwargs)
        self.model = ready(model, "cuda")

    def requested(self, size: int, optimizer: str) -> int | None:
        """The peak of requested bytes of the last of three runs; None where memory runs out."""
        given = step = None
        self.emptied()
        try:
            given = pytree.tree_map_only(torch.Tensor, lambda x: self.grown(x, size), self.inputs)
            if optimizer:
                step = OPTIMIZERS[optimizer][1](self.model.parameters())
            for _ in range(_RUNS):
                torch.cuda.reset_peak_memory_stats()
                self.run(given, step)
            torch.cuda.synchronize()
            return int(torch.cuda.memory_stats()["requested_bytes.all.peak"])
        except torch.cuda.OutOfMemoryError:
            return None
        finally:
            del given, step
            self.model.zero_grad(set_to_none=True)
            self.emptied()

    def run(self, given: Any, step: torch.optim.Optimizer | None) -> None:
        args, kwargs = given
        with torch.set_grad_enabled(step is not None):
            leaves = pytree.tree_leaves(self.model(*args, **kwargs))
        if step is not None:
            sum(x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad).backward()
            step.step()
            step.zero_grad(set_to_none=True)

    def grown(self, x: torch.Tensor, size: int) -> torch.Tensor:
        """An input with its entries along the axis repeated up to a size."""
        places = torch.arange(size) % x.shape[self.axis]
        own = torch.bfloat16 if x.is_floating_point() else x.dtype
        return x.to(own).index_select(self.axis, places).cuda()

    @staticmethod
    def emptied() -> None:
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # a process of its own would have none yet
        torch.cuda.empty_cache()


def largest(start: int, runs: Callable[[int], bool]) -> int:
    """The largest size that runs, to 1 %: searched from a size upwards or downwards in steps."""
    low, high = (start, 0) if runs(start) else (0, start)
    while not high:
        further = low + max(1, int(_STEP * low))
        low, high = (further, 0) if runs(further) else (low, further)
    while not low and high > 1:
        nearer = high - max(1, int(_STEP * high))
        low, high = (nearer, high) if runs(nearer) else (0, nearer)
    while high - low > max(1, int(_CLOSE * low)):
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


def exported(case: Case) -> tuple[torch.export.ExportedProgram, str]:
    """The program of a model with its size open, and that size's name."""
    with torch.device("meta"):
        model, args, kwargs = case.built()
    model = ready(model, "meta")
    args, kwargs = pytree.tree_map_only(
        torch.Tensor,
        lambda x: x.to("meta", torch.bfloat16 if x.is_floating_point() else None),
        (args, kwargs),
    )
    if isinstance(model, models.Field):
        model = Named(model)
    opened = pytree.tree_map_only(torch.Tensor, lambda _: {case.axis: torch.export.Dim.AUTO}, args)
    given = dict(zip(inspect.signature(model.forward).parameters, opened, strict=False))
    program = torch.export.export(model, args, kwargs, dynamic_shapes=given, strict=False)
    return program, f"{graphflops.analyze(program).inputs[0].name}[{case.axis}]"


def by_formula(program: torch.export.ExportedProgram, axis: str, training: Any, limit: int) -> int:
    """The largest size whose requested bytes are below the limit, by their formula."""
    report = graphflops.analyze(program, device="h200", training=training)
    peak = report.memory_use[-1].requested_peak

    def runs(size: int) -> bool:
        return (evaluate(peak, {**report.values, **values_at(report, {axis: size})}) or 0) <= limit

    size = largest(1, runs)
    while runs(size + 1):
        size += 1
    return size


def nearby(size: int, most: int, requested: Callable[[int], int | None]) -> int:
    """The largest size that requests no more than so many bytes, near a size."""
    tried = range(max(1, size - _MOST_OFF), size + _MOST_OFF + 1)

    def runs(at: int) -> bool:
        return (requested(at) or most + 1) <= most

    while size in tried and not runs(size):
        size -= 1
    while size in tried and runs(size + 1):
        size += 1
    return size


def work(name: str, limit: int, found: Any) -> None:
    """Put the rows of a model into a queue."""
    _quiet()
    case = CASES[name]
    total = torch.cuda.get_device_properties(0).total_memory
    memory = limit + (device("h200").context_bytes or 0)
    try:
        program, axis = exported(case)
        there = OnDevice(case)
        for optimizer in ("", *case.optimizers):
            training = OPTIMIZERS[optimizer][0] if optimizer else False
            allowed = graphflops.fits(program, device="h200", memory=memory, vary=axis, training=training)
            size = allowed.verdicts[0].largest or 0
            torch.cuda.set_per_process_memory_fraction(limit / total)
            ran = largest(max(size, 1), lambda at, by=optimizer: there.requested(at, by) is not None)  # type: ignore[misc]
            formula = by_formula(program, axis, training, limit)
            torch.cuda.set_per_process_memory_fraction(1.0)
            near = nearby(formula, limit, lambda at, by=optimizer: there.requested(at, by))  # type: ignore[misc]
            found.put(Row(name, optimizer or "inference", ran, size, near, formula))
    except Exception as error:  # noqa: BLE001 a model that this machine cannot build or export
        found.put(Row(name, "", error=str(error).splitlines()[0][:90]))
    found.put(None)


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)


def rows(options: argparse.Namespace) -> Any:
    """The rows of all models as they are found, until the time is over."""
    names = [name for name in CASES if options.only in name]
    context = multiprocessing.get_context("spawn")
    found, end, left = context.Queue(), time.monotonic() + options.seconds, len(names)
    limit = amount(options.limit, "B")
    waiting = [context.Process(target=work, args=(name, limit, found), daemon=True) for name in names]
    for _ in range(min(options.jobs, len(waiting))):
        waiting.pop(0).start()
    while left:
        try:
            row = found.get(timeout=max(1.0, end - time.monotonic()))
        except queue.Empty:
            print("time is over", flush=True)
            return
        if row is not None:
            yield row
            continue
        left -= 1
        if waiting:
            waiting.pop(0).start()


def line(row: Row) -> str:
    """One row of the table."""
    if row.error:
        return f"{row.name:14}not run: {row.error}"
    shares = f"{row.ran:10,}{row.allowed:10,}{row.allowed / max(row.ran, 1) - 1:+10.1%}"
    return f"{row.name:14}{row.phase:12}{shares}{row.requested:12,}{row.formula:10,}{row.formula - row.requested:+6}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="4GiB")
    parser.add_argument("--only", default="", help="a word that a model's name must hold")
    parser.add_argument("--jobs", type=int, default=16, help="models that are measured at once")
    parser.add_argument("--seconds", type=float, default=600, help="after which no more rows are waited for")
    options = parser.parse_args()
    name, version = torch.cuda.get_device_name(), torch.__version__.partition("+")[0]
    print(f"{name} limited to {options.limit}, torch {version}")
    print("ran: the largest size that ran three times; fits: the largest that graphflops fits allows")
    print("bytes: the largest size whose requested bytes are below the limit; formula: by their formula\n")
    print(f"{'model':14}{'phase':12}{'ran':>10}{'fits':>10}{'':10}{'bytes':>12}{'formula':>10}")
    found: list[Row] = []
    for row in rows(options):
        print(line(row), flush=True)
        found += [] if row.error else [row]
    for title, is_of in (("inference", False), ("training", True)):
        errors = [row.allowed / max(row.ran, 1) - 1 for row in found if (row.phase in OPTIMIZERS) is is_of]
        if errors:
            print(
                f"{title}: median {statistics.median(errors):+.1%}, most {max(errors):+.1%}, {len(errors)} rows"
            )
    exact = sum(abs(row.formula - row.requested) <= 1 for row in found)
    print(f"largest size by the formula of requested bytes: right to one step in {exact} of {len(found)}")


if __name__ == "__main__":
    main()
