"""Collectives as eager execution calls them: they write to given tensors. What FSDP copies beside them.

Work, memory and traffic are those of the functional ones.
"""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, differ, total
from graphflops.rules import collectives
from graphflops.rules.collectives import PAIR, Tensors, several
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

KIND = "collective"


def _into(written: Tensors, estimate: Estimate) -> Estimate:
    """The same into given tensors."""
    return replace(estimate, out=written, writes=written)


Operand = TensorType | Tensors | tuple[Tensors, ...]


def _flat(given: Operand) -> Tensors:
    """The operands of a collective of one tensor, of several, or of a list of them for each device."""
    return tuple(x for one in (given if isinstance(given, tuple) else (given,)) for x in several(one))


@rule("c10d.allreduce_", "c10d.allreduce_coalesced_")
def all_reduce(tensors: Tensors, process_group: str, reduce_op: str, *, devices: Dim = PAIR) -> Estimate:
    """The sum over all devices, in place."""
    return _into(tensors, collectives.all_reduce(tensors, reduce_op, devices=devices))


@rule("c10d._allgather_base_ allgather_into_tensor_coalesced_ allgather_coalesced_ allgather_")
def all_gather(out: Operand, inputs: TensorType | Tensors, *, devices: Dim = PAIR) -> Estimate:
    """The tensors of all devices, joined or apart."""
    return _into(_flat(out), collectives.all_gather(several(inputs), devices))


@rule("c10d._reduce_scatter_base_ reduce_scatter_tensor_coalesced_ reduce_scatter_")
def reduce_scatter(
    out: TensorType | Tensors, inputs: Operand, process_group: str, reduce_op: str, *, devices: Dim = PAIR
) -> Estimate:
    """Each device gets the sum of its part: one operation less than devices per element of it."""
    written = several(out)
    work = (devices - 1 + collectives.averaged(reduce_op)) * total(x.numel for x in written)
    sent = (devices - 1) * collectives.whole_bytes(written)
    return Estimate(written, vector_flops=work, link_bytes=sent, devices=devices, reads=_flat(inputs))


@rule("c10d.alltoall_base_", "c10d.alltoall_")
def all_to_all(out: TensorType | Tensors, inputs: TensorType | Tensors, *, devices: Dim = PAIR) -> Estimate:
    """Each device sends slices to the others; its own is taken to be as long as the mean."""
    given = several(inputs)
    sent = collectives.sent("all_to_all", collectives.whole_bytes(given), devices)
    return _into(several(out), Estimate((), link_bytes=sent, devices=devices, reads=given))


@rule("c10d.broadcast_")
def broadcast(tensors: Tensors, *, devices: Dim = PAIR) -> Estimate:
    """A copy of one device's tensors, passed on from device to device."""
    sent = collectives.whole_bytes(tensors)
    return Estimate(tensors, link_bytes=sent, devices=devices, reads=tensors)


@rule("fsdp.all_gather_copy_in", kind="movement")
def all_gather_copy_in(
    all_gather_inputs: Tensors,
    all_gather_output: TensorType,
    inp_split_sizes: tuple[Dim, ...],
    all_gather_input_numel: Dim,
) -> Estimate:
    """Copies the parameters' shards into this device's part of the result of an all_gather."""
    own, size = total(x.numel for x in all_gather_inputs), all_gather_input_numel
    require(not differ(own, size), f"{own} elements go to a part of {size}")
    part = all_gather_output.like((size,))
    return Estimate((part, all_gather_output), reads=all_gather_inputs, writes=(part,))


@rule("fsdp.split_with_sizes_copy", kind="movement")
def split_with_sizes_copy(all_gather_output: TensorType, *, out: Tensors) -> Estimate:
    """Copies what was gathered to the parameters."""
    given, taken = all_gather_output.numel, total(x.numel for x in out)
    require(not differ(given, taken), f"{given} elements are copied to {taken}")
    return Estimate(out, reads=(all_gather_output,))


@rule("fsdp.chunk_cat", "fsdp.chunk_cat_mixed_dtype", kind="movement")
def chunk_cat(tensors: Tensors, *, out: TensorType) -> Estimate:
    """Copies gradients into the operand of a reduce_scatter, each cut and padded to equal parts, and in its element type."""
    converted = total(x.numel for x in tensors if x.dtype != out.dtype)
    return Estimate((out,), vector_flops=converted, reads=tensors, writes=(out,))
