"""Reading and writing by index: a read touches only the returned elements, or rows of a table, and the indices.

A functional write copies the tensor around the chosen elements, an in-place one touches only them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from graphflops.base.record import Record, replace
from graphflops.cost import Estimate, Value, data_dependent, picked
from graphflops.dims import Dim, at_least, broadcast, differ, same, total
from graphflops.rules.operands import Operands, takes
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Shape, Tensors, axis_of, expanded, have_shape, replaced, shown, tensors_of
from graphflops.tensor import PartType, TensorType

Indices = Sequence[TensorType | None]

KIND = "scatter"


class Update(Record, frozen=True):
    """One write of chosen elements."""

    target: TensorType  # written into
    part: TensorType  # the part that is written
    operands: Tensors  # also read: the new values and their places
    flops: Dim = 0  # operations in all
    combines: bool = False  # the old values of the part are read too


def combined(x: TensorType, part: TensorType, operands: Tensors, reduce: str | None) -> Update:
    """A part written, combined with its old values if a reduction is named."""
    # A mean also counts the elements, and divides.
    each = 0 if reduce is None else 2 if reduce == "mean" else 1
    divisions = x.numel if reduce == "mean" else 0
    return Update(x, part, operands, each * part.numel + divisions, reduce is not None)


def functional(done: Update) -> Estimate:
    """The update of a copy: the tensor is read and the result written in full."""
    return Estimate((done.target.like(),), vector_flops=done.flops, reads=(done.target, *done.operands))


def in_place(done: Update) -> Estimate:
    """The update in place: only the part that changes is touched."""
    return Estimate(
        (done.target.view(done.target.shape),),
        vector_flops=done.flops,
        reads=(*done.operands, done.part) if done.combines else done.operands,
        writes=(done.part,),
        alias=True,
    )


def update(names: str, base: Callable[..., Update], **how: Any) -> None:
    """Register an update as the rule of each functional operator and its in-place twin. how: arguments of `Derived`."""
    for name in names.split():
        word, dot, overload = name.partition(".")
        rule(f"aten.{name}").derived(base, functional, **how)
        rule(f"aten.{word}_{dot}{overload}").derived(base, in_place, **how)


def indexed_shape(x: TensorType, indices: Indices) -> Shape:
    """The shape of `x[indices]`: index tensors broadcast; the number of elements that a mask selects depends on data.

    The axes of the broadcast indices replace the indexed axes if these are adjacent, else they come first.
    """
    slots: list[Shape | None] = []  # the index shape for each axis; a mask covers as many axes as it has
    for index in indices:
        if index is None or index.dtype.name not in ("bool", "uint8"):
            slots.append(None if index is None else index.shape)
            continue
        own = x.shape[len(slots) : len(slots) + index.rank]
        fits = not any(map(differ, own, index.shape))
        require(fits, f"a mask of shape {shown(index.shape)} does not fit axes of {shown(own)}")
        slots += [(data_dependent("nonzero"),)] * index.rank
    require(len(slots) <= x.rank, f"{len(slots)} indices are too many for {shown(x.shape)}")
    places = [place for place, slot in enumerate(slots) if slot is not None]
    if not places:
        return x.shape
    first, last = places[0], places[-1]
    shared = broadcast(*(slot for slot in slots if slot is not None))
    if last - first + 1 == len(places):
        return (*x.shape[:first], *shared, *x.shape[last + 1 :])
    return (*shared, *(size for place, size in enumerate(x.shape) if place not in places))


@rule("aten.index", "aten._unsafe_index")
def index(x: TensorType, indices: Indices) -> Estimate:
    """Reads the elements at the indices."""
    return picked(x.like(indexed_shape(x, indices)), *tensors_of(indices))


@rule("aten._unsafe_masked_index")
def masked_index(x: TensorType, mask: TensorType, indices: Indices) -> Estimate:
    """Reads the elements at the indices; one selection each between element and fill value."""
    out = x.like(broadcast(indexed_shape(x, indices), mask.shape))
    return Estimate((out,), vector_flops=out.numel, reads=(out, mask, *tensors_of(indices)))


def index_put(x: TensorType, indices: Indices, values: TensorType, accumulate: bool = False) -> Update:
    """Writes values at the indices, a mask's as many as are given; with `accumulate` one addition each."""
    shape = indexed_shape(x, indices)
    expanded(values, shape)
    part = x.like(broadcast(values.shape, shape))
    return Update(x, part, (values, *tensors_of(indices)), part.numel if accumulate else 0, accumulate)


update("index_put _index_put_impl", index_put)
rule("aten._unsafe_index_put").derived(index_put, functional)


@rule("aten._unsafe_masked_index_put_accumulate")
def masked_index_put(x: TensorType, mask: TensorType, indices: Indices, values: TensorType) -> Estimate:
    """Adds masked values at the indices: a selection and an addition each."""
    work = 2 * x.like(broadcast(indexed_shape(x, indices), mask.shape)).numel
    return Estimate((x.like(),), vector_flops=work, reads=(x, mask, *tensors_of(indices), values))


def rows(x: TensorType, dim: int, index: TensorType) -> TensorType:
    """The part of a tensor that a vector of indices selects along an axis."""
    require(index.rank < 2, f"positions along an axis are a vector, not {shown(index.shape)}")
    return x.like(replaced(x.shape, axis_of(dim, x.rank), index.numel) if x.rank else ())


@rule("aten.index_select")
def index_select(x: TensorType, dim: int, index: TensorType) -> Estimate:
    """Reads the selected positions of an axis."""
    return picked(rows(x, dim, index), index)


def positions(
    x: TensorType, dim: int, index: TensorType, source: Value, reduce: str | None = None, *, alpha: Value = 1
) -> Update:
    """Replaces the selected positions of an axis, or combines them with old values by one operation, two if scaled."""
    part, given = rows(x, dim, index), tensors_of((source,))
    fits = have_shape(part.shape or (1,), *(x for x in given if x.rank))  # a number fills all of them
    require(fits, f"{shown(part.shape)} is not filled by {' and '.join(map(str, given))}")
    done = combined(x, given[0] if given else part, (index, *given), reduce)
    return replace(done, part=part, flops=done.flops if alpha == 1 else 2 * done.flops)


update("index_copy index_fill index_reduce", positions)
update("index_add", positions, order="x dim index source", reduce="add")


def refuse_misplaced(x: TensorType, dim: int, index: TensorType, source: Value = None) -> None:
    """Raise ShapeError for indices with other axes than the tensor or the source, or larger than it except along `dim`."""
    place = axis_of(dim, x.rank)
    for each in tensors_of((x, source)) if not same(index.numel, 0) else ():
        sizes, own = each.shape or (1,), index.shape or (1,)
        pairs = enumerate(zip(own, sizes, strict=False))
        is_within = not any(at_least(n, size + 1) for at, (n, size) in pairs if each is not x or at != place)
        require(len(own) == len(sizes) and is_within, f"{shown(own)} does not index {shown(sizes)}")


@rule("aten.gather")
def gather(x: TensorType, dim: int, index: TensorType) -> Estimate:
    """One element per index."""
    refuse_misplaced(x, dim, index)
    return picked(x.like(index.shape), index)


@rule("aten.take_along_dim")
def take_along_dim(x: TensorType, indices: TensorType, dim: int | None = None) -> Estimate:
    """One element per index along an axis, the others broadcast; without one, from the flattened tensor."""
    if dim is None:
        flat = indices.view((indices.numel,))
        return picked(x.like(flat.shape), flat)
    require(x.rank == indices.rank, f"{shown(indices.shape)} does not index {shown(x.shape)}")
    place = axis_of(dim, x.rank)
    shape = broadcast(replaced(x.shape, place, 1), replaced(indices.shape, place, 1))
    return picked(x.like(replaced(shape, place, indices.shape[place])), indices)


def put(x: TensorType, index: TensorType, source: TensorType, accumulate: bool = False) -> Update:
    """Writes values into the flattened tensor; with `accumulate` one addition each."""
    return Update(x, x.like(index.shape), (index, source), index.numel if accumulate else 0, accumulate)


update("put", put)


def scatter(x: TensorType, dim: int, index: TensorType, src: Value, *, reduce: str | None = None) -> Update:
    """Writes one element per index; a reduction combines it with the old value, one operation each, a mean also counts."""
    refuse_misplaced(x, dim, index, src)
    source = (src.like(index.shape),) if isinstance(src, TensorType) else ()
    return combined(x, x.like(index.shape), (index, *source), reduce)


update("scatter", scatter)
update("scatter_reduce", scatter, order="x dim index src reduce")
update("scatter_add", scatter, order="x dim index src", reduce="add")


@backward("aten.index _unsafe_index index_select gather take take_along_dim")
def gather_gradient(call: ForwardCall) -> Estimate:
    """Sums the gradients of every use of an element into zeros."""
    grad = call.out.like()
    return Estimate((call["x"].like(),), vector_flops=grad.numel, reads=(grad, *_where(call)))


def gathered(call: ForwardCall, kept: bool) -> Estimate:
    """Gathers the source's gradient from the result's. The tensor's is the result's, zero where replaced unless `kept`."""
    wanted = {name: call[name].like() for name in call.arguments if name in call.wants}
    written = tuple(grad for name, grad in wanted.items() if name != "x" or not kept)
    reads = (*written, *_where(call)) if written else ()
    return Estimate(tuple(wanted.values()), reads=reads, writes=written, alias=not written)


def _where(call: ForwardCall) -> Tensors:
    named = [call[name] for name in ("index", "indices") if name in call.arguments]
    return tensors_of(index for given in named for index in (given if isinstance(given, tuple) else (given,)))


backward("aten.index_add index_add_ scatter_add scatter_add_")(partial(gathered, kept=True))


@backward("aten.scatter_reduce", "aten.scatter_reduce_")
def reduction_gradient(call: ForwardCall) -> Estimate:
    """For a sum, the gradient of an addition; else both gradients are scaled, by counts or by what was selected."""
    reduce = call.get("reduce")
    found = gathered(call, kept=reduce == "sum")
    if reduce == "sum":
        return found
    saved = () if reduce == "mean" else (call["x"], call["src"], call.out)
    scaled = total(x.numel for x in tensors_of(found.out))
    return replace(found, vector_flops=scaled, reads=(*found.reads, *tensors_of(saved)))


backward(
    "aten.index_copy index_copy_ index_fill index_fill_ scatter scatter_ index_put index_put_",
    "aten._unsafe_index_put put put_ _index_put_impl _index_put_impl_",
)(lambda call: gathered(call, kept=bool(call.get("accumulate") or call.get("reduce"))))


SUM, MEAN, MAX = 0, 1, 2  # how embedding_bag reduces the rows of a bag


@rule("aten.embedding")
def embedding(weight: TensorType, indices: TensorType) -> Estimate:
    """One row of the table per index; no arithmetic."""
    return picked(weight.like((*indices.shape, weight.shape[1])), indices)


@rule("aten.embedding_dense_backward embedding_backward").takes(
    "grad indices num_weights=; scale_grad_by_freq=False sparse=False"
)
def embedding_backward(of: Operands) -> Estimate:
    """Sums the gradients of every use of a row; `scale_grad_by_freq` also divides by the number of uses."""
    grad, indices, num_weights = of
    out = grad.like((num_weights, grad.shape[-1]))
    if of.sparse:
        return Estimate((out,), reads=(grad, indices), writes=(grad, indices))
    work = grad.numel * (2 if of.scale_grad_by_freq else 1)
    return Estimate((out,), vector_flops=work, reads=(grad, indices))


rule("aten.embedding_sparse_backward").derived(
    embedding_backward,
    says="Keeps the gradients of the rows and their indices as a sparse tensor.",
    sparse=True,
)
backward("aten.embedding")(  # the gradient is dense
    lambda call: embedding_backward(call.out.like(), call["indices"], call["weight"].shape[0])
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


@rule("aten._embedding_bag_per_sample_weights_backward").takes("grad weight indices * offset2bag")
def embedding_bag_weights_backward(of: Operands) -> Estimate:
    """The product of each row with its bag's gradient, summed: two operations per element."""
    grad, weight, indices, offset2bag = of
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
