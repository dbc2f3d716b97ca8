"""What a predicted time means for a user."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphflops import Training, analyze
from graphflops.derived.rates import outside_of_calls, throughput
from graphflops.report import Execution
from graphflops.training import Loss

SAMPLE = Path(__file__).parents[1] / "samples" / "gqa_transformer.pt2"


@pytest.mark.parametrize(
    ("execution", "loss", "phases"),
    [
        ("graph", "given", set()),
        ("graph", "sum", {"backward"}),
        ("eager", "given", {"backward"}),
        ("compiled", "given", {"forward", "backward"}),
    ],
)
def test_only_the_cpu_and_the_loss_take_time_outside_of_calls(
    execution: Execution, loss: Loss, phases: set[str]
) -> None:
    """A graph is launched once. torch.compile checks guards before the forward; autograd begins with the loss."""
    once, thrice = (
        outside_of_calls(
            analyze(
                SAMPLE, device="h200", training=Training(accumulate=steps, loss=loss), execution=execution
            )
        )
        for steps in (1, 3)
    )
    assert phases <= once.keys()
    assert bool(once) == bool(phases)
    assert thrice == pytest.approx(once)  # of one micro-step


def test_samples_and_tokens_of_a_step() -> None:
    report = analyze(SAMPLE, device="h200", dims={"ids[0]": 4, "ids[1]": 128})
    found = throughput(report)
    assert found["tokens"] == pytest.approx(128 * found["samples"])
    assert report.totals.time is not None
    assert found["samples"] * report.totals.time.seconds == pytest.approx(4)
