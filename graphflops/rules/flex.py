"""Attention with the program's own score and mask functions, over blocks of the score matrix.

Dense products are counted; what the functions hide is in `masked_flops`, exact to the pair if `Seen` is. Work for each score
(scaling, softmax, the score function) is done for every pair of a block that runs; the mask function's work is done in
blocks that are partly visible. The functions' traffic stays in registers and is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from graphflops.attention.attention_use import Masking
from graphflops.base.record import replace
from graphflops.cost import Estimate, RegionRun, Value
from graphflops.dims import Dim, Expr, dim_min, floor_div, total
from graphflops.errors import NoRuleError
from graphflops.rules.attention import MASK, Attention, Given, attend
from graphflops.rules.indexing import index
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, rule
from graphflops.rules.shapes import Tensors, tensors_of
from graphflops.tensor import FLOAT32, INT32, TensorType, flat

PARTIAL_BLOCKS, FULL_BLOCKS = 2, 4  # places in the block mask: how many blocks each row of blocks sees
LARGEST_BLOCK = 2**30  # rows and columns of the single block of torch's default mask


@dataclass(frozen=True, slots=True)
class Seen:
    """What is visible of one attention, summed over its batch entries and heads."""

    doubled_pairs: Dim  # twice the pairs of a query and a key that the functions let through
    executed: Dim  # pairs in blocks that run
    asked: Dim  # pairs on which the mask function runs
    partial_blocks: Dim | None = None  # partly visible blocks that run; None if not known, or if none
    full_blocks: Dim | None = None  # fully visible blocks that run; None likewise
    mask: Masking = "structure"  # what hides scores; `tensor` where more may be hidden than is known
    pattern: str = ""  # the name of the visible form


def index_operands(query: TensorType) -> Tensors:
    """Batch, head, query and key of one score."""
    return (query.like((), INT32),) * 4


def flex_problem(given: Given) -> tuple[Attention, Seen]:
    """The attention inside, and what of it is visible."""
    query, block_mask, seen = given["query"], given["block_mask"], given.get("seen")
    problem = attend(query, given["key"], given["value"])
    if seen is None:  # known from types alone: the pairs in the blocks if these are counted, else all
        counts = tensors_of((block_mask[PARTIAL_BLOCKS], block_mask[FULL_BLOCKS]))
        rows, columns = block_mask[-3], block_mask[-2]
        executed: Dim = problem.scores
        known = bool(counts) and all(x.value is not None for x in counts)
        if known and isinstance(rows, (int, Expr)) and isinstance(columns, (int, Expr)):
            blocks = total(flat(x.value for x in counts))
            heads = floor_div(problem.rows, query.shape[-2])
            mask_heads = counts[0].shape[0] * counts[0].shape[1]
            executed = dim_min(floor_div(blocks * heads, mask_heads) * rows * columns, problem.scores)
        seen = Seen(2 * executed, executed, executed, mask="tensor")
    hides = seen.doubled_pairs != 2 * problem.scores
    return replace(problem, doubled_visible=seen.doubled_pairs if hides else None), seen


def with_functions(given: Given, estimate: Callable[[Attention], Estimate], *scores: RegionRun) -> Estimate:
    """The attention's estimate, with its own work and the functions' work for each pair that runs.

    The functions' graphs are listed as run zero times: to run them would count traffic of scores that stay on chip.
    The mask function is the block mask's last entry.
    """
    problem, seen = flex_problem(given)
    buffers = given.get("mask_mod_other_buffers") or ()
    mask: RegionRun = given["block_mask"][-1](*index_operands(problem.query), *buffers)
    dense = estimate(problem)
    executed = estimate(replace(problem, scores=seen.executed, doubled_visible=None))

    def work(name: str) -> Dim:
        of_scores, of_mask = (total(getattr(run.cost, name) for run in runs) for runs in (scores, (mask,)))
        return seen.executed * of_scores + seen.asked * of_mask

    return replace(
        dense,
        vector_flops=executed.vector_flops + work("vector_flops") + seen.asked * MASK,
        transcendentals=executed.transcendentals + work("transcendentals"),
        regions=tuple((run, 0) for run in (*scores, mask)),
    )


_SETTINGS = "block_mask? scale? kernel_options? score_mod_other_buffers? mask_mod_other_buffers? seen?"


@rule("higher_order.flat_apply")
def flat_apply(function: Value, operands: Value, name: Value, *rest: TensorType) -> Estimate:
    """Indexing by numbers of a score or mask function, which is all that programs of attention call in this way."""
    if not str(name).endswith(".ModIndex") or len(rest) < 2:
        raise NoRuleError("higher_order.flat_apply")
    return index(rest[0], rest[1:])


@rule("higher_order.flex_attention").takes(f"query key value score_mod? {_SETTINGS}")
def flex_attention(of: Operands) -> Estimate:
    """Two products per score and both functions' own work; row sums and row maxima are results too."""
    query, key, value, score_mod, block_mask, *_ = of
    of_scores, of_masks = of.score_mod_other_buffers or (), of.mask_mod_other_buffers or ()
    one = replace(query.like(()), requires_grad=any(x.requires_grad for x in (query, key, value)))
    score = score_mod(one, *index_operands(query), *of_scores)
    per_row = query.like(query.shape[:-1], FLOAT32)
    results = query.like((*query.shape[:-1], value.shape[-1])), per_row, per_row
    reads = tensors_of((*block_mask[:-1], *of_scores, *of_masks))
    return with_functions(of.given, lambda problem: problem.forward(*results, reads=reads), score)


@rule("higher_order.flex_attention_backward").takes(
    f"query key value out logsumexp grad_out? grad_logsumexp? fw_graph? joint_graph? {_SETTINGS}"
)
def flex_attention_backward(of: Operands) -> Estimate:
    """Five products, the scores being recomputed; the score function, its gradient and the mask's work."""
    of_scores, of_masks = of.score_mod_other_buffers or (), of.mask_mod_other_buffers or ()
    places, score = index_operands(of.query), of.query.like(())
    runs = of.fw_graph(score, *places, *of_scores), of.joint_graph(score, *places, score, *of_scores)
    wants = ("query", "key", "value")
    estimate = with_functions(of.given, lambda problem: problem.backward(wants, of.out), *runs)
    buffers = tuple(x.like() if isinstance(x, TensorType) else None for x in of_scores)
    results = (*estimate.out[:3], *buffers)
    reads = tensors_of((*of.block_mask[:-1], *of_scores, *of_masks))
    return estimate.plus(out=results, writes=tensors_of(results), reads=reads)


@backward("higher_order.flex_attention")
def flex_attention_gradient(call: ForwardCall) -> Estimate:
    """Five products, the scores being recomputed; the score function's gradient costs as much as itself."""
    query, buffers = call["query"], call.get("score_mod_other_buffers", ())
    score = call["score_mod"](query.like(()), *index_operands(query), *buffers)
    estimate = with_functions(call.arguments, lambda of: of.backward(call.wants, call.out), score, score)
    captured = tuple(x.like() for x in tensors_of(buffers) if x.requires_grad)
    results = (*tensors_of(estimate.out), *captured)
    return estimate.plus(out=results, writes=results, reads=tensors_of(buffers))
