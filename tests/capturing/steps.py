"""Steps that tests record: a decoder of two layers under the parallelisms of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from graphflops import record
from graphflops.graph import Graph

WIDTH, HEADS, HIDDEN, VOCABULARY, LAYERS = 32, 4, 128, 48, 2
BATCH, LENGTH = 2, 8
TOKENS = BATCH * LENGTH
BYTES = 4  # of an element of float32

LAYER_MATRICES = 4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN
LAYER = LAYER_MATRICES + 2 * 2 * WIDTH  # two norms
OUTER = 2 * VOCABULARY * WIDTH + 2 * WIDTH  # embedding, head and the last norm
PARAMETERS = LAYERS * LAYER + OUTER
PRODUCTS = (
    3 * 2 * TOKENS * (LAYERS * LAYER_MATRICES + WIDTH * VOCABULARY)
)  # FLOPs of forward and both gradients
ATTENTION = (
    LAYERS * BATCH * 4 * LENGTH * LENGTH * WIDTH
)  # FLOPs of the forward; the backward computes scores again
STEP = PRODUCTS + ATTENTION * 7 // 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "qkvo":
            self.add_module(name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(seen.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.between, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class Decoder(nn.Module):
    def __init__(self, wrap: Any = lambda block: block) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(wrap(Block()) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss(scores: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), torch.zeros(TOKENS, dtype=torch.long))


def trained(model: nn.Module) -> tuple[Any, ...]:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return model, ids, torch.optim.AdamW(model.parameters()), loss


@cache
def _recorded(factory: Callable[..., Any], mesh: tuple[tuple[str, int], ...], rank: int) -> Graph:
    return record(factory, mesh=dict(mesh), rank=rank)


def recorded(factory: Callable[..., Any], mesh: dict[str, int] | None = None, rank: int = 0) -> Graph:
    """The step of one of the factories below, recorded once for all tests, which only read it."""
    return _recorded(factory, tuple((mesh or {}).items()), rank)


def single() -> tuple[Any, ...]:
    return trained(Decoder())


def inference() -> tuple[Any, ...]:
    return single()[:2]


def fused() -> tuple[Any, ...]:
    model, ids, _, function = single()
    return model, ids, torch.optim.AdamW(model.parameters(), fused=True), function


def checkpointed() -> tuple[Any, ...]:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return trained(Decoder(checkpoint_wrapper))


def checkpointed_in_half_precision() -> tuple[Any, ...]:
    model, ids, _, function = checkpointed()
    model.bfloat16()
    return model, ids, torch.optim.AdamW(model.parameters()), function


class Masked(nn.Module):
    """Functions that run otherwise on a CPU: a fused norm, attention with a mask, dropout, inside of other functions too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, mask = self.norm(x), torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
        return functional.dropout(self.attention(y, y, y, attn_mask=mask, need_weights=False)[0], 0.1)


def masked() -> tuple[Any, ...]:
    model, x = Masked(), torch.zeros(BATCH, LENGTH, WIDTH, device="cuda")
    return model.cuda(), x, torch.optim.SGD(model.parameters(), lr=1.0), torch.sum


def data_parallel(mesh: Any) -> tuple[Any, ...]:
    return trained(nn.parallel.DistributedDataParallel(Decoder(), process_group=mesh.get_group("dp")))


def shard(model: Decoder, mesh: Any, **options: Any) -> Decoder:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fully_sharded(mesh: Any) -> tuple[Any, ...]:
    return trained(shard(Decoder(), mesh["dp"]))


def kept_gathered(mesh: Any) -> tuple[Any, ...]:
    return trained(shard(Decoder(), mesh["dp"], reshard_after_forward=False))


def mixed_precision(mesh: Any) -> tuple[Any, ...]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return trained(shard(Decoder(), mesh["dp"], mp_policy=policy))


def split(model: Decoder, mesh: Any) -> Decoder:
    """Tensor and sequence parallelism: norms see a part of the sequence, attention and MLP a part of the heads."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def gathered() -> PrepareModuleInput:
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))

    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for place in range(LAYERS):
        layer = f"layers.{place}."
        plan |= {
            layer + "before": SequenceParallel(),
            layer + "between": SequenceParallel(),
            layer + "attention": gathered(),
            layer + "mlp": gathered(),
            layer + "attention.o": RowwiseParallel(output_layouts=Shard(1)),
            layer + "mlp.up": ColwiseParallel(),
            layer + "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
            **{f"{layer}attention.{name}": ColwiseParallel() for name in "qkv"},
        }
    return parallelize_module(model, mesh, plan)


def tensor_parallel(mesh: Any) -> tuple[Any, ...]:
    return trained(split(Decoder(), mesh["tp"]))


def sharded_and_split(mesh: Any) -> tuple[Any, ...]:
    return trained(shard(split(Decoder(), mesh["tp"]), mesh["dp"]))


class Experts(nn.Module):
    """A linear layer for each device; tokens go to theirs in equal parts, and back."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group, self.expert = group, nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        there = all_to_all_single_autograd(x, None, None, self.group)
        return all_to_all_single_autograd(self.expert(there), None, None, self.group)


def expert_parallel(mesh: Any) -> dict[str, Any]:
    model = Experts(mesh.get_group("ep"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tokens = torch.zeros(TOKENS, WIDTH, requires_grad=True)
    return {"module": model, "inputs": tokens, "optimizer": optimizer, "loss": torch.sum}


def context_parallel(mesh: Any) -> Any:
    from torch.distributed.tensor.experimental import context_parallel as split_context

    model, x = Attention().bfloat16(), torch.zeros(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16)

    def step() -> None:
        with split_context(mesh["cp"], buffers=(x,), buffer_seq_dims=(1,)):
            model(x).sum().backward()

    return step


def pipelined(mesh: Any) -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stages, micro_batches = mesh.size(), 4
    x = torch.zeros(BATCH, LENGTH, WIDTH)
    comes = x.clone().requires_grad_(mesh.get_rank() > 0)
    goes, group = x.clone().requires_grad_(), mesh.get_group("pp")
    block, device = Block(), torch.device("cpu")
    stage = PipelineStage(
        block, mesh.get_rank(), stages, device, input_args=(comes,), output_args=(goes,), group=group
    )
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=lambda y, _: y.sum())
    given = torch.zeros(micro_batches * BATCH, LENGTH, WIDTH)

    def step() -> None:
        is_first, is_last = mesh.get_rank() == 0, mesh.get_rank() == stages - 1
        schedule.step(*(given,) * is_first, **({"target": given} if is_last else {}))

    return step


def autocast() -> Any:
    """A linear layer, a norm and a loss of labels under autocast, as a GPU runs it."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=1.0)
    x = torch.zeros(TOKENS, WIDTH, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            value = functional.cross_entropy(layers(x), torch.zeros(TOKENS, dtype=torch.long, device="cuda"))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
