"""Collectives of a program that runs on several devices: arithmetic, memory and traffic on the link of one device.

In a reduction over n devices, each does its share of n - 1 operations per element of the result. If a call does not say how
many devices there are, one operation per element is counted (n - 1 in n of these are done). Each device sends as many bytes
as in a ring algorithm: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

Eager execution calls the collectives of `c10d`, which write to given tensors. Those of `symm_mem` work on memory that all
devices of a group map.
"""

from collections.abc import Callable, Sequence

from graphflops.base.record import replace
from graphflops.cost import Estimate, free
from graphflops.dims import Dim, floor_div, meet, total
from graphflops.rules.matmul import matmul
from graphflops.rules.operands import Operands
from graphflops.rules.registry import ForwardCall, backward, require, rule
from graphflops.rules.shapes import Tensors, axis_of, only_result, replaced
from graphflops.tensor import TensorType, flat

KIND = "collective"


FUNCTIONAL, DIFFERENTIABLE = "_c10d_functional", "_c10d_functional_autograd"
PAIR = 2  # devices of a group if nothing shows their number


Operand = TensorType | Tensors | tuple[Tensors, ...]


def several(given: Operand) -> Tensors:
    """The operands of a collective of one tensor, of several, or of a list of them for each device."""
    return tuple(flat((given,)))


def whole_bytes(tensors: Tensors) -> Dim:
    """Bytes of the tensors, repeats in broadcast views included: collectives read contiguous memory."""
    return total(x.like().nbytes for x in tensors)


def sent(kind: str, nbytes: Dim, devices: Dim) -> Dim:
    """Bytes that each device sends in a collective over operands of `nbytes` bytes."""
    if kind == "all_gather":
        return (devices - 1) * nbytes
    if kind in ("broadcast", "send"):
        return nbytes
    return (2 if kind == "all_reduce" else 1) * (nbytes - floor_div(nbytes, devices))


def _forms(name: str) -> tuple[str, ...]:
    """The keys of a functional collective: its variants, and its name in the namespace that records gradients."""
    return f"{FUNCTIONAL}.{name} {name}_out {name}_coalesced", f"{DIFFERENTIABLE}.{name}"


@rule(f"{FUNCTIONAL}.all_reduce all_reduce_coalesced", "symm_mem.two_shot_all_reduce multimem_all_reduce")
def all_reduce(inputs: TensorType | Tensors, reduce_op: str, *, devices: Dim = PAIR) -> Estimate:
    """An operation per element, and a division where the mean is taken."""
    inputs = several(inputs)
    flops = (1 + (reduce_op == "avg")) * total(x.numel for x in inputs)
    moved = sent("all_reduce", whole_bytes(inputs), devices)
    out = tuple(x.like() for x in inputs)
    return Estimate(out, vector_flops=flops, link_bytes=moved, devices=devices, reads=inputs)


@rule(*_forms("reduce_scatter_tensor"))
def reduce_scatter(inputs: TensorType | Tensors, reduce_op: str, devices: Dim = PAIR) -> Estimate:
    """Each device reduces a slice of the first axis: one operation less than devices per element of it."""
    inputs = several(inputs)
    require(all(x.rank for x in inputs), "reduce_scatter splits the first axis, and a tensor has none")
    out = tuple(x.like((floor_div(x.shape[0], devices), *x.shape[1:])) for x in inputs)
    return _reduced(out, inputs, reduce_op, devices)


def _reduced(out: Tensors, inputs: Tensors, reduce_op: str, devices: Dim) -> Estimate:
    flops = (devices - 1 + (reduce_op == "avg")) * total(x.numel for x in out)
    moved = (devices - 1) * whole_bytes(out)
    return Estimate(out, vector_flops=flops, link_bytes=moved, devices=devices, reads=inputs)


@rule(*_forms("all_gather_into_tensor"))
def all_gather(inputs: TensorType | Tensors, devices: Dim = PAIR) -> Estimate:
    """Concatenates the tensors of all devices along the first axis."""
    inputs = several(inputs)
    out = tuple(x.like((x.shape[0] * devices, *x.shape[1:]) if x.rank else (devices,)) for x in inputs)
    moved = sent("all_gather", whole_bytes(inputs), devices)
    return Estimate(out, link_bytes=moved, devices=devices, reads=inputs)


@rule(f"{FUNCTIONAL}.all_to_all_single", f"{DIFFERENTIABLE}.all_to_all_single")
def all_to_all(
    x: TensorType, output_split_sizes: Sequence[Dim], input_split_sizes: Sequence[Dim], *, devices: Dim = PAIR,
    place: int | None = None,
) -> Estimate:  # fmt: skip
    """Each device sends slices of the first axis to the others. place: of its own slice, else it is as long as the mean."""
    rows = total(output_split_sizes) if output_split_sizes else x.shape[0]
    is_passed_on = len(input_split_sizes or ()) > 1 and sum(size != 0 for size in input_split_sizes) == 1
    moved = sent("send" if is_passed_on else "all_to_all", whole_bytes((x,)), devices)
    if place is not None:
        devices, own = len(input_split_sizes), input_split_sizes[place]
        moved = whole_bytes((x,)) - whole_bytes((x.like((own, *x.shape[1:])),))
    return Estimate((x.like((rows, *x.shape[1:])),), link_bytes=moved, devices=devices, reads=(x,))


@rule("_dtensor.shard_dim_alltoall")
def shard_dim_alltoall(x: TensorType, gather_dim: int, shard_dim: int, *, devices: Dim = PAIR) -> Estimate:
    """An all_to_all that joins the shards along one axis and splits along another."""
    require(max(gather_dim, shard_dim) < x.rank, f"axes {gather_dim} and {shard_dim} of {x}")
    shape = list(x.shape)
    shape[gather_dim] = shape[gather_dim] * devices
    shape[shard_dim] = floor_div(shape[shard_dim], devices)
    moved = sent("all_to_all", whole_bytes((x,)), devices)
    return Estimate((x.like(shape),), link_bytes=moved, devices=devices, reads=(x,))


@rule(f"{FUNCTIONAL}.isend")
def isend(x: TensorType) -> Estimate:
    """Sends a tensor to one device; the result has no elements."""
    return Estimate((x.like((0,)),), link_bytes=whole_bytes((x,)), reads=(x,))


@rule(f"{FUNCTIONAL}.irecv")
def irecv(x: TensorType) -> Estimate:
    """Writes what one device sends over a tensor; that device counts the bytes on the link."""
    return Estimate((x,), alias=True)


@rule(f"{FUNCTIONAL}.batch_p2p_ops")
def batch_p2p(op_list: tuple[str, ...], *, tensors: Tensors) -> Estimate:
    """Sends some of the tensors, whose results have no elements, and receives the others."""
    require(len(op_list) == len(tensors), f"{len(op_list)} operations on {len(tensors)} tensors")
    pairs = list(zip(op_list, tensors, strict=True))
    sent, received = (tuple(x for op, x in pairs if (op == "irecv") is gets) for gets in (False, True))
    out = tuple(x if op == "irecv" else x.like((0,)) for op, x in pairs)
    return Estimate(out, link_bytes=whole_bytes(sent), reads=sent, writes=received)


@rule("c10d.send")
def send(tensors: Tensors) -> Estimate:
    """Sends a tensor to one device, and waits until it has arrived."""
    return Estimate((None,), link_bytes=whole_bytes(tensors), reads=tensors, writes=())


@rule("c10d.recv", "c10d.recv_")
def receive(tensors: Tensors) -> Estimate:
    """Writes what one device sends over a tensor, as irecv."""
    return Estimate(tensors, writes=tensors)


@rule(f"{FUNCTIONAL}.wait_tensor wait_tensors _wrap_tensor_autograd")
def wait(x: TensorType | Tensors) -> Estimate:
    """Waits for the results of collectives."""
    return free(*several(x))


# Gradients: what was gathered is scattered, what was scattered is gathered, and sums are summed.


backward(f"{FUNCTIONAL}.all_reduce all_reduce_coalesced")(
    lambda call: all_reduce(_incoming(call), "sum", devices=call.get("devices", PAIR))
)
backward(*_forms("all_gather_into_tensor"))(
    lambda call: reduce_scatter(_incoming(call), "sum", call["devices"])
)
backward(*_forms("reduce_scatter_tensor"))(lambda call: all_gather(_incoming(call), call["devices"]))


def turned(call: ForwardCall, exchange: Callable[..., Estimate], *names: str) -> Estimate:
    """The gradient of an exchange: the same with two arguments swapped. names: the arguments in their new order."""
    return exchange(*_incoming(call), *map(call.get, names), devices=call.get("devices", PAIR))


backward(f"{FUNCTIONAL}.all_to_all_single", f"{DIFFERENTIABLE}.all_to_all_single")(
    lambda call: turned(call, all_to_all, "input_split_sizes", "output_split_sizes")
)
backward("_dtensor.shard_dim_alltoall")(
    lambda call: turned(call, shard_dim_alltoall, "shard_dim", "gather_dim")
)


def _incoming(call: ForwardCall) -> Tensors:
    return tuple(x.like() for x in call.estimate.out)  # type: ignore[union-attr]


# Collectives as eager execution calls them, and FSDP's copies around them.


def _into(written: Tensors, estimate: Estimate) -> Estimate:
    """The estimate of a collective that writes into given tensors."""
    return replace(estimate, out=written, writes=written)


rule("c10d.allreduce_", "c10d.allreduce_coalesced_").derived(
    all_reduce,
    lambda found: _into(found.reads, found),
    says="The sum over all devices, in place.",
    order="inputs _ reduce_op",
)


@rule("c10d._allgather_base_ allgather_into_tensor_coalesced_ allgather_coalesced_ allgather_")
def eager_all_gather(out: Operand, inputs: TensorType | Tensors, *, devices: Dim = PAIR) -> Estimate:
    """The tensors of all devices, joined or apart."""
    return _into(several(out), all_gather(inputs, devices))


@rule("c10d._reduce_scatter_base_ reduce_scatter_tensor_coalesced_ reduce_scatter_")
def eager_reduce_scatter(
    out: TensorType | Tensors, inputs: Operand, process_group: str, reduce_op: str, *, devices: Dim = PAIR
) -> Estimate:
    """Each device gets the sum of its part: one operation less than devices per element of it."""
    return _reduced(several(out), several(inputs), reduce_op, devices)


@rule("c10d.alltoall_base_", "c10d.alltoall_")
def eager_all_to_all(
    out: TensorType | Tensors, inputs: TensorType | Tensors, process_group: str = "",
    output_split_sizes: Sequence[Dim] = (), input_split_sizes: Sequence[Dim] = (), *, devices: Dim = PAIR,
    place: int | None = None,
) -> Estimate:  # fmt: skip
    """Each device sends slices to the others. place: of its own one, else it is as long as the mean."""
    given = several(inputs)
    if place is not None:
        return _into(several(out), all_to_all(given[0], (), input_split_sizes, place=place))
    moved = sent("all_to_all", whole_bytes(given), devices)
    return _into(several(out), Estimate((), link_bytes=moved, devices=devices, reads=given))


@rule("c10d.broadcast_", f"{FUNCTIONAL}.broadcast")
def broadcast(tensors: TensorType | Tensors, *, devices: Dim = PAIR) -> Estimate:
    """A copy of one device's tensors, passed on from device to device, in place where it is given a list."""
    given = several(tensors)
    out = given if isinstance(tensors, tuple) else tuple(x.like() for x in given)
    return Estimate(out, link_bytes=whole_bytes(given), devices=devices, reads=given)


@rule("fsdp.all_gather_copy_in", kind="movement").takes(
    "all_gather_inputs= all_gather_output inp_split_sizes= all_gather_input_numel="
)
def all_gather_copy_in(of: Operands) -> Estimate:
    """Copies the parameters' shards into this device's part of the result of an all_gather."""
    inputs, output, _, size = of
    own = total(x.numel for x in inputs)
    meet(own, size, f"{own} elements go to a part of {size}")
    part = output.like((size,))
    return Estimate((part, output), reads=inputs, writes=(part,))


@rule("fsdp.split_with_sizes_copy", kind="movement")
def split_with_sizes_copy(all_gather_output: TensorType, *, out: Tensors) -> Estimate:
    """Copies gathered values to the parameters."""
    given, taken = all_gather_output.numel, total(x.numel for x in out)
    meet(given, taken, f"{given} elements are copied to {taken}")
    return Estimate(out, reads=(all_gather_output,))


@rule("fsdp.chunk_cat", "fsdp.chunk_cat_mixed_dtype", kind="movement")
def chunk_cat(tensors: Tensors, *, out: TensorType) -> Estimate:
    """Copies gradients into the operand of a reduce_scatter, each cut and padded to equal parts, and in its element type."""
    converted = total(x.numel for x in tensors if x.dtype != out.dtype)
    return Estimate((out,), vector_flops=converted, reads=tensors, writes=(out,))


# Collectives over memory that all devices of a group map; some are fused with a product.


@rule("symm_mem.one_shot_all_reduce", "symm_mem.multimem_one_shot_all_reduce")
def one_shot(x: TensorType, *, devices: Dim = PAIR) -> Estimate:
    """Each device reads the tensors of all others and adds them up."""
    return _reduced((x.like(),), (x,), "sum", devices)


@rule("symm_mem.one_shot_all_reduce_copy")
def one_shot_copy(symm_buffer: TensorType, local_input: TensorType, *, devices: Dim = PAIR) -> Estimate:
    """As one_shot_all_reduce, after a copy into the memory that others map."""
    both = (local_input, local_input)
    return replace(one_shot(local_input, devices=devices), reads=both, writes=both)


rule("symm_mem._low_contention_all_gather").derived(all_gather, order="inputs")  # by copies
rule("symm_mem._low_contention_reduce_scatter").derived(reduce_scatter, order="inputs reduce_op")


@rule("symm_mem.fused_all_gather_matmul")
def gathered_products(
    A: TensorType, Bs: Tensors, gather_dim: int, *, return_A: bool = True, devices: Dim = PAIR
) -> Estimate:
    """The rows of all devices times each matrix; parts are multiplied while others arrive."""
    axis = axis_of(gather_dim, A.rank)
    whole = A.like(replaced(A.shape, axis, A.shape[axis] * devices))
    products = [matmul(whole, b) for b in Bs]
    return Estimate(
        (whole if return_A else None, *(value for product in products for value in product.out)),
        matrix_flops=total(product.matrix_flops for product in products),
        link_bytes=(devices - 1) * whole_bytes((A,)),
        devices=devices,
        reads=(A, *Bs),
    )


@rule("symm_mem.fused_matmul_reduce_scatter")
def scattered_product(A: TensorType, B: TensorType, *, scatter_dim: int, devices: Dim = PAIR) -> Estimate:
    """A product whose rows are added up over the devices; parts are sent while others are multiplied."""
    product = matmul(A, B)
    axis, shape = axis_of(scatter_dim, A.rank), only_result(product).shape
    out = A.like(replaced(shape, axis, floor_div(shape[axis], devices)))
    return Estimate(
        (out,),
        product.matrix_flops,
        (devices - 1) * out.numel,
        link_bytes=(devices - 1) * out.nbytes,
        devices=devices,
        reads=(A, B),
    )
