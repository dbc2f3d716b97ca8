"""Make the ONNX samples of the modules in make.py: `python samples/make_onnx.py` (torch 2.13, onnxscript).

Weights are not in the files, nor beside them: samples are about structure, and their sizes are stated all the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import torch
from make import ConvNet, Transformer
from torch import nn
from torch.export import Dim

HERE = Path(__file__).parent
KEPT_BYTES = 512  # of a stored tensor; larger ones are weights
KEPT_METADATA = ("name_scopes", "class_hierarchy", "stack_trace", "folded_from", "range_constraints")


def main() -> None:
    """Write every sample."""
    torch.manual_seed(0)
    batch, sequence = Dim("batch", min=1, max=64), Dim("sequence", min=2, max=4096)
    ids = torch.zeros(2, 16, dtype=torch.int64)
    save("convnet", ConvNet().eval(), torch.zeros(1, 3, 32, 32))
    save("gqa_transformer", Transformer().eval(), ids, dynamic_shapes={"ids": {0: batch, 1: sequence}})


def save(name: str, module: nn.Module, *inputs: torch.Tensor, **options: object) -> None:
    """Save a module's export without its weights and without this machine's traces."""
    for parameter in module.parameters():  # the exporter makes one tensor of two that hold the same
        parameter.data.normal_()
    program = torch.onnx.export(module, inputs, dynamo=True, **options)
    assert program is not None
    model = program.model_proto
    offset = 0
    for tensor in model.graph.initializer:
        size = len(tensor.raw_data)
        if size > KEPT_BYTES:
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", f"{name}.weights"), ("offset", offset), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            offset += size
    graph = model.graph
    for described in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        kept = [entry for entry in described.metadata_props if entry.key.endswith(KEPT_METADATA)]
        for entry in kept:
            entry.value = anonymous(entry.value)
        del described.metadata_props[:]
        described.metadata_props.extend(kept)
    (HERE / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))


def anonymous(trace: str) -> str:
    """A stack trace without this machine's folders, and without the text of the lines that it names."""
    trace = re.sub(r"\n {4}.*", "", trace.replace(str(HERE.resolve()), "samples"))
    trace = re.sub(r'(File ")[^"]*?/site-packages/', r"\1site-packages/", trace)
    return re.sub(r'(File ")/[^"]*/lib/python3\.\d+/', r"\1lib/python/", trace)


if __name__ == "__main__":
    main()
