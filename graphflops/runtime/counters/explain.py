"""Explains why a GPU counts other FLOPs than the analysis: whole tiles, skipped tiles, other algorithms, no tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from graphflops.dims import Dim
from graphflops.report import Row
from graphflops.runtime.counters.ncu import RangeCount
from graphflops.runtime.counters.problems import Problem, problem_of
from graphflops.runtime.counters.tile_quantisation import (
    SEVEN,
    THRICE,
    TiledWork,
    smallest_tile_flops,
    tiled_work,
)

Verdict = Literal["equal", "padded", "skipped", "algorithm", "different", "unknown"]
_FFT = "convolution by FFT"
_ALGORITHMS = {"winograd": "Winograd's algorithm", "fft2d": _FFT, "fft1d": _FFT}


@dataclass(frozen=True)
class Explanation:
    """FLOPs of one call by the analysis and by the counters."""

    model_flops: int | None  # matrix FLOPs of the analysis, None if unknown
    padded_flops: int | None  # in whole tiles, without masked ones; None if no tile sizes reproduce the count
    counted_flops: int  # of the matrix kernels
    # equal; padded: whole tiles; skipped: masked tiles or taps on padding were not computed; algorithm: another known
    # algorithm; different: unexplained; unknown: the analysis has no number.
    verdict: Verdict
    reasons: tuple[str, ...] = ()  # in words; the first names the instructions if no tensor cores were used

    @property
    def reason(self) -> str:
        """All reasons; the verdict if there is none."""
        return "; ".join(self.reasons) or self.verdict

    @property
    def explained(self) -> bool:
        """True if the counts are equal or their difference is explained."""
        return self.verdict not in ("different", "unknown")


def explain_row(
    row: Row,
    counted: RangeCount,
    value: Callable[[Dim], int | None],
    backward: bool = False,
    tiles: int | None = None,
) -> Explanation:
    """Explain the counts of the range of a report's row.

    value: `Report.value`. backward: for the gradients that the row prices. tiles: as for `explain`.
    """
    cost = row.backward if backward else row.cost
    if row.state == "unknown" or cost is None:
        return explain(None, counted)
    masked = value(cost.masked_flops) or 0
    return explain(value(cost.matrix_flops), counted, problem_of(row, value, backward), masked, tiles)


def explain(
    model_flops: int | None,
    counted: RangeCount,
    problem: Problem | None = None,
    masked_flops: int = 0,
    tiles: int | None = None,
) -> Explanation:
    """Compare the FLOPs of the analysis with the counted ones.

    problem: the sizes of the products; without them only equality and masks are recognised. masked_flops: part of
    model_flops. tiles: FLOPs of the tiles that the kernel itself counted, or that are predicted for it, if known.
    """
    total, path = counted.flops, _path(counted)

    def answer(verdict: Verdict, padded: int | None, *reasons: str) -> Explanation:
        return Explanation(model_flops, padded, total, verdict, (*path, *reasons))

    if not model_flops:
        return _without_matrix_work(model_flops, counted, path)
    if total == 0:
        return Explanation(model_flops, None, 0, "different", ("no matrix path",))
    if tiles is not None and tiles != total:
        return answer("different", tiles, f"the kernel's own tiles come to {tiles:,}")
    if total == model_flops:
        return answer("equal", total)
    fit = tiled_work(problem, counted, model_flops) if problem else None
    if fit is not None:
        return answer(_verdict(fit, model_flops), fit.flops, *fit.reasons)
    if tiles is not None:
        return answer("skipped" if total < model_flops else "padded", tiles, "the kernel's own tiles")
    names = " ".join(kernel.name.lower() for kernel in counted.kernels)
    if algorithms := dict.fromkeys(text for word, text in _ALGORITHMS.items() if word in names):
        return answer("algorithm", None, *algorithms)
    if problem and not counted.tensor_flops and model_flops < total <= smallest_tile_flops(problem, counted):
        return answer("padded", None, "a tiny product: less than one tile of 128x128x32 for each job")
    if masked_flops and model_flops - masked_flops <= total < model_flops:
        return answer("skipped", None, "masked tiles skipped")
    return answer("different", None, f"{total / model_flops:.3f} of the model")


def _without_matrix_work(model_flops: int | None, counted: RangeCount, path: tuple[str, ...]) -> Explanation:
    """The explanation of a call whose matrix FLOPs are unknown to the analysis, or 0."""
    if model_flops is None:
        return Explanation(None, None, counted.flops, "unknown", ("the analysis has no number",))
    if counted.tensor_flops:
        reasons = (*path, "matrix work where the analysis has none")
        return Explanation(0, None, counted.flops, "different", reasons)
    return Explanation(0, 0, 0, "equal")  # multiplications of elementwise kernels are no matrix work


def _verdict(fit: TiledWork, model_flops: int) -> Verdict:
    if any(text in fit.reasons for text in (THRICE, SEVEN)):
        return "algorithm"
    if fit.flops < model_flops:
        return "skipped"
    return "padded" if fit.flops > model_flops else "algorithm"


def _path(counted: RangeCount) -> tuple[str, ...]:
    kernels = [kernel for kernel in counted.matrix_kernels if not kernel.on_tensor_cores]
    names = {dtype: f"FP{dtype[5:]} by {word}" for dtype, word in (("float32", "FFMA"), ("float64", "DFMA"))}
    fused = {dtype for kernel in kernels for dtype in kernel.fma_flops}
    return tuple(text for dtype, text in names.items() if dtype in fused)
