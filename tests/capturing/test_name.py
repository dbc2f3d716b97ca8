"""Names of models in libraries, as a user writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphflops.capturing.name import Choices, parsed
from graphflops.errors import OptionError
from tests.test_cli import failed, misused, ok


def test_parts_of_a_name() -> None:
    name = parsed(
        "hf:LlamaConfig(num_hidden_layers=2, rope={'a': [1]})@phase=decode,dynamic=batch+context,batch=8"
    )
    assert name is not None
    assert (name.library, name.target) == ("hf", "LlamaConfig")
    assert name.sizes == {"num_hidden_layers": 2, "rope": {"a": [1]}}
    assert (name.choices.phase, name.choices.dynamic, name.choices.batch) == (
        "decode",
        ("batch", "context"),
        8,
    )


def test_an_at_sign_may_be_part_of_a_path() -> None:
    name = parsed("hf:me@home/config.json")
    assert name is not None
    assert name.target == "me@home/config.json"


def test_open_axes_are_exported_from_two_on() -> None:
    assert Choices(dynamic=("batch",)).batch == 2
    assert Choices().batch == 1


def test_a_file_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hf:model.json").write_text("{")
    assert parsed("hf:model.json") is None
    assert parsed("main:model.onnx") is None


@pytest.mark.parametrize(
    "text",
    [
        "hf:LlamaConfig(__import__('os').system('touch x'))",
        "hf:LlamaConfig(a=open('x', 'w'))",
        "hf:LlamaConfig(**{'a': 1})",
        "hf:LlamaConfig(1)",
        "hf:LlamaConfig(a=1)(b=2)",
        "hf:LlamaConfig(a=" + "(" * 500 + ")",
        "hf:",
        "timm:resnet18@batch=0",
        "timm:resnet18@batch=-1",
        "timm:resnet18@batch=99999999999",
        "timm:resnet18@colour=red",
        "hf:config.json@phase=train",
        "hf:config.json@dynamic=heads",
    ],
)
def test_what_is_no_name(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError):
        parsed(text)
    assert not os.listdir()


def test_commands_that_read_what_strangers_wrote_take_no_names() -> None:
    assert "hf:config.json: no such file" in failed("audit", "hf:config.json")
    assert "no such file" in ok("textconv", "hf:config.json")


def test_sizes_are_of_names() -> None:
    pytest.importorskip("torch")
    assert "by name" in misused("capture", "own:factory", "--batch", "2", "-o", "m.pt2")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("capture", "timm:resnet50", "--output", "m.pt2"), "capture"),
        (("analyze", "torchvision:resnet50"), "capture"),
        (("capture", "package:factory", "--output", "m.pt2"), "torch"),
    ],
)
def test_without_torch_the_packages_that_it_needs_are_named(arguments, extra, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert f"needs torch: pip install 'graphflops[{extra}]'" in failed(*arguments)
