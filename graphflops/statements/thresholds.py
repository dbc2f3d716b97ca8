"""Thresholds of laws on training compute, which are data, and where a run stands against each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from graphflops.base.units import power

_WORDS = {
    "below": "below the threshold",
    "above": "above the threshold",
    "between": "above or below the threshold, depending on the convention",
    "not known": "whether that is below the threshold is not known, for not all work is",
}


class Threshold(msgspec.Struct, frozen=True):
    """A threshold in FLOPs of training compute: `flops`, None for the original model's, over `divisor`.

    of: what is compared: the training of the model with all that came before, or the modification alone. in_force: since
    when, None where that was not verified. read: the day on which the text at `source` was read.
    """

    name: str
    of: Literal["training", "modification"]
    flops: float | None
    law: str
    meaning: str
    in_force: str | None
    read: str
    source: str
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a run stands against so many FLOPs. share: of the run's model FLOPs. margin: FLOPs left, negative above it.

    standing: between is above or below, depending on the convention. sentence: to quote.
    """

    threshold: Threshold
    flops: float
    share: float
    margin: float
    standing: Literal["below", "above", "between", "not known"]
    sentence: str


def verdicts(
    name: str, model: float, executed: float, original: float | None, *, modifies: bool, at_least: bool
) -> tuple[Verdict, ...]:
    """Where a run of so many model and executed FLOPs stands, against the thresholds that it is asked about.

    original: FLOPs of the model that it modifies. modifies: whether it modifies one. at_least: its FLOPs may be more.
    """
    data = (Path(__file__).parent / "thresholds.json").read_bytes()
    found = msgspec.json.decode(data, type=list[Threshold])
    asked = (
        one
        for one in found
        if one.of == "training" or (modifies and (original is None) != (one.flops is None))
    )
    lacks = {"training": at_least or (modifies and original is None), "modification": at_least}
    return tuple(
        _verdict(name, one, model, executed, original or 0.0, is_open=lacks[one.of]) for one in asked
    )


def _verdict(
    name: str, one: Threshold, model: float, executed: float, before: float, *, is_open: bool
) -> Verdict:
    threshold = (before if one.flops is None else one.flops) / one.divisor
    if one.of == "training":
        model, executed = model + before, executed + before
    low, high = sorted((model, executed))
    standing: Literal["below", "above", "between", "not known"] = "not known" if is_open else "below"
    if high > threshold:
        standing = "above" if low > threshold else "between"
    least = "at least " if is_open else ""
    sentence = (
        f"The {one.of} of {name} took {least}{power(model)} FLOPs (model FLOPs; {power(executed)} executed), "
        f"{model / threshold:.3g} times the {power(threshold)} FLOPs of {one.law}: {_WORDS[standing]}."
    )
    return Verdict(one, threshold, model / threshold, threshold - model, standing, sentence)
