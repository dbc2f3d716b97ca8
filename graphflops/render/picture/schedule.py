"""The schedule of a pipeline as SVG: which device runs which micro-batch when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.links.pipeline import Stage, pipeline

if TYPE_CHECKING:
    from graphflops.planning.layouts import Step

_ROW, _WIDTH, _MOST = 22, 960, 16  # pixels, and micro-batches that are drawn at most
_COLOURS = {"F": "#4e79a7", "B": "#f28e2b", "W": "#59a14f"}
_WORDS = {"F": "forward", "B": "backward", "W": "gradients of weights"}


def schedule(step: Step) -> str:
    """The first micro-batches of a step."""
    devices, chunks = step.layout.pipeline, step.layout.virtual
    one = step.stage
    stages = [Stage(one.forward / chunks, one.backward / chunks, one.weight / chunks)] * devices * chunks
    batches = min(_MOST // devices * devices or devices, 2 * devices)
    found = pipeline(stages, devices, batches, step.layout.schedule)
    scale = _WIDTH / found.seconds
    bars = "".join(
        f'<rect x="{span.start * scale:.1f}" y="{span.device * _ROW}" width="{(span.end - span.start) * scale:.1f}" '
        f'height="{_ROW - 2}" fill="{_COLOURS[span.step.work]}" stroke="#fff"><title>stage {span.step.stage}, '
        f"micro-batch {span.step.microbatch}, {_WORDS[span.step.work]}</title></rect>"
        for span in found.spans
    )
    size = f"0 0 {_WIDTH} {devices * _ROW}"
    return f'<svg viewBox="{size}" role="img" aria-label="schedule of the pipeline">{bars}</svg>'
