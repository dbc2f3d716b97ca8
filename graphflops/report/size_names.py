"""Names of sizes as text: in formulas and sentences, in short, several together, and those that a pattern matches."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import repeat

from graphflops.errors import elided
from graphflops.tensor import grouped

AXIS = re.compile(r"(.+)\[(\d{1,4})\]")
_MADE_UP_WORD = re.compile(r"\b[su]\d+\b")
_NAME = re.compile(r"Symbol\('([^'\\]*)'\)|[A-Za-z_]\w*")  # in the text of a formula or a type
_PRODUCT = re.compile(r"\*\*(\d+)|\*")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LONGEST = 24  # characters of an input's name in a short form
_NUMBER = re.compile(r"\d+")
_FEWEST = 3  # names that are said as one


def called(text: str, names: Mapping[str, str]) -> str:
    """A formula, or the text of a type, with the names that people read."""
    return _NAME.sub(lambda found: names.get(found[1] or found[0], found[1] or found[0]), text)


def named(text: str, names: Mapping[str, str]) -> str:
    """The text of a formula in the notation for people: `·` and powers, sizes by their names."""
    said = called(text, names)
    return _PRODUCT.sub(lambda found: "·" if found[1] is None else found[1].translate(_RAISED), said)


def in_prose(text: str, names: Mapping[str, str]) -> str:
    """A sentence in which sizes that the exporter named (`s70`) have the names that people read."""
    return _MADE_UP_WORD.sub(lambda found: names.get(found[0], found[0]), text)


def shortened_axis(axis: str) -> str:
    """The axis of an input, a long name of the input cut in the middle."""
    name, bracket, place = axis.rpartition("[")
    return f"{elided(name, _LONGEST)}{bracket}{place}"


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern with `*` matches, `past_*[2]`; a `*` stands for anything but brackets."""
    if "*" not in pattern:
        return []
    parts = re.compile(r"[^\[\]]*".join(map(re.escape, re.split(r"\*+", pattern))))
    return [name for name in names if parts.fullmatch(name)]


def alike(names: Iterable[str], same: Callable[[str], Hashable] = lambda _: None) -> list[list[str]]:
    """The names in order and in groups; three or more that differ only in numbers are one. same: what they must share."""
    groups = grouped(((_numbers_replaced(name, repeat("*")), same(name)), name) for name in names)
    apart = [[group] if len(group) >= _FEWEST else [[name] for name in group] for group in groups.values()]
    return [one for part in apart for one in part]


def collapsed(names: Iterable[str]) -> list[str]:
    """The names in order, three or more that differ in numbers only as one pattern: `past_*[2]`."""
    return [pattern_of(group) for group in alike(names)]


def together(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes by name, equal ones whose names differ in numbers only under one pattern: `past_*[2]`."""
    return {pattern_of(group): sizes[group[0]] for group in alike(sizes, sizes.__getitem__)}


def pattern_of(names: Sequence[str]) -> str:
    """The pattern of names that differ in numbers only; a number that all of them have is kept."""
    columns = zip(*(_NUMBER.findall(_head(name)) for name in names), strict=True)
    return _numbers_replaced(names[0], (column[0] if len({*column}) == 1 else "*" for column in columns))


def _head(name: str) -> str:
    """The name of an axis without its place, `past_0` of `past_0[2]`."""
    return found[1] if (found := AXIS.fullmatch(name)) else name


def _numbers_replaced(name: str, texts: Iterable[str]) -> str:
    head, each = _head(name), iter(texts)
    return _NUMBER.sub(lambda _: next(each), head) + name[len(head) :]


def span(low: int | None, high: int | None) -> str:
    """An inclusive range in words: "1..64", "at least 1", "at most 64", "" without limits."""
    if low is None:
        return "" if high is None else f"at most {high:,}"
    return f"at least {low:,}" if high is None else f"{low:,}..{high:,}"
