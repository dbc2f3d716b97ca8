"""The page's own evaluator of formulas against `graphflops.dims`, in a real browser."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from graphflops.dims import (
    Dim,
    call,
    ceil_div,
    compare,
    dim_max,
    dim_min,
    evaluate,
    floor_div,
    mod,
    parse_dim,
    symbol,
    where,
)
from graphflops.errors import DimError

if TYPE_CHECKING:
    from tests.render.browser import Browser

SCRIPT = Path(__file__).parents[2] / "graphflops" / "render" / "html" / "formula.js"
EVALUATE = """
const [texts, values] = arguments;
return texts.map((text, index) => {
  const sizes = new Map(Object.entries(values[index]).map(([name, value]) => [name, BigInt(value)]));
  const value = evaluated(compiled(text), (name) => sizes.has(name) ? sizes.get(name) : null);
  return value === null ? null : value.toString();
});
"""


def in_page(browser: Browser, cases: list[tuple[str, dict[str, int]]]) -> list[int | None]:
    """What the script of the page makes of formulas at sizes."""
    script = SCRIPT.read_text(encoding="utf-8") + EVALUATE
    sizes = [{name: str(value) for name, value in values.items()} for _, values in cases]
    found = browser.run(script, [text for text, _ in cases], sizes)
    return [None if value is None else int(value) for value in found]


# Worth as Python computes it, or as the definition says.
KNOWN: list[tuple[str, dict[str, int], int | None]] = [
    ("17", {}, 17),
    ("409600*s*t + 1024*s*t**2", {"s": 2, "t": 16}, 409600 * 32 + 1024 * 512),
    ("s**3*7", {"s": 10**12}, 7 * 10**36),
    ("2 - s", {"s": 5}, -3),
    ("-s**2", {"s": 3}, -9),
    ("-(s//2)", {"s": 5}, -2),
    ("(2 - s)//4", {"s": 5}, -1),
    ("(2 - s) % 4", {"s": 5}, 1),
    ("s//t % 5*2", {"s": 100, "t": 7}, 100 // 7 % 5 * 2),
    ("s//0", {"s": 5}, None),
    ("s % t", {"s": 5, "t": 0}, None),
    ("missing + 1", {}, None),
    ("min(s, t, 9)", {"s": 12, "t": 10}, 9),
    ("max(s - t, 0)", {"s": 1, "t": 5}, 0),
    ("(s <= t)*10 + (s < t) + (s == t)*100", {"s": 4, "t": 4}, 110),
    ("(s != t) + (s > t) + (s >= t)", {"s": 5, "t": 4}, 3),
    ("where((s < 8), s, 8)", {"s": 5}, 5),
    ("where(s, 1//s, 7)", {"s": 0}, 7),
    ("truediv(7, s)", {"s": 2}, 3),
    ("truediv(7, s)*2", {"s": 2}, 7),
    ("floor(truediv(0 - 7, s))", {"s": 2}, -4),
    ("sqrt(s)", {"s": 10**40}, 10**20),
    ("sqrt(s)", {"s": 10**40 - 1}, 10**20 - 1),
    ("sqrt(s)*10", {"s": 2}, 14),
    ("sqrt(0 - s)", {"s": 2}, None),
    ("log2(s)", {"s": 2**60}, 60),
    ("exp(s)", {"s": 10_000}, None),
    ("round(truediv(s, 2))", {"s": 5}, 2),
    ("round(truediv(s, 2))", {"s": 7}, 4),
    ("bitwise_and(s, 6) + bitwise_or(s, 8) + bitwise_xor(s, 1)", {"s": 5}, 4 + 13 + 4),
    ("gcd(s, t) + gcd(0, s - t)", {"s": 30, "t": 42}, 6 + 12),
    ("lshift(s, t)", {"s": 3, "t": 70}, 3 << 70),
    ("rshift(s, t)", {"s": 300, "t": 2}, 75),
    ("pow(s, t)", {"s": 2, "t": 100}, 2**100),
    ("pow(s, t)", {"s": 2, "t": 10_000}, None),
    ("Symbol('a b')*2", {"a b": 4}, 8),
    (r"Symbol('it\'s \x1b \u202e \\ \n')", {"it's \x1b \u202e \\ \n": 4}, 4),
    ('Symbol("it\'s")', {"it's": 4}, 4),
    ("Function('f')(s)", {"s": 4}, None),
]


@pytest.mark.parametrize("text, values, expected", [case for case in KNOWN if "//0" not in case[0]])
def test_the_table_is_right(text: str, values: dict[str, int], expected: int | None) -> None:
    """What the page is compared with, by the reader of formulas itself, which reads no division by zero."""
    assert evaluate(parse_dim(text), values) == expected


def test_known_values(browser: Browser) -> None:
    found = in_page(browser, [(text, values) for text, values, _ in KNOWN])
    assert dict(zip([text for text, _, _ in KNOWN], found, strict=True)) == {t: v for t, _, v in KNOWN}


def made(random_: random.Random, depth: int) -> Dim:
    """A size of several operations."""
    if depth == 0 or random_.random() < 0.15:
        names = ("s27", "u0", "batch", "weird name", "it's\n")
        return symbol(random_.choice(names)) if random_.random() < 0.7 else random_.randint(0, 40)
    a, b = made(random_, depth - 1), made(random_, depth - 1)
    kind = random_.randrange(13)
    if kind == 0:
        return floor_div(a, b)
    if kind == 1:
        return mod(a, b)
    if kind == 2:
        return dim_min(a, b, random_.randint(1, 99))
    if kind == 3:
        return dim_max(a, b)
    if kind == 4:
        return where(compare(random_.choice(["<", "<=", "==", "!=", ">", ">="]), a, b), a, b)
    if kind == 5:
        a, b = made(random_, 0), made(random_, 0)  # integers: of 4/2 Python knows no bits
        return call(random_.choice(["bitwise_and", "bitwise_or", "bitwise_xor"]), a, b)
    if kind == 6:
        return ceil_div(a, random_.randint(1, 9))
    if kind == 7:
        return call(random_.choice(["sqrt", "round"]), a)
    if kind == 8:
        return a - b
    if kind == 9:
        return call("truediv", a, b)
    return a * b if kind % 2 else a + b


def agreeing(browser: Browser, count: int, seed: int) -> None:
    random_ = random.Random(seed)
    cases: list[tuple[str, dict[str, int]]] = []
    expected: list[int | None] = []
    while len(cases) < count:
        try:
            dim = made(random_, random_.randint(1, 4))
        except (DimError, ZeroDivisionError):
            continue
        values = {
            name: random_.choice([0, 1, 2, 3, 7, 64, 4096, 10**9 + 7]) for name in ("s27", "u0", "batch")
        }
        values |= {"weird name": random_.randint(1, 9), "it's\n": random_.randint(1, 999)}
        cases.append((str(dim), values))
        expected.append(evaluate(dim, values))
    found = in_page(browser, cases)
    wrong = [case for case in zip(cases, expected, found, strict=True) if case[1] != case[2]]
    assert wrong == []


def test_random_formulas(browser: Browser) -> None:
    agreeing(browser, 1500, seed=7)


@pytest.mark.parametrize(
    "text",
    ["s +", "(s", "s t", "f(s)", "s; t", "s.constructor", "constructor(s)", "__proto__(1)", "[s]", "s=1"],
)
def test_what_is_no_formula_is_refused(browser: Browser, text: str) -> None:
    """Nothing is ever run: a text is read by the grammar, or not at all."""
    script = SCRIPT.read_text(encoding="utf-8")
    refused = "try { compiled(arguments[0]); return ''; } catch (error) { return error.name; }"
    assert browser.run(script + refused, text) == "SyntaxError"
