"""The ledger of an export check in words: a line for each kind of difference, what is unexplained first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphflops.base.units import memory, number
from graphflops.comparison.result import Comparison, LedgerEntry, LedgerKind
from graphflops.render.text import count_of, listed, safe

LINES = 6
_NAMES = 3  # named in a line
_STATUS = {"unexplained": "not explained", "costs_more": "costs more", "explained": "explained"}


def ledger_lines(comparison: Comparison, *, verbose: bool = False) -> list[str]:
    """A line for each entry; at most six with three names each, unless `verbose`."""
    entries = comparison.ledger
    shown = entries if verbose or len(entries) <= LINES else entries[: LINES - 1]
    lines = [_line(entry, len(entry.names) if verbose else _NAMES) for entry in shown]
    rest = len(entries) - len(shown)
    return [*lines, f"and {rest:,} more kinds of differences, explained (-v lists them)"] if rest else lines


def _line(entry: LedgerEntry, most: int) -> str:
    names = listed((safe(name, 80) or "(the model itself)" for name in dict.fromkeys(entry.names)), most)
    return f"{_STATUS[entry.status]}: {_WORDS[entry.kind](entry)} ({names})"


def _counted(noun: str, rest: str) -> Callable[[LedgerEntry], str]:
    return lambda entry: f"{count_of(len(entry.names), noun)} {rest}"


def _work(entry: LedgerEntry) -> str:
    if not entry.before:
        return "sizes cannot be made equal"
    return f"FLOPs {_quantity(entry.before)} → {_quantity(entry.after)} in {_modules(entry)}"


def _quantity(text: str) -> str:
    return number(int(text)) if text.lstrip("-").isdecimal() else safe(text, 80)


def _modules(entry: LedgerEntry) -> str:
    return count_of(len(entry.names), "module")


def _attention(entry: LedgerEntry) -> str:
    traffic = f"{memory(int(entry.before))} → {memory(int(entry.after))} read and written"
    return f"{count_of(len(entry.names), 'attention')} unfused, {traffic}"


_WORDS: Mapping[LedgerKind, Callable[[LedgerEntry], str]] = {
    "work": _work,
    "element_types": lambda entry: (
        f"element type {safe(entry.before, 60)} → {safe(entry.after, 60)} of {len(entry.names):,}"
    ),
    "parameters_lost": _counted("trained parameter", "missing"),
    "weight_shapes": lambda entry: f"weight {safe(entry.before, 60)} → {safe(entry.after, 60)}",
    "unknown": lambda entry: f"calls of unknown cost {entry.before} → {entry.after}",
    "cannot_run": _counted("call", "that cannot run"),
    "sizes_fixed": _counted("open size", "fixed"),
    "attention_unfused": _attention,
    "heads_expanded": _counted("attention", "with keys and values copied for each query head"),
    "batch_norms_folded": _counted("batch norm", "folded into the product before"),
    "shifts_left_out": _counted(
        "batch norm", "folded, without a bias in any product: shifts of zeros are left out"
    ),
    "zeros_left_out": _counted("parameter", "of zeros or ones left out"),
    "constants_folded": _counted("product", "of constants computed when the file was made"),
    "unused_left_out": _counted("product", "left out whose results nothing uses"),
    "constants_lifted": _counted("constant", "stored beside the parameters"),
    "parameters_folded": _counted("parameter", "folded into constants"),
    "weights_packed": _counted("weight", "joined or cut"),
    "weights_shared": _counted("weight", "stored once for equal ones"),
    "weights_split": _counted("shared weight", "stored more than once"),
    "weights_quantized": _counted("weight", "stored as small integers"),
    "quantized": lambda entry: f"products of {_modules(entry)} in {safe(entry.after, 60)}",
    "repeated_work_merged": lambda entry: f"repeated work done once in {_modules(entry)}",
}
