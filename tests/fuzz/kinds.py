"""The kinds of inputs: what each starts from, how it is changed, and what reads it."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import onnx

import graphflops
from graphflops.budget.amounts import amount
from graphflops.dims import evaluate, parse_dim
from graphflops.errors import shown
from graphflops.patterns import matches_file, matches_module
from tests.fuzz import mutate
from tests.fuzz.judge import Verdict, call, run_command
from tests.oracle import onnx_fuzz

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
READERS = (
    *(
        ["analyze"],
        ["analyze", "--by", "attention"],
        ["analyze", "--training"],
        ["textconv"],
        ["analyze", "--strict"],
    ),
    *(["analyze", "--format", form] for form in ("json", "csv", "markdown", "html", "speedscope")),
)
BUDGET = """models = ["convnet.onnx"]
[[budget]]
coverage = "100 %"
forbid = ["aten.nonzero", "onnx.Loop"]
matrix_flops = ["6 GFLOP"]
peak_bytes = "512 MiB"
parameters = 130000000
dims = {"image[0]" = 1}
[budget.modules."layer.*"]
matrix_flops = "1.2 GFLOP"
"""
WORDS = (
    "s0",
    "s1",
    "N",
    "2",
    "7",
    "-3",
    "0",
    "(",
    ")",
    "+",
    "-",
    "*",
    "//",
    "**",
    "%",
    ",",
    "Max(",
    "Mod(",
    "FloorDiv(",
)
WORDS = (
    *WORDS,
    "floor(",
    "ceiling(",
    "4096",
    "9" * 30,
    " ",
    ".",
    "[",
    "]",
    "*",
    "?",
    "blocks",
    "GFLOP",
    "MiB",
    "\x1b",
    "é",
)


class Input(NamedTuple):
    """One changed file: its bytes and the end of its name."""

    data: bytes
    suffix: str


@lru_cache(maxsize=1)
def _archives() -> list[bytes]:
    paths = [*SAMPLES.glob("*.pt2"), *(ROOT / "tests" / "data" / "pt2").rglob("*2.15.0.pt2")]
    return [path.read_bytes() for path in sorted(paths) if path.stat().st_size < 60_000]


@lru_cache(maxsize=1)
def _models() -> list[Any]:
    return [
        onnx.load(path, load_external_data=False)
        for path in (SAMPLES / "convnet.onnx", SAMPLES / "gqa_transformer.onnx")
    ]


@lru_cache(maxsize=1)
def _reports() -> list[Any]:
    names = ("convnet.pt2", "gqa_transformer.pt2", "cond.pt2", "convnet.onnx")
    return [json.loads(graphflops.analyze(SAMPLES / name).to_json()) for name in names]


def pt2(chance: random.Random) -> Input:
    """An archive, its program or its table of weights changed."""
    return Input(mutate.archive(chance.choice(_archives()), chance), ".pt2")


def onnx_file(chance: random.Random) -> Input:
    """An ONNX model, its graph changed."""
    model = onnx.ModelProto()
    model.CopyFrom(chance.choices(_models(), (9, 1))[0])
    for _ in range(chance.randint(1, onnx_fuzz.MOST_CHANGES)):
        try:
            chance.choice(onnx_fuzz.CHANGES)(model, chance)
        except (IndexError, ValueError, TypeError, UnicodeError):
            continue  # nothing there to change, or no field has room for it
    data = model.SerializeToString()
    return Input(mutate.garbled(data, chance) if chance.random() < 0.05 else data, ".onnx")


def report(chance: random.Random) -> Input:
    """A saved report."""
    data = mutate.dumped(mutate.tree(chance.choice(_reports()), chance))
    return Input(mutate.garbled(data, chance) if chance.random() < 0.03 else data, ".json")


def budget(chance: random.Random) -> Input:
    """A budget in TOML."""
    return Input(mutate.lines(BUDGET, chance).encode("utf-8", "replace"), ".toml")


def text(chance: random.Random) -> Input:
    """What a size, a limit or a pattern may be written as."""
    return Input("".join(chance.choices(WORDS, k=chance.randint(1, 30))).encode(), ".txt")


KINDS: dict[str, Callable[[random.Random], Input]] = {
    "pt2": pt2,
    "onnx": onnx_file,
    "report": report,
    "budget": budget,
    "text": text,
}


def tried(path: Path, which: int) -> Verdict:
    """Give a file to one of the commands that read its kind. which: a number; every command has its turn."""
    if path.suffix == ".txt":
        return _text(path.read_text())
    if path.suffix == ".toml":
        return run_command(["check", str(SAMPLES / "convnet.onnx"), "--budget", str(path)])
    if path.suffix == ".onnx" and which % 5 == 4:
        return run_command(["audit", str(path)])
    if which % 7 == 6:
        return run_command(["diff", str(SAMPLES / "convnet.pt2"), str(path)])
    command, *options = READERS[which % len(READERS)]
    if path.suffix == ".json" and "--training" in options:
        options = []
    return run_command([command, str(path), *options])


def _text(given: str) -> Verdict:
    def read() -> None:
        shown(given)
        matches_file(given[:10], given)
        matches_module(given[:10], given)
        for reader in (
            lambda: amount(given, "B"),
            lambda: evaluate(parse_dim(given), {"s0": 3, "s1": 0, "N": 1}),
        ):
            with contextlib.suppress(ValueError):
                reader()

    return call(read)
