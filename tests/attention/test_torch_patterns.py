"""Every spelling of attention that torch's own fusion pass knows is recognised, as exported and decomposed."""

from __future__ import annotations

import inspect
import warnings
from functools import cache
from typing import Any

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import fuse_attention

from graphflops.analysis import analyze
from graphflops.report import Report

BATCH, HEADS, ROWS, WIDTH = 2, 4, 8, 16
PATTERNS = {
    name: function
    for name, function in vars(fuse_attention).items()
    if name.startswith("_sfdp_pattern_") and inspect.isfunction(function)
}
THREE_AXES = {"_sfdp_pattern_13"}  # batch and heads in one axis


def operands(name: str, dtype: torch.dtype, batch: int) -> dict[str, Any]:
    """Arguments by name; a pattern that permutes gets (batch, rows, heads, width)."""
    permutes = "0, 2, 1, 3" in inspect.getsource(PATTERNS[name])
    shape = (batch, ROWS, HEADS, WIDTH) if permutes else (batch, HEADS, ROWS, WIDTH)
    if name in THREE_AXES:
        shape = (batch * HEADS, ROWS, WIDTH)
    given: dict[str, Any] = {}
    for parameter in inspect.signature(PATTERNS[name]).parameters:
        if parameter in ("query", "key", "value"):
            given[parameter] = torch.randn(shape, dtype=dtype)
        elif parameter == "causal_mask":
            given[parameter] = torch.ones(1, 1, ROWS, ROWS, dtype=torch.bool).tril()
        elif parameter in ("attn_mask", "attention_mask"):
            keys_only = "view((bs, 1, 1, k_len))" in inspect.getsource(PATTERNS[name])
            size = (batch, ROWS) if keys_only else (1, 1, ROWS, ROWS)
            given[parameter] = torch.zeros(size, dtype=dtype)
        else:
            given[parameter] = 0.5  # a scale or the probability of dropout
    return given


class Spelled(torch.nn.Module):
    def __init__(self, name: str, numbers: dict[str, float]) -> None:
        super().__init__()
        self.function, self.numbers = PATTERNS[name], numbers

    def forward(self, **tensors: torch.Tensor) -> Any:
        return self.function(**tensors, **self.numbers)


class Every(torch.nn.Module):
    """One program of all patterns, each a module of its name: decomposing a program takes as long as a whole pattern."""

    def __init__(self, numbers: dict[str, dict[str, float]]) -> None:
        super().__init__()
        for name, given in numbers.items():
            self.add_module(name, Spelled(name, given))

    def forward(self, **tensors: dict[str, torch.Tensor]) -> Any:
        return [self.get_submodule(name)(**given) for name, given in tensors.items()]


@cache
def reports(dtype: torch.dtype, batch: int) -> list[Report]:
    """Of the program as exported, and decomposed by both of torch's tables."""
    tensors, numbers = dict[str, Any](), dict[str, Any]()
    for name in PATTERNS:
        given = operands(name, dtype, batch)
        tensors[name] = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
        numbers[name] = {key: value for key, value in given.items() if key not in tensors[name]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Every(numbers), (), tensors, strict=False)
        tables = None, select_decomp_table()
        return [analyze(program), *(analyze(program.run_decompositions(table)) for table in tables)]


def test_torch_has_its_patterns() -> None:
    assert len(PATTERNS) >= 19


@pytest.mark.parametrize("dtype, batch", [(torch.float32, BATCH), (torch.float16, 1)])
@pytest.mark.parametrize("name", [*PATTERNS])
def test_a_pattern_is_one_attention(name: str, dtype: torch.dtype, batch: int) -> None:
    for report in reports(dtype, batch):
        (use,) = (use for use in report.attentions if use.module == name)
        assert not use.is_fused
        assert (use.queries, use.keys, use.width, use.value_width) == (ROWS, ROWS, WIDTH, WIDTH)
        assert use.batch * use.heads == batch * HEADS
        if name not in THREE_AXES:
            assert (use.batch, use.heads, use.kv_heads) == (batch, HEADS, HEADS)
        products = sum(row.cost.matrix_flops for row in report.rows if row.module == name)
        assert use.flops == 2 * 2 * batch * HEADS * ROWS * ROWS * WIDTH == products
        has_mask = any("mask" in parameter for parameter in inspect.signature(PATTERNS[name]).parameters)
        assert use.mask == ("tensor" if has_mask else "none")


def test_no_work_is_of_no_pattern() -> None:
    for report in reports(torch.float32, BATCH):
        assert {row.module for row in report.rows if row.cost.matrix_flops} == set(PATTERNS)
        assert {use.module for use in report.attentions} == set(PATTERNS)
