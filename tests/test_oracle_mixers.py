"""Token mixers other than attention, exported, against torch's counter: some of tests/oracle/zoo/mixers.py."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["selective_scan", "associative_scan", "gated_delta", "retention", "hyena"])
def test_nothing_is_unknown_and_flops_are_right(name: str) -> None:
    from tests.oracle.models import Effort, judged
    from tests.oracle.zoo.mixers import cases

    case = next(case for case in cases() if case.name == f"mixers/{name}")
    verdicts = list(judged(case, Effort(0)))
    assert [(form, why) for form, kind, why in verdicts if kind not in ("equal", "refused")] == []
    assert [kind for _, kind, _ in verdicts].count("equal") >= 2, "in memory and as a file"
