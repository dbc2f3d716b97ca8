"""Token mixers other than attention, exported, against torch's counter: some of tests/oracle/zoo/mixers.py."""

from __future__ import annotations

import pytest
import torch

# Releases before 2.13 cannot save the programs of some scans.
UNSAVED = "SerializeError" if torch.__version__ < "2.13" else "never"


@pytest.mark.parametrize("name", ["selective_scan", "associative_scan", "gated_delta", "retention", "hyena"])
def test_nothing_is_unknown_and_flops_are_right(name: str) -> None:
    from tests.oracle.models import Effort, judged
    from tests.oracle.zoo.mixers import cases

    case = next(case for case in cases() if case.name == f"mixers/{name}")
    verdicts = list(judged(case, Effort(0)))
    wrong = [(form, why) for form, kind, why in verdicts if kind not in ("equal", "refused")]
    unsaved = [form for form, why in wrong if why.startswith(UNSAVED)]
    assert [form for form, _ in wrong] == unsaved
    assert [kind for _, kind, _ in verdicts].count("equal") >= 2 - len(unsaved), "in memory and as a file"
