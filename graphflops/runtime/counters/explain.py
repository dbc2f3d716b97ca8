"""Why a GPU counted other FLOPs than the analysis: whole tiles, skipped tiles, another algorithm, no tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from graphflops.runtime.counters.problems import problem_of
from graphflops.runtime.counters.tile_quantisation import SEVEN, THRICE, TiledWork, tiled_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.dims import Dim
    from graphflops.report import Row
    from graphflops.runtime.counters.counted import RangeCount
    from graphflops.runtime.counters.problems import Problem

Verdict = Literal["equal", "padded", "skipped", "algorithm", "different", "unknown"]
_ALGORITHMS = {
    "winograd": "Winograd's algorithm",
    "fft2d": "convolution by FFT",
    "fft1d": "convolution by FFT",
}


@dataclass(frozen=True)
class Explanation:
    """One call's FLOPs by the analysis and by the counters.

    model_flops: matrix FLOPs of the analysis, None where it does not know. counted_flops: those of the matrix kernels.
    padded_flops: what the sizes come to in whole tiles, tiles that a mask hides left out; None where no tile sizes reproduce
    what was counted.
    verdict: equal; padded: whole tiles; skipped: a mask's tiles, or taps on padding, were left out; algorithm: other
    arithmetic, known; different: not explained; unknown: the analysis has no number.
    reasons: in words, the path first where it is not the tensor cores.
    """

    model_flops: int | None
    padded_flops: int | None
    counted_flops: int
    verdict: Verdict
    reasons: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """All reasons, or the verdict."""
        return "; ".join(self.reasons) or self.verdict

    @property
    def explained(self) -> bool:
        """Whether it is equal, or known why not."""
        return self.verdict not in ("different", "unknown")


def explain_row(
    row: Row,
    counted: RangeCount,
    value: Callable[[Dim], int | None],
    backward: bool = False,
    tiles: int | None = None,
) -> Explanation:
    """A row of a report against what its range counted.

    value: `Report.value`. backward: the gradients that the row prices. tiles: as `explain` takes it.
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
    """The model's FLOPs of a call against those counted.

    problem: the sizes, without which nothing but equality and a mask can be told. masked_flops: part of the model's.
    tiles: FLOPs of the tiles that the kernel itself counted, or that are predicted for it, where that is known.
    """
    total = counted.flops
    path = _path(counted)

    def answer(verdict: Verdict, padded: int | None, *reasons: str) -> Explanation:
        return Explanation(model_flops, padded, total, verdict, (*path, *reasons))

    if model_flops is None:
        return Explanation(None, None, total, "unknown", ("the analysis has no number",))
    if model_flops == 0:
        if counted.tensor_flops:
            return answer("different", None, "matrix work where the analysis has none")
        return Explanation(0, 0, 0, "equal")  # what elementwise kernels multiply is no matrix work
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
    names = [kernel.name.lower() for kernel in counted.kernels]
    known = {text: None for word, text in _ALGORITHMS.items() if any(word in name for name in names)}
    if known:
        return answer("algorithm", None, *known)
    if masked_flops and model_flops - masked_flops <= total < model_flops:
        return answer("skipped", None, "masked tiles skipped")
    return answer("different", None, f"{total / model_flops:.3f} of the model")


def _verdict(fit: TiledWork, model_flops: int) -> Verdict:
    if any(text in fit.reasons for text in (THRICE, SEVEN)):
        return "algorithm"
    if fit.flops < model_flops:
        return "skipped"
    return "padded" if fit.flops > model_flops else "algorithm"


def _path(counted: RangeCount) -> tuple[str, ...]:
    kernels = [kernel for kernel in counted.matrix_kernels if not kernel.on_tensor_cores]
    names = {dtype: f"FP{dtype[5:]} by {word}" for dtype, word in (("float32", "FFMA"), ("float64", "DFMA"))}
    return tuple(
        text for dtype, text in names.items() if any(dtype in kernel.fma_flops for kernel in kernels)
    )
