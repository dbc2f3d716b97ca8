"""Lowers attention without a fused kernel: two products in float32 with a softmax between them, its scores in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import prod
from graphflops.inductor.padding import aligned_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.inductor.lowering import Lowering
    from graphflops.kernels.attention_memory import AttentionMemory
    from graphflops.passes.program import PricedCall

_FLOAT_BYTES = 4


def unfused(
    low: Lowering,
    call: PricedCall,
    found: AttentionMemory,
    operands: Sequence[str],
    made: Sequence[str],
) -> Mapping[str, str]:
    """Append the operators of one attention; the tensors that its gradient reads, by use."""
    name, problem = call.node.name, found.problem
    values = call.tensors(low.values)
    sizes = [found.repeated(operand) for operand in problem.operands]
    names = {
        use: low.copied(call, operands[place], sizes[place], use, 8 * _FLOAT_BYTES, of=values[place])
        for place, use in enumerate(("query", "key"))
    }
    names |= {use: f"{name} {use}" for use in ("scores", "statistics", "probabilities", "result")}
    made_of = {names["scores"]: found.scores}
    low.add(call, "extern", tuple(made_of), (names["query"], names["key"]), sizes=made_of)
    names |= _softmax(low, call, found, names, operands[3:4])
    names["value"] = low.copied(call, operands[2], sizes[2], "value", 8 * _FLOAT_BYTES, of=values[2])
    shape = (*problem.query.type.shape[:-1], problem.value.type.shape[-1])
    result = {names["result"]: prod(shape) * _FLOAT_BYTES}
    views = frozenset((names["weights"],))
    low.add(call, "extern", tuple(result), (names["weights"], names["value"]), sizes=result, views=views)
    low.add(call, "pointwise", made[:1], (names["result"],))
    low.joint.labels.update((tensor, (name, "saved")) for tensor in names.values())
    return names


def _softmax(
    low: Lowering, call: PricedCall, found: AttentionMemory, names: Mapping[str, str], mask: Sequence[str]
) -> dict[str, str]:
    """Append mask, softmax and dropout of the scores; the names of the weights, and of the mask of the dropout."""
    name, scores, problem = call.node.name, found.scores, found.problem
    rows, space = prod(problem.query.type.shape[:-1]), low.joint.number(found.scores) // _FLOAT_BYTES
    read = [names["scores"]]
    if mask:
        read = [f"{name} masked scores"]
        low.add(call, "pointwise", read, (names["scores"], *mask), {read[0]: scores}, space)
    moments = {names["statistics"]: 2 * _FLOAT_BYTES * rows}
    low.add(call, "reduction", tuple(moments), read, moments, space, kept=low.joint.number(rows))
    shape = (*problem.query.type.shape[:-1], problem.key.type.shape[-2])
    size = aligned_bytes(shape, 8 * _FLOAT_BYTES) or scores
    probabilities = {names["probabilities"]: size}
    low.add(call, "pointwise", tuple(probabilities), (*read, names["statistics"]), probabilities, space)
    if not problem.dropout:
        return {"weights": names["probabilities"]}
    random, drawn = f"{name} random", f"{name} mask"
    low.add(call, "pointwise", (random,), (), {random: scores}, space, recomputable=False, is_random=True)
    low.add(call, "pointwise", (drawn,), (random,), {drawn: scores // _FLOAT_BYTES}, space)
    weights = {f"{name} weights": size}
    low.add(call, "pointwise", tuple(weights), (*probabilities, drawn), weights, space)
    return {"weights": next(iter(weights)), "mask": drawn}
