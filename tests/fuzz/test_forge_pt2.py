"""torch loads each kind of forged `.pt2` and runs what it really costs: otherwise refusing it would prove nothing."""

from __future__ import annotations

import logging
from random import Random

import pytest

from tests.fuzz.forge_pt2 import FORGERS
from tests.fuzz.honest_pt2 import flops_run

TRIES = 40  # in which every way of a class comes up


@pytest.mark.parametrize("kind", FORGERS)
def test_torch_runs_the_real_cost(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    ways = {}
    for place in range(TRIES):
        forged = FORGERS[kind](Random(place))
        assert forged.kind == kind
        ways.setdefault(forged.how, forged)
    assert {how: flops_run(forged.data) for how, forged in ways.items()} == {
        how: forged.real for how, forged in ways.items()
    }
