"""What several models cost: a line for each, whatever the others are."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping

from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.dims import Dim
from graphflops.errors import GraphflopsError, shown
from graphflops.report import Report
from graphflops.report.contradictions import impossible
from graphflops.report.timeline import PhaseTime

_ERROR = 500  # characters of an error


class ModelCost(Record, frozen=True):
    """Totals of one model; those of the whole step in a training analysis."""

    matrix_flops: Dim  # a number, or a formula where a size has no value, as the other `Dim`s
    parameters: int
    moved_bytes: Dim  # read and written
    peak_bytes: Dim
    calls: int
    unknown: int  # calls that have an unknown cost
    seconds: float  # how long the analysis took
    time: PhaseTime | None = None  # of the last phase on a device; None without one
    device_bytes: int | None = None  # of the same
    values: Mapping[str, int] = {}  # the sizes with a value
    assumed: Mapping[str, int] = {}  # those of them that are assumed


class OverviewLine(Record, frozen=True):
    """One model under the name that the user gave it. error: why it could not be analyzed, or a call of it cannot run."""

    model: str
    cost: ModelCost | None = None
    error: str = ""


class Overview(Rendered, Record, frozen=True):
    """What several models cost, in the order in which they were named."""

    lines: tuple[OverviewLine, ...]


def overview(models: Iterable[str], analyze: Callable[[str], Report]) -> Overview:
    """Analyzes each model by `analyze`; one that fails does not keep the others from being analyzed."""
    return Overview(tuple([_line(model, analyze) for model in models]))


def _line(model: str, analyze: Callable[[str], Report]) -> OverviewLine:
    begun = time.perf_counter()
    try:
        report = analyze(model)
        whole = report.step() or report.totals
        on_device = report.memory_use[-1].device_total if report.device and report.memory_use else None
        cost = ModelCost(
            matrix_flops=whole.cost.matrix_flops,
            parameters=report.parameters,
            moved_bytes=whole.cost.moved_bytes,
            peak_bytes=whole.peak_bytes,
            calls=report.coverage.nodes,
            unknown=report.coverage.unknown,
            seconds=time.perf_counter() - begun,
            time=whole.time,
            device_bytes=None if on_device is None else report.value(on_device),
            values=report.values,
            assumed=report.assumed,
        )
    except (GraphflopsError, OSError, RecursionError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = reason.removeprefix(f"{shown(model)}: ")  # the line has the name of the file already
        return OverviewLine(model, error=shown(reason, _ERROR))
    finally:
        gc.collect()  # off while a command runs, and the next model may be large
    said = [problem.message for problem in impossible(report)]
    return OverviewLine(model, cost, shown(said[0], _ERROR) if said else "")
