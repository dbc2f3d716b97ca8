"""A plan of serving as a page: curves of latency against throughput, and the tables."""

from __future__ import annotations

from graphflops.base.units import seconds
from graphflops.render.html import report as page
from graphflops.render.html.fragment import escaped, wide
from graphflops.render.html.plot import Curve, plot
from graphflops.render.serving import headline, notes, tables
from graphflops.serving.plan import Serving

_PICOSECONDS = 10**12
_MOST_CURVES = 7  # that colours can distinguish


def html(plan: Serving) -> str:
    """The page of the step's report, with the plan as a section of it."""
    pictures = f'<div class="plots">{_picture(plan)}</div>'
    lines = "".join(f'<p class="note">{escaped(note)}</p>' for note in notes(plan))
    grids = "".join(wide(grid, "Serving") for grid in tables(plan))
    title = '<h2 id="serving-title">Serving</h2>'
    told = f"<p>{escaped(headline(plan))}</p>"
    return page.html(
        plan.report,
        f'<section id="serving" aria-labelledby="serving-title">{title}{told}{pictures}{grids}{lines}</section>',
    )


def _picture(plan: Serving) -> str:
    """Time of a token against tokens a second, a curve for each context; what does not fit is left out."""
    curves = []
    for context, _ in plan.requests[:_MOST_CURVES]:
        cells = [cell for cell in plan.cells if cell.context == context]
        known = [(cell.tokens_per_second, cell.each) for cell in cells]
        points = {round(many): round(each * _PICOSECONDS) for many, each in known if many and each}
        if points:
            curves.append(Curve(f"context {context:,}", tuple(sorted(points.items()))))
    if not curves:
        return ""
    drawn = plot(
        "serving", "time of a token", "tokens a second", curves, lambda time: seconds(time / _PICOSECONDS)
    )
    return (
        f'<figure class="chart"><figcaption>time of a token by tokens a second</figcaption>{drawn}</figure>'
    )
