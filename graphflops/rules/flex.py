"""Attention with the program's own score and mask functions, over blocks of the score matrix.

The functions' work is counted once per score; their traffic stays in registers and is not. Dense products are
counted; where the numbers of visible blocks are known, what whole masked blocks save is `masked_flops`.
Within a partly masked block all products run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.dims import Dim, Expr, dim_min, floor_div, total
from graphflops.rules.attention import MASK, Attention, attend
from graphflops.rules.elementwise import result_of
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.tensor import FLOAT32, INT32, Contents, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.cost import Estimate, Region, RegionRun, Value

PARTIAL_BLOCKS, FULL_BLOCKS = 2, 4  # places in the block mask: how many blocks each row of blocks sees


def index_operands(query: TensorType) -> tuple[TensorType, ...]:
    """Batch, head, query and key of one score."""
    return (query.like((), INT32),) * 4


def block_sum(contents: Contents) -> Dim:
    """The sum of all numbers in known contents."""
    if isinstance(contents, tuple):
        return total(block_sum(part) for part in contents)
    assert isinstance(contents, (int, Expr))
    return contents


def visible_scores(problem: Attention, block_mask: Sequence[Value]) -> Dim | None:
    """Scores in blocks that are computed, or None where the numbers of blocks are not known."""
    counts = [x for x in (block_mask[PARTIAL_BLOCKS], block_mask[FULL_BLOCKS]) if isinstance(x, TensorType)]
    rows, columns = block_mask[-3], block_mask[-2]
    if not counts or any(x.value is None for x in counts):
        return None
    if not isinstance(rows, (int, Expr)) or not isinstance(columns, (int, Expr)):
        return None
    blocks = total(block_sum(x.value) for x in counts if x.value is not None)
    heads, mask_heads = (
        floor_div(problem.rows, problem.query.shape[-2]),
        counts[0].shape[0] * counts[0].shape[1],
    )
    return dim_min(floor_div(blocks * heads, mask_heads) * rows * columns, problem.scores)


def flex_problem(
    query: TensorType, key: TensorType, value: TensorType, block_mask: Sequence[Value]
) -> Attention:
    """The attention inside, with what whole masked blocks save."""
    problem = attend(query, key, value)
    visible = visible_scores(problem, block_mask)
    return problem if visible is None else replace(problem, doubled_visible=2 * visible)


def with_functions(estimate: Estimate, problem: Attention, *runs: RegionRun) -> Estimate:
    """The estimate with each function's arithmetic, and the selection by the mask, once per score.

    The functions' graphs are listed as run no times, for running them would count the traffic of scores that
    stay on chip.
    """
    per_score = MASK - problem.masking + total(run.cost.vector_flops for run in runs)
    return replace(
        estimate,
        vector_flops=estimate.vector_flops + problem.scores * per_score,
        transcendentals=estimate.transcendentals
        + problem.scores * total(run.cost.transcendentals for run in runs),
        regions=tuple((run, 0) for run in runs),
    )


def tensors(*values: Value) -> tuple[TensorType, ...]:
    """Of the values those that are read."""
    return tuple(value for value in values if isinstance(value, TensorType))


@rule("higher_order.flex_attention")
def flex_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    score_mod: Region,
    block_mask: tuple[Value, ...],
    scale: float,
    kernel_options: object,
    score_mod_other_buffers: tuple[Value, ...] = (),
    mask_mod_other_buffers: tuple[Value, ...] = (),
) -> Estimate:
    """Two products per score and both functions' own work; row sums and row maxima are results too."""
    problem = flex_problem(query, key, value, block_mask)
    places = index_operands(query)
    runs = (
        score_mod(query.like(()), *places, *score_mod_other_buffers),
        mask_function(block_mask)(*places, *mask_mod_other_buffers),
    )
    per_row = query.like(query.shape[:-1], FLOAT32)
    out = query.like((*query.shape[:-1], value.shape[-1]))
    reads = tensors(*block_mask[:-1], *score_mod_other_buffers, *mask_mod_other_buffers)
    return with_functions(problem.forward(out, per_row, per_row, reads=reads), problem, *runs)


@rule("higher_order.flex_attention_backward")
def flex_attention_backward(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    out: TensorType,
    logsumexp: TensorType,
    grad_out: TensorType | None,
    grad_logsumexp: TensorType | None,
    fw_graph: Region,
    joint_graph: Region,
    block_mask: tuple[Value, ...],
    scale: float,
    kernel_options: object,
    score_mod_other_buffers: tuple[Value, ...] = (),
    mask_mod_other_buffers: tuple[Value, ...] = (),
) -> Estimate:
    """Five products, the scores being recomputed; the score function, its gradient and the mask's work."""
    problem = flex_problem(query, key, value, block_mask)
    places, score = index_operands(query), query.like(())
    runs = (
        fw_graph(score, *places, *score_mod_other_buffers),
        joint_graph(score, *places, score, *score_mod_other_buffers),
        mask_function(block_mask)(*places, *mask_mod_other_buffers),
    )
    estimate = problem.backward(("query", "key", "value"), out)
    buffers = tuple(x.like() if isinstance(x, TensorType) else None for x in score_mod_other_buffers)
    results = (*estimate.out[:3], *buffers)
    reads = tensors(*block_mask[:-1], *score_mod_other_buffers, *mask_mod_other_buffers)
    estimate = replace(estimate, out=results, writes=tensors(*results), reads=(*estimate.reads, *reads))
    return with_functions(estimate, problem, *runs)


@backward("higher_order.flex_attention")
def flex_attention_gradient(call: ForwardCall) -> Estimate:
    """Five products, the scores being recomputed; the score function's gradient costs as much as itself."""
    given = call.arguments
    query, block_mask = given["query"], given["block_mask"]
    buffers = given.get("score_mod_other_buffers", ())
    problem = flex_problem(query, given["key"], given["value"], block_mask)
    places = index_operands(query)
    score = given["score_mod"](query.like(()), *places, *buffers)
    mask = mask_function(block_mask)(*places, *given.get("mask_mod_other_buffers", ()))
    estimate = problem.backward(call.wants, result_of(call))
    captured = tuple(x.like() for x in tensors(*buffers) if x.requires_grad)
    results = (*tensors(*estimate.out), *captured)
    estimate = replace(estimate, out=results, writes=results, reads=(*estimate.reads, *tensors(*buffers)))
    return with_functions(estimate, problem, score, score, mask)


def mask_function(block_mask: Sequence[Value]) -> Region:
    """The block mask's last entry, a nested graph."""
    return block_mask[-1]  # type: ignore[return-value]
