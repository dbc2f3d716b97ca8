"""Masks that are built only while a model is exported take no memory in eager execution."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import analyze
from graphflops.execution.source_lines import has_fact
from tests.memory.renaming import in_library

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
    report = analyze(in_library(program, "mask("), execution="eager")
    ours = BATCH * LENGTH * WIDTH * 4
    held = [held for held in report.memory.held if held.kind != "input"]
    assert {held.name for held in held if (report.value(held.bytes) or 0) < ours} == set()


@pytest.mark.parametrize(
    ("file", "text", "is_known"),
    [
        (
            "/usr/lib/site-packages/transformers/models/llama/modeling_llama.py",
            "m = create_causal_mask(",
            True,
        ),
        (r"C:\lib\site-packages\transformers\models\bert\modeling_bert.py", "m = create_causal_mask(", True),
        ("/me/transformers/src/transformers/masking_utils.py", "return create_causal_mask(", True),
        ("/usr/lib/site-packages/transformers/models/llama/modeling_llama.py", "m = self.mask(x)", False),
        ("/home/me/transformers/model.py", "m = create_causal_mask(", False),
        ("/home/me/model.py", "m = create_causal_mask(", False),
    ],
)
def test_masks_of_exports_are_known_by_the_librarys_files(file: str, text: str, is_known: bool) -> None:
    assert has_fact("export-only mask", file, text) == is_known
