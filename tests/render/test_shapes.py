"""`analyze -v`: the shapes of each layer's input, output and weight, as torch has them."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from click.testing import CliRunner

import graphflops
from graphflops.cli import main
from graphflops.render.tables import layer_shapes

SAMPLES = Path(__file__).parents[2] / "samples"


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 12)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 12)
        )
        self.image = torch.nn.Conv2d(3, 8, 3, stride=2, groups=1)
        self.recurrent = torch.nn.LSTM(12, 6, batch_first=True)

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.recurrent(self.body(self.embedding(ids)))[0], self.image(image)


def test_shapes_are_those_of_hooks_in_torch() -> None:
    model = Layers().eval()
    args = (torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 3, 17, 17))
    seen: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def hook(name: str):  # type: ignore[no-untyped-def]
        def keep(module, inputs, result):  # type: ignore[no-untyped-def]
            result = result[0] if isinstance(result, tuple) else result
            seen[name] = (tuple(inputs[0].shape), tuple(result.shape))

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    model(*args)
    for handle in handles:
        handle.remove()
    found = layer_shapes(graphflops.analyze(torch.export.export(model, args)))
    for name, (operand, result) in seen.items():
        assert found[name].operand is not None, name
        assert found[name].operand.shape == operand, name
        assert found[name].result is not None, name
        assert found[name].result.shape == result, name
    weights = {
        name: tuple(value.shape) for name, value in model.named_parameters() if name.endswith("weight")
    }
    for name, shape in weights.items():
        weight = found[name.removesuffix(".weight")].weight
        assert weight is not None, name
        assert weight.shape == shape, name


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["analyze", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line_shows_them() -> None:
    line = next(line for line in run(os.fspath(SAMPLES / "convnet.pt2"), "-v").splitlines() if " up " in line)
    assert all(shape in line for shape in ("[1, 32, 16, 16]", "[1, 8, 32, 32]", "[32, 8, 2, 2]"))


def test_open_sizes_have_their_names_and_every_layer_is_shown() -> None:
    text = run(os.fspath(SAMPLES / "gqa_transformer.onnx"), "-v", "--open", "--by", "module")
    assert "[batch, sequence, 192]" in text
    assert (
        sum("Linear" in line for line in text.splitlines()) == 2 * 6 + 1
    )  # two kinds of blocks, and the head


def test_it_goes_with_the_module_tree_alone() -> None:
    result = CliRunner().invoke(main, ["analyze", os.fspath(SAMPLES / "convnet.pt2"), "-v", "--by", "op"])
    assert (result.exit_code, result.output.splitlines()[-1]) == (
        2,
        "graphflops: error: --verbose is for the module tree: leave it out or say --by module",
    )
