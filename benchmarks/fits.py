"""The largest batch that `graphflops fits` allows, against the largest that runs on a GPU below a limit.

`python -m benchmarks.fits [--limit 6GiB] [--only WORD]` exports each model with an open batch, limits PyTorch's allocator
with `set_per_process_memory_fraction`, looks for the largest batch that runs three times without running out of memory, and
compares it with `fits(..., vary=...)`: inference, and a step of AdamW. Models have random weights in bfloat16.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import logging
import os
import statistics
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

import graphflops
from benchmarks import memory_models as models
from graphflops.budget.amounts import amount
from graphflops.devices import device

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.memory_models import Built

MODELS: dict[str, Callable[[int], Built]] = {
    "resnet50": lambda batch: models.vision("resnet50", batch),
    "vgg16": lambda batch: models.vision("vgg16", batch),
    "convnext": lambda batch: models.vision("convnext_tiny", batch),
    "efficientnet": lambda batch: models.vision("efficientnet_b0", batch),
    "swin": lambda batch: models.vision("swin_t", batch),
    "vit_b_16": lambda batch: models.vision("vit_b_16", batch),
    "unet": lambda batch: models.own(models.Unet, models.pixels(batch, 64)),
    "bert": lambda batch: models.hugging("Bert", models.text(batch, 256)),
    "gpt2": lambda batch: models.hugging("GPT2", models.text(batch, 256), "LMHeadModel"),
    "llama": lambda batch: models.hugging(
        "Llama", models.text(batch, 512), "ForCausalLM", **models.decoder(6, 1024, 16, 4)
    ),
    "qwen3": lambda batch: models.hugging(
        "Qwen3", models.text(batch, 512), "ForCausalLM", **models.decoder(6, 1024, 16, 4)
    ),
}
_MOST = 8192


def built(name: str, batch: int, place: str) -> tuple[torch.nn.Module, Any, Any]:
    """A model with its inputs."""
    with torch.device(place):
        model, args, kwargs = MODELS[name](batch)()

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.to(place, torch.bfloat16 if x.is_floating_point() else None)

    args, kwargs = pytree.tree_map_only(torch.Tensor, moved, (args, kwargs))
    return model.to(place, torch.bfloat16).eval(), args, kwargs


def runs(name: str, batch: int, *, training: bool) -> bool:
    """Whether three runs at a batch get the memory that they ask for."""
    model = args = kwargs = optimizer = None
    try:
        model, args, kwargs = built(name, batch, "cuda")
        gc.collect()
        torch.cuda.empty_cache()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        for _ in range(3):
            with torch.set_grad_enabled(training):
                leaves = pytree.tree_leaves(model(*args, **kwargs))
            if training:
                sum(x.sum() for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            del leaves
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        del model, args, kwargs, optimizer
        gc.collect()
        torch.cuda.empty_cache()
    return True


def measured(name: str, *, training: bool) -> int:
    """The largest batch that runs."""
    low, high = 0, 1
    while high <= _MOST and runs(name, high, training=training):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(name, middle, training=training) else (low, middle)
    return low


def predicted(name: str, limit: int, *, training: bool) -> int:
    """The largest batch that `fits` allows below the limit, which the driver's memory is not part of."""
    model, args, kwargs = built(name, 2, "meta")
    axes = pytree.tree_map_only(torch.Tensor, lambda _: {0: torch.export.Dim.AUTO}, (args, kwargs))
    names = list(inspect.signature(model.forward).parameters)
    by_name = {**dict(zip(names, axes[0], strict=False)), **axes[1]}
    given = by_name if names[0] not in ("args", "kwargs") else {"args": axes[0], "kwargs": axes[1]}
    program = torch.export.export(model, args, kwargs, dynamic_shapes=given, strict=False)
    axis = f"{graphflops.analyze(program).inputs[0].name}[0]"
    memory = limit + (device("h200").context_bytes or 0)
    found = graphflops.fits(program, device="h200", memory=memory, vary=axis, training=training)
    return found.verdicts[0].largest or 0


def line(name: str, phase: str, allowed: int, largest: int) -> str:
    """One row of the table."""
    return f"{name:14}{phase:11}{largest:10,}{allowed:10,}{allowed / largest - 1:+10.1%}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="6GiB")
    parser.add_argument("--only", default="", help="a word that a model's name must hold")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    limit = amount(options.limit, "B")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    print(
        f"{torch.cuda.get_device_name()} limited to {options.limit}, torch {torch.__version__.partition('+')[0]}"
    )
    print(f"{'model':14}{'phase':11}{'ran':>10}{'fits':>10}{'':>10}")
    errors: list[float] = []
    for name in (name for name in MODELS if options.only in name):
        for training in (False, True):
            try:
                allowed = predicted(name, limit, training=training)
                largest = measured(name, training=training)
            except Exception as error:  # noqa: BLE001 a model that this machine cannot build or export
                print(f"{name:14}not run: {str(error).splitlines()[0][:90]}", flush=True)
                continue
            errors.append(allowed / largest - 1)
            print(line(name, "training" if training else "inference", allowed, largest), flush=True)
    print(
        f"median {statistics.median(errors):+.1%}, most {max(errors):+.1%}: above 0 is a batch that did not run"
    )


if __name__ == "__main__":
    main()
