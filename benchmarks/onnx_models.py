"""ONNX files to measure: what torch's exporter writes of models in plain torch, with dynamic sizes, and quantised ones.

    python benchmarks/onnx_models.py FOLDER

Needs torch, onnxscript and onnxruntime. Weights are random. The 70B decoder is exported on fake tensors, which takes some
minutes; its file names a file of weights that does not exist. A file that is there already is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from llama import Decoder, Shape, build
from resnet import ResNet50
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SMALL = Shape(layers=12, hidden=256, heads=8, kv_heads=4, mlp=688, vocabulary=1000)
LARGE = Shape()


class Block(nn.Module):
    """One layer of a BERT-shaped encoder, whose attention leaves padding out."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, mlp), nn.Linear(mlp, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.norm1(x + self.out(y.transpose(1, 2).reshape(batch, time, width)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """Token ids and which of them are no padding, to two classes."""

    layers, width, heads, mlp = 6, 256, 8, 1024

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1000, self.width), nn.Embedding(512, self.width)
        self.blocks = nn.ModuleList(Block(self.width, self.heads, self.mlp) for _ in range(self.layers))
        self.head = nn.Linear(self.width, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x[:, 0])

    @classmethod
    def matrix_flops(cls, batch: int, time: int) -> int:
        """Multiply-adds of one forward pass, two FLOPs each."""
        layer = 2 * batch * time * (4 * cls.width**2 + 2 * cls.width * cls.mlp)
        attention = 4 * batch * time * time * cls.width
        return cls.layers * (layer + attention) + 2 * batch * cls.width * 2


class Tagger(nn.Module):
    """Token ids to a class for each: two layers of a bidirectional LSTM."""

    inputs, width = 128, 256

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, self.inputs)
        self.lstm = nn.LSTM(self.inputs, self.width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * self.width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.tokens(ids))[0])

    @classmethod
    def matrix_flops(cls, batch: int, time: int) -> int:
        """Multiply-adds of one forward pass, two FLOPs each: four gates, two layers, two directions."""
        gates = 4 * cls.width * (cls.inputs + cls.width) + 4 * cls.width * (2 * cls.width + cls.width)
        return 2 * batch * time * (2 * gates + 2 * cls.width * 10)


def resnet_flops(batch: int, height: int, width: int) -> int:
    """What torch's own counter says; there are only convolutions and one product."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        ResNet50().eval()(torch.empty(batch, 3, height, width))
    return int(counter.get_total_flops())


def saved(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], axes: tuple[dict[int, str], ...], path: Path
) -> None:
    """Export with the axes named as they are to be free."""
    with torch.no_grad():
        torch.onnx.export(
            module.eval(),
            inputs,
            path,
            dynamo=True,
            dynamic_shapes=axes,
            external_data=False,
            verify=False,
        )


def decoder(path: Path) -> None:
    """A small decoder."""
    saved(Decoder(SMALL), (torch.zeros(2, 16, dtype=torch.int64),), ({0: "batch", 1: "time"},), path)


def large_decoder(path: Path) -> None:
    """The 70B decoder as exported, before any optimization, its weights said to be in a file of which there is none."""
    import onnx_ir

    model, inputs, mode = build(LARGE.layers)
    batch, time = torch.export.Dim("batch", min=1, max=1024), torch.export.Dim("time", min=2, max=131072)
    with mode, torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes=({0: batch, 1: time},), strict=False)
        exported = torch.onnx.export(program, (), None, dynamo=True, optimize=False, verify=False)
    at = 0
    for name, value in exported.model.graph.initializers.items():
        held = value.const_value
        value.const_value = onnx_ir.ExternalTensor(
            *("weights.data", at, held.nbytes, held.dtype), shape=held.shape, name=name
        )
        at += held.nbytes
    onnx_ir.save(exported.model, path)


def encoder(path: Path) -> None:
    """A small encoder."""
    ids, mask = torch.zeros(2, 16, dtype=torch.int64), torch.ones(2, 16, dtype=torch.bool)
    axes = {0: "batch", 1: "time"}
    saved(Encoder(), (ids, mask), (axes, axes), path)


def convnet(path: Path) -> None:
    """ResNet-50 on images of any size."""
    saved(ResNet50(), (torch.zeros(2, 3, 224, 256),), ({0: "batch", 2: "height", 3: "width"},), path)


def tagger(path: Path) -> None:
    """An LSTM."""
    saved(Tagger(), (torch.zeros(2, 16, dtype=torch.int64),), ({0: "batch", 1: "time"},), path)


def decoder_4_bits(path: Path) -> None:
    """The small decoder, its weights in 4 bits: MatMulNBits."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    source = path.with_name("decoder.onnx")
    made(source)
    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))


def convnet_8_bits(path: Path) -> None:
    """ResNet-50 with QuantizeLinear and DequantizeLinear around every operator."""
    import numpy
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class OneImage(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.images = iter([numpy.random.default_rng(0).random((1, 3, 64, 64), numpy.float32)])

        def get_next(self) -> dict[str, Any] | None:
            return next(({"image": image} for image in self.images), None)

    source = path.with_name("convnet.onnx")
    made(source)
    quantize_static(source, path, OneImage())


@dataclass(frozen=True)
class Model:
    """A file to measure.

    sizes: what its free sizes are to be, in the order of its inputs' axes. flops: what it then takes.
    """

    title: str
    make: Callable[[Path], None]
    sizes: tuple[int, ...]
    flops: Callable[..., int]


MODELS: Mapping[str, Model] = {
    "decoder": Model("decoder of 12 layers", decoder, (2, 512), SMALL.matrix_flops),
    "large": Model("70B decoder, no weights", large_decoder, (1, 2048), LARGE.matrix_flops),
    "encoder": Model("encoder of 6 layers", encoder, (2, 128), Encoder.matrix_flops),
    "convnet": Model("ResNet-50", convnet, (8, 224, 224), resnet_flops),
    "lstm": Model("LSTM", tagger, (2, 128), Tagger.matrix_flops),
    "decoder-nbits": Model("decoder, MatMulNBits", decoder_4_bits, (2, 512), SMALL.matrix_flops),
    "convnet-qdq": Model("ResNet-50, QDQ", convnet_8_bits, (8, 224, 224), resnet_flops),
}


def made(path: Path) -> None:
    """Make the file, unless it is there; what exporters print goes to stderr."""
    if path.exists():
        return
    print(f"making {path}", file=sys.stderr)
    part = path.with_suffix(".part")
    with contextlib.redirect_stdout(sys.stderr):
        MODELS[path.stem].make(part)
    os.replace(part, path)


if __name__ == "__main__":
    for name in MODELS:
        made(Path(sys.argv[1], f"{name}.onnx"))
