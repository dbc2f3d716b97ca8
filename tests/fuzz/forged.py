"""Forges model files that cost more than they seem to; none may pass `analyze --strict`.

    python -m tests.fuzz.forged --count 10000 --seed 0 [--only "two readers"] [--keep FOLDER]

A forger makes one file from an honest one, whose real cost is known: what torch or onnxruntime runs when it is given the
forged file. `FORGERS` of each module in `MODULES` names them by class.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from graphflops.cli import main as graphflops

MODULES = ("tests.fuzz.forge_pt2", "tests.fuzz.forge_onnx")
_SHARE = 0.9  # of the real cost: a file that passes with less is a forgery that was not found


class Forged(NamedTuple):
    """A forged file. real: the matrix FLOPs that run. how: what was changed, for a reader of a failure."""

    data: bytes
    suffix: str
    kind: str
    real: int
    how: str


Forger = Callable[[random.Random], Forged]


def forgers() -> dict[str, Forger]:
    """Every forger by its class."""
    found: dict[str, Forger] = {}
    for module in MODULES:
        if importlib.util.find_spec(module) is not None:
            found.update(importlib.import_module(module).FORGERS)
    return found


def forged_files(makers: Mapping[str, Forger], count: int, seed: int) -> Iterator[Forged]:
    """So many files, of each class in turn; one of a given seed and place is always the same."""
    names = list(makers)
    for place in range(count):
        name = names[place % len(names)]
        yield makers[name](random.Random(f"{seed} {name} {place}"))


def passes(forged: Forged, folder: Path) -> str:
    """What is printed of a file that passes for much cheaper than it is; "" for one that was found out."""
    path = folder / f"model{forged.suffix}"
    path.write_bytes(forged.data)
    result = CliRunner().invoke(graphflops, ["analyze", str(path), "--strict", "--format", "json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code != 0:
        return ""
    printed = json.loads(result.stdout)["totals"]["matrix_flops"]
    value = printed["value"] if isinstance(printed, dict) else printed
    if value is not None and value >= _SHARE * forged.real:
        return ""
    return f"{forged.kind}: {forged.how}: exit 0 at {value} of {forged.real} matrix FLOPs"


def main(arguments: list[str] | None = None) -> int:
    """Forge files and judge each; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--count", type=int, default=1000, help="how many files to forge, of all classes in turn"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a class; default: all")
    parser.add_argument("--keep", type=Path, help="folder for the files that pass")
    options = parser.parse_args(arguments)
    makers = {name: make for name, make in forgers().items() if not options.only or name in options.only}
    if not makers:
        parser.error(f"the classes are {', '.join(forgers())}")
    made: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for place, forged in enumerate(forged_files(makers, options.count, options.seed)):
            made[forged.kind] += 1
            if said := passes(forged, Path(folder)):
                passed[forged.kind] += 1
                print(f"#{place} {said}", flush=True)
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{place}{forged.suffix}").write_bytes(forged.data)
    each = ", ".join(f"{kind} {passed[kind]:,} of {made[kind]:,}" for kind in made)
    print(f"seed {options.seed}: {passed.total():,} of {made.total():,} forged files pass ({each})")
    return 1 if passed.total() else 0


if __name__ == "__main__":
    sys.exit(main())
