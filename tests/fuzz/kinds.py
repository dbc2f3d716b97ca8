"""The kinds of inputs: what each starts from, how it is changed, and what reads it."""

from __future__ import annotations

import contextlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import onnx

import graphflops
from graphflops.base.patterns import matches_file, matches_module
from graphflops.budget.amounts import amount
from graphflops.dims import evaluate, parse_dim
from graphflops.errors import shown
from tests.fuzz import mutate
from tests.fuzz.documents import Document
from tests.fuzz.judge import Verdict, call, run_command
from tests.fuzz.programs import random_program
from tests.fuzz.readers import SAMPLES, command_for, profile_command
from tests.fuzz.values import TEXTS
from tests.oracle import onnx_contrib, onnx_fuzz, onnx_nodes

ROOT = Path(__file__).parents[2]
READERS = (
    *(["analyze"], ["analyze", "--by", "attention"], ["analyze", "--training"], ["textconv"]),
    ["analyze", "--strict"],
    ["analyze", "--format", "dot"],
    *(
        ["graph", "--cuts", "2"],
        ["graph", "--bottlenecks"],
        ["graph", "--level", "call", "--format", "graphml"],
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
device = "h200"
max_seconds = "2 ms"
max_device_bytes = "80 GB"
training = {optimizer = "adamw", precision = "bf16", freeze = ["*"], accumulate = 2}
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


OPTIONS = {
    "--dim": ("ids[1]=7", "s27=4096", "x[0]=1", "image[0]=2"),
    "--input": ("ids=2,5", "x=1,2,3", "image=1,3,8,8"),
    "--name": ("batch=ids[0]", "seq=ids[1]"),
    "--mask": ("mask=causal", "mask=window:4", "ids=prefix:2", "mask=density:0.3", "mask=density:1e-400"),
    "--sweep": ("ids[1]=1,2,3", "ids[0]=ids[1]=1,2", "s27=1,2"),
    "--top": ("3",),
    "--depth": ("2",),
    "--by": ("op", "module"),
    "--model": ("model",),
    "--rules": ("none.py", "/dev/zero", "/tmp", "a\nb.py"),
}


class Input(NamedTuple):
    """One changed file: its bytes and the end of its name."""

    data: bytes
    suffix: str


@lru_cache(maxsize=1)
def _archives() -> list[mutate.Archive]:
    """Samples, and a program of every release of torch that wrote other JSON."""
    stored = (ROOT / "tests" / "data" / "pt2").glob("*.pt2")
    return [mutate.Archive(path.read_bytes()) for path in sorted((*SAMPLES.glob("*.pt2"), *stored))]


@lru_cache(maxsize=1)
def _models() -> list[Any]:
    return [
        onnx.load(path, load_external_data=False)
        for path in (SAMPLES / "convnet.onnx", SAMPLES / "gqa_transformer.onnx")
    ]


@lru_cache(maxsize=1)
def _reports() -> list[Document]:
    names = ("convnet.pt2", "gqa_transformer.pt2", "cond.pt2", "convnet.onnx")
    plain = [graphflops.analyze(SAMPLES / name) for name in names]
    timed = [graphflops.analyze(SAMPLES / name, device="h200", training=True) for name in names[::2]]
    return [Document(report.to_json()) for report in (*plain, *timed)]


@lru_cache(maxsize=1)
def _profiles() -> list[Document]:
    """Profiles of devices: one that was measured, one with published figures only, and one without optional figures."""
    stored = [ROOT / "graphflops" / "devices" / f"{name}.json" for name in ("h200", "rtx4090")]
    small = {"name": "x", "aliases": [], "memory_bytes": 2**34, "bandwidth": 1e12, "sources": {}}
    own = {**small, "matrix": {"float32": 1e13}, "rates_of": "h200", "launch": {"graph_seconds": 1e-6}}
    return [*(Document(path.read_bytes()) for path in stored), Document(json.dumps(own).encode())]


def pt2(chance: random.Random) -> Input:
    """An archive, its program or its table of weights changed."""
    return Input(chance.choice(_archives()).changed(chance), ".pt2")


def program(chance: random.Random) -> Input:
    """A program of random calls."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as new:
        new.writestr("m/models/model.json", random_program(chance))
    return Input(packed.getvalue(), ".pt2")


def onnx_file(chance: random.Random) -> Input:
    """An ONNX model, its graph changed."""
    model = onnx.ModelProto()
    model.CopyFrom(chance.choices(_models(), (9, 1))[0])
    return _changed_model(model, chance)


def onnx_call(chance: random.Random) -> Input:
    """A conformance model of one operator, or two of them joined, changed."""
    model = onnx.ModelProto()
    model.CopyFrom(chance.choice(_conformance()))
    if chance.random() < 0.2:
        onnx_fuzz.joined(model, chance.choice(_conformance()), chance)
    return _changed_model(model, chance)


@lru_cache(maxsize=1)
def _conformance() -> list[Any]:
    """Models of one call each: ONNX's own, with the small operands stored, and of onnxruntime's operators."""
    own = [model for case in onnx_nodes.cases(["node"]) for model in (case.model, onnx_nodes.stripped(case))]
    found = [*own, *map(onnx_contrib.model_of, onnx_contrib.cases())]
    return [model for model in found if model.ByteSize() < 50_000]


def _changed_model(model: Any, chance: random.Random) -> Input:
    for _ in range(chance.randint(1, onnx_fuzz.MOST_CHANGES)):
        try:
            chance.choice(onnx_fuzz.CHANGES)(model, chance)
        except (IndexError, ValueError, TypeError, UnicodeError):
            continue  # nothing there to change, or no field has room for it
    data = model.SerializeToString()
    return Input(mutate.garbled(data, chance) if chance.random() < 0.05 else data, ".onnx")


def report(chance: random.Random) -> Input:
    """A saved report."""
    data = chance.choice(_reports()).changed(chance)
    return Input(mutate.garbled(data, chance) if chance.random() < 0.03 else data, ".json")


def profile(chance: random.Random) -> Input:
    """The profile of a device."""
    data = chance.choice(_profiles()).changed(chance)
    return Input(mutate.garbled(data, chance) if chance.random() < 0.03 else data, ".profile.json")


def budget(chance: random.Random) -> Input:
    """A budget in TOML."""
    return Input(mutate.lines(BUDGET, chance).encode("utf-8", "replace"), ".toml")


def text(chance: random.Random) -> Input:
    """What a size, a limit or a pattern may be written as."""
    return Input("".join(chance.choices(WORDS, k=chance.randint(1, 30))).encode(), ".txt")


def options(chance: random.Random) -> Input:
    """Options of a command that state sizes, masks and names: one argument a line."""
    given = []
    for _ in range(chance.randint(1, 3)):
        option = chance.choice([*OPTIONS])
        value = chance.choice(OPTIONS[option])
        pick = chance.random()
        if pick < 0.4:
            value = "=".join(chance.choice((part, *WORDS, *TEXTS)) for part in value.split("="))
        elif pick < 0.6:
            value = mutate.garbled(value.encode(), chance).decode("utf-8", "replace")
        given += [option, value]
    return Input("\n".join(given).encode("utf-8", "replace"), ".args")


KINDS: dict[str, Callable[[random.Random], Input]] = {
    "pt2": pt2,
    "program": program,
    "onnx": onnx_file,
    "onnx_call": onnx_call,
    "report": report,
    "profile": profile,
    "budget": budget,
    "text": text,
    "options": options,
}


def tried(path: Path, which: int) -> Verdict:
    """Give a file to one of the commands that read its kind. which: a number; every command has its turn."""
    if path.suffix == ".txt":
        return _text(path.read_text())
    if path.suffix == ".args":
        given = [line.replace("\0", "") for line in path.read_text().split("\n")]
        sample = ("gqa_transformer.pt2", "convnet.onnx")[which % 2]
        return run_command(["analyze", str(SAMPLES / sample), *given])
    if path.suffix == ".toml":
        return run_command(["check", str(SAMPLES / "convnet.onnx"), "--budget", str(path)])
    if path.name.endswith(".profile.json"):
        return run_command(profile_command(path, which))
    if which % 3:
        return run_command(command_for(path, which))
    if path.suffix == ".onnx" and which % 5 == 4:
        return run_command(["audit", str(path)])
    command, *options = READERS[which // 3 % len(READERS)]
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
