"""What every renderer shares: sizes, formulas and other people's names as text, and tables of these."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from graphflops.base.record import Record
from graphflops.base.units import memory, number, numbered, percent
from graphflops.cost import Unit
from graphflops.dims import Dim, Expr
from graphflops.dims.atoms import Monomial
from graphflops.errors import elided, shown
from graphflops.report.size_names import alike, named, pattern_of

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SUPERSCRIPT, _LOWERED = str.maketrans("0123456789", _RAISED), str.maketrans(_RAISED, "0123456789")
_SIGN = re.compile(r" [+-] ")
_OWN: Mapping[str, str] = {}  # no other names of sizes
# Rounds of telling names apart, one for each kind of part that differs, such as layers, then modules in them.
_TRIES = 3
_LONGEST = 10_000  # characters of a name looked at, whatever a file holds


def safe(text: str, width: int = 200) -> str:
    r"""A name from a file as harmless text: unprintable characters are spelled out (`\x1b`), long names elided."""
    if len(text) > _LONGEST:
        text = elided(text, _LONGEST)
    if not text.isprintable():
        text = shown(text, limit=_LONGEST * len("\\U0010ffff"))
    return elided(text, width)


def told_apart(texts: Iterable[str], width: int) -> dict[str, str]:
    """Each text in at most `width` characters. Those that would become equal keep the part that differs first."""
    short = {text: elided(text, width) for text in texts}
    for _ in range(_TRIES):
        found = Counter(short.values())
        equal = [text for text in short if found[short[text]] > 1]
        before = _shared(equal)
        after = _shared([text[before:][::-1] for text in equal])
        for text in equal:
            part = elided(text[before : len(text) - after], width)
            room = width - len(part)
            first = min(before, max(room - after, room // 2))
            end = elided(text[len(text) - after :], room - first)
            short[text] = elided(text[:before], first) + part + end
    return short


def _shared(texts: Sequence[str]) -> int:
    """The length of the common beginning of all texts, without a number that differs."""
    low, high = min(texts, default=""), max(texts, default="")
    pairs = enumerate(zip(low, high, strict=False))
    same = next((place for place, pair in pairs if len({*pair}) > 1), len(low))
    return len(low[:same].rstrip("0123456789"))


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: two for each wide character, none for combining ones."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


@lru_cache(maxsize=4096)
def _columns_of(character: str) -> int:
    from unicodedata import combining, east_asian_width

    return 0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1


def formula(dim: Dim, names: Mapping[str, str] = _OWN) -> str:
    """A quantity for people, `209.4 k·batch·seq²`; terms that differ in a number of a name are one sum, `Σ past_0-31[2]`."""
    if isinstance(dim, int):
        return number(dim)
    texts = {atom: named(atom.text, names) for atoms in dim.terms for atom in atoms}
    order = sorted(dim.terms, key=lambda term: (not term, len(term), sorted(map(texts.__getitem__, term))))
    text = ""
    # Terms in order, those together that differ in one name only, and there in its number.
    sizes = [text for atom, text in texts.items() if atom.kind == "symbol"]
    many = {name: pattern_of(group) for group in alike(sizes) if len(group) > 1 for name in group}
    groups: dict[object, list[Monomial]] = {}
    for monomial in order:
        patterns = Counter(many.get(texts[atom], texts[atom]) for atom in monomial)
        own = {atom for atom in monomial if texts[atom] in many}
        key = (dim.terms[monomial], frozenset(patterns.items())) if len(own) == 1 else monomial
        groups.setdefault(key, []).append(monomial)
    for monomials in groups.values():
        atoms, coefficient = monomials[0], dim.terms[monomials[0]]
        factors = [number(abs(coefficient))] if abs(coefficient) != 1 or not atoms else []
        for atom in sorted(dict.fromkeys(atoms), key=texts.__getitem__):
            base = safe(texts[atom]) if atom.tight else f"({safe(texts[atom])})"
            if len(monomials) > 1 and any(atom not in other for other in monomials):
                others = [texts[next(one for one in other if one not in atoms)] for other in monomials[1:]]
                base = f"Σ {safe(numbered([texts[atom], *others]))}"
            power = atoms.count(atom)
            factors.append(base if power == 1 else base + str(power).translate(_SUPERSCRIPT))
        sign = "-" if coefficient < 0 else "+"
        text += (f" {sign} " if text else sign.replace("+", "")) + "·".join(factors)
    return text


def shortened(text: str, width: int) -> str:
    """A formula in at most `width` characters, cut between two terms if one fits, with its brackets closed."""
    if len(text) <= width:
        return text
    brackets = [""]  # by place, those that close what is open before it
    for character in text[:width]:
        now = brackets[-1]
        if character in "([":
            now = (")" if character == "(" else "]") + now
        elif now and character == now[0]:
            now = now[1:]
        brackets.append(now)
    room = max(width - 1, 1)
    signs = [found.end() for found in _SIGN.finditer(text, 0, room)]
    outside = [place for place in signs if not brackets[place]]
    for place in [*reversed(outside), *reversed(signs), *range(room, 1, -1)]:
        if place + 1 + len(brackets[place]) <= width:
            return f"{text[:place]}…{brackets[place]}"
    return "…"


def listed(items: Iterable[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    every = list(items)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def assumptions(sizes: Mapping[str, int]) -> str:
    """`batch = 1 (assumed), seq = 64 (assumed)`."""
    return listed((f"{safe(name, 40)} = {value:,} (assumed)" for name, value in sizes.items()), 6)


def occurrences(counts: Mapping[str, int], most: int = 8) -> str:
    """`my.op (x2), other.op`."""
    named = (safe(name, 80) + (f" (x{times:,})" if times > 1 else "") for name, times in counts.items())
    return listed(named, most)


def operator_name(op: str) -> str:
    """An operator for people, without `.default`, the overload that an operator's plain name means."""
    return safe(op.removesuffix(".default"))


def short_type(name: str) -> str:
    """`Linear` of `torch.nn.modules.linear.Linear`."""
    return name.rpartition(".")[2]


def count_of(count: int, noun: str) -> str:
    """`1 node`, `412 nodes`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


class Numbers:
    """Quantities as text: numbers at the known sizes, else formulas; each distinct quantity is evaluated once."""

    def __init__(
        self, value: Callable[[Dim], int | None], formula_width: int, names: Mapping[str, str] = _OWN
    ) -> None:
        self._value = value
        self._names = names
        self._width = formula_width
        self._known: dict[Dim, int | None] = {}

    def value(self, quantity: Dim) -> int | None:
        if isinstance(quantity, int):
            return quantity
        if quantity not in self._known:
            self._known[quantity] = self._value(quantity)
        return self._known[quantity]

    def count(self, quantity: Dim) -> str:
        value = self.value(quantity)
        return number(value) if value is not None else shortened(self.formula(quantity), self._width)

    def formula(self, quantity: Dim) -> str:
        return formula(quantity, self._names)

    def memory(self, quantity: Dim) -> str:
        value = self.value(quantity)
        if value is not None:
            return memory(value)
        text = shortened(self.formula(quantity), self._width)
        return f"({text}) B" if " + " in text or " - " in text else f"{text} B"

    def amount(self, quantity: Dim, unit: Unit) -> str:
        return self.memory(quantity) if unit == "B" else self.count(quantity)

    def share(self, part: Dim, whole: Dim) -> str:
        """The part in percent of the whole; "" if it depends on a size without a value."""
        values = self.value(part), self.value(whole)
        if values[0] is not None and values[1] is not None:
            return percent(values[0], values[1])
        if part == 0:
            return percent(0, 1)
        if not isinstance(part, Expr) or not isinstance(whole, Expr):
            return ""
        monomial = next(iter(whole.terms))
        one, all_ = part.terms.get(monomial, 0), whole.terms[monomial]
        return percent(one, all_) if part * all_ == whole * one else ""


_ACTIVE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def inert(data: bytes) -> str:
    """JSON as a line of text: characters that a terminal could act on are escaped."""
    text = data.decode()
    if not text.isascii() or "\x7f" in text:
        text = _ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text + "\n"


def plain_ascii(text: str) -> str:
    """The text in ASCII, for terminals and pipes with such an encoding."""
    text = re.sub(f"[{_RAISED}]+", lambda power: "**" + power[0].translate(_LOWERED), text)
    for sign, plain in {"·": "*", "…": "...", "→": "->", "µ": "u"}.items():
        text = text.replace(sign, plain)
    return text.encode("ascii", "backslashreplace").decode()


class Entry(Record, frozen=True):
    """A line of a table."""

    cells: Sequence[str]
    level: int = 0  # how far in the first cell stands
    path: str = ""  # of a module, which stands there instead in a format that has no indentation
    alarming: bool = False


class TextTable(Record, frozen=True):
    """A table. The first `names` columns hold names, the others figures. title: a line above it."""

    heads: Sequence[str]
    entries: Sequence[Entry]
    names: int = 1
    title: str = ""


class Listing(Record, frozen=True):
    """Heads and rows. figures: the columns hold figures, which stand on the right; else names."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    figures: bool = False

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], heads: Sequence[str] = ()) -> Listing:
        """Figures by name. heads: where there are no rows."""
        return cls([*(rows[0] if rows else heads)], [[*row.values()] for row in rows], figures=True)

    def table(self) -> TextTable:
        """The table for people."""
        entries = [Entry([safe(str(cell)) for cell in row]) for row in self.rows]
        return TextTable(self.heads, entries, 0 if self.figures else len(self.heads))
