"""Amounts, percentages and patterns as people write them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from graphflops.base.patterns import matches_file, matches_module, matches_op
from graphflops.budget.amounts import AllowedGrowth, amount, growth, percent


@pytest.mark.parametrize(
    "text, unit, count",
    [
        ("2 GFLOP", "FLOP", 2_000_000_000),
        ("2 GFLOPs", "FLOP", 2_000_000_000),
        ("2.5k", "FLOP", 2_500),
        ("1_000", "FLOP", 1_000),
        ("1e9 FLOP", "FLOP", 1_000_000_000),
        ("0.1 M", "FLOP", 100_000),  # not 99,999, as with binary fractions
        ("3 T", "MAC", 3_000_000_000_000),
        ("1 GMAC", "MAC", 1_000_000_000),
        ("512 MiB", "B", 512 * 1024 * 1024),
        ("512 MB", "B", 512_000_000),
        ("7 B", "B", 7),
        ("7 bytes", "B", 7),
        ("1.5 KiB", "B", 1536),
        ("7 M", "", 7_000_000),
        ("8.5 B", "", 8_500_000_000),  # billions of parameters
        (12_500, "", 12_500),
        (1e6, "", 1_000_000),
        ("0", "FLOP", 0),
        ("24G", "B", 24_000_000_000),
        (12_500, "B", 12_500),  # as in `peak_bytes = 12500`
        (2.5, "ns", 2_500_000_000),  # as in `max_seconds = 2.5`
    ],
)
def test_amounts(text: str | float, unit: str, count: int) -> None:
    assert amount(text, unit) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text, unit", [("8", "B"), ("8e9", "B"), (" 12_500 ", "B"), ("2.5", "ns"), ("0", "ns")]
)
def test_text_of_bytes_and_time_says_its_unit(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=r"has no unit: write \"(512 MiB|2.5 ms)\""):
        amount(text, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text, unit",
    [
        ("2 GFLIP", "FLOP"),
        ("2 GB", "FLOP"),
        ("2 GFLOP", "B"),
        ("2 m", ""),  # milli, surely meant as M
        ("2 Gb", "B"),  # bits
        ("2 GiFLOP", "FLOP"),
        ("-2 G", "FLOP"),
        ("", "FLOP"),
        ("G", "FLOP"),
        ("<= 2 G", "FLOP"),
        (float("inf"), "FLOP"),
        (-1, ""),
        ("9" * 99, ""),
    ],
)
def test_what_is_no_amount(text: str | float, unit: str) -> None:
    with pytest.raises(ValueError, match="write"):
        amount(text, unit)  # type: ignore[arg-type]


def test_percentages() -> None:
    assert percent("98.5 %") == Fraction(985, 1000)
    assert percent("100%") == 1
    for wrong in ("98.5", "%", "98,5 %", 0.985):
        with pytest.raises(ValueError, match="percentage"):
            percent(wrong)


@pytest.mark.parametrize(
    "text, before, most",
    [
        ("+2 %", 1_000_000, 1_020_000),
        ("+ 2 %", 1_000_000, 1_020_000),
        ("+0 %", 7, 7),
        ("+1 M", 5, 1_000_005),
        ("+2 % or 1 MFLOP", 1_000, 1_001_000),
        ("+2 % or 1 MFLOP", 1_000_000_000, 1_020_000_000),
        ("+0.5 %", 199, 199),  # 199.995 would be one more
        ("+10 %", 0, 0),
    ],
)
def test_growth(text: str, before: int, most: int) -> None:
    assert growth(text, "FLOP").allowed(before) == most


def test_growth_of_large_numbers_is_exact() -> None:
    assert AllowedGrowth(Fraction(1, 50), 0).allowed(50 * 10**30 + 50) == 51 * 10**30 + 51


@pytest.mark.parametrize(
    "pattern, path, matches",
    [
        ("blocks.*.attention", "blocks.0.attention", True),
        ("blocks.*.attention", "blocks.0.inner.attention", False),
        ("blocks.*", "blocks.0.attention", False),
        ("blocks.**", "blocks.0.attention", True),
        ("**.q", "blocks.0.attention.q", True),
        ("**.q", "q", True),
        ("**.q", "blocks.seq", False),
        ("head", "head", True),
        ("head", "head.0", False),
        ("block?", "blocks", False),  # only * stands for anything
        ("a+b", "a+b", True),
        ("***", "abc", True),
    ],
)
def test_modules(pattern: str, path: str, matches: bool) -> None:
    assert matches_module(pattern, path) is matches


@pytest.mark.parametrize(
    "pattern, path, matches",
    [
        ("**", "models/lm.onnx", True),
        ("models/*.onnx", "models/lm.onnx", True),
        ("*.onnx", "models/lm.onnx", False),
        ("**/*.onnx", "models/deep/lm.onnx", True),
        ("**/*.onnx", "lm.onnx", True),
        ("../*.pt2", "../lm.pt2", True),
    ],
)
def test_files(pattern: str, path: str, matches: bool) -> None:
    assert matches_file(pattern, path) is matches


@pytest.mark.parametrize(
    "pattern, op, matches",
    [
        ("aten.add", "aten.add.Tensor", True),
        ("aten.add", "aten.addmm.default", False),
        ("aten.add.Scalar", "aten.add.Tensor", False),
        ("onnx.Loop", "onnx.Loop.13", True),
        ("com.microsoft.*", "com.microsoft.FusedMatMul.1", True),
        ("*nonzero*", "aten.nonzero.default", True),
    ],
)
def test_operators(pattern: str, op: str, matches: bool) -> None:
    assert matches_op(pattern, op) is matches


def test_a_pattern_of_many_stars_is_decided_at_once() -> None:
    assert not matches_op("*a" * 12 + "*" * 500 + "b", "a" * 60)
