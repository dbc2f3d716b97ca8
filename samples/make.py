"""Make the sample programs beside this file: `python samples/make.py` (torch 2.13; see docs/contributing).

Archives record the paths of the files that were traced. They are rewritten here, so that the same files come out on
every machine and none speaks of the machine it was made on. Weights are zeros: samples are about structure.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export
from torch.export.experimental import _export_forward_backward

HERE = Path(__file__).parent


class ConvNet(nn.Module):
    """Dense, grouped, depthwise, strided and transposed convolutions, normalisation and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise = nn.Conv2d(16, 32, 1)
        self.grouped = nn.Conv2d(32, 32, 3, padding="same", groups=4)
        self.up = nn.ConvTranspose2d(32, 8, 2, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.stem(image)))
        x = F.silu(self.pointwise(self.depthwise(x)))
        x = x + self.grouped(F.max_pool2d(x, 3, stride=1, padding=1))
        return self.head(self.pool(self.up(x)).flatten(1))


class Attention(nn.Module):
    """Causal attention in which several query heads share a key and value head."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.q = nn.Linear(width, heads * self.head_width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        q = self.q(x).view(batch, sequence, self.heads, self.head_width).transpose(1, 2)
        k, v = (
            self.kv(x)
            .view(batch, sequence, 2, self.kv_heads, self.head_width)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(batch, sequence, -1))


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    """A decoder whose output layer shares the embedding's weight."""

    def __init__(
        self, vocabulary: int = 256, width: int = 64, heads: int = 8, kv_heads: int = 2, layers: int = 4
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training(nn.Module):
    """A classifier with its loss, to be exported together with its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 8 * 8, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv(image)), 2)
        return F.cross_entropy(self.out(F.gelu(self.hidden(x.flatten(1)))), label)


class Recurrent(nn.Module):
    """A two-layer bidirectional LSTM and a classifier on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Branching(nn.Module):
    """Two experts of different size, of which the data chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(32, 32)
        self.large = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.large(x), lambda x: self.small(x), (x,))


def main() -> None:
    """Write every sample."""
    torch.manual_seed(0)
    batch, sequence = Dim("batch", min=1, max=64), Dim("sequence", min=2, max=4096)
    ids = torch.zeros(2, 16, dtype=torch.int64)
    save("convnet", export(ConvNet().eval(), (torch.zeros(1, 3, 32, 32),)))
    open_sizes = {"ids": {0: batch, 1: sequence}}
    save("gqa_transformer", export(Transformer().eval(), (ids,), dynamic_shapes=open_sizes))
    save("all_heads", export(Transformer(kv_heads=8).eval(), (ids,), dynamic_shapes=open_sizes))
    save("lstm", export(Recurrent().eval(), (torch.zeros(2, 10, 16),)))
    save("cond", export(Branching().eval(), (torch.zeros(4, 32),)))
    joint = export(Training(), (torch.zeros(4, 3, 16, 16), torch.zeros(4, dtype=torch.int64)))
    save("training_step", _export_forward_backward(joint))


def save(name: str, program: torch.export.ExportedProgram) -> None:
    """Save a program without its example inputs' and this machine's traces."""
    with torch.no_grad():
        for tensor in program.state_dict.values():
            tensor.zero_()
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with (
        zipfile.ZipFile(buffer) as source,
        zipfile.ZipFile(HERE / f"{name}.pt2", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for entry in source.infolist():
            data = source.read(entry)
            if "/models/" in entry.filename and entry.filename.endswith(".json"):
                data = anonymous(data)
            renamed = zipfile.ZipInfo(entry.filename, date_time=(2025, 1, 1, 0, 0, 0))
            renamed.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(renamed, data)


def anonymous(program: bytes) -> bytes:
    """The program with this machine's folders taken out of its stack traces."""
    text = json.dumps(json.loads(program), separators=(",", ":"))
    text = text.replace(str(HERE.resolve()), "samples")
    text = re.sub(r'(File \\")[^"]*?/site-packages/', r"\1site-packages/", text)
    text = re.sub(r'(File \\")/[^"]*/lib/python3\.\d+/', r"\1lib/python/", text)
    return text.encode()


if __name__ == "__main__":
    main()
