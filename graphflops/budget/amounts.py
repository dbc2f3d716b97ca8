"""Amounts as people write them: `2 GFLOP`, `512 MiB`, `1.5 M`, `+2 % or 1 MFLOP`."""

import re
from fractions import Fraction
from typing import Literal

from graphflops.base.record import Record
from graphflops.errors import OptionError

Unit = Literal["FLOP", "MAC", "B", "ns", ""]

_SPELLINGS: dict[Unit, frozenset[str]] = {
    "FLOP": frozenset({"", "FLOP", "FLOPs"}),
    "MAC": frozenset({"", "MAC", "MACs"}),
    "B": frozenset({"", "B", "byte", "bytes"}),
    "": frozenset({""}),
    "ns": frozenset(),
}
_OF_NUMBERS: dict[Unit, str] = {"B": "B", "ns": "s"}  # units that text must say
_TIMES = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DECIMAL = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_EXAMPLES: dict[Unit, str] = {
    "FLOP": '"2 GFLOP" or "350 M"',
    "MAC": '"1 GMAC" or "350 M"',
    "B": '"512 MiB" or "1.5 GB"',
    "": '"7 M", "8 B" or 12500',
    "ns": '"2.5 ms" or "800 us"',
}
_KINDS: dict[Unit, str] = {
    "FLOP": "number of FLOPs", "MAC": "number of MACs", "B": "number of bytes", "ns": "time", "": "number",
}  # fmt: skip
_NUMBER = r"(\d[\d_]{0,30}(?:\.\d{1,30})?(?:[eE][+]?\d{1,2})?)"
_AMOUNT = re.compile(rf"{_NUMBER}\s*([A-Za-z]*)")
_PERCENT = re.compile(rf"{_NUMBER}\s*%")


class AllowedGrowth(Record, frozen=True):
    """How much more than before is allowed: the larger of a share and a number."""

    share: Fraction
    number: int

    def allowed(self, before: int) -> int:
        return before + max(int(before * self.share), self.number)


def amount(text: str | float, unit: Unit) -> int:
    """The amount, rounded down: text of bytes or time has its unit, a number is in bytes or seconds. Raises ValueError."""
    written = text.strip() if isinstance(text, str) else f"{text!r}{_OF_NUMBERS.get(unit, '')}"
    found = _AMOUNT.fullmatch(written)
    if found and not found[2] and unit in _OF_NUMBERS:
        raise ValueError(f"{text!r} has no unit: write {_EXAMPLES[unit]}")
    factor = _factor(found[2], unit) if found else None
    if found is None or factor is None:
        raise ValueError(f"{text!r} is no {_KINDS[unit]}: write {_EXAMPLES[unit]}")
    return int(Fraction(found[1].replace("_", "")) * factor)


def asked(option: str, text: str | float, unit: Unit) -> int:
    """The amount that an option states. Raises OptionError."""
    try:
        return amount(text, unit)
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from None


def percent(text: str | float) -> Fraction:
    """`98.5 %` as a share. Raises ValueError, which says what is expected."""
    found = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f'{text!r} is no percentage: write "98.5 %"')
    return Fraction(found[1].replace("_", "")) / 100


def growth(text: str, unit: Unit) -> AllowedGrowth:
    """`+2 %`, `+1 MFLOP`, `+2 % or 1 MFLOP`. Raises ValueError, which says what is expected."""
    share, _, least = text.strip().removeprefix("+").partition(" or ")
    if "%" not in share and not least:
        return AllowedGrowth(Fraction(0), amount(share, unit))
    return AllowedGrowth(percent(share), amount(least, unit) if least else 0)


def _factor(written: str, unit: Unit) -> int | None:
    """The factor of the prefix and unit after a number; None for unknown letters."""
    if unit == "ns":
        return _TIMES.get(written)
    if not unit and written == "B":  # billions, as people count parameters
        return 10**9
    for powers, base in ((_DECIMAL, 1000), (_BINARY, 1024)):
        for prefix, power in powers.items():
            if written.startswith(prefix) and written[len(prefix) :] in _SPELLINGS[unit]:
                return int(base**power) if base == 1000 or unit == "B" else None
    return None
