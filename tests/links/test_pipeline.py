"""Schedules of pipelines against the closed forms of the papers that describe them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from graphflops.errors import OptionError
from graphflops.links.pipeline import Stage, pipeline, seconds_of


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 3), (2, 2), (4, 8), (8, 64), (8, 4)])
def test_all_but_the_work_of_microbatches_is_bubble(schedule, devices, microbatches):
    found = pipeline([Stage(1.0, 2.0)] * devices, devices, microbatches, schedule)
    assert found.seconds == (microbatches + devices - 1) * (1 + 2)
    assert found.bubble == pytest.approx((devices - 1) / (microbatches + devices - 1))


@pytest.mark.parametrize(("devices", "chunks", "microbatches"), [(4, 2, 8), (4, 4, 16), (8, 2, 8), (2, 3, 4)])
def test_interleaved_stages_shorten_the_bubble(devices, chunks, microbatches):
    stages = [Stage(1.0, 2.0)] * (devices * chunks)
    found = pipeline(stages, devices, microbatches, "interleaved")
    assert found.seconds == (chunks * microbatches + devices - 1) * (1 + 2)
    assert found.bubble == pytest.approx((devices - 1) / (chunks * microbatches + devices - 1))


@pytest.mark.parametrize(("devices", "microbatches"), [(4, 8), (8, 16), (8, 32), (4, 5)])
@pytest.mark.parametrize(("forward", "backward", "weight"), [(1, 1, 1), (4, 5, 3), (3, 4, 2)])
def test_gradients_of_weights_fill_the_bubble(devices, microbatches, forward, backward, weight):
    stages = [Stage(forward, backward, weight)] * devices
    found = pipeline(stages, devices, microbatches, "zero-bubble")
    whole = pipeline(stages, devices, microbatches, "1f1b")
    work = microbatches * (forward + backward + weight)
    assert whole.seconds == work + (devices - 1) * (forward + backward + weight)
    assert found.seconds == work + (devices - 1) * (forward + backward - weight)


def test_what_is_kept_for_gradients():
    assert pipeline([Stage(1, 2)] * 4, 4, 8, "gpipe").saved == (8, 8, 8, 8)
    assert pipeline([Stage(1, 2, saved=5)] * 4, 4, 8, "1f1b").saved == (4 * 5, 3 * 5, 2 * 5, 5)
    assert pipeline([Stage(1, 1, 1)] * 4, 4, 8, "zero-bubble").saved == (4, 4, 4, 4)
    # device 0 of 4 with 2 stages: 2 * 3 + 4 forwards before the first backward, and the one beside it
    assert pipeline([Stage(1, 2)] * 8, 4, 8, "interleaved").saved[0] == 2 * 3 + 4 + 1


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "interleaved"])
def test_many_microbatches_take_as_long_as_a_run_of_all(schedule, monkeypatch):
    chunks = 3 if schedule == "interleaved" else 1
    stages = [Stage(1 + place % 3, 2, 0.5) for place in range(4 * chunks)]
    whole = pipeline(stages, 4, 64, schedule, send=0.1).seconds
    assert seconds_of(stages, 4, 64, schedule, send=0.1) == whole
    monkeypatch.setattr("graphflops.links.pipeline.EXACT", 0)
    settles = 0.005 if chunks > 1 else 1e-9  # unequal stages of a device wait for one another in turns
    assert seconds_of(stages, 4, 64, schedule, send=0.1) == pytest.approx(whole, rel=settles)


def test_messages_delay_the_first_and_the_last_microbatch():
    # one microbatch passes 3 links forwards and 3 backwards
    assert pipeline([Stage(1, 2)] * 4, 4, 1, "1f1b", send=0.25).seconds == 4 * 3 + 2 * 3 * 0.25
    assert pipeline([Stage(1, 2)] * 4, 1, 1, "interleaved", send=0.25).seconds == 4 * 3


def test_the_slowest_stage_decides():
    found = pipeline([Stage(1, 2), Stage(2, 4), Stage(1, 2)], 3, 8, "1f1b")
    # it starts at 1, waits from 5 to 6 for its first gradient, which leaves the last stage at 3 + 1 + 2; then 2 of the first
    assert found.seconds == 1 + 8 * (2 + 4) + 1 + 2


def test_every_step_runs_once_and_no_device_does_two_at_once():
    found = pipeline([Stage(1, 1, 1)] * 4, 4, 6, "zero-bubble", send=0.1)
    assert len({span.step for span in found.spans}) == len(found.spans) == 3 * 4 * 6
    for device in range(4):
        spans = sorted((span.start, span.end) for span in found.spans if span.device == device)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize(
    ("stages", "devices", "microbatches", "schedule"),
    [
        (3, 2, 4, "interleaved"),
        (0, 0, 4, "1f1b"),
        (4, 2, 4, "1f1b"),
        (4, 2, 3, "interleaved"),
        (2, 2, 0, "gpipe"),
    ],
)
def test_impossible_pipelines_are_refused(stages, devices, microbatches, schedule):
    with pytest.raises(OptionError):
        pipeline([Stage(1, 2)] * stages, devices, microbatches, schedule)
