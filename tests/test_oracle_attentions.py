"""A sample of the sweep over attentions of real models. The whole is tests/oracle/attentions.py."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs the package transformers, and no weights")

# By model: how many attentions of which kind it has, and the forms of its program that are looked at.
CASES = {
    "llama_eager": ({"self, masked": 2}, ("exported", "decomposed")),
    "bart_eager": ({"self": 2, "self, masked": 2, "cross": 2}, ("exported",)),
    "gemma2": ({"self, masked": 2}, ("exported",)),
    "gpt_oss": ({"self, masked": 2}, ("exported",)),
}


@pytest.mark.parametrize("name", CASES)
def test_as_many_are_found_as_ran(name: str) -> None:
    from tests.oracle.attentions import judged
    from tests.oracle.zoo.language import cases

    case = next(case for case in cases() if case.name == f"transformers/{name}")
    kinds, forms = CASES[name]
    line = judged(case, forms)
    assert line.kinds == kinds
    assert not line.missing
    for verdicts in line.verdicts.values():
        assert len(verdicts) == 2, "at the sizes exported and at others"
        for verdict in verdicts:
            assert verdict.problems == []
            assert verdict.unfollowed == 0
