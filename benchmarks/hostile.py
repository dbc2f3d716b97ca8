"""Robustness: inputs changed at random, given to the commands that read files.

    python -m benchmarks.hostile [--seconds 60] [--seed N]

Prints, for each kind of input, how many were tried, and how many showed a defect: another error than one line on
stderr, more than 5 seconds of processor time, more than 1 GiB of memory.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.fuzz.kinds import KINDS
from tests.fuzz.workers import sweep


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on, all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = {kind: Counter[str]() for kind in KINDS}
    for kind, _, verdict in sweep([*KINDS], options.seed, options.seconds):
        counts[kind][verdict.kind] += 1
    print(f"seed {options.seed}, {options.seconds:g} s, one process")
    print(
        f"{'kind':9} {'inputs':>8} {'analyzed':>9} {'refused':>8} {'defects':>8} {'over 5 s':>9} {'over 1 GiB':>11}"
    )
    total: Counter[str] = Counter()
    for count in counts.values():
        total += count
    for kind, count in (*counts.items(), ("all", total)):
        defects = count["crash"] + count["lines"]
        row = (count.total(), count["fine"], count["refused"], defects, count["hang"], count["memory"])
        print(f"{kind:9} {row[0]:8,} {row[1]:9,} {row[2]:8,} {row[3]:8,} {row[4]:9,} {row[5]:11,}")
    return 1 if total["crash"] + total["lines"] + total["hang"] + total["memory"] else 0


if __name__ == "__main__":
    sys.exit(main())
