"""Collectives of a program that runs on several devices: arithmetic and memory of one device; no network traffic.

Of a reduction over n devices each has its share of n - 1 operations per element of the result. Where a call does not say how
many devices there are, one operation per element is counted, of which n - 1 in n are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, free
from graphflops.dims import Dim, floor_div, total
from graphflops.rules.registry import rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.tensor import TensorType

Tensors = tuple["TensorType", ...]
Group = object

FUNCTIONAL, DIFFERENTIABLE = "_c10d_functional", "_c10d_functional_autograd"


def averaged(reduce_op: object) -> int:
    """One division per element of an averaged result."""
    return int(reduce_op == "avg")


@rule(f"{FUNCTIONAL}.all_reduce")
def all_reduce(x: TensorType, reduce_op: str, group_name: Group) -> Estimate:
    """An operation per element, and a division where the mean is taken."""
    return all_reduce_coalesced((x,), reduce_op, group_name)


@rule(f"{FUNCTIONAL}.all_reduce_coalesced")
def all_reduce_coalesced(inputs: Tensors, reduce_op: str, group_name: Group) -> Estimate:
    """As all_reduce, of several tensors."""
    flops = (1 + averaged(reduce_op)) * total(x.numel for x in inputs)
    return Estimate(tuple(x.like() for x in inputs), vector_flops=flops, reads=inputs)


@rule(f"{FUNCTIONAL}.reduce_scatter_tensor", f"{DIFFERENTIABLE}.reduce_scatter_tensor")
def reduce_scatter(x: TensorType, reduce_op: str, group_size: int, group_name: Group) -> Estimate:
    """Each device reduces a slice of the first axis: one operation less than devices per element of it."""
    return reduce_scatter_coalesced((x,), reduce_op, group_size, group_name)


@rule(f"{FUNCTIONAL}.reduce_scatter_tensor_coalesced")
def reduce_scatter_coalesced(inputs: Tensors, reduce_op: str, group_size: int, group_name: Group) -> Estimate:
    """As reduce_scatter_tensor, of several tensors."""
    out = tuple(x.like((floor_div(x.shape[0], group_size), *x.shape[1:])) for x in inputs)
    flops = (group_size - 1 + averaged(reduce_op)) * total(x.numel for x in out)
    return Estimate(out, vector_flops=flops, reads=inputs)


@rule(f"{FUNCTIONAL}.all_gather_into_tensor", f"{DIFFERENTIABLE}.all_gather_into_tensor")
def all_gather(x: TensorType, group_size: int, group_name: Group) -> Estimate:
    """Concatenates the tensors of all devices along the first axis."""
    return all_gather_coalesced((x,), group_size, group_name)


@rule(f"{FUNCTIONAL}.all_gather_into_tensor_coalesced")
def all_gather_coalesced(inputs: Tensors, group_size: int, group_name: Group) -> Estimate:
    """As all_gather_into_tensor, of several tensors."""
    return Estimate(tuple(x.like((x.shape[0] * group_size, *x.shape[1:])) for x in inputs), reads=inputs)


@rule(f"{FUNCTIONAL}.all_to_all_single", f"{DIFFERENTIABLE}.all_to_all_single")
def all_to_all(
    x: TensorType, output_split_sizes: Sequence[Dim], input_split_sizes: Sequence[Dim], group_name: Group
) -> Estimate:
    """Each device sends slices of the first axis to the others."""
    rows = total(output_split_sizes) if output_split_sizes else x.shape[0]
    return Estimate((x.like((rows, *x.shape[1:])),), reads=(x,))


@rule(f"{FUNCTIONAL}.broadcast")
def broadcast(x: TensorType, src: int, group_name: Group) -> Estimate:
    """A copy of one device's tensor."""
    return Estimate((x.like(),), reads=(x,))


@rule(f"{FUNCTIONAL}.wait_tensor")
def wait_tensor(x: TensorType) -> Estimate:
    """Waits for the result of a collective."""
    return free(x)


@rule(f"{FUNCTIONAL}.wait_tensors")
def wait_tensors(tensors: Tensors) -> Estimate:
    """Waits for the results of collectives."""
    return free(*tensors)
