"""A plain table, for every format that renders one: names, or figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Listing:
    """Heads and rows. figures: the columns hold figures, which stand on the right; else names."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    figures: bool = False
