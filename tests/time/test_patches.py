"""Convolutions of patches: the library adds all of a patch up in one block, however few blocks there are."""

import pytest
import torch

import graphflops


def seconds(size: int) -> float:
    model = torch.nn.Conv2d(3, 384, size, size, bias=False).bfloat16()
    program = graphflops.capture(model, (torch.rand(1, 3, 224, 224, dtype=torch.bfloat16),))
    (row,) = graphflops.analyze(program, device="h200", execution="graph").rows
    assert row.time is not None
    return row.time.seconds


def test_a_patch_is_added_up_step_by_step() -> None:
    # microseconds on an H200, as the profiler timed the kernel for one image
    assert seconds(16) * 1e6 == pytest.approx(47.7, rel=0.1)
