"""Lowers attention and its gradients: one kernel of a library, or two products in float32 with a softmax between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import prod
from graphflops.inductor.layout_choice import aligned_bytes
from graphflops.inductor.lowering import FLOAT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.inductor.lowering import GradientLowering, Lowered, Lowering
    from graphflops.kernels.attention_memory import AttentionMemory

# Gradients that attention without a fused kernel computes in memory, and the tensors of the forward of the same size.
_UNFUSED = {
    "result": "result",
    "value": "value",
    "probabilities": "scores",
    "sums": "statistics",
    "scores": "scores",
    "query": "query",
    "key": "key",
}
_USES = ("query", "key", "value", "scores")  # of operands, by place


def attention(low: Lowering, of: Lowered) -> None:
    """A fused kernel that keeps the row sums, or two products with a softmax between them."""
    found = low.execution.attention(of.call)
    if found is None:
        low.extern(of)
        return
    if not found.is_fused:
        _unfused(low, of, found)
        return
    reads, out = [*of.operands], of.made[0]
    if found.mask_copy != 0:
        reads[3] = _converted_mask(low, of, found)
    sizes = {out: low.nbytes(out)}
    if low.training or found.choice.kernel == "flash":
        sums = low.save(of, "row sums", f"{of.call.node.name} row sums")
        sizes[sums] = prod(found.problem.query.type.shape[:-1]) * FLOAT_BYTES
    low.add(of, "extern", sizes, reads, allocates=True)
    of.beside.update({"mask": reads[3]} if len(reads) > 3 else {})


def _converted_mask(low: Lowering, of: Lowered, found: AttentionMemory) -> str:
    """The copy of a mask that a fused kernel reads. The partitioner finds that attentions with one mask share it."""
    mask, size, bits = of.operands[3], found.mask_copy, found.problem.query.type.dtype.bits
    if not low.training:
        return low.copied(of, mask, size, "mask", bits)
    shared = f"{mask} converted"
    if shared not in low.joint.sizes:
        low.add(of, "pointwise", {shared: size}, (mask,), low.joint.number(size) * 8 // bits)
    return shared


def _unfused(low: Lowering, of: Lowered, found: AttentionMemory) -> None:
    """Append the operators of one attention; its gradient reads all that they make."""
    problem = found.problem
    query, key, value = [
        (of.operands[place], found.repeated(operand), _USES[place], 8 * FLOAT_BYTES)
        for place, operand in enumerate(problem.operands)
    ]
    names = {
        "query": low.copied(of, *query, value=of.names[0]),
        "key": low.copied(of, *key, value=of.names[1]),
    }
    uses = ("scores", "statistics", "probabilities", "result")
    names |= {use: f"{of.call.node.name} {use}" for use in uses}
    low.add(of, "extern", {names["scores"]: found.scores}, (names["query"], names["key"]))
    names |= _softmax(low, of, found, names, of.operands[3:4])
    names["value"] = low.copied(of, *value, value=of.names[2])
    shape = (*problem.query.type.shape[:-1], problem.value.type.shape[-1])
    result, weights = {names["result"]: prod(shape) * FLOAT_BYTES}, names["weights"]
    low.add(of, "extern", result, (weights, names["value"]), views=frozenset((weights,)))
    low.add(of, "pointwise", of.made[:1], (names["result"],))
    for use, tensor in names.items():
        low.save(of, use, tensor)


def _softmax(
    low: Lowering, of: Lowered, found: AttentionMemory, names: Mapping[str, str], mask: Sequence[str]
) -> dict[str, str]:
    """Append mask, softmax and dropout of the scores; the names of the weights, and of the mask of the dropout."""
    name, scores, problem = of.call.node.name, found.scores, found.problem
    rows, space = prod(problem.query.type.shape[:-1]), low.joint.number(scores) // FLOAT_BYTES
    read = names["scores"]
    if mask:
        read = f"{name} masked scores"
        low.add(of, "pointwise", {read: scores}, (names["scores"], *mask), space)
    moments = {names["statistics"]: 2 * FLOAT_BYTES * rows}
    low.add(of, "reduction", moments, (read,), space, kept=low.joint.number(rows))
    shape = (*problem.query.type.shape[:-1], problem.key.type.shape[-2])
    size, probabilities = aligned_bytes(shape, 8 * FLOAT_BYTES) or scores, names["probabilities"]
    low.add(of, "pointwise", {probabilities: size}, (read, names["statistics"]), space)
    if not problem.dropout:
        return {"weights": probabilities}
    random, drawn, weights = (f"{name} {use}" for use in ("random", "mask", "weights"))
    low.add(of, "pointwise", {random: scores}, (), space, recomputable=False, is_random=True)
    low.add(of, "pointwise", {drawn: scores // FLOAT_BYTES}, (random,), space)
    low.add(of, "pointwise", {weights: size}, (probabilities, drawn), space)
    return {"weights": weights, "mask": drawn}


def attention_gradient(back: GradientLowering, of: Lowered) -> None:
    """One call for all gradients of a fused kernel; else four products with the gradient of a softmax between them."""
    found = back.forward.execution.attention(of.call)
    if found is None or found.is_fused:
        reads = (*of.incoming[:1], *of.operands[:3], *of.results[:1], *of.beside.values())
        workspace = back.workspace(of) if found is None else found.backward
        back.add(of, "extern", of.fresh.values(), reads, workspace=workspace, allocates=True)
        return
    kept, sizes = of.beside, back.joint.sizes
    space = back.joint.number(sizes[kept["scores"]]) // FLOAT_BYTES
    rows = back.joint.number(sizes[kept["statistics"]]) // (2 * FLOAT_BYTES)
    made = {use: back.new(of.call.node.name, sizes[kept[source]]) for use, source in _UNFUSED.items()}
    softmax = (made["probabilities"], kept["probabilities"], *([kept["mask"]] if "mask" in kept else []))
    weights = kept["weights"]
    back.add(of, "pointwise", (made["result"],), of.incoming[:1])
    back.add(of, "extern", (made["value"],), (made["result"], weights), views=frozenset((weights,)))
    back.add(of, "extern", (made["probabilities"],), (made["result"], kept["value"]))
    back.add(of, "reduction", (made["sums"],), softmax, space, kept=rows)
    back.add(of, "pointwise", (made["scores"],), (*softmax, made["sums"]), space)
    back.add(of, "extern", (made["query"],), (made["scores"], kept["key"]))
    back.add(of, "extern", (made["key"],), (made["scores"], kept["query"]))
    for place, tensor in of.fresh.items():
        source, count = made[_USES[min(place, 3)]], back.forward.elements(of.names[place])
        elements = back.joint.number(sizes[source]) // FLOAT_BYTES
        if count >= elements:
            back.add(of, "pointwise", (tensor,), (source,), elements, is_inner=False)
        else:
            back.add(of, "reduction", (tensor,), (source,), elements, kept=count, is_inner=False)
