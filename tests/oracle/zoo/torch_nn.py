"""What torch.nn offers, and the architectures that people write with it by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.oracle.zoo.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCHES = ({"n": 2}, {"n": 3}, {"n": 7})
SEQUENCES = ({"n": 2, "t": 4}, {"n": 3, "t": 11}, {"n": 5, "t": 32})
NO_COUNT = "torch has no formula for recurrences that a CPU runs as one call, and counts 0"


def cases() -> Iterator[Case]:
    """All of them."""
    yield from recurrent()
    yield from attention()
    yield from convolutional()
    yield from mixers()
    yield from idioms()


class Function(nn.Module):
    """A function of inputs and of named submodules."""

    def __init__(self, function: Any, **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def tokens(n: int, t: int) -> tuple[torch.Tensor]:
    return (torch.randint(0, 50, (n, t)),)


def features(n: int, t: int) -> tuple[torch.Tensor]:
    return (torch.rand(n, t, 16),)


def recurrent() -> Iterator[Case]:
    """LSTM, GRU and RNN; gates x (input + hidden) x hidden multiply-adds per step and direction."""
    for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for layers, ways in ((1, 1), (2, 1), (2, 2)):

            def flops(n: int, t: int, gates: int = gates, layers: int = layers, ways: int = ways) -> int:
                first = 2 * n * t * ways * gates * 8 * (16 + 8)
                return first + (layers - 1) * 2 * n * t * ways * gates * 8 * (ways * 8 + 8)

            yield Case(
                f"nn/{kind}_{layers}_layers_{ways}_ways",
                lambda kind=kind, layers=layers, ways=ways: getattr(nn, kind)(
                    16, 8, layers, batch_first=True, bidirectional=ways == 2
                ),
                features,
                SEQUENCES,
                expected=flops,
                because=NO_COUNT,
            )
    yield Case(
        "nn/LSTM_projected",
        lambda: nn.LSTM(16, 8, 2, batch_first=True, proj_size=4),
        features,
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * (4 * 8 * (16 + 4) + 8 * 4 + 4 * 8 * (4 + 4) + 8 * 4),
        because=NO_COUNT,
    )
    yield Case(
        "nn/LSTM_with_states",
        lambda: nn.LSTM(16, 8),
        lambda n, t: (torch.rand(t, n, 16), (torch.rand(1, n, 8), torch.rand(1, n, 8))),
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * 4 * 8 * (16 + 8),
        because=NO_COUNT,
    )
    for cell in ("LSTMCell", "GRUCell", "RNNCell"):
        yield Case(
            f"nn/{cell}", lambda cell=cell: getattr(nn, cell)(16, 8), lambda n: (torch.rand(n, 16),), BATCHES
        )

    def tagged(self: Any, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(ids))[0])

    yield Case(
        "nn/lstm_tagger",
        lambda: Function(
            tagged,
            embed=nn.Embedding(50, 16),
            lstm=nn.LSTM(16, 8, batch_first=True, bidirectional=True),
            head=nn.Linear(16, 5),
        ),
        tokens,
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * (2 * 4 * 8 * (16 + 8) + 16 * 5),
        because=NO_COUNT,
    )


class CausalAttention(nn.Module):
    """Attention spelled out, as in many a tutorial."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, width))


class TiedDecoder(nn.Module):
    """A small GPT whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(16), "mix": CausalAttention(), "mlp": mlp()})
            for _ in range(2)
        )
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = x + block["mix"](block["norm"](x))
            x = x + block["mlp"](x)
        return self.head(x)


def mlp(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))


def attention() -> Iterator[Case]:
    """nn.Transformer and its parts, and attention by hand."""

    def itself(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x, need_weights=self.weights)[0]

    for weights in (False, True):

        def built(weights: bool = weights, **options: Any) -> nn.Module:
            made = Function(itself, mha=nn.MultiheadAttention(16, 4, batch_first=True, **options))
            made.weights = weights
            return made

        yield Case(f"nn/MultiheadAttention_weights_{weights}", built, features, SEQUENCES)
        yield Case(
            f"nn/MultiheadAttention_bias_kv_{weights}",
            lambda b=built: b(add_bias_kv=True),
            features,
            SEQUENCES,
        )
    yield Case(
        "nn/MultiheadAttention_other_widths",
        lambda: Function(
            lambda self, q, k, v: self.mha(q, k, v), mha=nn.MultiheadAttention(16, 4, kdim=12, vdim=20)
        ),
        lambda n, t: (torch.rand(5, n, 16), torch.rand(t, n, 12), torch.rand(t, n, 20)),
        SEQUENCES,
    )
    layer = lambda **options: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)  # noqa: E731
    yield Case("nn/TransformerEncoderLayer", layer, features, SEQUENCES)
    yield Case(
        "nn/TransformerEncoderLayer_norm_first",
        lambda: layer(norm_first=True, activation="gelu"),
        features,
        SEQUENCES,
    )
    yield Case("nn/TransformerEncoder", lambda: nn.TransformerEncoder(layer(), 3), features, SEQUENCES)
    yield Case(
        "nn/TransformerEncoder_masked",
        lambda: Function(
            lambda self, x, padded: self.encoder(
                x,
                mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]),
                src_key_padding_mask=padded,
                is_causal=False,
            ),
            encoder=nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False),
        ),
        lambda n, t: (torch.rand(n, t, 16), torch.zeros(n, t, dtype=torch.bool)),
        SEQUENCES,
    )
    both = lambda n, t: (torch.rand(n, t, 16), torch.rand(n, t + 3, 16))  # noqa: E731
    yield Case(
        "nn/TransformerDecoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2),
        both,
        SEQUENCES,
    )
    yield Case("nn/Transformer", lambda: nn.Transformer(16, 4, 2, 2, 32, batch_first=True), both, SEQUENCES)
    yield Case("nn/attention_by_hand", CausalAttention, features, SEQUENCES)
    yield Case("nn/gpt_tied", TiedDecoder, tokens, SEQUENCES)

    def fused(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).transpose(1, 3).unbind(2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    yield Case("nn/attention_causal", lambda: Function(fused, qkv=nn.Linear(16, 48)), features, SEQUENCES)

    def grouped(self: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    yield Case(
        "nn/attention_grouped",
        lambda: Function(grouped),
        lambda n, t: (torch.rand(n, 8, t, 16), torch.rand(n, 2, t + 1, 16)),
        SEQUENCES,
    )


class UNet(nn.Module):
    """Down twice, up twice, with skips."""

    def __init__(self, up: str) -> None:
        super().__init__()
        block = lambda a, b: nn.Sequential(  # noqa: E731
            nn.Conv2d(a, b, 3, padding=1),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1),
            nn.SiLU(),
        )
        self.down = nn.ModuleList([block(3, 8), block(8, 16)])
        self.middle = block(16, 32)
        raise_ = (
            (lambda a, b: nn.ConvTranspose2d(a, b, 2, 2))
            if up == "transposed"
            else lambda a, b: nn.Sequential(nn.Upsample(scale_factor=2, mode=up), nn.Conv2d(a, b, 1))
        )
        self.raised = nn.ModuleList([raise_(32, 16), raise_(16, 8)])
        self.up = nn.ModuleList([block(32, 16), block(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for raised, up in zip(self.raised, self.up, strict=False):
            x = up(torch.cat([raised(x), skips.pop()], 1))
        return self.head(x)


def convolutional() -> Iterator[Case]:
    """Convolutions of one, two and three axes, and networks of them."""
    pictures = lambda n, h: (torch.rand(n, 3, h, 32),)  # noqa: E731
    sides = ({"n": 2, "h": 32}, {"n": 3, "h": 48}, {"n": 5, "h": 64})
    for up in ("transposed", "nearest", "bilinear"):
        yield Case(f"nn/unet_{up}", lambda up=up: UNet(up), pictures, sides)
    yield Case(
        "nn/gan_generator",
        lambda: nn.Sequential(
            *(nn.ConvTranspose2d(20, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(True)),
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True)),
            *(nn.ConvTranspose2d(16, 3, 4, 2, 1, output_padding=1, groups=1), nn.Tanh()),
        ),
        lambda n: (torch.rand(n, 20, 1, 1),),
        BATCHES,
    )
    yield Case(
        "nn/conv_1d",
        lambda: nn.Sequential(
            nn.Conv1d(4, 8, 5, stride=2, padding=2, dilation=1),
            nn.GLU(1),
            nn.Conv1d(4, 8, 3, padding="same", groups=2),
            nn.PReLU(),
        ),
        lambda n, t: (torch.rand(n, 4, t),),
        SEQUENCES,
    )
    yield Case(
        "nn/conv_3d",
        lambda: nn.Sequential(
            nn.Conv3d(2, 4, 3, padding=1),
            nn.InstanceNorm3d(4, affine=True),
            nn.AvgPool3d(2),
            nn.ConvTranspose3d(4, 2, 2, 2),
        ),
        lambda n, d: (torch.rand(n, 2, d, 8, 8),),
        ({"n": 2, "d": 4}, {"n": 3, "d": 6}, {"n": 4, "d": 12}),
    )
    yield Case(
        "nn/depthwise_padded",
        lambda: nn.Sequential(
            *(nn.ReflectionPad2d(1), nn.Conv2d(3, 6, 3, groups=3), nn.GroupNorm(2, 6), nn.Hardswish()),
            *(
                nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular"),
                nn.AdaptiveAvgPool2d((4, 4)),
                nn.PixelShuffle(2),
            ),
            *(nn.LPPool2d(2, 2), nn.Flatten(), nn.Linear(16, 5)),
        ),
        pictures,
        sides,
    )
    yield Case(
        "nn/autoencoder",
        lambda: nn.Sequential(
            *(
                nn.Conv2d(3, 8, 3, 2, 1),
                nn.LeakyReLU(),
                nn.Flatten(),
                nn.Linear(8 * 16 * 16, 10),
                nn.Linear(10, 8 * 16 * 16),
            ),
            *(nn.Unflatten(1, (8, 16, 16)), nn.ConvTranspose2d(8, 3, 3, 2, 1, 1), nn.Sigmoid()),
        ),
        lambda n: (torch.rand(n, 3, 32, 32),),
        BATCHES,
    )
    yield Case(
        "nn/wavenet",
        WaveNet,
        lambda n, t: (torch.rand(n, 4, t + 32),),
        SEQUENCES,
    )


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates and skips, weights normalised."""

    def __init__(self) -> None:
        super().__init__()
        normed = torch.nn.utils.parametrizations.weight_norm
        self.filters = nn.ModuleList(normed(nn.Conv1d(4, 8, 2, dilation=2**i)) for i in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = 0
        for i, (filters, skip) in enumerate(zip(self.filters, self.skips, strict=False)):
            value, gate = filters(F.pad(x, (2**i, 0))).chunk(2, 1)
            out = skip(torch.tanh(value) * torch.sigmoid(gate))
            x, total = x + out, total + out
        return total


def mixers() -> Iterator[Case]:
    """What mixes tokens other than by attention."""

    def fnet(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real)
        return x + self.mlp(x)

    yield Case("nn/fnet", lambda: Function(fnet, norm=nn.LayerNorm(16), mlp=mlp()), features, SEQUENCES)

    def filtered(self: Any, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x, dim=1)
        return torch.fft.irfft(spectrum * self.scale, n=x.shape[1], dim=1)

    def with_scale() -> nn.Module:
        made = Function(filtered)
        made.scale = nn.Parameter(torch.rand(16))
        return made

    yield Case("nn/global_filter", with_scale, features, SEQUENCES)

    def einsums(self: Any, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.einsum("ntc,ncd->ntd", x, torch.einsum("ntc,ntd->ncd", x, x))
        return torch.einsum("ntc,cd->ntd", mixed, self.mix.weight)

    yield Case(
        "nn/einsum_linear_attention",
        lambda: Function(einsums, mix=nn.Linear(16, 16, bias=False)),
        features,
        SEQUENCES,
    )

    def mixed(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.channels(x + self.spaces(x.transpose(1, 2)).transpose(1, 2))

    yield Case(
        "nn/mlp_mixer",
        lambda: Function(mixed, channels=mlp(16), spaces=mlp(9)),
        lambda n: (torch.rand(n, 9, 16),),
        BATCHES,
    )
    yield Case("nn/selective_state", StateSpace, features, ({"n": 2, "t": 6}, {"n": 5, "t": 6}))


class StateSpace(nn.Module):
    """A linear recurrence whose coefficients depend on the input, its steps unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(16, 4))
        self.select, self.step = nn.Linear(16, 8), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = F.softplus(self.step(x))
        into, out = self.select(x).chunk(2, -1)
        state = x.new_zeros(x.shape[0], 16, 4)
        results = []
        for t in range(x.shape[1]):
            state = (
                torch.exp(-step[:, t, :, None] * self.decay) * state
                + (step[:, t] * x[:, t])[..., None] * into[:, t, None]
            )
            results.append(torch.einsum("ncs,ns->nc", state, out[:, t]))
        return torch.stack(results, 1)


def idioms() -> Iterator[Case]:
    """Things that programs do: bags, graphs, experts, regions without gradients, tied weights, complex numbers."""
    yield Case(
        "nn/EmbeddingBag",
        lambda: nn.EmbeddingBag(50, 16, mode="mean"),
        tokens,
        SEQUENCES,
    )
    yield Case(
        "nn/EmbeddingBag_offsets",
        lambda: nn.EmbeddingBag(50, 16, mode="sum"),
        lambda n, t: (torch.randint(0, 50, (n * t,)), torch.arange(0, n * t, t)),
        SEQUENCES,
    )

    def propagate(self: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        messages = self.message(x)[edges[0]]
        return self.update(
            torch.zeros_like(x).scatter_add(0, edges[1][:, None].expand_as(messages), messages).relu()
        )

    def pooled(self: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(x.shape).index_add_(0, edges[1], self.message(x.index_select(0, edges[0])))
        degree = torch.zeros(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        return out / degree[:, None] + x.scatter_reduce(
            0, edges[1][:, None].expand(-1, 16), x[edges[0]], "amax"
        )

    graph = lambda v, e: (torch.rand(v, 16), torch.randint(0, 5, (2, e)))  # noqa: E731
    graphs = ({"v": 6, "e": 10}, {"v": 9, "e": 30}, {"v": 20, "e": 7})
    parts = lambda: {"message": nn.Linear(16, 16), "update": nn.Linear(16, 8)}  # noqa: E731
    yield Case("nn/graph_scatter_add", lambda: Function(propagate, **parts()), graph, graphs)
    yield Case("nn/graph_index_add", lambda: Function(pooled, **parts()), graph, graphs)
    yield Case("nn/mixture_of_experts", Experts, features, SEQUENCES)

    def frozen(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.a(x)
        return self.b(x)

    two = lambda: {"a": nn.Linear(16, 16), "b": nn.Linear(16, 4)}  # noqa: E731
    yield Case("nn/no_grad_region", lambda: Function(frozen, **two()), features, SEQUENCES, placed=False)

    def mixed(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.a(x).softmax(-1)
        with torch.autocast("cpu", enabled=False):
            return self.b(x.float())

    yield Case("nn/autocast_region", lambda: Function(mixed, **two()), features, SEQUENCES, placed=False)
    yield Case(
        "nn/half",
        lambda: nn.Sequential(mlp(), nn.LayerNorm(16)).bfloat16(),
        lambda n: (torch.rand(n, 16).bfloat16(),),
        BATCHES,
    )

    def again(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.b(checkpoint(self.a, x, use_reentrant=False))

    yield Case("nn/checkpoint", lambda: Function(again, **two()), features, SEQUENCES)

    def thrice(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.a(x)
        return F.linear(x, self.a.weight.t())

    yield Case("nn/shared_layer", lambda: Function(thrice, a=nn.Linear(16, 16)), features, SEQUENCES)

    def turned(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.view_as_complex(x.unflatten(-1, (8, 2)))
        angles = torch.polar(torch.ones(y.shape[1], 8), torch.arange(y.shape[1])[:, None] * torch.rand(8))
        return torch.view_as_real(y * angles).flatten(-2)

    yield Case("nn/rotary_complex", lambda: Function(turned), features, SEQUENCES)
    yield Case(
        "nn/complex_linear",
        lambda: nn.Linear(16, 8, dtype=torch.complex64),
        lambda n: (torch.rand(n, 16, dtype=torch.complex64),),
        BATCHES,
        expected=lambda n: 8 * n * 16 * 8,
        because="torch counts a complex multiply-add as a real one; it is eight operations",
    )

    def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return self.a(x - self.mean)

    def with_buffers() -> nn.Module:
        made = Function(counted, a=nn.Linear(16, 4))
        made.register_buffer("seen", torch.zeros(()))
        made.register_buffer("mean", torch.zeros(16))
        return made

    yield Case("nn/buffers_changed", with_buffers, lambda n: (torch.rand(n, 16),), BATCHES)

    def cached(self: Any, x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, self.a(x))
        return F.scaled_dot_product_attention(x[:, None], cache[:, None], cache[:, None])

    yield Case(
        "nn/cache_updated",
        lambda: Function(cached, a=nn.Linear(16, 16)),
        lambda n, t: (torch.rand(n, 1, 16), torch.zeros(n, t, 16), torch.tensor([2])),
        SEQUENCES,
    )

    def compared(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        return torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") + F.cosine_similarity(
            y[:, None], y[None], dim=-1
        )

    yield Case(
        "nn/distances",
        lambda: Function(compared, a=nn.Linear(16, 8)),
        lambda n: (torch.rand(n, 16),),
        BATCHES,
    )

    def selected(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.a(x[x.sum(-1) > 0])

    yield Case(
        "nn/rows_that_data_select", lambda: Function(selected, a=nn.Linear(16, 8)), lambda n: (torch.rand(n, 16),), BATCHES,
        turns={"u0": 5}, expected=lambda n: 2 * 5 * 16 * 8, because="how many rows, only data can tell",
    )  # fmt: skip


class Experts(nn.Module):
    """Each token goes through its two best experts, all of which are evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.up, self.down = nn.Parameter(torch.rand(4, 16, 32)), nn.Parameter(torch.rand(4, 32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        full = torch.zeros(*x.shape[:-1], 4).scatter(-1, chosen, weights)
        hidden = F.silu(torch.einsum("ntc,ech->enth", x, self.up))
        return torch.einsum("enth,ehc,nte->ntc", hidden, self.down, full)
