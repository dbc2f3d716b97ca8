"""What a change does to requests that a decoder serves: how long they wait, what they keep, and how many fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphflops.fitting.cells import cell_of, known_of
from graphflops.report import Report


@dataclass(frozen=True, slots=True)
class ServedChange:
    """Quantities of a step before and after, by the names of `fitting/cells.py`, as far as both programs tell them.

    context: tokens of each request, 0 where files of one size do not tell it. Units are seconds and bytes.
    """

    context: int
    before: Mapping[str, float]
    after: Mapping[str, float]

    @staticmethod
    def of(old: Report, new: Report) -> ServedChange | None:
        """The steps of two reports; None where one has no cache among its inputs, or they are of other contexts."""
        before, after = cell_of(old), cell_of(new)
        if before is None or after is None or before.context != after.context:
            return None
        return ServedChange(after.context, known_of(before), known_of(after))
