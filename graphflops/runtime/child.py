"""The process that runs a program from a file: for a validation, or once more under Nsight Compute."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graphflops.errors import GraphflopsError, innermost
from graphflops.runtime.isolated import Answer, encoded
from graphflops.runtime.machine import KERNELS, end_with_parent, limit_process

if TYPE_CHECKING:
    from graphflops.runtime.execute import Step


def main(task: str, text: str) -> None:
    """Run a task (`validate`, `counters`, or one of a fix) that `child_command` asked for."""
    request = json.loads(text)
    if task == "counters":
        _run_in_ranges(request["model"], request["options"])
        return
    end_with_parent()
    answer = os.dup(1)
    os.dup2(2, 1)  # what the program prints is no answer
    with os.fdopen(answer, "wb") as stream:
        stream.write(_answer(task, request))


def _answer(task: str, request: dict[str, Any]) -> bytes:
    try:
        return _validated(request) if task == "validate" else _step_of_a_fix(task, request)
    except GraphflopsError as error:
        failed = Answer(error=type(error).__name__, message=str(error))
    except Exception as error:  # noqa: BLE001 whatever it is, the parent says it in one line
        name = type(error).__name__
        failed = Answer(error=name, message=f"{name}: {error} ({innermost(error.__traceback__)})")
    return msgspec.json.encode(failed)


def _validated(request: dict[str, Any]) -> bytes:
    from graphflops.base.limits import Limits, limited
    from graphflops.loading import import_rules
    from graphflops.runtime.validate import validate_here

    options = request["options"]
    import_rules(request["rule_files"])
    tempfile.gettempdir()  # torch's modules ask for it, and finding it writes a file
    with contextlib.suppress(ImportError):
        import torch

        torch.ones(2**20).sin()  # starts torch's threads, whose stacks are not the program's memory
    writes = KERNELS if options["device"] != "cpu" else 0
    limit_process(request["limits"]["seconds"], request["limits"]["memory"], writes)
    with limited(Limits(seconds=None)):
        if request["process"]:
            from graphflops.runtime.rank import validate_rank

            return encoded(validate_rank(request["model"], request["repeats"], request["process"], **options))
        return encoded(validate_here(request["model"], request["repeats"], **options))


def _step_of_a_fix(task: str, request: dict[str, Any]) -> bytes:
    from graphflops.base.limits import Limits, limited
    from graphflops.onnx_fix.sessions import done

    arguments = Path(request["arguments"]).read_bytes()
    limit_process(request["seconds"], None, request["writes"])
    with limited(Limits(seconds=None)):
        return msgspec.json.encode(Answer(found=msgspec.Raw(done(task, arguments))))


def _run_in_ranges(model: str, options: dict[str, Any]) -> None:
    """Run a program twice: first to compile and tune its kernels, then each call in a range."""
    import torch

    from graphflops.runtime.compare import row_finder
    from graphflops.runtime.counters import range_name
    from graphflops.runtime.execute import Execution
    from graphflops.runtime.run import prepared

    run = prepared(model, **options)
    execution = Execution(run.graph, run.weights, run.sizes, run.trusted)
    run.once(execution)
    place = row_finder(run.report)

    def around(step: Step) -> Any:
        if step.nests:
            return step()
        torch.cuda.nvtx.range_push(range_name(place(step)))
        try:
            return step()
        finally:
            torch.cuda.nvtx.range_pop()

    execution.around = around
    run.once(execution)
    torch.cuda.synchronize()
