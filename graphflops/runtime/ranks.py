"""Runs a recorded step on all devices of its mesh, a process each on this machine, and compares each with the analysis.

A recording is the program of one rank. Every process runs it with its own groups along the axes of the mesh, which is what
it would run where ranks have the same program; where they have not, the step is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from math import prod
from typing import Any

from graphflops.errors import ModelError, shown
from graphflops.exporters import load
from graphflops.exporters.meshes import ranks_along
from graphflops.graph import Graph, Mesh
from graphflops.kernels.moved import ONE_TO_ONE
from graphflops.runtime.isolated import ChildLimits, validate_file
from graphflops.runtime.validation import Validation


def validate_ranks(
    path: str, nproc: int, repeats: int, options: Mapping[str, Any], limits: ChildLimits
) -> Validation:
    """Run the recorded step of a file in `nproc` processes. Raises as `validate_file` does."""
    refuse(load(path, options["model_name"]), nproc, options)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    processes = [{"rank": rank, "count": nproc, "port": port} for rank in range(nproc)]
    with ThreadPoolExecutor(nproc) as pool:
        runs = [pool.submit(validate_file, path, repeats, options, limits, (), one) for one in processes]
        for run in as_completed(runs):
            run.result()  # of the first that fails: the others fail when they wait for it
    return merged([run.result() for run in runs])


def refuse(graph: Graph, nproc: int, options: Mapping[str, Any]) -> None:
    """Raise ModelError, in one line, if the processes cannot all run the program of the recorded rank."""
    assert graph.step is not None
    mesh = graph.step.mesh or Mesh({}, {})
    if (devices := prod(mesh.axes.values())) != nproc:
        sizes = ",".join(f"{axis}={size}" for axis, size in mesh.axes.items())
        path = shown(graph.origin.path)
        raise ModelError(f"{path}: a step of {devices} devices ({shown(sizes)}): give --nproc {devices}")
    if any(options[name] for name in ("dims", "names", "inputs", "random_weights")):
        raise ModelError("a recorded step has its own sizes and inputs: leave --dim, --inputs and such out")
    for name, group in mesh.groups.items():
        if sorted(group.ranks) != ranks_along(mesh.axes, group.axis, mesh.rank):
            along = "lies along no axes of the mesh: others' groups are not known"
            raise ModelError(f"group {shown(name)} {along}")
    for node in graph.nodes:
        op = node.operator
        splits = op.arguments(node.args, node.kwargs).get("input_split_sizes") if op.is_exchange else None
        is_unequal = isinstance(splits, tuple) and len(set(splits)) > 1
        if is_unequal or op.name in ONE_TO_ONE:
            what = "parts of unequal sizes" if is_unequal else "the ranks of a pipeline"
            where = f"{node.name} ({shown(node.op)})"
            raise ModelError(f"{where}: {what}: other ranks have programs of their own")


def merged(found: Sequence[Validation]) -> Validation:
    """The first rank's validation, with the checks in which others differ."""
    nodes = []
    for of_ranks in zip(*(one.nodes for one in found), strict=True):
        node = of_ranks[0]
        for rank, other in enumerate(of_ranks):
            if other.verdict in ("different", "not executed") and other.checks != of_ranks[0].checks:
                added = [replace(check, reason=f"rank {rank}: {check.reason}") for check in other.checks]
                node = replace(node, checks=(*node.checks, *added))
        nodes.append(node)
    return replace(found[0], nodes=tuple(nodes), ranks=tuple([one.ranks[0] for one in found]))
