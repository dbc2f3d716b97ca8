"""The memory of a program on a device as a pickled snapshot for pytorch.org/memory_viz."""

from __future__ import annotations

import pickle

from graphflops.errors import OptionError
from graphflops.memory.snapshot import snapshot as snapshot_of
from graphflops.report import Report


def snapshot(report: Report) -> bytes:
    """The last phase: a training step where there is one."""
    if not report.memory_use:
        raise OptionError("a memory snapshot is of a device: name one with --device, such as h200")
    return pickle.dumps(snapshot_of(report, report.memory_use[-1]), protocol=4)
