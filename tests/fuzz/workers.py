"""Tries inputs in forked processes: a crash of one is a verdict, and what one leaves in memory ends with it."""

from __future__ import annotations

import os
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tests.fuzz.judge import Verdict
from tests.fuzz.kinds import KINDS, tried

EACH = 2_000  # inputs of one process


class Tried(NamedTuple):
    """One input, named by its kind and number, from which `made` makes it again; and its verdict."""

    kind: str
    number: int
    verdict: Verdict


def made(kind: str, number: int, seed: int, folder: Path) -> Path:
    """The file of an input."""
    given = KINDS[kind](random.Random(f"{seed} {kind} {number}"))
    path = folder / f"input{given.suffix}"
    path.write_bytes(given.data)
    return path


def sweep(kinds: list[str], seed: int, seconds: float, most: int = 0) -> Iterator[Tried]:
    """The verdict on each input, until the time is over or so many were tried."""
    _prepare(kinds)
    end, number = time.monotonic() + seconds, 0
    while (number < most) if most else (time.monotonic() < end):
        last = min(number + EACH, most) if most else number + EACH
        for found in _worker(kinds, seed, range(number, last), 0.0 if most else end):
            yield found
            number += 1


def _prepare(kinds: list[str]) -> None:
    """Import and read here what every process needs."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            for which in range(3):
                tried(made(kind, which, 0, Path(folder)), which)


def _worker(kinds: list[str], seed: int, numbers: range, end: float) -> Iterator[Tried]:
    """Verdicts of one process; if it dies, the last is on the input that it died of."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "wb", buffering=0) as answers:
            _try_all(kinds, seed, numbers, end, answers)
        os._exit(0)
    os.close(writer)
    count = 0
    with os.fdopen(reader, "rb") as answers:
        while True:
            try:
                yield pickle.load(answers)
            except EOFError:
                break
            count += 1
    _, status = os.waitpid(child, 0)
    if status and count < len(numbers):
        number = numbers[count]
        died = Verdict("crash", f"the process ended with status {os.waitstatus_to_exitcode(status)}")
        yield Tried(kinds[number % len(kinds)], number // len(kinds), died)


def _try_all(kinds: list[str], seed: int, numbers: range, end: float, answers: BinaryIO) -> None:
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                if end and time.monotonic() > end:
                    break
                kind, which = kinds[number % len(kinds)], number // len(kinds)
                verdict = tried(made(kind, which, seed, Path(folder)), which)
                pickle.dump(Tried(kind, which, verdict), answers)
    except BaseException:  # noqa: BLE001 a defect of the fuzzer itself must not run on as a second parent
        traceback.print_exc()
        os._exit(1)
