"""The result of a validation, from which all its renderers read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from graphflops.rendered import Rendered

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal["equal", "explained", "different", "not executed"]
What = Literal["type", "flops", "tiles", "visible", "hardware"]
_WORST: tuple[Verdict, ...] = ("different", "not executed", "explained", "equal")

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One number or type of the analysis, compared with a measured one.

    what: type: shape and element type of a result. flops: matrix FLOPs, against FlopCounterMode. tiles: executed by our
    attention kernel, against the prediction. visible: unmasked scores in the kernel, against the analysis.
    hardware: FLOPs read from the device's counters.
    reason: why the two differ, if known.
    """

    what: What
    verdict: Verdict
    ours: str
    measured: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One call of the program, compared with its execution.

    row: index of its row in the report. turns: how often it ran.
    flops, bytes: of the analysis, for all turns, at the sizes of the run; None if unknown.
    seconds: of all turns in one run, the median of several runs; None if not timed.
    tile_flops: FLOPs of the tiles that our attention kernel executed for it; None if it did not run.
    counted_bytes: bytes of device memory read and written, as counted by the device; None if not counted.
    """

    row: int
    node: str
    op: str
    module: str
    checks: tuple[CheckResult, ...]
    turns: int
    flops: int | None
    bytes: int | None
    matrix_dtype: str = ""
    seconds: float | None = None
    tile_flops: int | None = None
    counted_bytes: int | None = None

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
        reasons = [
            check.reason or f"{check.what}: {check.ours}, ran {check.measured}" for check in self.checks
        ]
        of = [
            reason
            for check, reason in zip(self.checks, reasons, strict=True)
            if check.verdict == self.verdict
        ]
        return "; ".join(dict.fromkeys(of)) if self.verdict != "equal" else ""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured peak rates of the device.

    flops: FLOP/s of a large matrix product, by element type. bandwidth: bytes per second, read and written, of a large copy.
    """

    flops: Mapping[str, float]
    bandwidth: float


@dataclass(frozen=True, slots=True, repr=False)
class Validation(Rendered):
    """A program that was run, compared with its analysis.

    device: description of the device. names: what people call the sizes.
    sizes: of the symbols: given, recorded in the export, or found in the run.
    peak_bytes: measured peak of requested memory beside the weights; predicted_peak_bytes: of the analysis; None if unknown.
    seconds: of one run, the median; None if not timed.
    kernels: by call, the source of the functions generated for our attention kernel, each once.
    """

    path: str
    device: str
    torch: str
    sizes: Mapping[str, int]
    nodes: tuple[NodeResult, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    predicted_peak_bytes: int | None = None
    peak_bytes: int | None = None
    seconds: float | None = None
    ceilings: Ceilings | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """Number of calls with each verdict."""
        found = Counter(node.verdict for node in self.nodes)
        return {verdict: found[verdict] for verdict in reversed(_WORST)}

    @property
    def holds(self) -> bool:
        """True if every check ran and no difference is unexplained."""
        return all(check.verdict in ("equal", "explained") for node in self.nodes for check in node.checks)
