"""Tries inputs for so many seconds; prints each defect once and a line of counts; exits 1 if there is a defect."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.judge import DEFECTS, Verdict
from tests.fuzz.kinds import KINDS
from tests.fuzz.workers import made, sweep

_EVERY = 20_000  # inputs after which a line says how far it is


def main(arguments: list[str] | None = None) -> int:
    """Run a sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on")
    parser.add_argument("--inputs", type=int, default=0, help="how many to try, however long that takes")
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for inputs that show a defect")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    found: set[tuple[str, Verdict]] = set()
    began = time.monotonic()
    for kind, number, verdict in sweep(
        options.kind or [*KINDS], options.seed, options.seconds, options.inputs
    ):
        counts[verdict.kind] += 1
        if not counts.total() % _EVERY:
            print(_line(options.seed, counts, len(found), began), file=sys.stderr, flush=True)
        if verdict.kind not in DEFECTS or (kind, verdict) in found:
            continue
        found.add((kind, verdict))
        print(f"{verdict.kind} {kind} #{number}: {verdict.where}", flush=True)
        if options.keep:
            _keep(kind, number, options.seed, options.keep)
    print(_line(options.seed, counts, len(found), began))
    return 1 if found else 0


def _line(seed: int, counts: Counter[str], found: int, began: float) -> str:
    said = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("fine", "refused", *DEFECTS))
    rate = counts.total() / (time.monotonic() - began)
    return f"seed {seed}: {counts.total():,} inputs, {rate:.0f}/s: {said}; {found} defects that differ"


def _keep(kind: str, number: int, seed: int, kept: Path) -> None:
    kept.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as folder:
        path = made(kind, number, seed, Path(folder))
        shutil.copy(path, kept / f"{kind}_{number}{path.suffix}")


if __name__ == "__main__":
    sys.exit(main())
