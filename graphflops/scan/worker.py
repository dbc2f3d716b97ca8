"""A worker process: reads tasks from its standard input, a line of JSON each, and writes a line with what came of each.

It analyzes files of unknown origin and may hang, crash or be killed; the process that started it then starts another.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any

import msgspec

from graphflops.scan.measure import Task, answered

_COLLECTED = 50  # files after which unreachable objects are collected


class Reply(msgspec.Struct, frozen=True):
    """What came of it. memory: bytes that this process has had at most."""

    row: dict[str, Any]
    more: dict[str, list[dict[str, Any]]]
    memory: int


def main() -> None:
    """Answer until the input ends, which it does also where the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that is printed here is taken for a reply
    gc.disable()
    decoder = msgspec.json.Decoder(Task)
    for number, line in enumerate(sys.stdin.buffer):
        task = decoder.decode(line)
        found = answered(task)
        if number % _COLLECTED == 0:
            gc.collect()
        reply = Reply(dict(found.row), dict(found.more), _memory())
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()


def _memory() -> int:
    try:
        import resource
    except ImportError:
        return 0
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else kilobytes * 1024


if __name__ == "__main__":
    main()
