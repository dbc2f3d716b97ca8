"""Recipes of training scripts beside the plain ones: what each sends, in closed forms, and the same on other meshes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from graphflops import analyze, record
from graphflops.errors import ModelError

WIDTH, HIDDEN, BATCH, WORDS, LENGTH, LAYERS, MICRO = 64, 128, 16, 512, 64, 3, 8
EACH = 2 * WIDTH * HIDDEN  # parameters of a layer
ALL = LAYERS * EACH
HALF, FLOAT = 2, 4

Found = dict[tuple[str, str, str], tuple[int, int]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(functional.gelu(self.up(x)))


def layers() -> nn.Sequential:
    return nn.Sequential(*(Mlp() for _ in range(LAYERS)))


def trained(model: Any) -> Any:
    return model, torch.zeros(BATCH, WIDTH), torch.optim.AdamW(model.parameters()), torch.sum


def resharded(mesh: Any) -> Any:
    """Kept in two parts from the forward to the backward."""
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=2)
    return trained(fully_shard(model, mesh=mesh["dp"]))


def hybrid(mesh: Any, *, scatters: bool) -> Any:
    """Three micro-batches in bfloat16 on copies of shards. scatters: gradients in each; else in the last one only."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = layers()
    for part in (*model, model):
        fully_shard(part, mesh=mesh["copies", "shards"], mp_policy=policy)
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.zeros(BATCH, WIDTH)
    delay = model.set_requires_all_reduce if scatters else model.set_requires_gradient_sync

    def step() -> None:
        for turn in range(3):
            delay(turn == 2)
            model(x).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def copied(mesh: Any, hook: str = "", **options: Any) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    group = mesh.get_group("dp")
    model = nn.parallel.DistributedDataParallel(layers(), process_group=group, **options)
    if hook:
        model.register_comm_hook(group, getattr(default_hooks, hook))
    return trained(model)


def flat(mesh: Any, strategy: str, **options: Any) -> Any:
    """FullyShardedDataParallel: a flat parameter for each layer. Its norm of gradients is clipped."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        layers(),
        device_mesh=mesh["copies", "shards"] if "HYBRID" in strategy else mesh["shards"],
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy({Mlp}),
        sync_module_states=True,
        **options,
    )
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.zeros(BATCH, WIDTH)

    def step() -> None:
        model(x).float().sum().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def flat_cases() -> Any:
    from torch.distributed.fsdp import MixedPrecision

    half = MixedPrecision(*(torch.bfloat16,) * 3)
    for strategy, options, size, gathers in (
        ("FULL_SHARD", {"device_id": 0, "use_orig_params": True}, FLOAT, ("forward", "backward")),
        ("FULL_SHARD", {}, FLOAT, ("forward", "backward")),
        (
            "SHARD_GRAD_OP",
            {"device_id": torch.device("cuda", 0), "mixed_precision": half},
            HALF,
            ("forward",),
        ),
        ("HYBRID_SHARD", {}, FLOAT, ("forward", "backward")),
    ):
        copies = 2 if "HYBRID" in strategy else 1
        found: Found = {("shards", "allgather_base", way): (LAYERS, 3 * size * ALL // 4) for way in gathers}
        found["shards", "reduce_scatter_base", "backward"] = LAYERS, 3 * size * ALL // 4
        found["shards", "allreduce", "optimizer"] = 1, 2 * 3 * FLOAT // 4  # of the norm
        if copies > 1:
            found["copies", "allreduce", "backward"] = LAYERS, size * ALL // 4
        yield partial(flat, strategy=strategy, **options), {"copies": copies, "shards": 4}, found


def split(mesh: Any, *, rows: bool) -> Any:
    """Products of DTensors, whose result stays one. rows: whether each device has a part of its rows."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    last = RowwiseParallel(output_layouts=Shard(0) if rows else Replicate(), use_local_output=False)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(use_local_output=False), "2": last})
    loss = lambda y: y.full_tensor().sum()  # noqa: E731
    return model, torch.zeros(BATCH, WIDTH), torch.optim.SGD(model.parameters()), loss


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Any) -> Any:
        return self.head(self.words(ids))


def split_loss(mesh: Any) -> Any:
    """A vocabulary in parts: tokens between its two ends along the sequence, scores never whole."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    words = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    model = parallelize_module(Words(), mesh["tp"], {"words": words, "head": head})
    ids = torch.zeros(2, LENGTH, dtype=torch.long)

    def step() -> None:
        with loss_parallel():
            functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()

    return step


def pipelined(mesh: Any, *, schedule: str) -> Any:
    """Two stages of each device; of a V the last one is on the first device."""
    from torch.distributed.pipelining import PipelineStage, schedules

    devices, rank = mesh.size(), mesh.get_rank()
    number = 2 * devices
    own = [rank, number - 1 - rank if "ZBV" in schedule else rank + devices]

    def stage(place: int) -> Any:
        comes, goes = (torch.zeros(BATCH, WIDTH).requires_grad_(wants) for wants in (place > 0, True))
        group, device = mesh.get_group("pp"), torch.device("cpu")
        return PipelineStage(
            Mlp(), place, number, device, input_args=(comes,), output_args=(goes,), group=group
        )

    run = getattr(schedules, f"Schedule{schedule}")([*map(stage, own)], MICRO, loss_fn=lambda y, _: y.sum())
    x = torch.zeros(MICRO * BATCH, WIDTH)
    is_last = number - 1 in own
    return lambda: run.step(*(x,) * (0 in own), **({"target": x} if is_last else {}))


def found_in(report: Any) -> Found:
    """Calls and bytes by axis, collective and phase, of what sends anything."""
    found: Found = {}
    for one in report.exchanges:
        key = one.axis, one.op.split(".")[1].strip("_"), one.phase
        calls, size = found.get(key, (0, 0))
        found[key] = calls + one.calls, size + int(one.bytes)
    return {key: value for key, value in found.items() if value[1]}


def summed(size: int, devices: int, calls: int = 1) -> Found:
    return {("dp", "allreduce", "backward"): (calls, 2 * (devices - 1) * size // devices)}


HIDDEN_STATES, ROWS = 2 * LENGTH * WIDTH * FLOAT, 2 * LENGTH * FLOAT
SENT = BATCH * WIDTH * FLOAT  # from stage to stage, of each micro-batch
GATHERED: Found = {
    ("shards", "allgather_base", phase): (3 * LAYERS, 3 * 3 * HALF * ALL // 4)
    for phase in ("forward", "backward")
}
CASES: list[tuple[Callable[..., Any], dict[str, int], Found]] = [
    (
        resharded,
        {"dp": 8},
        {
            ("dp", "allgather_base", "forward"): (LAYERS, 7 * FLOAT * ALL // 8),
            ("", "allgather_base", "backward"): (LAYERS, FLOAT * ALL // 2),  # of two devices
            ("dp", "reduce_scatter_base", "backward"): (LAYERS, 7 * FLOAT * ALL // 8),
        },
    ),
    *(
        (
            partial(hybrid, scatters=scatters),
            {"copies": 2, "shards": 4},
            {
                **GATHERED,
                ("shards", "reduce_scatter_base", "backward"): (times * LAYERS, times * 3 * FLOAT * ALL // 4),
                ("copies", "allreduce", "backward"): (LAYERS, FLOAT * ALL // 4),
            },
        )
        for scatters, times in ((False, 1), (True, 3))
    ),
    *flat_cases(),
    (partial(copied, static_graph=True), {"dp": 4}, summed(FLOAT * ALL, 4)),
    (partial(copied, bucket_cap_mb=0.04), {"dp": 4}, summed(FLOAT * ALL, 4, 3)),  # two weights of 32 KiB each
    (partial(copied, hook="fp16_compress_hook"), {"dp": 4}, summed(HALF * ALL, 4)),
    (
        partial(copied, hook="bf16_compress_hook", gradient_as_bucket_view=True),
        {"dp": 4},
        summed(HALF * ALL, 4),
    ),
    (
        partial(split, rows=False),
        {"tp": 4},
        {("tp", "all_reduce", "forward"): (1, 2 * 3 * SENT // 4)},
    ),
    (
        partial(split, rows=True),
        {"tp": 4},
        {
            ("tp", "reduce_scatter_tensor", "forward"): (1, 3 * SENT // 4),
            ("tp", "all_gather_into_tensor", "forward"): (1, 3 * SENT // 4),
            ("tp", "all_gather_into_tensor", "backward"): (1, 3 * SENT // 4),
        },
    ),
    (
        split_loss,
        {"tp": 4},
        {
            ("tp", "reduce_scatter_tensor", "forward"): (1, 3 * HIDDEN_STATES // 4),
            ("tp", "all_gather_into_tensor", "forward"): (1, 3 * HIDDEN_STATES // 4),
            ("tp", "all_reduce", "forward"): (
                3,
                3 * 2 * 3 * ROWS // 4,
            ),  # largest scores, sums, the wanted ones
            ("tp", "reduce_scatter_tensor", "backward"): (1, 3 * HIDDEN_STATES // 4),
            ("tp", "all_gather_into_tensor", "backward"): (1, 3 * HIDDEN_STATES // 4),
        },
    ),
    *(
        (
            partial(pipelined, schedule=schedule),
            {"pp": 4},
            {("pp", "send", way): (times * MICRO, times * MICRO * SENT) for way, times in sends.items()},
        )
        for schedule, sends in (
            ("Interleaved1F1B", {"forward": 2, "backward": 1}),  # the first stage has no gradients to send
            ("ZBVZeroBubble", {"forward": 1, "backward": 1}),  # the last stage no results
        )
    ),
]


@pytest.mark.parametrize(("factory", "mesh", "wanted"), CASES)
def test_what_a_recipe_sends(factory: Callable[..., Any], mesh: dict[str, int], wanted: Found) -> None:
    report = analyze(record(factory, mesh=mesh))
    assert found_in(report) == wanted
    assert not report.coverage.unknown


def test_the_cpu_knows_which_parameters_were_used() -> None:
    """DDP counts them in the host's memory, and reads one number for each parameter without waiting for the device."""
    program = record(partial(copied, static_graph=True), mesh={"dp": 4})
    rows = [row for row in analyze(program, device="h200").rows if row.phase == "backward"]
    read = [row.time for row in rows if row.op == "aten._local_scalar_dense.default"]
    assert len(read) == sum(entry.role == "parameter" for entry in program.inputs)
    assert {time.kernel for time in read if time is not None} <= {""}


@pytest.mark.parametrize("rank", [0, 3])
def test_slices_of_any_lengths_but_that_which_stays(rank: int) -> None:
    """One to four rows to each of four devices, two from each, and the way back, forward and backward."""
    from torch.distributed import _functional_collectives as collectives

    def factory(mesh: Any) -> Any:
        group, x = mesh.get_group("ep"), torch.zeros(1 + 2 + 3 + 4, WIDTH, requires_grad=True)

        def step() -> None:
            there = collectives.all_to_all_single_autograd(x, [2] * 4, [1, 2, 3, 4], group)
            collectives.all_to_all_single_autograd(there * 2, [1, 2, 3, 4], [2] * 4, group).sum().backward()

        return step

    rows = 10 - (rank + 1) + 3 * 2
    found = found_in(analyze(record(factory, mesh={"ep": 4}, rank=rank)))
    assert found == {
        ("ep", "all_to_all_single", phase): (2, rows * WIDTH * FLOAT) for phase in ("forward", "backward")
    }


@pytest.mark.parametrize(
    ("factory", "mesh", "other"),
    [
        (partial(hybrid, scatters=False), {"copies": 2, "shards": 4}, {"copies": 4, "shards": 8}),
        (partial(copied, hook="fp16_compress_hook", bucket_cap_mb=0.04), {"dp": 4}, {"dp": 64}),
        (partial(split, rows=True), {"tp": 4}, {"tp": 8}),
        (split_loss, {"tp": 4}, {"tp": 8}),
    ],
)
def test_it_equals_a_recording_of_another_mesh(
    tmp_path: Path, factory: Callable[..., Any], mesh: dict[str, int], other: dict[str, int]
) -> None:
    file = tmp_path / "step.recorded"
    record(factory, mesh=mesh, open_axes=[*mesh], file=file)
    found, there = analyze(file, mesh=other), analyze(record(factory, mesh=other))
    assert (found.totals, found.exchanges) == (there.totals, there.exchanges)
    assert found.memory_use[0].requested_peak == there.memory_use[0].requested_peak


def test_parameters_of_fsdp_on_the_cpu_are_refused() -> None:
    from torch.distributed.fsdp import CPUOffload

    factory = partial(flat, strategy="FULL_SHARD", cpu_offload=CPUOffload(offload_params=True))
    with pytest.raises(ModelError, match="take fully_shard with CPUOffloadPolicy"):
        record(factory, mesh={"shards": 4})
