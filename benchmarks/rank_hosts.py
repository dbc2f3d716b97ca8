"""What the CPU takes for recorded steps: of many kinds on one GPU (`step_models.py`), and of ranks beside pretended ones.

    python -m benchmarks.rank_hosts --measure benchmarks/measured/h100_rank_hosts.json    (on a GPU)
    torchrun --nproc-per-node 2 -m benchmarks.rank_hosts --measure FILE                 (on two; NCCL_NVLS_ENABLE=0)
    python -m benchmarks.rank_hosts --measured benchmarks/measured/*_rank_hosts*.json     (anywhere)

Sizes are so small that the GPU waits for the CPU. Each round times a training step of the profile's micro-benchmarks too, so
that the speed of the core at that moment is known; a step's time is divided by it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import warnings
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from benchmarks import recorded_models as models, two_gpu_models as two, two_gpus
from benchmarks.recorded import ranks, step_of
from benchmarks.recorded_models import BF16, trained
from benchmarks.step_models import STEPS
from graphflops import devices

if TYPE_CHECKING:
    from collections.abc import Callable

MEASURED = Path(__file__).with_name("measured") / "h100_rank_hosts.json"
ROUNDS, ROUND_SECONDS = 12, 0.04
IS_SHARED = "WORLD_SIZE" in os.environ  # whether other processes are the other ranks


def words(layers: int, dtype: Any = BF16, **options: Any) -> tuple[Any, ...]:
    return two.words(256, 704, layers, 1000, 1, 64, dtype, **options)


def dense(layers: int, dtype: Any = BF16) -> tuple[Any, ...]:
    return two.dense(256, layers, 8, dtype)


def vision(layers: int, dtype: Any = BF16) -> tuple[Any, ...]:
    return two.vision(256, layers, 1, dtype, edge=64)


_PLAIN: dict[str, Any] = {"norm": torch.nn.LayerNorm, "shared": 1}
_ALONE: dict[str, int] = {}
_DP, _TP, _CP, _EP = ({axis: 2} for axis in ("dp", "tp", "cp", "ep"))
PROGRAMS: dict[str, tuple[dict[str, int], Callable[[Any], Any]]] = {
    "plain_4": (_ALONE, lambda _: trained(*words(4))),
    "plain_12": (_ALONE, lambda _: trained(*words(12))),
    "dense_16": (_ALONE, lambda _: trained(*dense(16), fused=True)),
    "vision_6": (_ALONE, lambda _: two.momentum(*vision(6))),
    "ddp_4": (_DP, lambda m: trained(*two.replicated(m, words(4)))),
    "ddp_12": (_DP, lambda m: trained(*two.replicated(m, words(12)))),
    "ddp_vision": (_DP, lambda m: two.momentum(*two.replicated(m, vision(8), gradient_as_bucket_view=True))),
    "fsdp_3": (_DP, lambda m: trained(*two.in_shards(m, words(3, torch.float32)))),
    "fsdp_12": (_DP, lambda m: trained(*two.in_shards(m, words(12, torch.float32)))),
    "fsdp_kept": (
        _DP,
        lambda m: trained(*two.in_shards(m, words(8, torch.float32), reshard_after_forward=False)),
    ),
    "fsdp_dense_4": (_DP, lambda m: two.momentum(*two.in_shards(m, dense(4, torch.float32)))),
    "fsdp_dense_16": (_DP, lambda m: two.momentum(*two.in_shards(m, dense(16, torch.float32)))),
    "fsdp_vision": (_DP, lambda m: trained(*two.in_shards(m, vision(8, torch.float32)), fused=True)),
    "fsdp_full": (_DP, lambda m: trained(*two.in_full(m, words(8)))),
    "fsdp_clipped": (_DP, lambda m: two.clipped(*two.in_shards(m, words(6, torch.float32)))),
    "fsdp_accumulated": (
        _DP,
        lambda m: two.accumulated(*two.in_shards(m, words(6, torch.float32)), two.unsynced),
    ),
    "fsdp_inference_4": (_DP, lambda m: two.in_shards(m, words(4, torch.float32))[:2]),
    "fsdp_inference_12": (_DP, lambda m: two.in_shards(m, words(12, torch.float32))[:2]),
    "checkpointed_4": (_ALONE, lambda _: trained(*words(4, wrap=checkpoint_wrapper))),
    "checkpointed_12": (_ALONE, lambda _: trained(*words(12, wrap=checkpoint_wrapper))),
    "selective_4": (_ALONE, lambda _: trained(*words(4, wrap=two.selective))),
    "selective_12": (_ALONE, lambda _: trained(*words(12, wrap=two.selective))),
    "fsdp_checkpointed": (
        _DP,
        lambda m: trained(*two.in_shards(m, words(6, torch.float32, wrap=checkpoint_wrapper))),
    ),
    "fsdp_selective": (
        _DP,
        lambda m: trained(*two.in_shards(m, words(6, torch.float32, wrap=two.selective))),
    ),
    "tensor_2": (_TP, lambda m: trained(*two.in_parts(m, words(2, shared=1), sequence=False), foreach=False)),
    "tensor_6": (_TP, lambda m: trained(*two.in_parts(m, words(6, shared=1), sequence=False), foreach=False)),
    "tensor_momentum": (
        _TP,
        lambda m: two.momentum(*two.in_parts(m, words(4, shared=1), sequence=False), foreach=False),
    ),
    "tensor_inference": (_TP, lambda m: two.in_parts(m, words(6, shared=1), sequence=False)[:2]),
    "tensor_vision": (_TP, lambda m: two.momentum(*two.vision_in_parts(m, vision(4)), foreach=False)),
    "sequence_2": (_TP, lambda m: two.momentum(*two.in_parts(m, words(2, **_PLAIN), sequence=True))),
    "sequence_6": (_TP, lambda m: two.momentum(*two.in_parts(m, words(6, **_PLAIN), sequence=True))),
    "context": (
        _CP,
        lambda m: models.in_context(m, words(4, **_PLAIN), partial(torch.optim.SGD, lr=1e-3, momentum=0.9)),
    ),
    "experts_8": (_EP, lambda m: trained(*two.exchanging(m, 256, 512, 8, 64))),
    "sparse_4": (_EP, lambda m: two.momentum(*two.sparse(m, 128, 256, 4, 1, 64, experts=8, top=2))),
    **{name: (_ALONE, lambda _, make=make: make()) for name, make in STEPS.items()},
}


def measured(name: str) -> dict[str, Any]:
    """Milliseconds that the CPU takes for a step, and how slow the core is meanwhile."""
    from graphflops.runtime.profile.host import _programs

    axes, factory = PROGRAMS[name]
    torch.manual_seed(0)
    with ranks(axes, is_alone=name.startswith("ddp"), device=models.GPU.type) as mesh:
        step, reference = step_of(factory(mesh)), _programs(models.GPU.type)["training_step"]
        for _ in range(4):
            step()
            reference()
        counts = [agreed(max(1, int(ROUND_SECONDS / timed(call, 1)[1]))) for call in (step, reference)]
        rounds = [
            [
                1e3 * each
                for call, count in zip((step, reference), counts, strict=True)
                for each in timed(call, count)
            ]
            for _ in range(ROUNDS)
        ]
    gc.collect()
    nominal = _reference()
    return {
        "step": statistics.median(one[1] for one in rounds),
        "undisturbed": statistics.median(one[0] * nominal / one[2] for one in rounds),
        "least": min(one[0] for one in rounds),
        "rounds": [[round(each, 4) for each in one] for one in rounds],
    }


def agreed(count: int) -> int:
    """The least of all ranks."""
    from torch import distributed as dist

    if not IS_SHARED:
        return count
    found = torch.tensor(count, device=models.GPU)
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    return int(found)


def timed(call: Any, times: int) -> tuple[float, float]:
    """Seconds of each call until so many have returned, and until the GPU has run them."""
    if IS_SHARED:
        agreed(0)
    start = time.perf_counter()
    for _ in range(times):
        call()
    returned = (time.perf_counter() - start) / times
    if models.GPU.type == "cuda":
        torch.cuda.synchronize()
    return returned, (time.perf_counter() - start) / times


def _reference() -> float:
    """Milliseconds of the micro-benchmark beside the reference."""
    host = devices.device("h200").host
    assert host is not None
    return host.benchmarks["training_step"] * 1e3


def judge(measured: Path) -> None:
    """Prints the CPU's time of recorded steps beside what was measured, both beside the reference."""
    rows = json.loads(measured.read_text())["programs"]
    print(f"{measured.stem}: milliseconds measured, predicted, error")
    for name, row in rows.items():
        print(f"{name:18}" + two_gpus.compared(row["undisturbed"], predicted(name)), flush=True)
    errors = [100 * abs(predicted(name) / row["undisturbed"] - 1) for name, row in rows.items()]
    print(
        f"{len(errors)} steps: mean {statistics.mean(errors):.1f} %, median {statistics.median(errors):.1f} %"
    )


@cache
def predicted(name: str) -> float:
    """Milliseconds of a step of one rank beside the reference."""
    import graphflops

    axes, factory = PROGRAMS[name]
    program = graphflops.record(lambda mesh=None: factory(mesh), mesh=axes or None)
    profile = devices.device("h200")
    assert profile.host is not None
    step = graphflops.analyze(program, device="h200").totals.time
    assert step is not None
    return step.seconds * 1e3 / profile.host.slowness(2 if axes else 1)


def main() -> None:
    """Measures, or prints the comparison."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--measured", type=Path, nargs="+", default=[MEASURED])
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=200.0)
    options = parser.parse_args()
    models.GPU = torch.device(options.device)
    if options.measure and IS_SHARED:
        from torch import distributed as dist

        rank = int(os.environ["RANK"])
        if options.device == "cuda":
            torch.cuda.set_device(rank)
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
        options.measure = options.measure.with_suffix(f".{rank}.json")
    if options.measure:
        start = time.monotonic()
        found: dict[str, Any] = {"torch": torch.__version__, "programs": {}}
        for name in [name for name in PROGRAMS if options.only in name]:
            if time.monotonic() - start > options.limit:
                break
            try:
                found["programs"][name] = one = measured(name)
            except Exception as error:  # noqa: BLE001 # the others are measured all the same
                print(f"{name:18} {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            print(f"{name:18} {one['step']:8.2f} ms, undisturbed {one['undisturbed']:8.2f}", flush=True)
            options.measure.write_text(json.dumps(found, indent=1))
    else:
        for measured_file in options.measured:
            judge(measured_file)


if __name__ == "__main__":
    main()
