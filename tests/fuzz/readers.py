"""The commands that read an input, with options chosen at random: each input has one of them."""

from __future__ import annotations

import random
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "samples"
_DEVICES = ("h200", "h200", "h200", "h200", "a100", "mi300x", "rtx4090", "tpu-v5e")
_FORMATS = (
    *("table", "table", "json", "json", "html", "markdown", "csv", "chrome-trace", "speedscope"),
    *("memory-snapshot", "chakra"),
)
_PATTERNS = ("*", "**", "blocks.*", "layers.*", "conv*", "head", "missing", "", "blocks.0.attention", "[")
_AXES = ("ids[0]", "ids[1]", "x[0]", "image[0]", "x[9]", "s27", "s0", "nothing", "", "x[0]=ids[1]", "x")
_STEP = {
    "--optimizer": (
        *("sgd", "momentum:fused", "adam", "adamw:single", "adafactor", "muon", "none", "muon:fused"),
        *("adamw:fused", "sgd:foreach:x"),
    ),
    "--precision": ("fp32", "bf16", "bf16-mixed", "fp16-mixed"),
    "--freeze": _PATTERNS,
    "--lora": ("8", "1", "0", "99999999999999999999", "4:*", "4:head,q_proj", "4:w", "-1"),
    "--accumulate": ("1", "3", "99999999999999999999", "0"),
    "--recompute": _PATTERNS,
    "--grad-input": ("x", "ids", "image", "missing"),
    "--loss": ("sum", "mean", "cross-entropy", "given"),
}
_SIZES = ("1", "2", "7", "0", "4096", "4611686018427387904", "99999999999999999999999")
BUDGET = SAMPLES.parent / "tests" / "fuzz" / "device_budget.toml"


def command_for(path: Path, which: int) -> list[str]:
    """A command on a model or a saved report. which: the number of the input, from which options are chosen."""
    chance = random.Random(f"command {which}")
    pick = chance.random()
    if pick < 0.55:
        return ["analyze", str(path), *_analysis(chance)]
    if pick < 0.75:
        return ["fits", str(path), *_fits(chance)]
    if pick < 0.85:
        return ["audit", str(path), *_on_device(chance)]
    if pick < 0.95:
        pair = [
            str(SAMPLES / chance.choice(("convnet.pt2", "gqa_transformer.pt2", "convnet.onnx"))),
            str(path),
        ]
        chance.shuffle(pair)
        return ["diff", *pair, *_on_device(chance), *_step(chance)]
    return ["check", str(path), "--budget", str(BUDGET)]


def profile_command(path: Path, which: int) -> list[str]:
    """A command on a sample with this file as the profile of the device."""
    chance = random.Random(f"profile {which}")
    sample = str(SAMPLES / chance.choice(("convnet.pt2", "gqa_transformer.pt2", "convnet.onnx", "cond.pt2")))
    command = chance.choice(("analyze", "analyze", "analyze", "fits", "audit"))
    training = _step(chance) if command != "audit" else []
    execution = ["--execution", chance.choice(("eager", "graph", "compiled"))]
    given = [] if command == "audit" else ["--format", "json"]
    return [command, sample, "--device", str(path), *execution, *training, *given]


def _analysis(chance: random.Random) -> list[str]:
    given = [*_on_device(chance), *_step(chance), *_sizes(chance)]
    pick = chance.random()
    if pick < 0.6:
        given += ["--format", chance.choice(_FORMATS)]
    elif pick < 0.7:
        given += ["--per", chance.choice(_AXES)]
    elif pick < 0.8:
        given += ["--by", chance.choice(("op", "module", "source", "attention"))]
    elif pick < 0.9:
        given += ["--sweep", f"{chance.choice(_AXES)}={','.join(chance.choices(_SIZES, k=3))}"]
    if chance.random() < 0.2:
        given += ["--price-per-hour", chance.choice(("2.5", "1e9", "1e-300"))]
    return [*given, *["--verify"] * (chance.random() < 0.05), *["--strict"] * (chance.random() < 0.1)]


def _fits(chance: random.Random) -> list[str]:
    where = chance.choice(
        (
            ["--device", "h200"],
            ["--device", "a100"],
            ["--memory", "24GB"],
            ["--memory", "1B"],
            ["--all-devices"],
        )
    )
    given = [*where, *_execution(chance), *_step(chance), *_sizes(chance)]
    if chance.random() < 0.4:
        given += ["--vary", chance.choice(_AXES)]
    if chance.random() < 0.3:
        given += ["--format", chance.choice(("json", "markdown"))]
    return given


def _on_device(chance: random.Random) -> list[str]:
    where = ["--device", chance.choice(_DEVICES)] if chance.random() < 0.9 else []
    return [*where, *_execution(chance)]


def _execution(chance: random.Random) -> list[str]:
    return ["--execution", chance.choice(("eager", "graph", "compiled"))] if chance.random() < 0.6 else []


def _step(chance: random.Random) -> list[str]:
    """Options of a training step; none in half of the cases."""
    if chance.random() < 0.5:
        return []
    given = ["--training"]
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        option = chance.choice([*_STEP])
        given += [option, chance.choice(_STEP[option])]
    return given


def _sizes(chance: random.Random) -> list[str]:
    if chance.random() < 0.8:
        return []
    return ["--dim", f"{chance.choice(_AXES)}={chance.choice(_SIZES)}"]
