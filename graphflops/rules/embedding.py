"""Embedding lookups: only the returned rows are read, not the whole table."""

from __future__ import annotations

from graphflops.cost import Estimate, picked
from graphflops.dims import Dim
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import shown, tensors_of
from graphflops.tensor import PartType, TensorType

KIND = "scatter"

SUM, MEAN, MAX = 0, 1, 2  # how embedding_bag reduces the rows of a bag


@rule("aten.embedding")
def embedding(weight: TensorType, indices: TensorType) -> Estimate:
    """One row of the table per index; no arithmetic."""
    require(weight.rank == 2, f"a table of rows has two axes, not {shown(weight.shape)}")
    return picked(weight.like((*indices.shape, weight.shape[1])), indices)


@rule("aten.embedding_dense_backward")
def embedding_dense_backward(
    grad_output: TensorType, indices: TensorType, num_weights: Dim, *, scale_grad_by_freq: bool = False
) -> Estimate:
    """Sums the gradients of every use of a row; `scale_grad_by_freq` also divides by the number of uses."""
    out = grad_output.like((num_weights, grad_output.shape[-1]))
    work = grad_output.numel * (2 if scale_grad_by_freq else 1)
    return Estimate((out,), vector_flops=work, reads=(grad_output, indices))


@rule("aten.embedding_backward")
def embedding_backward(
    grad: TensorType, indices: TensorType, num_weights: Dim, *, scale_grad_by_freq: bool, sparse: bool
) -> Estimate:
    """As `embedding_dense_backward`, or as `embedding_sparse_backward`."""
    if sparse:
        return embedding_sparse_backward(grad, indices, num_weights)
    return embedding_dense_backward(grad, indices, num_weights, scale_grad_by_freq=scale_grad_by_freq)


@rule("aten.embedding_sparse_backward")
def embedding_sparse_backward(grad: TensorType, indices: TensorType, num_weights: Dim) -> Estimate:
    """Keeps the gradients of the rows and their indices as a sparse tensor."""
    out = grad.like((num_weights, grad.shape[-1]))
    return Estimate((out,), reads=(grad, indices), writes=(grad, indices))


backward("aten.embedding")(  # the gradient is dense
    lambda call: embedding_dense_backward(call.out.like(), call["indices"], call["weight"].shape[0])
)


def renormed(weight: TensorType, indices: TensorType, *, in_place: bool) -> Estimate:
    """Scales the looked-up rows down to a norm, in the table or a copy; every index is assumed to occur once."""
    rows = weight.like((indices.numel, weight.shape[1]))
    return Estimate(
        (weight.like(),),
        vector_flops=3 * rows.numel,
        transcendentals=indices.numel,
        reads=(rows if in_place else weight, indices),
        writes=(rows if in_place else weight.like(),),
    )


rule("aten.embedding_renorm_").derived(renormed, in_place=True)
rule("aten.embedding_renorm").derived(renormed, in_place=False)


@takes(f"weight indices offsets * per_sample_weights?; mode={SUM} include_last_offset=False padding_idx=-1")
def embedding_bag(of: Operands, *, last_counts: bool = True, none_unpadded: bool = False) -> Estimate:
    """Looks rows up and reduces each bag by sum, mean or maximum.

    One operation per element of every row, one more if rows are weighted, and one per result of a mean. The sizes of bags
    are written; each row's bag is also written, unless rows are only summed, as on the CPU.

    last_counts: whether the end of the last bag, if the offsets include it, has a size of its own.
    none_unpadded: whether a negative padding row counts from the end, so that only None means no padding.
    """
    (weight, indices, offsets, per_sample_weights), mode = of, of.mode
    padded = of.padding_idx is not None and (none_unpadded or of.padding_idx >= 0)
    counted = offsets.shape[0] - (0 if last_counts else of.include_last_offset)
    bags, width, looked_up = offsets.shape[0] - of.include_last_offset, weight.shape[1], indices.numel
    out, rows = weight.like((bags, width)), weight.like((looked_up, width))
    plain = mode == SUM and weight.dtype.name in ("float32", "float16") and not padded
    helpers = ((0 if plain else looked_up,), (counted,), (bags, width) if mode == MAX else (bags,))
    weighted = per_sample_weights is not None
    return Estimate(
        (out, *(offsets.like(shape) for shape in helpers)),
        vector_flops=rows.numel * (1 + weighted) + (out.numel if mode == MEAN else 0),
        reads=(rows, indices, offsets, per_sample_weights),
    )


rule("aten.embedding_bag", "aten._embedding_bag_forward_only").derived(embedding_bag)
rule("aten._embedding_bag").derived(embedding_bag, last_counts=False)
rule("aten.embedding_bag.padding_idx").derived(embedding_bag, none_unpadded=True)


@rule("aten._embedding_bag_dense_backward", "aten._embedding_bag_backward").takes(
    "grad indices * offset2bag bag_size maximum_indices per_sample_weights?"
)
def embedding_bag_backward(of: Operands, *, num_weights: Dim, mode: int) -> Estimate:
    """Each bag's gradient added to its rows: one operation per element, one more where it is scaled."""
    out = of.grad.like((num_weights, of.grad.shape[1]))
    scaled = mode == MEAN or of.per_sample_weights is not None
    touched = of.grad.numel if mode == MAX else of.indices.numel * of.grad.shape[1]
    reads = of.but("offset2bag" if mode == MAX else "maximum_indices")
    return Estimate((out,), vector_flops=touched * (1 + scaled), reads=reads)


@rule("aten._embedding_bag_sparse_backward").takes("grad indices * offset2bag bag_size per_sample_weights?")
def embedding_bag_sparse_backward(of: Operands, *, num_weights: Dim, mode: int) -> Estimate:
    """Each bag's gradient copied for each of its rows, and scaled if the forward pass scaled."""
    rows, out = (of.grad.like((count, of.grad.shape[1])) for count in (of.indices.numel, num_weights))
    scaled = mode == MEAN or of.per_sample_weights is not None
    return Estimate((out,), vector_flops=rows.numel * scaled, reads=(*of,), writes=(rows, of.indices))


@rule("aten._embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(
    grad: TensorType, weight: TensorType, indices: TensorType, *, offset2bag: TensorType
) -> Estimate:
    """The product of each row with its bag's gradient, summed: two operations per element."""
    rows, out = PartType((indices.numel, weight.shape[1]), weight.dtype), grad.like((indices.numel,))
    return Estimate((out,), vector_flops=2 * rows.numel, reads=(grad, rows, indices, offset2bag))


@backward("aten.embedding_bag", "aten._embedding_bag", "aten.embedding_bag.padding_idx")
def embedding_bag_gradient(call: ForwardCall) -> Estimate:
    """As `_embedding_bag_backward` and `_embedding_bag_per_sample_weights_backward`, as wanted."""
    weight, indices = call["weight"], call["indices"]
    out, offset2bag, bag_size, chosen = tensors_of(call.estimate.out)
    grad, parts = out.like(), []
    if "weight" in call.wants:
        bags = {"offset2bag": offset2bag, "bag_size": bag_size, "maximum_indices": chosen}
        more = {"per_sample_weights": call.get("per_sample_weights"), "mode": call.get("mode", SUM)}
        parts.append(embedding_bag_backward(grad, indices, num_weights=weight.shape[0], **bags, **more))
    if "per_sample_weights" in call.wants:
        parts.append(embedding_bag_weights_backward(grad, weight, indices, offset2bag=offset2bag))
    reads = tuple(x for part in parts for x in part.reads)
    return Estimate(tuple(x for part in parts for x in part.out), reads=reads).plus(*parts)
