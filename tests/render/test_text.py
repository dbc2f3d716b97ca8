"""Numbers, formulas and hostile names as text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from graphflops import analyze
from graphflops.base.units import memory, number, rate, spans
from graphflops.dims import floor_div, symbol
from graphflops.errors import elided
from graphflops.render import render
from graphflops.render.text import (
    Numbers,
    formula,
    occurrences,
    plain_ascii,
    safe,
    shortened,
    told_apart,
)

S, T = symbol("s"), symbol("t")
PREFIXES = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18, "Z": 21, "Y": 24, "R": 27, "Q": 30}


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0"),
        (999, "999"),
        (9_999, "9,999"),
        (10_000, "10.00 k"),
        (12_344, "12.34 k"),
        (12_345, "12.35 k"),
        (99_994, "99.99 k"),
        (99_995, "100.0 k"),
        (999_949, "999.9 k"),
        (999_950, "1.000 M"),
        (1_411_999_999_999, "1.412 T"),
        (10**33, "1.000e33"),
        (-12_345, "-12.35 k"),
    ],
)
def test_number(count: int, text: str) -> None:
    assert number(count) == text


@pytest.mark.parametrize(
    ("per_second", "text"), [(1.623, "1.62"), (0.0511, "0.0511"), (303.4, "303"), (19_710, "19.71 k")]
)
def test_rate(per_second: float, text: str) -> None:
    assert rate(per_second) == text


def test_a_number_too_long_for_python_to_print() -> None:
    assert number(10**5000) == "10^5000"


@given(st.integers(min_value=10_000, max_value=10**32))
def test_a_number_is_right_to_four_digits(count: int) -> None:
    figure, _, prefix = number(count).partition(" ")
    assert len(figure) == 5
    assert abs(float(figure) * 10 ** PREFIXES[prefix] - count) <= 0.00051 * count


def test_bytes_are_decimal() -> None:
    assert [memory(count) for count in (0, 512, 9_999, 10_000, 256_600_000)] == [
        *("0 B", "512 B", "9,999 B", "10.00 kB", "256.6 MB"),
    ]


@pytest.mark.parametrize(
    "dim, text",
    [
        (7, "7"),
        (S, "s"),
        (209_408_000 * S * T + 16_384 * S * T**2, "209.4 M·s·t + 16.38 k·s·t²"),
        (T**2 * S - 3 * S + 5, "-3·s + s·t² + 5"),
        (2 * floor_div(S, 3) ** 12, "2·(s//3)¹²"),
        (10_000 - S, "-s + 10.00 k"),
    ],
)
def test_formula(dim: object, text: str) -> None:
    assert formula(dim) == text  # type: ignore[arg-type]


def test_a_long_formula_is_cut_between_terms() -> None:
    text = formula(209_408 * S + 512 * S * T + 3 * T**2)
    assert shortened(text, 100) == text == "209.4 k·s + 512·s·t + 3·t²"
    assert shortened(text, 18) == "209.4 k·s + …"
    assert shortened(text, 5) == "209.…"
    assert all(len(shortened(text, width)) <= width for width in range(2, 40))


@given(st.text(), st.integers(min_value=2, max_value=60))
def test_a_safe_name_is_printable_and_short(name: str, width: int) -> None:
    text = safe(name, width)
    assert len(text) <= width
    assert text.isprintable()
    assert "\n" not in text


@pytest.mark.parametrize(
    "name, text",
    [
        ("a\x1b[31m", "a\\x1b[31m"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202egnp", "a\\u202egnp"),
        ("a\nb\r\t\x00\x7f", "a\\nb\\r\\t\\x00\\x7f"),
        ("\u2028\ufeff\u200b", "\\u2028\\ufeff\\u200b"),
        ("\udcff", "\\udcff"),
        ("größe 層", "größe 層"),
    ],
)
def test_what_a_terminal_acts_on_is_spelled_out(name: str, text: str) -> None:
    assert safe(name) == text


def test_a_huge_name_is_cut_before_it_is_looked_at() -> None:
    assert len(safe("\x1b" * 10_000_000, 50)) == 50


def test_the_middle_is_left_out() -> None:
    assert elided("encoder.layers.0.attention", 11) == "encod…ntion"
    assert elided("short", 5) == "short"


def test_spans() -> None:
    assert spans(range(12)) == "0-11"
    assert spans([0, 1, 2, 7]) == "0-2, 7"
    assert spans([0, 2, 4, 6, 8]) == "0, 2, … 8"


def test_occurrences() -> None:
    assert occurrences({"my.op": 2, "other": 1}) == "my.op (x2), other"
    assert occurrences(dict.fromkeys("abcdefghij", 1)) == "a, b, c, d, e, f, g, h and 2 more"


def test_shares_of_formulas() -> None:
    numbers = Numbers(lambda dim: dim if isinstance(dim, int) else None, 40)
    assert numbers.share(1, 4) == "25.0"
    assert numbers.share(S * T, 4 * S * T) == "25.0"
    assert numbers.share(0, S) == "0.0"
    assert numbers.share(S, S + T) == ""
    assert numbers.share(S, T) == ""
    assert numbers.share(0, 0) == ""
    assert numbers.memory(S + T) == "(s + t) B"
    assert numbers.memory(20_000 * S) == "20.00 k·s B"


def test_plain_ascii() -> None:
    assert plain_ascii("209.4 M·s·t¹² …") == "209.4 M*s*t**12 ..."
    assert plain_ascii("größe") == "gr\\xf6\\xdfe"


def test_a_formula_for_people_has_one_notation() -> None:
    from graphflops.dims import dim_max, floor_div, symbol
    from graphflops.render.text import formula, named, shortened

    s, t = symbol("s27"), symbol("s70")
    names = {"s27": "ids[1]", "s70": "x[2]"}
    assert named("4*s27**2 + s70", names) == "4·ids[1]² + x[2]"
    text = formula(2 * s * dim_max(0, t * t - 4 * s) + floor_div(s, 2), names)
    assert "*" not in text
    assert "max(0, -4·ids[1] + x[2]²)" in text or "max(0, x[2]² - 4·ids[1])" in text
    for width in range(1, len(text) + 1):
        short = shortened(text, width)
        assert len(short) <= width
        assert short.count("(") == short.count(")")
        assert short.count("[") == short.count("]")


def test_shares_and_parameters() -> None:
    from graphflops.base.units import parameters, percent

    assert percent(1, 3) == "33.3"
    assert percent(1, 100_000) == "<0.1"
    assert percent(-1, 100_000) == "-<0.1"  # never -0.0
    assert percent(0, 7) == "0.0"
    assert parameters(32_763_876_352) == "32.76 B"
    assert parameters(205_376) == "205.4 k"


@pytest.mark.parametrize("width", [40, 30, 24, 16, 10, 3])
def test_names_are_shortened_so_that_they_differ(width: int) -> None:
    parts = ("self_attn/q_proj", "self_attn/k_proj", "mlp/gate_proj")
    names = [f"/model/layers.{i}/{part}/MatMul_output_0" for i in (0, 1, 9) for part in parts]
    short = told_apart(names, width)
    assert len({*short.values()}) == len(names)
    assert max(map(len, short.values())) <= width


def test_a_name_that_is_shortened_keeps_both_ends() -> None:
    assert told_apart(["abcdefghij", "xyz"], 5) == {"abcdefghij": "ab…ij", "xyz": "xyz"}


def test_a_number_that_differs_is_kept_whole() -> None:
    numbers = (1, 10, 11, 21)
    short = told_apart([f"encoder.blocks.{number}.projection" for number in numbers], 14)
    assert all(f"{number}." in text for number, text in zip(numbers, short.values(), strict=True))


def test_a_size_that_depends_on_data_is_named_with_the_call_that_makes_it() -> None:
    class Chosen(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0] * 2

    program = torch.export.export(
        Chosen(), (torch.randn(8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    (line,) = [line for line in render(analyze(program), "table").splitlines() if "u0 = ?" in line]
    assert "depends on data of aten.index.Tensor (test_text.py:" in line
    assert ": --dim u0=N" in line
