"""The schedule of a pipeline as SVG: which stage runs which micro-batch when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.planning.layouts import Step

_ROW, _WIDTH, _MOST = 22, 960, 16  # pixels, and micro-batches that are drawn for each stage at most
_COLOURS = ("#4e79a7", "#f28e2b")


def runs(
    stages: int, batches: int, forward: float, backward: float
) -> Iterator[tuple[int, int, bool, float, float]]:
    """(stage, micro-batch, whether it is the backward, begin, end) of one forward, one backward in turns (1F1B)."""
    ends: dict[tuple[int, int, bool], float] = {}
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, batches)
        order = [(one, False) for one in range(ahead)]
        for one in range(batches):
            order += [(one + ahead, False)] * (one + ahead < batches) + [(one, True)]
        orders.append(order)
    free, place = [0.0] * stages, [0] * stages
    while any(place[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            while place[stage] < len(orders[stage]):
                batch, is_back = orders[stage][place[stage]]
                before = (stage + 1 if is_back else stage - 1, batch, is_back)
                if is_back and stage == stages - 1:
                    before = (stage, batch, False)
                if before[0] >= 0 and before not in ends:
                    break
                begin = max(free[stage], ends.get(before, 0.0))
                free[stage] = ends[stage, batch, is_back] = begin + (backward if is_back else forward)
                place[stage] += 1
                yield stage, batch, is_back, begin, free[stage]


def schedule(step: Step) -> str:
    """The first micro-batches of a step."""
    stages = step.layout.pipeline
    drawn = [*runs(stages, min(_MOST, 2 * stages), step.forward, step.backward)]
    scale = _WIDTH / max(end for *_, end in drawn)
    bars = "".join(
        f'<rect x="{begin * scale:.1f}" y="{stage * _ROW}" width="{(end - begin) * scale:.1f}" height="{_ROW - 2}" '
        f'fill="{_COLOURS[is_back]}" stroke="#fff"><title>stage {stage}, micro-batch {batch}, '
        f"{'backward' if is_back else 'forward'}</title></rect>"
        for stage, batch, is_back, begin, end in drawn
    )
    return f'<svg viewBox="0 0 {_WIDTH} {stages * _ROW}" role="img" aria-label="schedule of the pipeline">{bars}</svg>'
