"""Tensors that the file stores, read where an attention is really masked by one.

numpy is imported when something is read.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from graphflops.attention.elementwise import array_type
from graphflops.errors import GraphflopsError, ModelError
from graphflops.tensor import BFLOAT16

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.graph import Graph, Input, Stored
    from graphflops.tensor import TensorType

MOST_BYTES = 2**28  # of one stored tensor


class Constants:
    """The weights and constants of a program as arrays.

    used: names of those that some mask was found to be made of; a single number is none.
    """

    def __init__(self, graph: Graph, is_written: Callable[[str], bool]) -> None:
        self.graph = graph
        self.is_written = is_written
        self.used: set[str] = set()
        self.arrays: dict[str, Any] = {}
        self.forms: dict[str, Any] = {}

    def array(self, name: str, typed: TensorType) -> Any:
        """A stored tensor as a read-only array; None where it is not stored, too large, or not at hand.

        One that is trained, or that the program writes to, may hold something else when it is used.
        """
        entry = self.entries.get(name)
        if entry is None or self.graph.contents is None:
            return None
        if name not in self.arrays:
            self.arrays[name] = None
            size = typed.nbytes
            changes = typed.requires_grad or entry.target in self.changed or self.is_written(name)
            if isinstance(size, int) and size <= MOST_BYTES and not changes:
                # A file that contradicts itself has no mask to follow.
                with suppress(GraphflopsError, OSError, LookupError, OverflowError, TypeError, ValueError):
                    stored = self.graph.contents(name)
                    if stored is not None and stored.shape == typed.shape and stored.dtype is typed.dtype:
                        self.arrays[name] = array_of(stored)
        return self.arrays[name]

    @cached_property
    def entries(self) -> dict[str, Input]:
        """Inputs that the file stores, by name."""
        return {entry.name: entry for entry in self.graph.inputs if entry.role != "user"}

    @cached_property
    def changed(self) -> set[str]:
        """Names of the stored tensors whose contents are changed after the program ran."""
        return {output.target for output in self.graph.outputs if output.role == "mutation"}

    def use(self, name: str, typed: TensorType) -> None:
        """Record that a mask is made of a stored tensor."""
        if typed.rank:
            self.used.add(name)


def array_of(stored: Stored) -> Any:
    """What is stored as an array; None where the elements are no numbers that numpy has.

    Raises ValueError where it reaches out of its memory, or is larger than MOST_BYTES.
    """
    import numpy as np

    try:
        kind = np.dtype(np.uint16) if stored.dtype is BFLOAT16 else array_type(stored.dtype)
    except ModelError:
        return None
    if kind.kind not in "biuf" or kind.itemsize * 8 != stored.dtype.bits:
        return None
    if (
        len(stored.shape) != len(stored.strides)
        or min((*stored.shape, *stored.strides, stored.offset, 0)) < 0
    ):
        raise ValueError
    last = stored.offset + sum(
        (size - 1) * stride for size, stride in zip(stored.shape, stored.strides, strict=True)
    )
    if 0 in stored.shape:
        return np.zeros(stored.shape, kind)
    if (last + 1) * kind.itemsize > stored.memory.nbytes or math.prod(
        stored.shape
    ) * kind.itemsize > MOST_BYTES:
        raise ValueError
    whole = np.frombuffer(stored.memory, np.uint8)[: (last + 1) * kind.itemsize]
    if stored.dtype.kind == "bool":
        kind = np.dtype(np.uint8)
    flat = np.ascontiguousarray(whole).view(kind)[stored.offset :]
    array = np.lib.stride_tricks.as_strided(
        flat, stored.shape, [stride * kind.itemsize for stride in stored.strides], writeable=False
    )
    if stored.dtype.kind == "bool":
        return array != 0
    if stored.dtype is BFLOAT16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array
