"""FLOPs of a token that published training tables imply, from statements; benchmarks.statement has all models."""

from __future__ import annotations

from statistics import median

import pytest

pytest.importorskip("torch")

from benchmarks.statement import CASES, Case

CHEAP = ("LLAMA3_70B", "GPT OSS 120B", "Qwen2.5 7B", "760m")
CHOSEN = {f"{case.models[0]} {case.kind} {case.length}": case for case in CASES if case.models[0] in CHEAP}


@pytest.mark.parametrize("case", CHOSEN.values(), ids=CHOSEN)
def test_published_tables(case: Case) -> None:
    assert case.counted == pytest.approx(median(case.implied), rel=0.005)


def test_llama_3_70b_to_the_last_digit_that_is_printed() -> None:
    """449.2 GFLOPs a token: 6 x 69,501,714,432 in products, and half of 12 x 80 x 8,192 x 8,192, with the diagonal."""
    case = next(case for case in CASES if case.models[0] == "LLAMA3_70B" and case.kind == "pretrain")
    assert case.counted == 6 * 69_501_714_432 + 12 * 80 * 8192 * 8193 // 2
