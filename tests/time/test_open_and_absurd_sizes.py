"""Times of programs with sizes that only data tell, and with sizes that no device holds."""

from __future__ import annotations

from typing import Any

import pytest

import graphflops

torch = pytest.importorskip("torch")


class Chosen(torch.nn.Module):
    """A product of the rows that a mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(64, 64, device="meta"))

    def forward(self, x: Any) -> Any:
        return (x @ self.weight)[x[:, 0] > 0].relu().sum()


class Vast(torch.nn.Module):
    """A table of 2 ** 48 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.empty(2**40, 2**8, device="meta"))

    def forward(self, ids: Any) -> Any:
        return torch.nn.functional.embedding(ids, self.table)


@pytest.mark.parametrize("training", [False, True])
def test_a_size_that_data_tell_makes_a_compiled_time_a_lower_bound(training: bool) -> None:
    program = graphflops.capture(Chosen(), (torch.zeros(128, 64, device="meta"),))
    given: Any = {"device": "h200", "execution": "compiled", "training": training, "assume": False}
    time = graphflops.analyze(program, **given).totals.time
    assert time is not None
    assert time.is_lower_bound
    assert time.seconds > 0


def test_an_optimizer_over_more_than_any_device_holds_is_a_lower_bound() -> None:
    program = graphflops.capture(Vast(), (torch.zeros(16, dtype=torch.long, device="meta"),))
    report = graphflops.analyze(program, device="h200", training=True)
    assert report.step_time is not None
    assert report.step_time.is_lower_bound
