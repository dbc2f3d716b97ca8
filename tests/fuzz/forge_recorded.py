"""Forges recorded steps: none that costs more than it seems to may pass `analyze --strict`, or be taken in silence.

    python -m tests.fuzz.forge_recorded --count 1000 --seed 0 [--only "alias"]

Each file is an honest recording of torch with one thing changed. What it really costs is found by running its calls with
torch (`rerun_step`). A file that torch does not run is a forgery where it costs less than the honest one. One that torch
runs at the cost that is printed is another honest step, whatever it was made of.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import sys
import tempfile
import warnings
import zipfile
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from click.testing import Result

from graphflops.exporters.step_file import MEMBER
from tests.fuzz.change_recorded import CHANGES
from tests.fuzz.judge import DEFECTS, run_command
from tests.fuzz.rerun_step import Refused, rerun

Json = dict[str, Any]
NAMES = {
    "data_parallel": {"dp": 4},
    "mixed_precision": {"dp": 4},
    "sharded_and_split": {"dp": 2, "tp": 2},
    "expert_parallel": {"ep": 4},
    "context_parallel": {"cp": 2},
    "pipelined": {"pp": 2},
    "checkpointed": {},
    "masked": {},
    "inference": {},
}
QUANTITIES = ("matrix_flops", "vector_flops", "transcendentals", "read_bytes", "written_bytes", "link_bytes")
HELD = ("requested_peak",)
_SHARE = 0.999  # of the real cost


class Forged(NamedTuple):
    """A changed step. how: what was changed, for a reader of a failure."""

    base: str
    kind: str
    how: str
    data: bytes
    step: Json | None


@lru_cache(maxsize=32)
def honest(name: str) -> Json:
    """A step as torch records it."""
    from graphflops import record
    from tests.capturing import steps

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "step.recorded"
        record(getattr(steps, name), mesh=NAMES[name] or None, file=path)
        with zipfile.ZipFile(path) as file:
            found: Json = json.loads(file.read(MEMBER))
            return found


def packed(step: Json | None, text: bytes | None = None) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr(MEMBER, json.dumps(step) if text is None else text)
    return data.getvalue()


def _damaged(step: Json, chance: Random) -> bytes:
    """The archive cut, or its JSON said twice."""
    text = json.dumps(step).encode()
    ways = (
        lambda: packed(None, text)[: chance.randrange(len(text))],
        lambda: packed(None, text[: chance.randrange(len(text))]),
        lambda: packed(None, text[:-1] + b', "calls": []}'),
        lambda: packed(
            None, text[:-1] + b', "storages": ' + json.dumps(step["storages"][:3]).encode() + b"}"
        ),
        lambda: packed(
            None,
            text.replace(
                b'"format": 1', chance.choice((b'"format": 2', b'"format": 1e400', b'"format": null'))
            ),
        ),
        lambda: packed(None, b"[" * 200_000),
        lambda: packed(None, text + text),
        lambda: packed(None, text.replace(b'"float32"', b'"float33"', 1)),
    )
    return chance.choice(ways)()


def forged(base: str, name: str, chance: Random) -> Forged | None:
    """A step with one change."""
    step = copy.deepcopy(honest(base))
    if name == "damage":
        return Forged(base, name, "", _damaged(step, chance), None)
    try:
        how = CHANGES[name](step, chance)
    except (IndexError, KeyError, TypeError):
        return None
    return Forged(base, name, how, packed(step), step) if how else None


def figures(path: Path, *options: str) -> tuple[str, dict[str, int]]:
    """What analyze says of a file, and its figures where it has a report."""
    kept: list[Result] = []
    verdict = run_command(["analyze", str(path), "--format", "json", *options], kept)
    if verdict.kind in DEFECTS or not kept or not kept[0].stdout.startswith("{"):
        return f"{verdict.kind} {verdict.where}".strip(), {}
    report = json.loads(kept[0].stdout)
    found = {name: report["totals"][name] for name in QUANTITIES}
    (memory,) = report["memory_use"]
    found |= {name: memory[name] for name in HELD}
    values = {name: one.get("value") if isinstance(one, dict) else one for name, one in found.items()}
    return f"exit {kept[0].exit_code}", {name: one for name, one in values.items() if one is not None}


def cheaper(ours: dict[str, int], real: dict[str, int]) -> str:
    """The figures that are less than they are."""
    less = [
        f"{name} {ours[name]:,} of {real[name]:,}"
        for name in ours
        if name in real and ours[name] < _SHARE * real[name]
    ]
    return ", ".join(less)


class Judge:
    """What becomes of forged steps under each command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, dict[str, int]] = {}

    def of_honest(self, name: str) -> dict[str, int]:
        if name not in self.known:
            path = self.folder / f"{name}.recorded"
            path.write_bytes(packed(honest(name)))
            said, self.known[name] = figures(path, "--strict")
            assert said == "exit 0", f"{name}: {said}"
        return self.known[name]

    def silent(self, path: Path, base: str) -> str:
        """The other commands that take a file which contradicts itself without a word, and those that show a defect."""
        budget, found = self.folder / "budget.toml", []
        budget.write_text(
            '[[budget]]\nmodels = ["*.recorded"]\nmax_device_bytes = "80 GB"\ndevice = "h200"\n'
        )
        commands = (
            ["fits", str(path), "--memory", "80GB", "--strict"],
            ["check", str(path), "--budget", str(budget)],
            ["diff", str(self.folder / f"{base}.recorded"), str(path)],
        )
        for command in commands:
            kept: list[Result] = []
            verdict = run_command(command, kept)
            if verdict.kind in DEFECTS:
                found.append(f"{command[0]}: {verdict.kind} {verdict.where}")
            elif kept[0].exit_code == 0 and not any(
                word in kept[0].output for word in ("contradict", "unknown")
            ):
                found.append(f"{command[0]} is silent")
        return "; ".join(found)

    def verdict(self, one: Forged) -> tuple[str, str]:
        """A word (refused, told, defect, passes, impossible, another, equal), and what a reader wants to know."""
        honest_figures, path = self.of_honest(one.base), self.folder / "forged.recorded"
        path.write_bytes(one.data)
        said, ours = figures(path, "--strict")
        if said.partition(" ")[0] in DEFECTS:
            return "defect", said
        if not ours:
            return "refused", said
        if said != "exit 0":
            silent = self.silent(path, one.base)
            return ("silent", silent) if silent else ("told", said)
        try:
            new = self.folder / "rerun.recorded"
            new.write_bytes(packed(rerun(one.step or {})))
        except Refused as refusal:
            less = cheaper(ours, honest_figures)
            return ("impossible", f"{less}; {refusal}") if less else ("equal", "")
        said, real = figures(new)
        if less := cheaper(ours, real):
            return "passes", less
        less = cheaper(ours, honest_figures)
        return ("another", less) if less else ("equal", "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="how many, of all changes and steps in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="a kind of change; default: all")
    parser.add_argument("--show", action="append", default=["defect", "silent", "passes", "impossible"])
    options = parser.parse_args(arguments)
    kinds = [name for name in (*CHANGES, "damage") if not options.only or name in options.only]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder))
        for place in range(options.count):
            name = kinds[place % len(kinds)]
            base = [*NAMES][place // len(kinds) % len(NAMES)]
            one = forged(base, name, Random(f"{options.seed} {place}"))
            if one is None:
                continue
            word, what = judge.verdict(one)
            counts[name][word] += 1
            if word in options.show:
                print(f"#{place} {word} {base}, {name}: {one.how[:160]}: {what[:300]}", flush=True)
    words = ("refused", "told", "equal", "another", "impossible", "passes", "silent", "defect")
    print(f"{'seed ' + str(options.seed):14}" + "".join(f"{word:>11}" for word in words))
    for name in [*counts, "all"]:
        row = counts[name] if name in counts else sum(counts.values(), Counter())
        print(f"{name:14}" + "".join(f"{row[word]:11,}" for word in words))
    total = sum(counts.values(), Counter())
    return 1 if total["defect"] + total["passes"] + total["impossible"] + total["silent"] else 0


if __name__ == "__main__":
    sys.exit(main())
