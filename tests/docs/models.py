"""The models that examples in the documentation name: samples under the names used there, and small exports."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphflops.commands.capture import demo

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
COPIES = {
    "model.pt2": "gqa_transformer.pt2",
    "new.pt2": "gqa_transformer.pt2",
    "old.pt2": "convnet.pt2",
    "model.onnx": "gqa_transformer.onnx",
    "decoder.onnx": "gqa_transformer.onnx",
    "models/decoder.onnx": "gqa_transformer.onnx",
    "models/decoder.pt2": "gqa_transformer.pt2",
}


def make(folder: Path, text: str, exports: Path) -> None:
    """Put the samples into a folder, and the models that an example names. exports: keeps these for further examples."""
    shutil.copytree(SAMPLES, folder / "samples")
    for path in SAMPLES.glob("*.[po][tn]*"):
        shutil.copy(path, folder)
    (folder / "models").mkdir()
    for name, sample in COPIES.items():
        shutil.copy(SAMPLES / sample, folder / name)
    if "first/" in text and "graphflops demo" not in text:
        demo.callback(str(folder / "first"))
    for place, (name, export) in enumerate(EXPORTS.items()):
        if name in text:
            if not (kept := exports / str(place)).exists():
                kept.mkdir()
                export(kept / name)
            shutil.copytree(kept, folder, dirs_exist_ok=True)


def transformer(**sizes: int) -> Any:
    """The samples' decoder with sizes of one's own."""
    sys.path.insert(0, str(SAMPLES))
    try:
        from make import Transformer
    finally:
        sys.path.remove(str(SAMPLES))
    return Transformer(**sizes).eval()


def _decoder_with_all_heads(path: Path) -> None:
    """A decoder in which each query head has keys and values of its own."""
    import torch
    from torch.export import Dim

    open_sizes = {0: Dim("batch", min=1, max=64), 1: Dim("sequence", min=2, max=4096)}
    ids = torch.zeros(2, 16, dtype=torch.int64)
    torch.export.save(
        torch.export.export(transformer(kv_heads=8), (ids,), dynamic_shapes={"ids": open_sizes}), path
    )


def _attention_under_masks(path: Path) -> None:
    """Two attentions whose masks the caller passes in."""
    import torch

    class Masked(torch.nn.Module):
        def forward(self, x: Any, attn_mask: Any, padding: Any) -> Any:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(x, x, x, attn_mask) + attend(x, x, x, padding)

    mask = torch.ones(16, 16, dtype=torch.bool)
    torch.export.save(torch.export.export(Masked(), (torch.zeros(1, 2, 16, 8), mask, mask.clone())), path)


def _layer_with_caches(path: Path) -> None:
    """A layer of 4,096 in bfloat16 with 32 query heads, 8 of keys and values, and caches that it writes in place."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.export import Dim

    width, shared, each = 4096, 8, 128

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(width, width + 2 * shared * each, bias=False, dtype=torch.bfloat16)
            self.out = torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16)

        def forward(self, x: Any, keys: Any, values: Any, at: Any) -> Any:
            parts = self.qkv(x).split([width, shared * each, shared * each], -1)
            q, k, v = (part.unflatten(-1, (-1, each)).transpose(1, 2) for part in parts)
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            seen = torch.arange(keys.shape[2]) <= at[:, None]
            mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values, seen, enable_gqa=True)
            return self.out(mixed.transpose(1, 2).flatten(2))

    with FakeTensorMode():
        layer = Layer().eval()
        cache = torch.zeros(1, shared, 24, each, dtype=torch.bfloat16)
        inputs = (torch.zeros(1, 3, width, dtype=torch.bfloat16), cache, cache.clone(), torch.arange(3))
        tokens, places = Dim("tokens", min=2, max=8192), Dim("places", min=2, max=8192)
        sizes = ({1: tokens}, {2: places}, {2: places}, {0: tokens})
        torch.export.save(torch.export.export(layer, inputs, dynamic_shapes=sizes), path)


def _factory_of_a_step(path: Path) -> None:
    """The first block of Python in docs/recorded.md."""
    page = (ROOT / "docs" / "recorded.md").read_text(encoding="utf-8")
    (path.parent / "train.py").write_text(page.partition("```python\n")[2].partition("```")[0])


def _decoder(path: Path) -> None:
    """Both phases of a decoder of 2 layers, 2,048 wide, with 4 heads of keys and values for 16 of queries."""
    from benchmarks.serving import export

    export(path.parent, 2, 2048, 16, 4, 8192, 32_000)


def _layer_of_two_devices(path: Path) -> None:
    """Half of the hidden units of a layer, and their sum over two devices."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(4096, 8192, bias=False)
            self.down = torch.nn.Linear(8192, 4096, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.down(torch.nn.functional.gelu(self.up(x)))
            torch.distributed.all_reduce(y)
            return x + y

    with torch.device("meta"):
        model, x = Mlp().to(torch.bfloat16), torch.empty(4096, 4096, dtype=torch.bfloat16)
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        torch.export.save(torch.export.export(model, (x,)), path)
    finally:
        torch.distributed.destroy_process_group()


def _inputs(path: Path) -> None:
    """Two sequences of token ids."""
    import numpy
    from safetensors.numpy import save_file

    save_file({"ids": numpy.zeros((2, 16), numpy.int64)}, path)


def _wasteful(path: Path) -> None:
    """A layer as exporters leave it that fold nothing: a weight transposed in each run, a cast to the type that is there."""
    import numpy as np
    import onnx

    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> layer (float[batch,32] x) => (float[batch,64] y)'
        "{ t = Transpose(weight) \n p = MatMul(x, t) \n c = Cast <to = 1> (p) \n y = Relu(c) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, path)


EXPORTS: dict[str, Callable[[Path], None]] = {
    "layer.onnx": _wasteful,
    "full_heads.pt2": _decoder_with_all_heads,
    "lm.pt2": _attention_under_masks,
    "layer.pt2": _layer_with_caches,
    "step.pt2": _decoder,
    "train:example": _factory_of_a_step,
    "batch.safetensors": _inputs,
    "mlp_of_two.pt2": _layer_of_two_devices,
}
