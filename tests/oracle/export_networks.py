"""More small models of the kinds that are exported: branches that are joined, dilated and transposed convolutions, torch's own
transformer layers, attention over pixels and over windows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Norm, activation and convolution, whose results go on beside their operand."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.conv(F.relu(self.norm(x)))), 1)


class DenseNet(nn.Module):
    """Blocks in which each layer reads the results of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.block = nn.Sequential(*(DenseLayer(8 + 4 * i, 4) for i in range(3)))
        self.transition = nn.Sequential(nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(10, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.transition(self.block(self.stem(x))).mean((2, 3)))


class Inception(nn.Module):
    """Branches of different kernels, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Conv2d(2, 5, (1, 5), padding=(0, 2)))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 3, 1))
        self.head = nn.Linear(18, 5)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([branch(x) for branch in (self.one, self.three, self.five, self.pool)], 1)
        return self.head(F.relu(joined).amax((2, 3)))


class Segmenter(nn.Module):
    """Dilated convolutions of several rates and a mean over the image, joined and scaled up, as in DeepLab."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.rates = nn.ModuleList(
            nn.Conv2d(8, 6, 3, padding=rate, dilation=rate, bias=False) for rate in (1, 2, 4)
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 6, 1))
        self.classes = nn.Conv2d(24, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.stem(x)
        parts = [rate(found) for rate in self.rates]
        parts.append(self.whole(found).expand_as(parts[0]))
        return F.interpolate(self.classes(torch.cat(parts, 1)), scale_factor=2.0, mode="nearest")


class Gated(nn.Module):
    """A dilated causal convolution over time with a gate, as in WaveNet."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.both = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        return x + self.skip(value.tanh() * gate.sigmoid())


class WaveNet(nn.Module):
    """Gated blocks of growing dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 1)
        self.blocks = nn.ModuleList(Gated(8, 2**i) for i in range(3))
        self.head = nn.Conv1d(8, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        for block in self.blocks:
            y = block(y)
        return self.head(F.relu(y))


class Encoder(nn.Module):
    """torch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


class PixelAttention(nn.Module):
    """Attention over all pixels, with a group norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, 1)
        q, k, v = (part.flatten(2).transpose(1, 2).unsqueeze(1) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class Autoencoder(nn.Module):
    """Convolutions down, attention over pixels, and transposed convolutions up, as in the autoencoders of diffusion models."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1)
        )
        self.middle = PixelAttention(8)
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2), nn.SiLU(), nn.ConvTranspose2d(8, 3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.middle(self.down(x)))


class Windows(nn.Module):
    """Attention inside windows of 4 x 4 pixels with a learned bias for each pair of places, as in Swin."""

    def __init__(self, width: int = 16, heads: int = 2, window: int = 4) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.patches = nn.Conv2d(3, width, 2, 2)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.bias = nn.Parameter(torch.zeros(heads, window**2, window**2))
        self.out = nn.Linear(width, width)
        self.merge = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        batch, rows, columns, width = x.shape
        side = self.window
        parts = x.reshape(batch, rows // side, side, columns // side, side, width).transpose(2, 3)
        parts = self.norm(parts.reshape(-1, side * side, width))
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(parts).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5 + self.bias
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = y.reshape(batch, rows // 2, 2, columns // 2, 2, width).transpose(2, 3).flatten(3)
        return self.merge(y).mean((1, 2))
