"""Quantities before and after as text: both sides, the delta, the percentage."""

from __future__ import annotations

from graphflops.base.units import LEAST_SHARE, measured
from graphflops.comparison.result import Figure
from graphflops.cost import REPORTED
from graphflops.render.text import formula, shortened

NAMES = {
    **{quantity.name: quantity.label for quantity in REPORTED},
    "peak_bytes": "peak memory",
    "device_bytes": "device memory",
    "parameters": "parameters",
    "parameter_bytes": "parameter memory",
    "buffer_bytes": "buffer memory",
}
_FORMULA = 80  # characters of a formula in a sentence
_LARGE = 10_000  # percent


def before_after(name: str, figure: Figure) -> tuple[str, str]:
    """Both sides as numbers, else as formulas."""
    sides = ((figure.before, figure.before_value), (figure.after, figure.after_value))
    first, second = (
        measured(name, value) if value is not None else shortened(formula(dim), _FORMULA)
        for dim, value in sides
    )
    return first, second


def delta(name: str, figure: Figure) -> str:
    """After less before, with its sign: `+1.049 M`; `0` where nothing changed."""
    change = figure.delta
    if change is None:
        text = shortened(formula(figure.formula), _FORMULA)
        return text if text.startswith("-") else f"+{text}"
    return f"+{measured(name, change)}" if change > 0 else measured(name, change)


def share(figure: Figure) -> str:
    """The delta in percent of before; `new` where there was nothing, "" where that has no value."""
    if figure.before == 0:
        return "" if figure.after == 0 else "new"
    ratio = figure.percent
    return "" if ratio is None else signed(ratio) if figure.delta else "0.0"


def signed(ratio: float) -> str:
    """A percentage with its sign; a large one without decimals; `+<0.1`, `-<0.1` for one that would print as 0."""
    if ratio and abs(ratio) < LEAST_SHARE:
        return "+<0.1" if ratio > 0 else "-<0.1"
    return f"{ratio:+.1f}" if abs(ratio) < _LARGE else f"{ratio:+,.0f}"
