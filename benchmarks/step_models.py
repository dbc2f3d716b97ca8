"""Training steps of many kinds on one device, so small that the GPU waits for the CPU, for `rank_hosts.py`."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks import recorded_models as models, two_gpu_models as two
from benchmarks.recorded_models import BF16, Decoder, Encoder

if TYPE_CHECKING:
    from collections.abc import Callable

F32 = torch.float32


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        convolution = partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        norm = partial(nn.BatchNorm2d, channels)
        self.body = nn.Sequential(convolution(), norm(), nn.ReLU(inplace=True), convolution(), norm())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.body(x))


class Network(nn.Module):
    """Of convolutions and batch norms."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, channels, 3, padding=1), nn.Linear(channels, 10)
        self.blocks = nn.Sequential(*[Residual(channels) for _ in range(blocks)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Layers(nn.Module):
    """Layers of several modules each, and what they do to their operand."""

    def __init__(self, layers: int, make: Callable[[], list[nn.Module]], run: Callable[..., Any]) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleList(nn.ModuleList(make()) for _ in range(layers)), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.run(x, *layer)
        return x


def mlp(width: int, layers: int, activation: Any = nn.ReLU) -> nn.Module:
    each = [part for _ in range(layers) for part in (nn.Linear(width, width), activation())]
    return nn.Sequential(*each)


def before(width: int) -> list[nn.Module]:
    """A norm, an MLP, dropout."""
    return [
        *(nn.LayerNorm(width), nn.Linear(width, 2 * width)),
        *(nn.Linear(2 * width, width), nn.Dropout(0.1)),
    ]


def prenorm(x: Any, norm: Any, up: Any, down: Any, drop: Any) -> Any:
    return x + drop(down(functional.gelu(up(norm(x)))))


def grouped(channels: int, layers: int) -> nn.Module:
    """Group norms and convolutions, as in the denoisers of images."""
    make = partial(nn.Conv2d, channels, channels, 3, padding=1)
    return Layers(
        layers,
        lambda: [nn.GroupNorm(8, channels), make()],
        lambda x, norm, convolution: x + convolution(functional.silu(norm(x))),
    )


class Denoiser(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.inner, self.last = (grouped(scale * channels, 3) for scale in (1, 2, 1))
        self.down = nn.Conv2d(channels, 2 * channels, 3, 2, 1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.join = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(self.join(torch.cat([x, self.up(self.inner(self.down(x)))], 1)))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, layers: int, *, both: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(100, 64), nn.Linear(64 * (1 + both), 100)
        self.body = kind(64, 64, layers, batch_first=True, bidirectional=both)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(x))[0])


def written_out(x: Any, norm: Any, project: Any, out: Any) -> Any:
    """Attention of four heads as its products and a softmax."""
    batch, length, width = x.shape
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    q, k, v = project(norm(x)).reshape(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1)) * (width // 4) ** -0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return x + out((weights @ v).transpose(1, 2).reshape(batch, length, width))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Rotary(nn.Module):
    """Attention with rotary embeddings."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        make = partial(nn.Linear, width, width, bias=False)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.RMSNorm(width), make(), make(), make(), make()]) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        each, on = width // 4, x.device
        inverse = 1 / (10000 ** (torch.arange(0, each, 2, device=on).float() / each))
        angles = torch.outer(torch.arange(length, device=on).float(), inverse)
        cos, sin = (torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin())
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for norm, *projections, out in self.layers:
            y = norm(x)
            q, k, v = (part(y).view(batch, length, 4, each).transpose(1, 2) for part in projections)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(y.transpose(1, 2).reshape(batch, length, width))
        return x


class Recommender(nn.Module):
    """Sums of embeddings, products of all pairs of them, an MLP."""

    def __init__(self, tables: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, width, mode="sum") for _ in range(tables))
        self.bottom = mlp(width, 3)
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.zeros(x.shape[0], 2, dtype=torch.long, device=x.device)
        dense = self.bottom(x)
        every = torch.stack([dense] + [table(ids) for table in self.tables], 1)
        one, other = torch.tril_indices(every.shape[1], every.shape[1], -1, device=x.device)
        products = torch.bmm(every, every.transpose(1, 2))[:, one, other]
        return self.top(torch.cat([dense, products], 1))


def passed_on(x: Any, linear: Any) -> Any:
    """A layer of a graph network: messages of 64 edges are summed at their ends."""
    edges, y = torch.zeros(64, dtype=torch.long, device=x.device), linear(x)
    return functional.relu(torch.zeros_like(y).index_add_(0, edges, y[edges])) + x


def generator(channels: int) -> nn.Module:
    up = partial(nn.ConvTranspose2d, kernel_size=4, bias=False)
    half = channels // 2
    return nn.Sequential(
        *(up(channels, channels), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)),
        *(up(channels, half, stride=2, padding=1), nn.BatchNorm2d(half), nn.ReLU(inplace=True)),
        *(up(half, 3, stride=2, padding=1), nn.Tanh()),
    )


def last(x: Any, spatial: Any, norm: Any, up: Any, down: Any) -> Any:
    """A block of ConvNeXt."""
    return x + down(functional.gelu(up(norm(spatial(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)


def library(kind: str, of: str, **config: int) -> nn.Module:
    """A small model of transformers."""
    import transformers

    config = {"num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128, **config}
    model = getattr(transformers, kind)(getattr(transformers, of)(**config))
    return Logits(model).train()


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


def zeros(*sizes: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.zeros(*sizes, dtype=dtype, device=models.GPU)


def ids(batch: int, length: int) -> torch.Tensor:
    return zeros(batch, length, dtype=torch.long)


def squares(y: torch.Tensor) -> torch.Tensor:
    return y.float().pow(2).mean()


def entropy(y: torch.Tensor) -> torch.Tensor:
    rows = y.flatten(0, -2).float()
    return functional.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.long, device=y.device))


def groups(parameters: Any) -> torch.optim.Optimizer:
    """Weight decay for matrices only."""
    every = list(parameters)
    return torch.optim.AdamW(
        [
            {"params": [each for each in every if each.ndim < 2], "weight_decay": 0.0},
            {"params": [each for each in every if each.ndim >= 2]},
        ]
    )


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.AdamW, fused=True),
    "adam_single": partial(torch.optim.Adam, foreach=False),
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd_single": partial(torch.optim.SGD, lr=0.1, foreach=False),
    "sgd_fused": partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "rmsprop": torch.optim.RMSprop,
    "nadam": torch.optim.NAdam,
    "amsgrad": partial(torch.optim.AdamW, amsgrad=True),
    "groups": groups,
}


def step(
    make: Callable[[], nn.Module], x: Callable[[], torch.Tensor], loss: Any, optimizer: str = "adamw",
    dtype: torch.dtype = F32, *, how: str = "",
) -> Callable[[], None]:  # fmt: skip
    """A training step. how: "mixed" under autocast, "accumulated" over two batches, "clipped" gradients."""
    model, given = models.built(make, dtype), x()
    update = OPTIMIZERS[optimizer](model.parameters())

    def run() -> None:
        for _ in range(1 + (how == "accumulated")):
            mixed = torch.autocast("cuda", dtype=BF16) if how == "mixed" else contextlib.nullcontext()
            with mixed:
                value = loss(model(given))
            value.backward()
        if how == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update.step()
        update.zero_grad()

    return run


def words(layers: int, optimizer: str = "adamw", dtype: torch.dtype = BF16, how: str = "") -> Any:
    return partial(
        step, lambda: Decoder(256, 704, layers, 1000), lambda: ids(1, 64), entropy, optimizer, dtype, how=how
    )


def encoded(layers: int, optimizer: str = "adamw") -> Any:
    return partial(step, lambda: Encoder(128, layers, 1000, 64), lambda: ids(2, 64), entropy, optimizer, BF16)


def tokens(make: Callable[[], nn.Module], optimizer: str = "adamw", dtype: torch.dtype = F32) -> Any:
    return partial(step, make, lambda: zeros(2, 32, 128, dtype=dtype), squares, optimizer, dtype)


def pictures(blocks: int, optimizer: str = "momentum", dtype: torch.dtype = F32, how: str = "") -> Any:
    make = partial(Network, 16, blocks)
    return partial(step, make, lambda: zeros(2, 3, 16, 16, dtype=dtype), squares, optimizer, dtype, how=how)


def rows(optimizer: str, layers: int = 16, activation: Any = nn.GELU) -> Any:
    return partial(step, partial(mlp, 64, layers, activation), lambda: zeros(8, 64), squares, optimizer)


def of_layers(layers: int, make: Callable[[], list[nn.Module]], run: Callable[..., Any]) -> Any:
    return lambda: Layers(layers, make, run)


def transformer(kind: str, of: str, **config: int) -> Any:
    return partial(
        step,
        partial(library, kind, of, hidden_size=64, vocab_size=200, **config),
        lambda: ids(1, 32),
        entropy,
    )


def attention(layers: int) -> Any:
    return of_layers(
        layers,
        lambda: [nn.MultiheadAttention(128, 4, batch_first=True)],
        lambda x, inner: x + inner(x, x, x, need_weights=False)[0],
    )


def stack(layers: int, drop: float, *, first: bool) -> Any:
    """PyTorch's own encoder."""
    return lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(128, 4, 256, drop, "gelu", batch_first=True, norm_first=first),
        layers,
        enable_nested_tensor=False,
    )


def _head() -> list[nn.Module]:
    return [nn.LayerNorm(128), nn.Linear(128, 384), nn.Linear(128, 128)]


def _convnext() -> list[nn.Module]:
    spatial = nn.Conv2d(64, 64, 7, padding=3, groups=64)
    return [spatial, nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)]


_GROUPED = {"num_key_value_heads": 2}
STEPS: dict[str, Callable[[], Callable[[], None]]] = {
    "decoder_3": words(3),
    "decoder_8": words(8),
    "decoder_sgd": words(6, "sgd"),
    "decoder_clip": words(6, "fused", how="clipped"),
    "decoder_mixed": words(6, dtype=F32, how="mixed"),
    "decoder_acc": words(4, how="accumulated"),
    "encoder_2": encoded(2),
    "encoder_6": encoded(6),
    "encoder_fused": encoded(4, "fused"),
    "enc_first": tokens(stack(6, 0.1, first=True), "momentum"),
    "enc_post": tokens(stack(4, 0.0, first=False)),
    "mha_6": tokens(attention(6)),
    "mha_sgd": tokens(attention(10), "sgd"),
    "cnn_3": pictures(3),
    "cnn_10": pictures(10),
    "cnn_adamw": pictures(6, "adamw"),
    "cnn_mixed": pictures(6, how="mixed"),
    "cnn_half": pictures(6, "adamw", BF16),
    "images": partial(
        step, partial(models.Images, 64, 6), lambda: zeros(1, 3, 64, 64, dtype=BF16), squares, dtype=BF16
    ),
    "mlp_6": rows("adamw", 6, nn.ReLU),
    "mlp_20": rows("adamw", 20, nn.ReLU),
    "mlp_sgd": rows("sgd", 20, nn.ReLU),
    "mlp_single": rows("sgd_single", 10, nn.ReLU),
    "mlp_adam_single": rows("adam_single", 10, nn.ReLU),
    "mlp_adagrad": rows("adagrad"),
    "mlp_rmsprop": rows("rmsprop"),
    "mlp_nadam": rows("nadam"),
    "mlp_amsgrad": rows("amsgrad"),
    "mlp_groups": rows("groups"),
    "mlp_sgd_fused": rows("sgd_fused"),
    "mlp_adamw_fused": rows("fused"),
    "mlp_tanh": rows("sgd", activation=nn.Tanh),
    "prenorm": tokens(of_layers(8, partial(before, 128), prenorm)),
    "prenorm_half": tokens(of_layers(8, partial(before, 128), prenorm), "momentum", BF16),
    "group": partial(step, partial(grouped, 32, 8), lambda: zeros(2, 32, 16, 16), squares),
    "unet": partial(step, partial(Denoiser, 32), lambda: zeros(2, 32, 16, 16), squares, "fused"),
    "lstm_1": partial(step, partial(Recurrent, nn.LSTM, 1), lambda: ids(2, 16), entropy),
    "lstm_2b": partial(step, partial(Recurrent, nn.LSTM, 2, both=True), lambda: ids(2, 16), entropy),
    "gru_2": partial(step, partial(Recurrent, nn.GRU, 2), lambda: ids(2, 16), entropy, "sgd"),
    "manual": tokens(of_layers(6, _head, written_out)),
    "manual_half": tokens(of_layers(6, _head, written_out), "sgd", BF16),
    "rope": tokens(partial(Rotary, 128, 6), dtype=BF16),
    "dlrm": partial(step, partial(Recommender, 8, 32), lambda: zeros(4, 32), squares, "adagrad"),
    "gcn": partial(
        step, of_layers(6, lambda: [nn.Linear(64, 64)], passed_on), lambda: zeros(32, 64), squares
    ),
    "gan": partial(step, partial(generator, 32), lambda: zeros(2, 32, 1, 1), squares),
    "convnext": partial(step, of_layers(6, _convnext, last), lambda: zeros(2, 64, 8, 8), squares),
    "vision": partial(
        *(step, partial(two.Vision, 256, 6, 16, 64), lambda: zeros(1, 3, 64, 64, dtype=BF16), squares),
        *("momentum", BF16),
    ),
    "dense": partial(
        step, partial(two.Dense, 256, 12), lambda: zeros(8, 256, dtype=BF16), squares, "fused", BF16
    ),
    "hf_bert": transformer("BertForMaskedLM", "BertConfig"),
    "hf_llama": transformer("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    "hf_qwen3": transformer("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=16),
}
