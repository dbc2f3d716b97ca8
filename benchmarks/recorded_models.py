"""Programs of `recorded.py`: training and inference steps as people write them, on one device and as one rank of many.

Each is a factory of a mesh, None on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

BF16, GPU = torch.bfloat16, torch.device("cuda")


class Layer(nn.Module):
    """A decoder's layer: grouped heads, a gated MLP."""

    def __init__(self, width: int, hidden: int, heads: int, shared: int, norm: Any = nn.RMSNorm) -> None:
        super().__init__()
        self.each = width // heads
        self.before, self.between = norm(width), norm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, width // shared, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down, self.is_shared = nn.Linear(hidden, width, bias=False), shared > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.each)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.is_shared)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """wrap: what is around each layer."""

    def __init__(
        self, width: int, hidden: int, layers: int, words: int, *, shared: int = 4, each: int = 64,
        norm: Any = nn.RMSNorm, wrap: Any = lambda layer: layer,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.layers = nn.ModuleList(
            wrap(Layer(width, hidden, width // each, shared, norm)) for _ in range(layers)
        )
        self.norm = norm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """A post-norm encoder with learned positions, dropout and a padding mask."""

    def __init__(self, width: int, layers: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.encoder(x, src_key_padding_mask=ids == 1))


class Bottleneck(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels // 4
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(
                nn.Conv2d(inner, inner, 3, padding=1, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.body(x))


class Images(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
            nn.Conv2d(64, channels, 1),
        )
        self.blocks = nn.Sequential(*[Bottleneck(channels) for _ in range(blocks)])
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class ConvNext(nn.Module):
    """Blocks of a depthwise convolution, a norm of channels and two linear layers."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, channels, 4, 4), nn.Linear(channels, 1000)
        self.depthwise = nn.ModuleList(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels) for _ in range(blocks)
        )
        self.mlps = nn.ModuleList(
            nn.Sequential(
                *(nn.LayerNorm(channels), nn.Linear(channels, 4 * channels)),
                *(nn.GELU(), nn.Linear(4 * channels, channels)),
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for depthwise, mlp in zip(self.depthwise, self.mlps, strict=True):
            x = x + mlp(depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class Denoiser(nn.Module):
    """A U of two scales with group norms and nearest interpolation."""

    def __init__(self, c: int) -> None:
        super().__init__()

        def block(given: int, made: int) -> nn.Module:
            return nn.Sequential(nn.GroupNorm(8, given), nn.SiLU(), nn.Conv2d(given, made, 3, padding=1))

        self.first, self.down = nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, 2, 1)
        self.high, self.low, self.back = block(c, c), block(2 * c, 2 * c), block(3 * c, c)
        self.up, self.last = nn.Upsample(scale_factor=2.0), nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.high(self.first(x))
        return self.last(self.back(torch.cat([self.up(self.low(self.down(high))), high], 1)))


class Tagger(nn.Module):
    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.states = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(self.words(ids))[0])


class Experts(nn.Module):
    """Tokens go to the devices of their experts in equal parts, and back."""

    def __init__(self, width: int, hidden: int, layers: int, group: Any) -> None:
        super().__init__()
        self.group = group
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.up, self.down = (
            nn.ModuleList(nn.Linear(*sizes, bias=False) for _ in range(layers))
            for sizes in ((width, hidden), (hidden, width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd as exchanged

        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            there = exchanged(norm(x), None, None, self.group)
            x = x + exchanged(down(functional.silu(up(there))), None, None, self.group)
        return x


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long, device=GPU)


def of_words(labels: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda scores: functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def of_images(images: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    labels = torch.zeros(len(images), dtype=torch.long, device=GPU)
    return lambda scores: functional.cross_entropy(scores, labels)


def built(make: Callable[[], nn.Module], dtype: torch.dtype = BF16) -> nn.Module:
    """A model on the device."""
    with GPU:
        return make().to(dtype)


def trained(model: nn.Module, x: Any, loss: Any, **options: Any) -> tuple[Any, ...]:
    return model, x, torch.optim.AdamW(model.parameters(), **options), loss


def mixed(model: nn.Module, x: Any, loss: Any, dtype: torch.dtype = BF16) -> Callable[[], None]:
    """A step under autocast; the weights are float32."""
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        with torch.autocast("cuda", dtype=dtype):
            value = loss(model(x))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def accumulated(model: nn.Module, x: torch.Tensor, times: int) -> Callable[[], None]:
    optimizer, loss = torch.optim.AdamW(model.parameters()), of_words(x)

    def step() -> None:
        for _ in range(times):
            (loss(model(x)) / times).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def decoder(scale: int = 1, **options: Any) -> nn.Module:
    return built(lambda: Decoder(1024 * scale, 2816 * scale, 6, 32_000, **options))


def sharded(model: Any, mesh: Any, *, reduce: torch.dtype = torch.float32, **options: Any) -> Any:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=reduce)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, **options)
    fully_shard(model, mesh=mesh, mp_policy=policy, **options)
    return model


def fully_sharded(
    mesh: Any, *, wrap: Any = lambda layer: layer, optimizer: Any = None, **options: Any
) -> Any:
    with GPU:
        model = Decoder(2048, 5632, 6, 32_000, wrap=wrap)
    x = ids(2, 2048)
    return trained(sharded(model, mesh, **options), x, of_words(x), **optimizer or {})


def split(model: Any, mesh: Any, *, sequence: bool) -> Any:
    """Heads and the MLP over devices; with sequence, norms see a part of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
    for place in range(len(model.layers)):
        layer = f"layers.{place}."
        if sequence:
            plan |= {layer + "before": SequenceParallel(), layer + "between": SequenceParallel()}
            for name in ("q", "k", "v", "gate", "up"):
                plan[layer + name] = ColwiseParallel(input_layouts=Shard(1))
        else:
            plan |= {layer + name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
        plan |= {layer + name: RowwiseParallel(output_layouts=between) for name in ("o", "down")}
    return parallelize_module(model, mesh, plan)


def tensor_parallel(mesh: Any, *, sequence: bool = False, trains: bool = True) -> Any:
    model, x = decoder(2, norm=nn.LayerNorm if sequence else nn.RMSNorm), ids(2, 2048)
    model = split(model, mesh["tp"], sequence=sequence)
    if not trains:
        return model.eval(), x
    return model, x, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False), of_words(x)


def both(mesh: Any) -> Any:
    with GPU:
        model = Decoder(2048, 5632, 4, 32_000, norm=nn.LayerNorm)
    x = ids(2, 2048)
    model = sharded(split(model, mesh["tp"], sequence=True), mesh["dp"])
    return model, x, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False), of_words(x)


def experts(mesh: Any) -> Any:
    model = built(lambda: Experts(2048, 8192, 6, mesh.get_group("ep")))
    x = torch.zeros(8192, 2048, dtype=BF16, device=GPU)
    return trained(model, x, lambda y: y.float().pow(2).mean())


def in_context(
    mesh: Any, made: tuple[nn.Module, Any, Any], optimizer: Callable[[Any], Any] = torch.optim.AdamW
) -> Callable[[], None]:
    """Parts of the sequence on the devices, whose keys and values all of them see."""
    from torch.distributed.tensor.experimental import context_parallel

    model, x, loss = made
    update = optimizer(model.parameters())

    def step() -> None:
        with context_parallel(mesh["cp"], buffers=(x,), buffer_seq_dims=(1,)):
            loss(model(x)).backward()
        update.step()
        update.zero_grad()

    return step


def data_parallel(mesh: Any, make: Callable[[], tuple[nn.Module, Any, Any]], **options: Any) -> Any:
    model, x, loss = make()
    model = nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("dp"), **options)
    return trained(model, x, loss)


def images(batch: int, dtype: torch.dtype = BF16) -> tuple[nn.Module, Any, Any]:
    x = torch.zeros(batch, 3, 224, 224, dtype=dtype, device=GPU)
    return built(lambda: Images(256, 6), dtype), x, of_images(x)


def words(batch: int, length: int, **options: Any) -> tuple[nn.Module, Any, Any]:
    x = ids(batch, length)
    return decoder(**options), x, of_words(x)


def small() -> tuple[nn.Module, Any, Any]:
    """Too small for a GPU: the CPU's time."""
    x = ids(1, 64)
    return built(lambda: Decoder(256, 704, 6, 1000)), x, of_words(x)


def small_sharded(mesh: Any) -> Any:
    with GPU:
        model = Decoder(256, 704, 6, 1000)
    x = ids(1, 64)
    return trained(sharded(model, mesh), x, of_words(x))


def small_split(mesh: Any, *, sequence: bool) -> Any:
    x = ids(1, 64)
    model = built(lambda: Decoder(256, 704, 6, 1000, shared=1, norm=nn.LayerNorm))
    model = split(model, mesh["tp"], sequence=sequence)
    return model, x, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False), of_words(x)


def encoder(batch: int, length: int, dtype: torch.dtype = BF16) -> tuple[nn.Module, Any, Any]:
    x = ids(batch, length)
    return built(lambda: Encoder(768, 6, 30_000, length), dtype), x, of_words(x)


def convnext(dtype: torch.dtype = BF16) -> tuple[nn.Module, Any, Any]:
    x = torch.zeros(64, 3, 224, 224, dtype=dtype, device=GPU)
    return built(lambda: ConvNext(192, 4), dtype), x, of_images(x)


def denoiser(dtype: torch.dtype = BF16) -> tuple[nn.Module, Any, Any]:
    x = torch.zeros(16, 4, 64, 64, dtype=dtype, device=GPU)
    return built(lambda: Denoiser(192), dtype), x, lambda y: functional.mse_loss(y, x)


def tagger() -> tuple[nn.Module, Any, Any]:
    x = ids(32, 256)
    return built(lambda: Tagger(512, 8000), torch.float32), x, of_words(x)


def last(made: tuple[nn.Module, Any, Any]) -> tuple[nn.Module, Any, Any]:
    """With channels last in memory."""
    model, x, loss = made
    return model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last), loss


PROGRAMS: dict[str, tuple[dict[str, int], Callable[[Any], Any]]] = {
    "small": ({}, lambda _: trained(*small())),
    "small_fused": ({}, lambda _: trained(*small(), fused=True)),
    "small_mixed": ({}, lambda _: mixed(*encoder(1, 64, torch.float32))),
    "small_inference": ({}, lambda _: small()[:2]),
    "small_fsdp": ({"dp": 2}, small_sharded),
    "small_tensor": ({"tp": 2}, lambda mesh: small_split(mesh, sequence=False)),
    "small_sequence": ({"tp": 2}, lambda mesh: small_split(mesh, sequence=True)),
    "small_images": ({}, lambda _: trained(*images(1))),
    "decoder": ({}, lambda _: trained(*words(4, 2048))),
    "decoder_layer_norm": ({}, lambda _: trained(*words(4, 2048, norm=nn.LayerNorm, shared=1))),
    "decoder_checkpointed": ({}, lambda _: trained(*words(4, 2048, wrap=checkpoint_wrapper), fused=True)),
    "decoder_accumulated": ({}, lambda _: accumulated(decoder(), ids(2, 2048), 3)),
    "decoder_inference": ({}, lambda _: words(4, 4096)[:2]),
    "decoder_mixed": (
        {},
        lambda _: mixed(built(lambda: Decoder(1024, 2816, 6, 32_000), torch.float32), *words(4, 1024)[1:]),
    ),
    "encoder": ({}, lambda _: trained(*encoder(16, 512))),
    "encoder_mixed": ({}, lambda _: mixed(*encoder(16, 512, torch.float32))),
    "images": ({}, lambda _: trained(*images(64))),
    "images_last": ({}, lambda _: trained(*last(images(64)))),
    "images_mixed": ({}, lambda _: mixed(*images(64, torch.float32), dtype=torch.float16)),
    "convnext": ({}, lambda _: trained(*convnext())),
    "convnext_mixed": ({}, lambda _: mixed(*convnext(torch.float32))),
    "denoiser": ({}, lambda _: trained(*denoiser())),
    "denoiser_mixed": ({}, lambda _: mixed(*denoiser(torch.float32))),
    "tagger": ({}, lambda _: trained(*tagger())),
    "fsdp": ({"dp": 8}, lambda mesh: fully_sharded(mesh)),
    "fsdp_kept": ({"dp": 8}, lambda mesh: fully_sharded(mesh, reshard_after_forward=False)),
    "fsdp_checkpointed": ({"dp": 4}, lambda mesh: fully_sharded(mesh, wrap=checkpoint_wrapper)),
    "fsdp_fused": ({"dp": 4}, lambda mesh: fully_sharded(mesh, optimizer={"fused": True}, reduce=BF16)),
    "fsdp_inference": ({"dp": 4}, lambda mesh: fully_sharded(mesh)[:2]),
    "hsdp": ({"replicate": 2, "shard": 4}, lambda mesh: fully_sharded(mesh)),
    "tensor": ({"tp": 4}, lambda mesh: tensor_parallel(mesh)),
    "tensor_inference": ({"tp": 4}, lambda mesh: tensor_parallel(mesh, trains=False)),
    "sequence": ({"tp": 4}, lambda mesh: tensor_parallel(mesh, sequence=True)),
    "fsdp_tensor": ({"dp": 2, "tp": 4}, both),
    "experts": ({"ep": 4}, experts),
    "context": ({"cp": 2}, lambda mesh: in_context(mesh, words(1, 8192, norm=nn.LayerNorm, shared=1))),
    "ddp": ({"dp": 2}, lambda mesh: data_parallel(mesh, lambda: words(4, 2048))),
    "ddp_views": (
        {"dp": 2},
        lambda mesh: data_parallel(mesh, lambda: words(4, 2048), gradient_as_bucket_view=True),
    ),
    "ddp_images": ({"dp": 2}, lambda mesh: data_parallel(mesh, lambda: images(64))),
}
