"""Single calls of torch's operators with wrong operands, run as `validate` runs a file: none may crash the process.

    python -m tests.fuzz.runs --seconds 600 [--seed N]

The kind of each argument comes from the operator's own schema. Prints each operator that ends the process by a signal, and
exits 1 then. `GLIBC_TUNABLES=glibc.malloc.check=3 LD_PRELOAD=libc_malloc_debug.so.0` finds writes outside of memory.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections import Counter
from typing import Any

import torch

from graphflops.errors import GraphflopsError
from graphflops.ops import table
from graphflops.runtime.machine import limit_process
from graphflops.runtime.operators import resolve

SECONDS = 20  # of one call; a longer one is interrupted, as the limit of time does
BYTES = 2**30
INTEGERS = (-1, 0, 1, 2, 3, 7, -2, 100, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
SMALL = (0, 1, 1, 2, 2, 3, 4, -1)
DTYPES = (
    torch.float32,
    torch.float32,
    torch.int64,
    torch.int64,
    torch.bool,
    torch.float64,
    torch.uint8,
    torch.int32,
)
VALUES = {
    "bool": (True, False),
    "float": (0.0, 0.5, 1.0, -1.0, 1e30),
    "number": (0, 1, 2.5, -1, 2**40),
    "str": ("mean", "none", "reflect", "ij", "xx"),
}


def overloads() -> list[str]:
    """All overloads that graphflops prices and would run, but those that write to given results."""
    found = []
    for key in table.RULES:
        packet = getattr(torch.ops.aten, key[5:].split(".")[0], None) if key.startswith("aten.") else None
        names = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []
        found += [f"aten.{packet.__name__}.{name}" for name in names if not name.endswith("out")]
    return sorted(set(found))


def tensor(chance: random.Random) -> torch.Tensor:
    """A small tensor of any rank and type, of random or of hostile numbers."""
    sizes = [chance.choice((0, 1, 2, 3, 4, 4, 8)) for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4, 5)))]
    dtype = chance.choice(DTYPES)
    if dtype is torch.int64 and chance.random() < 0.6:
        return torch.full(sizes, chance.choice(INTEGERS), dtype=dtype)
    return (torch.rand(sizes) * 4).to(dtype)


def value(kind: str, chance: random.Random) -> Any:
    """A value of a type of torch's schemas; None for one that no file holds."""
    if kind.startswith("Optional["):
        return None if chance.random() < 0.5 else value(kind[9:-1], chance)
    if kind.startswith("List["):
        return [value(kind[5:-1], chance) for _ in range(chance.choice((0, 1, 2, 2, 3, 3, 4)))]
    if kind == "Tensor":
        return tensor(chance)
    if kind in ("int", "SymInt"):
        return chance.choice(INTEGERS if chance.random() < 0.3 else SMALL)
    return chance.choice(VALUES.get(kind, (None,)))


def ended_by(op: str, seed: str) -> int:
    """The signal that ends a process that makes the call, 0 if none does."""
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        limit_process(SECONDS, BYTES, writes=2**30)
        try:
            function, chance = resolve(op), random.Random(seed)
            schema = getattr(torch.ops.aten, op.split(".")[1]).__getattr__(op.split(".")[2])._schema
            given = {arg.name: value(str(arg.type), chance) for arg in schema.arguments}
            function(**given)
        except (GraphflopsError, Exception):  # noqa: BLE001 any error is a fine end
            pass
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def main() -> int:
    """Run a sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names, counts, end = overloads(), Counter[str](), time.monotonic() + options.seconds
    chance = random.Random(options.seed)
    while time.monotonic() < end:
        op = chance.choice(names)
        number = ended_by(op, f"{options.seed} {counts.total()}")
        died = number not in (0, signal.SIGALRM)
        if died and not counts[f"{op} by signal {number}"]:
            print(f"{op} #{counts.total()}: signal {number}", flush=True)
        counts[f"{op} by signal {number}" if died else ""] += 1
    print(
        f"torch {torch.__version__}, seed {options.seed}: {counts.total():,} calls, {counts.total() - counts['']} crashed"
    )
    return int(counts.total() > counts[""])


if __name__ == "__main__":
    sys.exit(main())
