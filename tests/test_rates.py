"""What a predicted time means for a user."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from graphflops import Training, analyze
from graphflops.derived.items import outside_of_calls, throughput
from graphflops.report import Execution, Report
from graphflops.training import Loss
from tests.exporters.build import meta, program, save, size, tensor

SAMPLE = Path(__file__).parents[1] / "samples" / "gqa_transformer.pt2"
BATCH = 2  # of the sample, as it was exported


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


def test_a_step_takes_in_what_all_of_its_micro_steps_do() -> None:
    report = analyze(SAMPLE, device="h200", training=Training(accumulate=3))
    assert report.step_time is not None
    assert throughput(report)["samples"] * report.step_time.seconds == pytest.approx(3 * BATCH)


def test_json_has_the_rates_and_a_saved_report_the_same() -> None:
    report = replace(analyze(SAMPLE, device="h200"), price_per_hour=3.6)
    found = json.loads(report.to_json())
    assert found["throughput"] == throughput(report) == throughput(Report.from_json(report.to_json()))
    cost = 3.6 / 3600 * 1e6 / found["throughput"]["tokens"]
    assert found["price_of_a_million"]["tokens"] == pytest.approx(cost)
    assert "throughput" not in json.loads(analyze(SAMPLE).to_json())


def test_a_batch_past_every_float_has_no_rate(tmp_path):
    """2**1200 samples: a file may say so, and a number of samples a second would be no number."""
    samples = size("(s0**15)**2")
    values = {"n": meta(size("s0", 2**40)), "x": meta(samples, 4), "y": meta(samples, 4)}
    inputs = [{"user_input": {"arg": tensor(name)}} for name in ("x", "n")]
    report = analyze(save(tmp_path / "m.pt2", program(values=values, inputs=inputs)), device="h200")
    assert report.value(report.inputs[0].type.shape[0]) == 2**1200
    assert throughput(report) == {}
