"""Runs a program from a file in child processes: a stranger may have written it, and it may crash torch or onnxruntime.

A child answers with JSON, which is checked here; nothing that it sends is unpickled. What it prints is escaped.

A recorded step is the program of one rank. Every process runs it with its own groups along the axes of the mesh. A step
whose ranks have different programs is refused. To read hardware counters, the program runs once more under Nsight Compute,
with each call in an NVTX range named by the index of its row.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import prod
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import msgspec
from msgspec.structs import asdict

from graphflops import errors
from graphflops.base.lazy import imported
from graphflops.base.limits import Limits, limited
from graphflops.base.record import Record, replace
from graphflops.dims import evaluate
from graphflops.errors import FileError, GraphflopsError, ModelError, RunError, raised, said_by, shown
from graphflops.exporters import load, reader_of, regular_file
from graphflops.exporters.meshes import ranks_along
from graphflops.graph import Graph, Mesh
from graphflops.kernels.moved import ONE_TO_ONE
from graphflops.report import Report
from graphflops.runtime.counters import RangeCount, explain_row, measure, range_name
from graphflops.runtime.machine import KERNELS, end_with_parent, limit_process
from graphflops.runtime.validation import CheckResult, NodeResult, Validation, Verdict

_PRINTED = 2**16  # bytes of what the child prints that are shown
_LINES = 20
_ANSWER = 2**31  # bytes of a validation
_OF_PYTHON = {"MemoryError": MemoryError, "RecursionError": RecursionError}


class ChildLimits(Record, frozen=True):
    """Limits of a child. seconds: wall clock. memory: bytes beyond what Python and torch hold; None: all that is free."""

    seconds: float
    memory: int | None


class Answer(msgspec.Struct):
    """What the child sends: a validation, or the name of an error's class and its message."""

    found: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    message: str = ""


def validate_file(
    path: str, repeats: int, options: Mapping[str, Any], limits: ChildLimits, rule_files: Sequence[str],
    process: Mapping[str, int] | None = None,
) -> Validation:  # fmt: skip
    """Validate the program of a file in a child process. options: as for `prepared`. process: its rank among several.

    Raises the errors of the child, and RunError if it ends without an answer or exceeds its time limit.
    """
    with tempfile.TemporaryDirectory(prefix="graphflops") as folder:
        request = {
            "model": path,
            "repeats": repeats,
            "options": {**options, "inputs": _stored(options["inputs"], folder)},
            "limits": asdict(limits),
            "rule_files": [*rule_files],
            "process": process,
        }
        found = answered(child_command("validate", request), limits.seconds, path)
    try:
        return msgspec.json.decode(found, type=Validation)
    except msgspec.DecodeError as error:
        raise RunError(f"{shown(path)}: the process that ran it sent no validation: {error}") from None


def child_command(task: str, request: Mapping[str, Any]) -> list[str]:
    """The command of a child that imports what this process imports; the current folder is not searched for modules."""
    paths = [path for path in sys.path if path]
    run = "from graphflops.runtime.isolated import main; main(*sys.argv[1:])"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {run}", task, json.dumps(request)]


def main(task: str, text: str) -> None:
    """Run a task (`validate`, `counters`, or one of a fix) that `child_command` asked for."""
    request = json.loads(text)
    if task == "counters":
        imported("graphflops.runtime.run:run_in_ranges")(request["model"], request["options"])
        return
    end_with_parent()
    stream = os.dup(1)
    os.dup2(2, 1)  # what the program prints must not mix with the answer
    try:
        answer = Answer(found=msgspec.Raw(_done(task, request)))
    except Exception as error:  # noqa: BLE001 whatever it is, the parent says it in one line
        said = said_by(error) if isinstance(error, GraphflopsError) else raised(error)
        answer = Answer(error=type(error).__name__, message=said)
    with os.fdopen(stream, "wb") as file:
        file.write(msgspec.json.encode(answer))


def _done(task: str, request: dict[str, Any]) -> bytes:
    """The result of a child's task, as JSON."""
    if task != "validate":
        arguments = Path(request["arguments"]).read_bytes()
        limit_process(request["seconds"], None, request["writes"])
        with limited(Limits(seconds=None)):
            return bytes(imported("graphflops.onnx_fix.sessions:done")(task, arguments))
    options = request["options"]
    imported("graphflops.loading:import_rules")(request["rule_files"])
    tempfile.gettempdir()  # torch asks for it later, when the search may write no file
    if reader_of(regular_file(request["model"])).name != "onnx":
        with contextlib.suppress(ImportError):
            import torch

            torch.ones(2**20).sin()  # starts torch's threads, whose stacks are not the program's memory
    writes = KERNELS if options["device"] != "cpu" else 0
    validate = imported("graphflops.runtime.validate:validate_here")
    limit_process(request["limits"]["seconds"], request["limits"]["memory"], writes)
    with limited(Limits(seconds=None)):
        if request["process"]:
            options["process"] = request["process"]
            validate = imported("graphflops.runtime.rank:validate_rank")
        found = validate(request["model"], request["repeats"], **options)
    return msgspec.json.encode(found)


def _stored(inputs: Mapping[str, Any] | str | None, folder: str) -> str | None:
    """The path of the inputs; inputs in memory are stored in a file for the child."""
    if inputs is None or isinstance(inputs, str):
        return inputs
    from safetensors.torch import save_file

    path = f"{folder}/inputs.safetensors"
    save_file({name: tensor.contiguous().clone() for name, tensor in inputs.items()}, path)
    return path


def answered(command: Sequence[str], seconds: float, path: str) -> msgspec.Raw:
    """Run the command of a child, and return its result for the file at `path`. Raises as `validate_file` does."""
    process = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(_first, process.stdout, _ANSWER)
        printed = pool.submit(_first, process.stderr, _PRINTED)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            limit = f"{seconds:g} s and was ended: give a larger --time-limit"
            raise RunError(f"{shown(path)}: the run took longer than {limit}") from None
        finally:
            process.kill()
            process.wait()
            # Escaped and marked, so that no line can pass for ours or for a command to a CI job.
            lines = printed.result().decode(errors="backslashreplace").splitlines()
            for line in lines[:_LINES]:
                print("  |", shown(line.replace("##[", "# #["), 300), file=sys.stderr)
            if len(lines) > _LINES:
                print(f"  | ({len(lines) - _LINES} more lines)", file=sys.stderr)
    try:
        answer = msgspec.json.decode(sent.result(), type=Answer)
    except msgspec.DecodeError:
        how = f"exit status {status}"
        if status < 0:
            how = f"signal {-status}: torch or onnxruntime crashed, or the system ran out of memory"
        raise RunError(f"{shown(path)}: the process that ran it ended without an answer ({how})") from None
    known = getattr(errors, answer.error, None)
    if answer.error in _OF_PYTHON:
        raise _OF_PYTHON[answer.error]()
    if isinstance(known, type) and issubclass(known, GraphflopsError):
        raise FileError(answer.message) if known is errors.NoRuleError else known(answer.message)
    if answer.error:
        raise RuntimeError(answer.message)
    return answer.found


def _first(stream: Any, most: int) -> bytes:
    """The first bytes of a stream, which is read to its end."""
    kept = bytearray()
    with stream:
        while part := stream.read1(2**16):
            kept += part[: max(most - len(kept), 0)]
    return bytes(kept)


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
            run.result()  # raises the first error: other processes fail later, when they wait for that one
    return merged([run.result() for run in runs])


def refuse(graph: Graph, nproc: int, options: Mapping[str, Any]) -> None:
    """Raise ModelError, in one line, if other ranks cannot run the program of the recorded rank."""
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
    """The first rank's validation, with failed checks of other ranks added."""
    nodes = []
    for first, *others in zip(*(one.nodes for one in found), strict=True):
        added = [
            replace(check, reason=f"rank {rank}: {check.reason}")
            for rank, other in enumerate(others, start=1)
            if other.verdict in ("different", "not executed") and other.checks != first.checks
            for check in other.checks
        ]
        nodes.append(replace(first, checks=(*first.checks, *added)))
    return replace(found[0], nodes=tuple(nodes), ranks=tuple([one.ranks[0] for one in found]))


def with_counters(found: Validation, report: Report, options: Mapping[str, Any]) -> Validation:
    """The validation with counted bytes of each call, and a check of its FLOPs if it has any."""
    counted = measure(child_command("counters", {"model": found.path, "options": options}))
    nodes = tuple(_with(node, report, counted.get(range_name(node.row)), found.sizes) for node in found.nodes)
    return replace(found, nodes=nodes)


def _with(
    node: NodeResult, report: Report, counted: RangeCount | None, sizes: Mapping[str, int]
) -> NodeResult:
    row = report.rows[node.row]
    if row.regions and node.tile_flops is None:
        return node  # its nested calls are counted one by one
    if counted is None:
        if not node.flops or not node.turns:
            return node
        check = CheckResult("hardware", "different", str(node.flops), "0", "it launched no kernel")
        return replace(node, checks=(*node.checks, check))
    node = replace(node, counted_bytes=counted.dram_read + counted.dram_written)
    if not node.flops and not any(counted.tensor_flops.values()):
        return node
    told = explain_row(row, counted, lambda size: evaluate(size, sizes), tiles=node.tile_flops)
    if told.verdict == "unknown":
        return node
    verdict: Verdict = "equal" if told.verdict == "equal" else "explained" if told.explained else "different"
    check = CheckResult("hardware", verdict, str(told.model_flops), str(told.counted_flops), told.reason)
    return replace(node, checks=(*node.checks, check))
