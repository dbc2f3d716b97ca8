"""Programs of `two_gpus.py`: steps that two or more devices share, as people write them. Each is a factory of a mesh.

`TINY` makes all sizes small, for a trial on a CPU.
"""

from __future__ import annotations

import contextlib
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional

from benchmarks import recorded_models as models
from benchmarks.recorded_models import BF16, Decoder, Encoder, Images, of_images, of_words, sharded, trained

if TYPE_CHECKING:
    from collections.abc import Callable

TINY = False
_WORDS = 16_000
_SGD = {"lr": 1e-3, "momentum": 0.9}


class Block(nn.Module):
    """A block of a vision transformer, with biases."""

    def __init__(self, width: int, each: int = 64) -> None:
        super().__init__()
        self.each = each
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.each)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        x = x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Vision(nn.Module):
    """A vision transformer whose head sees the mean of all places."""

    def __init__(self, width: int, layers: int, patch: int, edge: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros((edge // patch) ** 2, width))
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x.mean(1)))


class Dense(nn.Module):
    """Wide layers with residuals."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Mixture(nn.Module):
    """Experts of a capacity, in equal numbers on the devices of a group; each token goes to the best `top` of them."""

    def __init__(self, width: int, hidden: int, experts: int, top: int, group: Any) -> None:
        super().__init__()
        self.group, self.devices, self.experts, self.top = group, group.size(), experts, top
        self.norm, self.router = nn.RMSNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts // self.devices, width, hidden) / 50)
        self.down = nn.Parameter(torch.randn(experts // self.devices, hidden, width) / 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        weight, chosen = functional.softmax(self.router(y).float(), -1).topk(self.top)
        chosen = chosen.flatten()
        capacity = 5 * len(chosen) // (4 * self.experts)
        mine = (chosen[:, None] == torch.arange(self.experts, device=x.device)).int()
        place = (mine.cumsum(0) * mine).sum(1) - 1
        kept = (place < capacity).to(y.dtype)[:, None]
        slot = chosen * capacity + place.clamp(max=capacity - 1)
        sent = y.new_zeros(self.experts * capacity, y.shape[1])
        sent = sent.index_add(0, slot, y.repeat_interleave(self.top, 0) * kept)
        back = self.exchanged(self.computed(self.exchanged(sent), capacity))[slot] * kept
        return x + (back * weight.flatten().to(y.dtype)[:, None]).unflatten(0, (-1, self.top)).sum(1)

    def exchanged(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        return all_to_all_single_autograd(x, None, None, self.group)

    def computed(self, x: torch.Tensor, capacity: int) -> torch.Tensor:
        """The devices' parts of the tokens of each expert here, through it."""
        x = x.unflatten(0, (self.devices, -1, capacity)).transpose(0, 1).flatten(1, 2)
        x = torch.bmm(functional.silu(torch.bmm(x, self.up)), self.down)
        return x.unflatten(1, (self.devices, capacity)).transpose(0, 1).flatten(0, 2)


class Sparse(nn.Module):
    """A decoder whose MLPs are mixtures of experts."""

    def __init__(self, width: int, hidden: int, layers: int, experts: int, top: int, group: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(_WORDS, width), nn.Linear(width, _WORDS, bias=False)
        self.attention = nn.ModuleList(Block(width) for _ in range(layers))
        self.mixtures = nn.ModuleList(Mixture(width, hidden, experts, top, group) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for attention, mixture in zip(self.attention, self.mixtures, strict=True):
            x = mixture(attention(x).flatten(0, 1)).unflatten(0, ids.shape)
        return self.head(x)


def ids(words: int, batch: int, length: int) -> torch.Tensor:
    """Random ones: equal tokens take a GPU less power, and so less time."""
    return torch.randint(words, (batch, length), device=models.GPU)


def words(
    width: int, hidden: int, layers: int, vocabulary: int, batch: int, length: int, dtype: Any = torch.float32,
    **options: Any,
) -> tuple[nn.Module, torch.Tensor, Any]:  # fmt: skip
    """A decoder, its words, its loss."""
    if TINY:
        width, hidden, layers, vocabulary, batch, length = 512, 512, 2, 1000, 2, 64
    x = ids(vocabulary, batch, length)
    return models.built(lambda: Decoder(width, hidden, layers, vocabulary, **options), dtype), x, of_words(x)


def pictures(
    make: Callable[[int], nn.Module], batch: int, edge: int, dtype: Any = torch.float32
) -> tuple[nn.Module, torch.Tensor, Any]:
    """A model of pictures of an edge, pictures, its loss."""
    batch, edge = (2, 32) if TINY else (batch, edge)
    x = torch.randn(batch, 3, edge, edge, dtype=dtype, device=models.GPU)
    return models.built(lambda: make(edge), dtype), x, of_images(x)


def vision(
    width: int, layers: int, batch: int, dtype: Any = torch.float32, edge: int = 224
) -> tuple[nn.Module, Any, Any]:
    width, layers = (128, 2) if TINY else (width, layers)
    return pictures(lambda edge: Vision(width, layers, 16, edge), batch, edge, dtype)


def dense(width: int, layers: int, batch: int, dtype: Any = torch.float32) -> tuple[nn.Module, Any, Any]:
    width, layers, batch = (64, 2, 8) if TINY else (width, layers, batch)
    x = torch.randn(batch, width, dtype=dtype, device=models.GPU)
    return models.built(lambda: Dense(width, layers), dtype), x, of_images(x)


def encoder(
    width: int, layers: int, batch: int, length: int, dtype: Any = BF16
) -> tuple[nn.Module, Any, Any]:
    width, layers, batch, length = (128, 2, 2, 64) if TINY else (width, layers, batch, length)
    x = ids(_WORDS, batch, length)
    return models.built(lambda: Encoder(width, layers, _WORDS, length), dtype), x, of_words(x)


def replicated(mesh: Any, made: tuple[nn.Module, Any, Any], **options: Any) -> tuple[nn.Module, Any, Any]:
    """With DDP around the model."""
    model, x, loss = made
    return (
        nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp"), **options),
        x,
        loss,
    )


def in_shards(mesh: Any, made: tuple[nn.Module, Any, Any], **options: Any) -> tuple[nn.Module, Any, Any]:
    """With fully_shard around each layer, and mixed precision."""
    model, x, loss = made
    x = x.to(BF16) if x.is_floating_point() else x
    return sharded(model, mesh, **options), x, loss


def in_full(mesh: Any, made: tuple[nn.Module, Any, Any]) -> tuple[nn.Module, Any, Any]:
    """With fully_shard in the precision of the weights."""
    from torch.distributed.fsdp import fully_shard

    model, x, loss = made
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), x, loss


def momentum(model: nn.Module, x: Any, loss: Any, **options: Any) -> tuple[Any, ...]:
    return model, x, torch.optim.SGD(model.parameters(), **_SGD, **options), loss


def accumulated(
    model: Any, x: Any, loss: Any, waits: Callable[[Any, bool], Any], times: int = 2
) -> Callable[[], None]:
    """Gradients of several micro-batches, which only the last one sends to the others."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for turn in range(times):
            with waits(model, turn == times - 1):
                (loss(model(x)) / times).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def quiet(model: Any, is_last: bool) -> Any:
    """DDP's way to send nothing."""
    return contextlib.nullcontext() if is_last else model.no_sync()


def unsynced(model: Any, is_last: bool) -> Any:
    """FSDP's way to reduce nothing."""
    model.set_requires_gradient_sync(is_last)
    return contextlib.nullcontext()


def clipped(model: Any, x: Any, loss: Any) -> Callable[[], None]:
    """A step whose gradients are clipped by their norm over all devices."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        loss(model(x)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def selective(layer: nn.Module) -> nn.Module:
    """Of a layer the results of products are kept, the others computed again."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    kept = [torch.ops.aten.mm.default]
    return checkpoint_wrapper(layer, context_fn=partial(create_selective_checkpoint_contexts, kept))


def in_parts(mesh: Any, made: tuple[nn.Module, Any, Any], *, sequence: bool) -> tuple[nn.Module, Any, Any]:
    """A decoder with its heads and MLPs over the devices."""
    model, x, loss = made
    return models.split(model, mesh["tp"], sequence=sequence), x, loss


def vision_in_parts(mesh: Any, made: tuple[nn.Module, Any, Any]) -> tuple[nn.Module, Any, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, x, loss = made
    for layer in model.layers:
        plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        parallelize_module(layer, mesh["tp"], plan | {name: RowwiseParallel() for name in ("o", "down")})
    return model, x, loss


def exchanging(mesh: Any, width: int, hidden: int, layers: int, tokens: int) -> tuple[nn.Module, Any, Any]:
    width, hidden, layers, tokens = (64, 128, 2, 64) if TINY else (width, hidden, layers, tokens)
    x = torch.randn(tokens, width, dtype=BF16, device=models.GPU)
    make = partial(models.Experts, width, hidden, layers, mesh.get_group("ep"))
    return models.built(make), x, lambda y: y.float().pow(2).mean()


def sparse(mesh: Any, width: int, hidden: int, layers: int, batch: int, length: int, **options: int) -> Any:
    if TINY:
        width, hidden, layers, batch, length = 128, 256, 2, 2, 64
    x = ids(_WORDS, batch, length)
    model = models.built(lambda: Sparse(width, hidden, layers, group=mesh.get_group("ep"), **options))
    return model, x, of_words(x)


def in_both(mesh: Any, made: tuple[nn.Module, Any, Any], **options: Any) -> tuple[nn.Module, Any, Any]:
    """Over the devices of an axis, and the parameters in shards over those of another."""
    return in_shards(mesh["dp"], in_parts(mesh, made, **{"sequence": False, **options}))


_DP, _TP, _CP, _EP = ({axis: 2} for axis in ("dp", "tp", "cp", "ep"))
_HYBRID, _BOTH = {"replicas": 2, "shards": 2}, {"dp": 2, "tp": 2}
_PLAIN: dict[str, Any] = {"norm": nn.LayerNorm, "shared": 1}
PROGRAMS: dict[str, tuple[dict[str, int], Callable[[Any], Any]]] = {
    "ddp": (_DP, lambda m: trained(*replicated(m, words(1280, 3456, 8, 24_000, 4, 1024, BF16)))),
    "ddp_autocast": (
        _DP,
        lambda m: models.mixed(*replicated(m, words(1024, 2816, 8, 24_000, 4, 1024), bucket_cap_mb=50)),
    ),
    "ddp_accumulated": (
        _DP,
        lambda m: accumulated(*replicated(m, words(1536, 4096, 6, 16_000, 2, 2048, BF16)), quiet),
    ),
    "ddp_vision": (
        _DP,
        lambda m: momentum(*replicated(m, vision(768, 12, 64, BF16), gradient_as_bucket_view=True)),
    ),
    "ddp_encoder": (_DP, lambda m: trained(*replicated(m, encoder(1024, 8, 16, 512)), fused=True)),
    "ddp_images": (
        _DP,
        lambda m: momentum(*replicated(m, pictures(lambda _: Images(512, 8), 48, 160, BF16))),
    ),
    "ddp_dense": (_DP, lambda m: trained(*replicated(m, dense(2048, 8, 8192, BF16), static_graph=True))),
    "ddp_brief": (_DP, lambda m: trained(*replicated(m, words(512, 1408, 4, 8000, 1, 256, BF16)))),
    "fsdp": (_DP, lambda m: trained(*in_shards(m, words(2048, 5632, 8, 24_000, 2, 2048)))),
    "fsdp_kept": (
        _DP,
        lambda m: trained(*in_shards(m, words(2560, 6912, 5, 16_000, 2, 2048), reshard_after_forward=False)),
    ),
    "fsdp_reshard": (
        _DP,
        lambda m: clipped(*in_shards(m, words(1536, 4096, 8, 16_000, 4, 1024), reshard_after_forward=True)),
    ),
    "fsdp_bfloat16": (
        _DP,
        lambda m: trained(*in_shards(m, words(3072, 8192, 4, 16_000, 1, 4096), reduce=BF16), fused=True),
    ),
    "fsdp_full": (_DP, lambda m: trained(*in_full(m, words(1792, 4864, 6, 16_000, 4, 1024, BF16)))),
    "fsdp_checkpointed": (
        _DP,
        lambda m: trained(*in_shards(m, words(2048, 5632, 6, 24_000, 4, 2048, wrap=checkpoint_wrapper))),
    ),
    "fsdp_selective": (
        _DP,
        lambda m: trained(*in_shards(m, words(2048, 5632, 5, 16_000, 4, 2048, wrap=selective))),
    ),
    "fsdp_accumulated": (
        _DP,
        lambda m: accumulated(*in_shards(m, words(1536, 4096, 6, 16_000, 2, 2048)), unsynced),
    ),
    "fsdp_vision": (_DP, lambda m: trained(*in_shards(m, vision(1024, 12, 64)), fused=True)),
    "fsdp_dense": (_DP, lambda m: momentum(*in_shards(m, dense(4096, 6, 8192)))),
    "fsdp_brief": (_DP, lambda m: trained(*in_shards(m, words(512, 1408, 5, 8000, 1, 256)), fused=True)),
    "fsdp_inference": (_DP, lambda m: in_shards(m, words(3072, 8192, 6, 16_000, 2, 2048))[:2]),
    "tensor": (
        _TP,
        lambda m: trained(
            *in_parts(m, words(4096, 11264, 2, 16_000, 2, 2048, BF16), sequence=False), foreach=False
        ),
    ),
    "tensor_momentum": (
        _TP,
        lambda m: momentum(
            *in_parts(m, words(3072, 8192, 3, 24_000, 4, 1024, BF16), sequence=False), foreach=False
        ),
    ),
    "tensor_inference": (
        _TP,
        lambda m: in_parts(m, words(5120, 13824, 4, 24_000, 2, 2048, BF16), sequence=False)[:2],
    ),
    "tensor_vision": (
        _TP,
        lambda m: momentum(*vision_in_parts(m, vision(1536, 4, 96, BF16)), foreach=False),
    ),
    "sequence": (
        _TP,
        lambda m: momentum(
            *in_parts(m, words(4096, 11264, 2, 16_000, 2, 2048, BF16, **_PLAIN), sequence=True)
        ),
    ),
    "sequence_long": (
        _TP,
        lambda m: momentum(
            *in_parts(m, words(2048, 5632, 3, 16_000, 1, 8192, BF16, **_PLAIN), sequence=True)
        ),
    ),
    "context": (
        _CP,
        lambda m: models.in_context(
            m, words(1024, 2816, 4, 16_000, 1, 16_384, BF16, **_PLAIN), partial(torch.optim.SGD, **_SGD)
        ),
    ),
    "context_wide": (
        _CP,
        lambda m: models.in_context(m, words(2048, 5632, 3, 16_000, 1, 8192, BF16, **_PLAIN)),
    ),
    "experts": (_EP, lambda m: trained(*exchanging(m, 3072, 8192, 4, 8192))),
    "experts_capacity": (_EP, lambda m: trained(*sparse(m, 1024, 2048, 4, 4, 2048, experts=16, top=2))),
    "experts_momentum": (_EP, lambda m: momentum(*sparse(m, 2048, 4096, 2, 4, 2048, experts=8, top=2))),
    "hybrid": (_HYBRID, lambda m: trained(*in_shards(m, words(2048, 5632, 6, 24_000, 2, 2048)))),
    "hybrid_vision": (_HYBRID, lambda m: trained(*in_shards(m, vision(1024, 10, 48)), fused=True)),
    "fsdp_tensor": (_BOTH, lambda m: trained(*in_both(m, words(4096, 11264, 3, 16_000, 2, 2048)))),
    "fsdp_sequence": (
        _BOTH,
        lambda m: trained(
            *in_both(m, words(3072, 8192, 4, 16_000, 2, 2048, **_PLAIN), sequence=True), fused=True
        ),
    ),
}


def programs(devices: int) -> dict[str, tuple[dict[str, int], Callable[[Any], Any]]]:
    """The programs of so many devices, all along one axis or as many as the axes have."""
    each = {
        name: (dict.fromkeys(axes, devices) if len(axes) == 1 else axes, factory)
        for name, (axes, factory) in PROGRAMS.items()
    }
    return {name: program for name, program in each.items() if prod(program[0].values()) == devices}
