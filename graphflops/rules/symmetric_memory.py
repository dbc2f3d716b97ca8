"""Collectives over memory that all devices of a group map (`torch.ops.symm_mem`), some fused with a product."""

from __future__ import annotations

from dataclasses import replace

from graphflops.cost import Estimate
from graphflops.dims import Dim, floor_div, total
from graphflops.rules.collectives import PAIR, Tensors, all_gather, all_reduce, reduce_scatter, whole_bytes
from graphflops.rules.matmul import matmul
from graphflops.rules.registry import require, rule
from graphflops.tensor import TensorType

KIND = "collective"


@rule("symm_mem.one_shot_all_reduce", "symm_mem.multimem_one_shot_all_reduce")
def one_shot(x: TensorType, *, devices: Dim = PAIR) -> Estimate:
    """Each device reads the tensors of all others and adds them up."""
    flops, moved = (devices - 1) * x.numel, (devices - 1) * whole_bytes((x,))
    return Estimate((x.like(),), vector_flops=flops, link_bytes=moved, devices=devices, reads=(x,))


@rule("symm_mem.one_shot_all_reduce_copy")
def one_shot_copy(symm_buffer: TensorType, local_input: TensorType, *, devices: Dim = PAIR) -> Estimate:
    """As one_shot_all_reduce, after a copy into the memory that others map."""
    both = (local_input, local_input)
    return replace(one_shot(local_input, devices=devices), reads=both, writes=both)


rule("symm_mem.two_shot_all_reduce", "symm_mem.multimem_all_reduce").derived(
    all_reduce, says="Each device adds up its part and sends it to all others."
)


@rule("symm_mem._low_contention_all_gather")
def low_contention_all_gather(x: TensorType, *, devices: Dim = PAIR) -> Estimate:
    """Concatenates the tensors of all devices along the first axis, by copies."""
    return all_gather(x, devices)


@rule("symm_mem._low_contention_reduce_scatter")
def low_contention_reduce_scatter(x: TensorType, reduce_op: str, *, devices: Dim = PAIR) -> Estimate:
    """Each device adds up its slice of the first axis."""
    return reduce_scatter(x, reduce_op, devices)


@rule("symm_mem.fused_all_gather_matmul")
def gathered_products(
    A: TensorType, Bs: Tensors, gather_dim: int, *, return_A: bool = True, devices: Dim = PAIR
) -> Estimate:
    """The rows of all devices times each matrix; parts are multiplied while others arrive."""
    require(-A.rank <= gather_dim < A.rank, f"axis {gather_dim} of {A}")
    axis = gather_dim % A.rank
    whole = A.like((*A.shape[:axis], A.shape[axis] * devices, *A.shape[axis + 1 :]))
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
    (whole,) = product.out
    require(-A.rank <= scatter_dim < A.rank, f"axis {scatter_dim} of {A}")
    axis, shape = scatter_dim % A.rank, list(whole.shape)  # type: ignore[union-attr]
    shape[axis] = floor_div(shape[axis], devices)
    out = A.like(shape)
    return Estimate(
        (out,),
        product.matrix_flops,
        (devices - 1) * out.numel,
        link_bytes=(devices - 1) * out.nbytes,
        devices=devices,
        reads=(A, B),
    )
