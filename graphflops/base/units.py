"""Numbers, bytes, times and shares as text, the same in every output and message; and names that differ only in their
numbers, as one name: `layers.0-35.mlp`.
"""

import re
from collections.abc import Iterable, Sequence

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
_EXACT_BELOW = 10_000
HUGE_BITS = 4_000  # past this Python refuses to print an integer in decimal
LEAST_SHARE = 0.05  # percent that print as 0.1
_WHOLE_RATE = 100  # from which on a rate prints without decimals
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def number(count: int) -> str:
    """Exact below ten thousand, then four digits and an SI prefix: `9,999`, `10.00 k`, `1.412 T`."""
    figure, prefix = _scaled(count)
    return f"{figure} {prefix}" if prefix else figure


def power(figure: float) -> str:
    """Four digits and a power of ten, in which scaling laws give training FLOPs: `6.738e24`."""
    return f"{figure:.3e}".replace("e+", "e").replace(".000e", "e")


def exact(count: int) -> str:
    """All digits of a number, with commas; for a number that Python refuses to print, its power of ten."""
    return f"{count:,}" if count.bit_length() <= HUGE_BITS else number(count)


def memory(count: int) -> str:
    """A number of bytes, decimal: `512 B`, `256.6 MB`."""
    figure, prefix = _scaled(count)
    return f"{figure} {prefix}B"


def rate(per_second: float) -> str:
    """How often in a second, with three digits at least: `1.62`, `303`, `19.71 k`."""
    return number(round(per_second)) if per_second >= _WHOLE_RATE else f"{per_second:.3g}"


def parameters(count: int) -> str:
    """A number of parameters, billions as `B`: `205.4 k`, `32.76 B`."""
    return number(count).replace(" G", " B")


def measured(quantity: str, count: int, unit: str = "") -> str:
    """A quantity by name, with its unit if one is given: `4.521 MFLOP`, `1.20 ms` for nanoseconds (`ns`)."""
    if quantity.endswith("bytes"):
        return memory(count)
    if unit == "ns":
        return seconds(count / 1e9)
    figure = parameters(count) if quantity == "parameters" else number(count)
    return f"{figure}{'' if figure[-1].isalpha() else ' '}{unit}".rstrip()


def seconds(time: float) -> str:
    """A time with three digits: `2.17 ms`, `83.0 µs`."""
    if time <= 0:
        return "0"
    unit, scale = next(((unit, scale) for unit, scale in _TIMES if time >= 0.9995 * scale), _TIMES[-1])
    figure = time / scale
    digits = max(0, 2 - len(str(int(figure))) + 1)
    return f"{figure:,.{digits}f} {unit}"


def interval(low: float, high: float) -> str:
    """An interval: `1.58 to 3.40 ms`; "" where no time is known that it could hold."""
    if not high:
        return ""
    first, last = seconds(low), seconds(high)
    unit = last.rpartition(" ")[2]
    return f"{first.removesuffix(f' {unit}')} to {last}"


def percent(part: float, whole: float) -> str:
    """A share with one decimal; `<0.1` or `-<0.1` for a smaller one that is not zero, "" where there is nothing to share."""
    if not whole:
        return ""
    share = 100 * part / whole
    if share and abs(share) < LEAST_SHARE:
        return "<0.1" if share > 0 else "-<0.1"
    return f"{share:.1f}"


def in_parentheses(part: float, whole: float) -> str:
    """The same, after a figure: ` (12.5 %)`; "" if there is nothing to share."""
    return f" ({percent(part, whole)} %)" if whole else ""


def _scaled(count: int) -> tuple[str, str]:
    if count < 0:
        figure, prefix = _scaled(-count)
        return f"-{figure}", prefix
    if count < _EXACT_BELOW:
        return f"{count:,}", ""
    if count.bit_length() > HUGE_BITS:
        return f"10^{int(count.bit_length() * 0.30103)}", ""
    length = len(str(count))
    unit = 10 ** (length - 4)
    digits = (count + unit // 2) // unit
    if digits == 10_000:
        digits, length = 1_000, length + 1
    thousands, extra = divmod(length - 1, 3)
    if thousands >= len(_PREFIXES):
        return f"{digits / 1000:.3f}e{length - 1}", ""
    text = str(digits)
    return f"{text[: extra + 1]}.{text[extra + 1 :]}", _PREFIXES[thousands]


_NUMBERS = re.compile(r"\d+")
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # one part of a path that is a number


def runs_of(indices: Iterable[int]) -> list[str]:
    """Ascending indices, neighbours together: `0-11`, `13`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], index]
        else:
            runs.append([index])
    return ["-".join(map(str, run)) for run in runs]


def spans(indices: Iterable[int]) -> str:
    """Ascending indices: `0-11`, `0-3, 7`, `0, 2, … 26` where there are many."""
    texts = runs_of(indices)
    return ", ".join(texts) if len(texts) <= 3 else f"{texts[0]}, {texts[1]}, … {texts[-1]}"


def is_index(name: str) -> bool:
    """True for the name of a module in a list: its place there."""
    return name.isascii() and name.isdecimal() and len(name) < 10


def starred(path: str) -> str:
    """`blocks.*.fc2` for `blocks.3.fc2`: layers that differ in their place in a list are one."""
    return _INDEX.sub("*", path)


def unnumbered(name: str) -> str:
    """`layers.*.self_attn` for `layers.3.self_attn`: equal for names that differ only in their numbers."""
    return _NUMBERS.sub("*", name)


def numbered(names: Sequence[str]) -> str:
    """`layers.0-35.self_attn` for the names of 36 layers; the first of names that differ in more than their numbers."""
    if len({*map(unnumbered, names)}) > 1:
        return names[0]
    numbers = [_NUMBERS.findall(name) for name in names]
    ranges = iter([spans(sorted({int(n) for n in column})) for column in zip(*numbers, strict=True)])
    return _NUMBERS.sub(lambda _: next(ranges), names[0])
