"""The page of a report, alone or with a section on several sizes: points of a sweep, or latencies of a plan of serving."""

from collections.abc import Callable, Collection, Iterator, Sequence

from graphflops.base.units import memory, number, seconds
from graphflops.derived.resize import Point, Sweep
from graphflops.render import serving as of_serving, summary
from graphflops.render.derived import cells
from graphflops.render.html.data import page_data, sizes_of
from graphflops.render.html.fragment import escaped, fragment, scripted, wide
from graphflops.render.html.plot import Curve, Words, plot
from graphflops.render.memory import SECOND
from graphflops.render.picture.svg import fitted
from graphflops.render.text import count_of, safe
from graphflops.report import Report
from graphflops.serving.plan import Serving
from graphflops.tensor import grouped


def html(report: Report, given: str = "") -> str:
    """The report as a page. given: HTML that is inserted unchanged."""
    title = summary.title(report)
    data = page_data([report], sizes_of(report), titles=[title])
    note = "Figures are those of the sizes that the report was made for." if report.symbols else ""
    alone = scripted(data, title, fragment(report), given)
    drawn = fitted(report.graph(level="call"), report.modules, alone, note)
    return scripted(data, title, fragment(report), drawn + given)


_MOST_CURVES = 7  # that colours can distinguish
_MOST_LINES = 200  # of the table
_LONGEST = 56  # characters of a size's name under a picture

_QUANTITIES: tuple[tuple[str, Callable[[Point], int | None], Words], ...] = (
    ("FLOPs", lambda point: point.cost["matrix_flops"], number),
    ("bytes moved", lambda point: point.traffic, memory),
    ("peak memory", lambda point: point.peak_bytes, memory),
    (
        "time",
        lambda point: None if point.time is None else round(point.time.seconds * SECOND),
        lambda time: seconds(time / SECOND),
    ),
)


def of_sweep(sweep: Sweep) -> str:
    """The page of the report, with the sweep as a section of it."""
    points, price = sweep.points, sweep.report.price_per_hour
    return html(sweep.report, section(points, sweep.notes, price) if points else "")


def section(points: Sequence[Point], said: Sequence[str] = (), price_per_hour: float | None = None) -> str:
    """The section of the page. said: lines to stand below it. price_per_hour: of the device."""
    # The size along the horizontal axis of pictures: the one with the most values, the last of several such.
    names = list(points[0].sizes)
    across = max(reversed(names), key=lambda name: len({point.sizes[name] for point in points}))
    others = [[f"{x} = {size:,}" for x, size in point.sizes.items() if x != across] for point in points]
    groups = grouped(zip(map(", ".join, others), points, strict=True))  # those that differ in that size only
    drawn = dict(list(groups.items())[:_MOST_CURVES])
    pictures = "".join(
        f'<figure class="chart"><figcaption>{name}</figcaption>{picture}</figure>'
        for place, (name, amount, told) in enumerate(_QUANTITIES)
        if (picture := _picture(f"sweep-{place}", name, across, drawn, amount, told))
    )
    notes = [*_notes(points, len(groups) - len(drawn)), *said]
    lines = "".join(f'<p class="note">{escaped(note)}</p>' for note in notes)
    table = wide(cells(points[:_MOST_LINES], price_per_hour, exact=False).table(), "Points of the sweep")
    return (
        '<section id="sweep" aria-labelledby="sweep-title"><h2 id="sweep-title">Sweep over sizes</h2>'
        f'{_legend(drawn)}<div class="plots">{pictures}</div>{table}{lines}</section>'
    )


def _notes(points: Sequence[Point], undrawn: int) -> Iterator[str]:
    yield "The fields below do not change these points; all other sizes are those of the report."
    if undrawn:
        yield f"{count_of(undrawn, 'more curve')} would not be distinguishable: the table has them."
    if any(amount(point) is None for point in points for _, amount, _ in _QUANTITIES[:-1]):
        yield "? depends on another size, which has no value: give it with --dim."
    if len(points) > _MOST_LINES:
        yield f"The first {_MOST_LINES} of {len(points):,} points: --format csv writes all of them."


def _picture(
    key: str, name: str, across: str, groups: dict[str, list[Point]], amount: Callable[[Point], int | None],
    told: Words,
) -> str:  # fmt: skip
    curves = []
    for label, points in groups.items():
        known = {point.sizes[across]: value for point in points if (value := amount(point)) is not None}
        if known:
            curves.append(Curve(label, tuple(sorted(known.items()))))
    return plot(key, name, safe(across, _LONGEST), curves, told) if curves else ""


def _legend(groups: Collection[str]) -> str:
    if len(groups) < 2:
        return ""
    keys = (
        f'<span class="key"><svg class="mark" viewBox="0 0 14 14" aria-hidden="true">'
        f'<polyline class="series s{place}" points="0,7 14,7"/></svg>{escaped(label)}</span>'
        for place, label in enumerate(groups, 1)
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def serving(plan: Serving) -> str:
    """The page of the step's report, with the plan as a section of it."""
    lines = "".join(f'<p class="note">{escaped(note)}</p>' for note in of_serving.notes(plan))
    grids = "".join(wide(grid, "Serving") for grid in of_serving.tables(plan))
    title, name = '<h2 id="serving-title">Serving</h2>', 'id="serving" aria-labelledby="serving-title"'
    told = f"<p>{escaped(of_serving.headline(plan))}</p>"
    return html(plan.report, f"<section {name}>{title}{told}{_latencies(plan)}{grids}{lines}</section>")


def _latencies(plan: Serving) -> str:
    """Time of a token against tokens a second, a curve for each context; what does not fit is left out."""
    curves = []
    for context, _ in plan.requests[:_MOST_CURVES]:
        cells = [cell for cell in plan.cells if cell.context == context]
        known = [(cell.tokens_per_second, cell.each) for cell in cells]
        points = {round(many): round(each * SECOND) for many, each in known if many and each}
        if points:
            curves.append(Curve(f"context {context:,}", tuple(sorted(points.items()))))
    if not curves:
        return ""
    drawn = plot("serving", "time of a token", "tokens a second", curves, _QUANTITIES[-1][-1])
    legend, caption = _legend([curve.label for curve in curves]), "time of a token by tokens a second"
    return f'{legend}<div class="plots"><figure class="chart"><figcaption>{caption}</figcaption>{drawn}</figure></div>'
