"""The result of a validation, and the only thing that its renderers read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal["equal", "explained", "different", "not executed"]
What = Literal["type", "flops", "tiles", "visible", "hardware"]
_WORST: tuple[Verdict, ...] = ("different", "not executed", "explained", "equal")

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One number or type of ours against what happened.

    what: type: shape and element type of a result. flops: matrix FLOPs against FlopCounterMode's. tiles: those that our
    attention kernel multiplied, against those predicted. visible: scores that it did not mask, against the analysis.
    hardware: FLOPs that the device's counters read.
    reason: why they differ, where that is known; which other count is meant, where it is not the usual one.
    """

    what: What
    verdict: Verdict
    ours: str
    measured: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One call of the program, confronted with what happened.

    row: place of its row in the report. turns: how often it ran.
    flops, bytes: ours, of all turns, at the sizes met; None where they are not known.
    seconds: of all turns in one run, the median over several; None where time was not taken.
    tile_flops: FLOPs of the tiles that our attention kernel multiplied in it; None where it did not run.
    counted_bytes: of memory, read and written, as the device counted; None where it was not asked.
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
        """The worst of its checks."""
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
    """What the device did in the same run.

    flops: FLOP/s of a large matrix product, by element type. bandwidth: bytes per second of a large copy, read and written.
    """

    flops: Mapping[str, float]
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Validation:
    """A program run and confronted with its analysis.

    device: what it ran on, in words. sizes: of the symbols, given, taken from the export or met while running.
    peak_bytes: most memory asked for at once beside weights, measured; predicted_peak_bytes: ours; None if not taken.
    seconds: of one run, the median; None where time was not taken.
    kernels: by call, the source of the functions that were generated for our attention kernel, each once.
    """

    path: str
    device: str
    torch: str
    sizes: Mapping[str, int]
    nodes: tuple[NodeResult, ...]
    predicted_peak_bytes: int | None = None
    peak_bytes: int | None = None
    seconds: float | None = None
    ceilings: Ceilings | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdicts(self) -> Mapping[Verdict, int]:
        """How many calls have each verdict."""
        found = Counter(node.verdict for node in self.nodes)
        return {verdict: found[verdict] for verdict in reversed(_WORST)}

    @property
    def holds(self) -> bool:
        """Whether everything that was to run ran, and nothing differs without a reason."""
        return all(check.verdict in ("equal", "explained") for node in self.nodes for check in node.checks)
