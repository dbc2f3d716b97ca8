"""Tables that torch makes anew for each export, and that are the same in all: making them is most of a small one."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any
from unittest.mock import patch

import torch


def look_through_operators_once() -> None:
    """For each namespace of operators a decomposition looks through all that torch has: here again for a new one."""
    from torch._export import utils

    look = cache(lambda namespaces, look: look())
    every = utils._materialize_cpp_cia_ops
    utils._materialize_cpp_cia_ops = lambda: look(len(torch.ops._dir), every)


def onnx_export(*args: Any, **options: Any) -> Any:
    """What `torch.onnx.export` makes, with one table of ONNX's functions a process: it is made of their sources."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with patch.object(ONNXRegistry, "from_torchlib", staticmethod(copies(ONNXRegistry.from_torchlib))):
        return torch.onnx.export(*args, **options)


@cache
def copies(make: Any) -> Any:
    """A function that gives copies of the tables that `make` makes, for an export adds functions of its own."""
    kept = cache(make)

    def copied(**options: int) -> Any:
        table = copy.copy(kept(**options))
        table.functions = {target: [*functions] for target, functions in table.functions.items()}
        return table

    return copied
