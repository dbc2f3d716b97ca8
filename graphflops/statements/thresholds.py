"""Thresholds of laws on training compute, which are data, and where a run stands against each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from graphflops.base.units import power
from graphflops.statements.figures import Flops

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


class Verdict(msgspec.Struct, frozen=True):
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
    name: str, flops: Flops, original: float | None, *, modifies: bool, at_least: bool
) -> Iterator[Verdict]:
    """Where a run of so many FLOPs stands against the thresholds that it is asked about.

    original: FLOPs of the model that it modifies. modifies: whether it modifies one. at_least: its FLOPs may be more.
    """
    data = (Path(__file__).parent / "thresholds.json").read_bytes()
    for one in msgspec.json.decode(data, type=list[Threshold]):
        is_whole = one.of == "training"
        if not is_whole and not (modifies and (original is None) == (one.flops is not None)):
            continue
        threshold = ((original or 0.0) if one.flops is None else one.flops) / one.divisor
        before = (original or 0.0) if is_whole else 0.0
        own, executed = flops.model + before, flops.executed + before
        is_open = at_least or (is_whole and modifies and original is None)
        standing: Literal["below", "above", "between", "not known"] = "not known" if is_open else "below"
        if max(own, executed) > threshold:
            standing = "above" if min(own, executed) > threshold else "between"
        took = f"{'at least ' if is_open else ''}{power(own)} FLOPs (model FLOPs; {power(executed)} executed)"
        share = f"{own / threshold:.3g} times the {power(threshold)} FLOPs of {one.law}"
        sentence = f"The {one.of} of {name} took {took}, {share}: {_WORDS[standing]}."
        yield Verdict(one, threshold, own / threshold, threshold - own, standing, sentence)
