"""Masks that are built only while a model is exported take no memory in eager execution."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import analyze

torch = pytest.importorskip("torch")

BATCH, LENGTH, WIDTH = 2, 64, 32


class Masked(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Attention with a mask that hides nothing, as transformers builds it while exporting."""

    def forward(self, x: Any) -> Any:
        mask = self.create_bidirectional_mask(x.shape[0], x.shape[1])
        return torch.nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], mask)

    def create_bidirectional_mask(self, batch: int, length: int) -> Any:
        return torch.ones(batch, 1, 1, length, dtype=torch.bool).expand(batch, 1, length, length)


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
def test_a_mask_that_hides_nothing_is_not_there(is_open: bool) -> None:
    dynamic = ({0: torch.export.Dim("batch", min=1, max=512)},) if is_open else None
    program = torch.export.export(
        Masked().eval(), (torch.zeros(BATCH, LENGTH, WIDTH),), dynamic_shapes=dynamic
    )
    report = analyze(program, execution="eager")
    ours = BATCH * LENGTH * WIDTH * 4
    held = [held for held in report.memory.held if held.kind != "input"]
    assert {held.name for held in held if (report.value(held.bytes) or 0) < ours} == set()
