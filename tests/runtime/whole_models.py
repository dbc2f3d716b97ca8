"""Ten whole models of 300 to 2,000 stored tensors, narrow and deep, of the families that people export."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDE = 8  # channels: the tensors are many, not large


class Residual(nn.Module):
    """A function of the normalized input, added to the input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDE), inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Attention(nn.Module):
    """Attention of two heads, with the keys and values of another sequence where one is given."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        read = x if memory is None else memory
        heads = [
            made(given).unflatten(-1, (2, -1)).transpose(1, 2)
            for made, given in ((self.query, x), (self.key, read), (self.value, read))
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


def feed_forward(width: int = WIDE) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def blocks(count: int, causal: bool = False) -> nn.Module:
    """Layers of a transformer: 16 tensors each."""
    return nn.Sequential(
        *(nn.Sequential(Residual(Attention(causal)), Residual(feed_forward())) for _ in range(count))
    )


def decoder(layers: int) -> nn.Module:
    """Logits of the next token; 2 + 16 * layers + 2 tensors."""
    return nn.Sequential(
        nn.Embedding(32, WIDE),
        blocks(layers, causal=True),
        nn.LayerNorm(WIDE),
        nn.Linear(WIDE, 32, bias=False),
    )


class Convolution(nn.Sequential):
    """A convolution and its batch norm: six tensors with the running statistics."""

    def __init__(self, given: int = WIDE, made: int = WIDE, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU())


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Convolution(), Convolution())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x + self.inner(x))


def convnet(count: int) -> nn.Module:
    """An image classifier of residual convolutions."""
    body = [Bottleneck() for _ in range(count)]
    return nn.Sequential(Convolution(3), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDE, 10))


class Unet(nn.Module):
    """Halves the image four times and doubles it again, each level joined to its other half."""

    def __init__(self, each: int) -> None:
        super().__init__()
        self.first = Convolution(3)
        self.down = nn.ModuleList(_convolutions(each, stride=2) for _ in range(4))
        self.up = nn.ModuleList(_convolutions(each, 2 * WIDE) for _ in range(4))
        self.last = nn.Conv2d(WIDE, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, levels = self.first(image), []
        for down in self.down:
            levels.append(x)
            x = down(x)
        for up, level in zip(self.up, reversed(levels), strict=True):
            x = up(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), level], 1))
        return self.last(x)


def _convolutions(count: int, given: int = WIDE, stride: int = 1) -> nn.Module:
    return nn.Sequential(Convolution(given, stride=stride), *(Convolution() for _ in range(count - 1)))


class Vit(nn.Module):
    """Patches of an image, a token of the class, learned positions."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDE, 4, 4)
        self.kind, self.places = nn.Parameter(torch.zeros(1, 1, WIDE)), nn.Parameter(torch.zeros(1, 17, WIDE))
        self.body, self.head = blocks(layers), nn.Linear(WIDE, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.kind.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.body(x)[:, 0])


class Experts(nn.Module):
    """The two best of sixteen experts, each run on all tokens and weighted by its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDE, 16, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        best, places = self.gate(x).softmax(-1).topk(2)
        weights = torch.zeros_like(x[..., :1]).expand(*x.shape[:-1], 16).scatter(-1, places, best)
        return (torch.stack([expert(x) for expert in self.experts], -1) * weights.unsqueeze(-2)).sum(-1)


def mixture(layers: int) -> nn.Module:
    body = [nn.Sequential(Residual(Attention(True)), Residual(Experts())) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(32, WIDE), *body, nn.Linear(WIDE, 32))


class Recurrent(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.body = nn.LSTM(WIDE, WIDE, layers, batch_first=True)
        self.head = nn.Linear(WIDE, 4)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.body(frames)[0])


class Seq2seq(nn.Module):
    """An encoder, and a decoder that reads what it made: the tables of both are one tensor."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(32, WIDE)
        self.encoder = blocks(layers)
        self.own, self.cross, self.inner = (
            nn.ModuleList(made() for _ in range(layers))
            for made in (lambda: Residual(Attention(True)), Attention, lambda: Residual(feed_forward()))
        )
        self.head = nn.Linear(WIDE, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, x = self.encoder(self.table(source)), self.table(target)
        for own, cross, inner in zip(self.own, self.cross, self.inner, strict=True):
            x = inner(own(x) + cross(x, memory))
        return self.head(x)


class Mixing(nn.Module):
    """A layer of an MLP-mixer: over 16 patches, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.over_patches, self.channels = (
            nn.LayerNorm(WIDE),
            feed_forward(16),
            Residual(feed_forward()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.channels(x + self.over_patches(self.norm(x).transpose(1, 2)).transpose(1, 2))


def mixer(layers: int) -> nn.Module:
    body = [Mixing() for _ in range(layers)]
    return nn.Sequential(nn.Linear(12, WIDE), *body, nn.LayerNorm(WIDE), nn.Linear(WIDE, 10))


class Detector(nn.Module):
    """Boxes and scores on three levels of a pyramid; the boxes are moved by stored anchors."""

    def __init__(self, each: int) -> None:
        super().__init__()
        self.first = Convolution(3)
        self.levels, self.heads = (
            nn.ModuleList(_convolutions(each, stride=stride) for _ in range(3)) for stride in (2, 1)
        )
        self.boxes, self.scores = (nn.ModuleList(nn.Conv2d(WIDE, n, 1) for _ in range(3)) for n in (4, 5))
        for level, side in enumerate((32, 16, 8)):
            self.register_buffer(f"anchors_{level}", torch.rand(4, side, side))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, boxes, scores = self.first(image), [], []
        for level, (down, head) in enumerate(zip(self.levels, self.heads, strict=True)):
            x = down(x)
            seen = head(x)
            moved = self.boxes[level](seen).exp() * getattr(self, f"anchors_{level}")
            boxes.append(moved.flatten(2))
            scores.append(self.scores[level](seen).flatten(2))
        best, places = torch.cat(scores, 2).sigmoid().amax(1).topk(20)
        found = torch.cat(boxes, 2).gather(2, places.unsqueeze(1).expand(-1, 4, -1))
        return found, best, places


_IDS = torch.arange(12).reshape(2, 6)
_IMAGE, _PATCHES, _FRAMES = torch.rand(2, 3, 64, 64), torch.rand(2, 16, 12), torch.rand(2, 5, WIDE)
_IMAGE_16 = _IMAGE[..., :16, :16].contiguous()
# A model, what it is given, and the number of tensors that it stores.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], int]] = {
    "decoder": (lambda: decoder(24), (_IDS,), 388),
    "encoder": (lambda: blocks(20), (_FRAMES,), 320),
    "convnet": (lambda: convnet(25), (_IMAGE_16,), 308),
    "unet": (lambda: Unet(7), (_IMAGE,), 344),
    "vit": (lambda: Vit(20), (_IMAGE_16,), 326),
    "mixture": (lambda: mixture(16), (_IDS,), 723),
    # torch traces each step of each layer
    "recurrent": (lambda: Recurrent(80), (_FRAMES[:, :2].contiguous(),), 322),
    "seq2seq": (lambda: Seq2seq(8), (_IDS, _IDS + 3), 322),
    "mixer": (lambda: mixer(26), (_PATCHES,), 318),
    "detector": (lambda: Detector(8), (_IMAGE,), 309),
}
