"""Masks that are built only while a model is exported take no memory in eager execution."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops import analyze
from graphflops.execution.export_only import without_whole_slices
from graphflops.execution.source_lines import has_fact
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.memory.renaming import in_library
from tests.support import t

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


def kept(*nodes: tuple[str, str, tuple[Any, ...]], returned: tuple[str, ...] = ()) -> list[str]:
    """Of calls on one line that an operand of 4 x 6 x 6 goes through, those that run, and what each reads."""
    made = tuple(
        Node(name, op, (Ref(read), *rest), outputs=(name,), python_stack="one line")
        for name, op, (read, *rest) in nodes
    )
    graph = Graph(made, {"x": t(4, 6, 6)}, (Input("x", "user"),), (Output(Ref(made[-1].name)),))
    main = price(graph, bind(graph, {}, {}), facts_of).main
    found = without_whole_slices(main.calls, main.values, returned)
    return [f"{call.node.name}({call.uses[0]})" for call in found]


SELECT, SLICE = "aten.select.int", "aten.slice.Tensor"


def test_slices_of_everything_in_an_index_are_no_calls() -> None:
    """`x[:, 0]` is a slice of the whole and one position."""
    whole, picked = ("a", SLICE, ("x", 0, 0, 9223372036854775807)), ("b", SELECT, ("a", 1, 0))
    assert kept(whole, picked) == ["b(x)"]
    assert kept(whole, picked, returned=("a",)) == ["a(x)", "b(a)"]
    assert kept(whole, ("b", "aten.relu.default", ("a",))) == ["a(x)", "b(a)"]  # `x[:]` is a view
    after = ("c", SLICE, ("b", 0, 0, 9223372036854775807))
    assert kept(("b", SELECT, ("x", 1, 0)), after, ("d", "aten.relu.default", ("c",))) == ["b(x)", "d(b)"]
    part = ("a", SLICE, ("x", 0, 0, 3))
    assert kept(part, picked) == ["a(x)", "b(a)"]


def test_other_views_of_the_same_shape_run() -> None:
    """`x[0].transpose(0, 1)` of a square matrix."""
    turned = ("b", "aten.transpose.int", ("a", 0, 1))
    assert kept(("a", SELECT, ("x", 0, 0)), turned) == ["a(x)", "b(a)"]
