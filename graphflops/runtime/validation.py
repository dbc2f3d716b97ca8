"""The result of a validation, which all its renderers read; and the sizes that a run reveals."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from graphflops.base.record import Record
from graphflops.base.rendered import Rendered
from graphflops.dims import Dim, evaluate
from graphflops.dims.solving import symbol_of
from graphflops.report.timeline import CallTime, PhaseTime
from graphflops.tensor import TensorType

Verdict = Literal["equal", "explained", "different", "not executed"]
What = Literal["type", "flops", "sent", "tiles", "visible", "hardware"]
_WORST: tuple[Verdict, ...] = ("different", "not executed", "explained", "equal")

SCHEMA = 1


class CheckResult(Record, frozen=True):
    """One number or type of the analysis, compared with a measured one."""

    # type: shape and element type of a result. flops: matrix FLOPs, against FlopCounterMode. sent: bytes to other devices,
    # against those of the tensors that a process group got. tiles: executed by our attention kernel, against the prediction.
    # visible: unmasked scores in the kernel, against the analysis. hardware: FLOPs read from the device's counters.
    what: What
    verdict: Verdict
    ours: str
    measured: str
    reason: str = ""  # why the two differ, if known


class NodeResult(Record, frozen=True):
    """One call of the program, compared with its execution."""

    row: int  # index of its row in the report
    node: str
    op: str
    module: str
    checks: tuple[CheckResult, ...]
    turns: int  # how often it ran
    flops: int | None  # of the analysis, for all turns, at the sizes of the run, as `bytes`; None if unknown
    bytes: int | None
    matrix_dtype: str = ""
    seconds: float | None = None  # of all turns in one run, the median of several runs; None if not timed
    # Of the tiles that our attention kernel executed for it; None if it did not run.
    tile_flops: int | None = None
    # Of device memory, read and written, as the device counts; None if not counted.
    counted_bytes: int | None = None
    predicted: CallTime | None = None  # for all turns, by the device's profile; None without, or if unknown

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its checks."""
        if self.turns == 0 and not self.checks:
            return "not executed"
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in _WORST if verdict in found), "equal")

    @property
    def reason(self) -> str:
        """Why the verdict is not `equal`."""
        of = [check for check in self.checks if check.verdict == self.verdict]
        reasons = [one.reason or f"{one.what}: {one.ours}, ran {one.measured}" for one in of]
        return "; ".join(dict.fromkeys(reasons)) if self.verdict != "equal" else ""


class Ceilings(Record, frozen=True):
    """Measured peak rates of the device."""

    flops: Mapping[str, float]  # FLOP/s of a large matrix product, by element type
    bandwidth: float  # bytes per second, read and written, of a large copy


class RankResult(Record, frozen=True):
    """One process of a recorded step that ran on several devices."""

    rank: int
    different: int  # calls that differ or could not run
    peak_bytes: int | None = None  # as of the validation
    seconds: float | None = None  # of a step, the median
    communication: float | None = None  # seconds that collectives ran in a step; None: not measured
    exposed: float | None = None  # of these, seconds in which nothing else did; None: not measured


class TimeComparison(Record, frozen=True):
    """Predicted and measured times of the calls that have both."""

    calls: int  # their number
    covered: int  # of these, those whose interval holds the measured time
    median_error: float  # relative error of a call's prediction, as `mean_error`
    mean_error: float
    share: float  # part of the measured time that these calls take


class Validation(Rendered, Record, frozen=True):
    """A program that was run, compared with its analysis."""

    path: str
    device: str  # description of it
    torch: str
    sizes: Mapping[str, int]  # of the symbols: given, recorded in the export, or found in the run
    nodes: tuple[NodeResult, ...]
    stated: Mapping[str, int] = {}  # the known sizes by the names that people read
    predicted_peak_bytes: int | None = None  # of the analysis; None if unknown
    # Measured, of requested memory beside the weights; of a recorded step with them.
    peak_bytes: int | None = None
    seconds: float | None = None  # of one run, the sum over its calls; None if not timed
    ceilings: Ceilings | None = None
    # By call, the source of the functions generated for our attention kernel, each once.
    kernels: Mapping[str, str] = {}
    profile: str = ""  # name of the device whose profile predicts times; "" if none does
    predicted: PhaseTime | None = None  # the time of a run by it
    ranks: tuple[RankResult, ...] = ()  # processes of a recorded step; all else is that of the first

    @property
    def times(self) -> TimeComparison | None:
        """Predicted against measured times of calls; None where no call has both. Calls that launch nothing have none."""
        pairs = ((node.predicted, node.seconds) for node in self.nodes)
        both = [(one, seconds) for one, seconds in pairs if one is not None and one.seconds and seconds]
        if not both:
            return None
        errors = [abs(one.seconds / seconds - 1) for one, seconds in both]
        return TimeComparison(
            calls=len(both),
            covered=sum(one.low <= seconds <= one.high for one, seconds in both),
            median_error=statistics.median(errors),
            mean_error=statistics.mean(errors),
            share=sum(seconds for _, seconds in both) / sum(node.seconds or 0.0 for node in self.nodes),
        )

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """Number of calls with each verdict."""
        found = Counter(node.verdict for node in self.nodes)
        return {verdict: found[verdict] for verdict in reversed(_WORST)}

    @property
    def holds(self) -> bool:
        """True if every check ran and no difference is unexplained."""
        return all(check.verdict in ("equal", "explained") for node in self.nodes for check in node.checks)


class RunSizes(Struct):
    """Known values of a program's symbols; data-dependent sizes are added when a run reveals them."""

    known: dict[str, int]

    def meet(self, size: Dim, real: int) -> int | None:
        """The value of a size; a symbol without a value is bound to `real`. None if the size remains unknown."""
        if isinstance(size, int):
            return size
        value = evaluate(size, self.known)
        if value is None and (name := symbol_of(size)):
            value = self.known[name] = real
        return value

    def check(self, typed: TensorType, dtype: str, shape: Sequence[int]) -> CheckResult:
        """Compare a derived type with that of a tensor: `equal` or `different`."""
        sizes = [self.meet(size, real) for size, real in zip(typed.shape, shape, strict=False)]
        ran = written(dtype, shape)
        pairs = zip(sizes, shape, strict=True)
        same = len(typed.shape) == len(shape) and all(size in (None, real) for size, real in pairs)
        if same and typed.dtype.name == dtype:
            return CheckResult("type", "equal", ran, ran)
        missing = [None] * (len(typed.shape) - len(sizes))
        return CheckResult("type", "different", written(typed.dtype.name, [*sizes, *missing]), ran)


def written(dtype: str, shape: Sequence[int | None]) -> str:
    """`float32[2, 8]`; `?` for an unknown size."""
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"
