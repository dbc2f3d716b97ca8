"""The pictures of graphs in the manual: `python -m tests.render.graph_pictures`. Needs torch, torchvision and transformers.

Small models of six kinds; their structure is that of the large ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import Tensor, nn

from graphflops import analyze
from graphflops.comparison.compare import compared
from graphflops.render.graph import svg
from graphflops.render.picture.nest import joined
from graphflops.render.picture.svg import svg as picture
from graphflops.report import Report
from graphflops.structure.answer import ask

IMAGES = Path(__file__).parents[2] / "docs" / "images"
IDS = torch.ones(1, 16, dtype=torch.int64)


class Twice(nn.Module):
    """Two convolutions of a U-Net."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(nn.Module):
    """Three levels down and up again, each joined with what went down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Twice(3, 16), Twice(16, 32), Twice(32, 64)])
        self.pool = nn.MaxPool2d(2)
        self.bottom = Twice(64, 128)
        self.up = nn.ModuleList([nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (64, 32, 16)])
        self.join = nn.ModuleList([Twice(2 * c, c) for c in (64, 32, 16)])

    def forward(self, image: Tensor) -> Tensor:
        passed, x = [], image
        for down in self.down:
            passed.append(down(x))
            x = self.pool(passed[-1])
        x = self.bottom(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([passed.pop(), up(x)], 1))
        return x


class Expert(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """A feed-forward layer around which values pass; or one that is gated, around which none do."""

    def __init__(self, width: int, gated: bool) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, 4 * width) if gated else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        if self.gate is None:
            return x + self.down(F.gelu(self.up(read)))
        return read + self.down(F.silu(self.gate(read)) * self.up(read))


class Experts(nn.Module):
    """A layer of four experts, each weighed by a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 4)
        self.experts = nn.ModuleList([Expert(width) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        shares = self.router(read).softmax(-1).unbind(-1)
        return x + sum(
            share[..., None] * expert(read) for share, expert in zip(shares, self.experts, strict=True)
        )


class MessageLayer(nn.Module):
    """Messages along the edges of a graph, summed at each node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        messages = F.relu(self.message(torch.cat([nodes[source], nodes[target]], -1)))
        return self.update(torch.zeros_like(nodes).index_add(0, target, messages), nodes) + nodes


class GraphNetwork(nn.Module):
    """Four layers of messages, and one value for the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.read = nn.Linear(8, 32), nn.Linear(32, 1)
        self.layers = nn.ModuleList([MessageLayer(32) for _ in range(4)])

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        nodes = self.encode(nodes)
        for layer in self.layers:
            nodes = layer(nodes, source, target)
        return self.read(nodes.mean(0))


def exported(model: nn.Module, *inputs: Any, **named: Any) -> Report:
    """The report of an export of the model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{type(model).__name__}.pt2")
        torch.export.save(torch.export.export(model.eval(), inputs, named, strict=False), path)
        return analyze(path)


def clip() -> nn.Module:
    text = {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    vision = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": 4}
    vision |= {"image_size": 64, "patch_size": 16}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision))


def translator() -> nn.Module:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 4, "num_heads": 4, "vocab_size": 100}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, use_cache=False))


def main() -> None:
    """Write docs/images/graph-NAME.svg."""
    inception = torchvision.models.inception_v3(init_weights=False, aux_logits=False)
    edges = torch.zeros(30, dtype=torch.int64)
    before, after = (exported(Block(32, gated), torch.zeros(1, 16, 32)) for gated in (False, True))
    pictures = {
        "unet": svg(ask(exported(UNet(), torch.zeros(1, 3, 64, 64)), depth=1)),
        "clip": svg(
            ask(
                exported(
                    clip(), input_ids=IDS.clone(), pixel_values=torch.zeros(1, 3, 64, 64), attention_mask=IDS
                ),
                depth=1,
            )
        ),
        "inception": svg(ask(exported(inception, torch.zeros(1, 3, 299, 299)), only="Mixed_7b", depth=2)),
        "encoder-decoder": svg(
            ask(exported(translator(), input_ids=IDS.clone(), decoder_input_ids=IDS), depth=1)
        ),
        "experts": svg(ask(exported(Experts(32), torch.zeros(1, 16, 32)), depth=1)),
        "messages": svg(ask(exported(GraphNetwork(), torch.zeros(10, 8), edges, edges.clone()), depth=1)),
        "comparison": picture(joined(compared(before, after), before)),
    }
    for name, text in pictures.items():
        (IMAGES / f"graph-{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
