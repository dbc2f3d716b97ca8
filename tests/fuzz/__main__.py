"""Tries inputs for so many seconds; prints each defect once and a line of counts; exits 1 if there is a defect."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.judge import DEFECTS, Verdict
from tests.fuzz.kinds import KINDS, tried


def sweep(kinds: list[str], seed: int, seconds: float, most: int = 0) -> Iterator[tuple[str, bytes, Verdict]]:
    """Kind, bytes and verdict of each input, until the time is over or so many were tried."""
    began, count = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        while (count < most) if most else (time.monotonic() - began < seconds):
            kind = kinds[count % len(kinds)]
            given = KINDS[kind](random.Random(f"{seed} {kind} {count}"))
            path = Path(folder) / f"input{given.suffix}"
            path.write_bytes(given.data)
            yield kind, given.data, tried(path, count // len(kinds))
            count += 1


def main(arguments: list[str] | None = None) -> int:
    """Run a sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on")
    parser.add_argument("--inputs", type=int, default=0, help="how many to try, however long that takes")
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for inputs that show a defect")
    options = parser.parse_args(arguments)
    kinds = options.kind or [*KINDS]
    counts: Counter[str] = Counter()
    found: set[tuple[str, Verdict]] = set()
    for kind, data, verdict in sweep(kinds, options.seed, options.seconds, options.inputs):
        counts[verdict.kind] += 1
        if verdict.kind not in DEFECTS or (kind, verdict) in found:
            continue
        found.add((kind, verdict))
        print(f"{verdict.kind} {kind}: {verdict.where}", flush=True)
        if options.keep:
            options.keep.mkdir(exist_ok=True, parents=True)
            (options.keep / f"{verdict.kind}_{kind}_{len(found)}").write_bytes(data)
    said = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("fine", "refused", *DEFECTS))
    print(f"seed {options.seed}: {counts.total():,} inputs: {said}; {len(found)} defects that differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
