"""Quantities before and after as text: both sides, the delta, the percentage; and the ledger of an export check in words.

The ledger has a line for each kind of difference, what is unexplained first.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphflops.base.units import LEAST_SHARE, measured, memory, number
from graphflops.comparison.result import Comparison, Figure, LedgerEntry, LedgerKind
from graphflops.cost import REPORTED
from graphflops.render.text import count_of, formula, listed, safe, shortened

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


LINES = 6
_NAMES = 3  # named in a line
_STATUS = {"unexplained": "not explained", "costs_more": "costs more", "explained": "explained"}


def ledger_lines(comparison: Comparison, *, verbose: bool = False) -> list[str]:
    """A line for each entry; at most six with three names each, unless `verbose`."""
    entries = comparison.ledger
    shown = entries if verbose or len(entries) <= LINES else entries[: LINES - 1]
    lines = []
    for entry in shown:
        names = dict.fromkeys(safe(name, 80) or "(the model itself)" for name in entry.names)
        told = listed(names, len(entry.names) if verbose else _NAMES)
        lines.append(f"{_STATUS[entry.status]}: {_said(entry)} ({told})")
    rest = len(entries) - len(shown)
    return [*lines, f"and {rest:,} more kinds of differences, explained (-v lists them)"] if rest else lines


# What is counted in an entry, and what is said of it.
_COUNTED: Mapping[LedgerKind, tuple[str, str]] = {
    "parameters_lost": ("trained parameter", "missing"),
    "cannot_run": ("call", "that cannot run"),
    "sizes_fixed": ("open size", "fixed"),
    "heads_expanded": ("attention", "with keys and values copied for each query head"),
    "batch_norms_folded": ("batch norm", "folded into the product before"),
    "shifts_left_out": ("batch norm", "folded, without a bias in any product: shifts of zeros are left out"),
    "zeros_left_out": ("parameter", "of zeros or ones left out"),
    "constants_folded": ("product", "of constants computed when the file was made"),
    "unused_left_out": ("product", "left out whose results nothing uses"),
    "constants_lifted": ("constant", "stored beside the parameters"),
    "parameters_folded": ("parameter", "folded into constants"),
    "weights_packed": ("weight", "joined or cut"),
    "weights_shared": ("weight", "stored once for equal ones"),
    "weights_split": ("shared weight", "stored more than once"),
    "weights_quantized": ("weight", "stored as small integers"),
}


def _said(entry: LedgerEntry) -> str:
    modules, many = count_of(len(entry.names), "module"), len(entry.names)
    before, after = (safe(text, 60) for text in (entry.before, entry.after))
    match entry.kind:
        case "work" if not entry.before:
            return "sizes cannot be made equal"
        case "work":
            sides = (entry.before, entry.after)
            was, now = (number(int(n)) if n.lstrip("-").isdecimal() else safe(n, 80) for n in sides)
            return f"FLOPs {was} → {now} in {modules}"
        case "element_types":
            return f"element type {before} → {after} of {many:,}"
        case "weight_shapes":
            return f"weight {before} → {after}"
        case "unknown":
            return f"calls of unknown cost {entry.before} → {entry.after}"
        case "attention_unfused":
            traffic = f"{memory(int(entry.before))} → {memory(int(entry.after))} read and written"
            return f"{count_of(many, 'attention')} unfused, {traffic}"
        case "quantized":
            return f"products of {modules} in {after}"
        case "repeated_work_merged":
            return f"repeated work done once in {modules}"
    noun, rest = _COUNTED[entry.kind]
    return f"{count_of(many, noun)} {rest}"
