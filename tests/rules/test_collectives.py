"""What devices exchange: work and memory of one of them."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.graph import Graph, Input, Node, Opaque, Output, Ref
from graphflops.passes.equal_sizes import group_sizes
from graphflops.training import Training
from tests.process_group import first_of
from tests.support import price, t

X, Y = t(8, 4), t(16)


@pytest.mark.parametrize(
    ("op", "arguments", "out", "flops", "read"),
    [
        ("all_reduce.default", (X, "sum", "0"), (X,), 8 * 4, 4 * 32),
        ("all_reduce.default", (X, "avg", "0"), (X,), 2 * 8 * 4, 4 * 32),
        ("all_reduce_.default", (X, "max", "0"), (X,), 8 * 4, 4 * 32),
        ("all_reduce_coalesced.default", ((X, Y), "sum", "0"), (X, Y), 8 * 4 + 16, 4 * 48),
        ("reduce_scatter_tensor.default", (X, "sum", 4, "0"), (t(2, 4),), 3 * 2 * 4, 4 * 32),
        ("reduce_scatter_tensor_coalesced.default", ((X, Y), "sum", 4, "0"), (t(2, 4), t(4)), 3 * 12, 4 * 48),
        ("all_gather_into_tensor.default", (X, 4, "0"), (t(32, 4),), 0, 4 * 32),
        ("all_gather_into_tensor_coalesced.default", ((X, Y), 4, "0"), (t(32, 4), t(64)), 0, 4 * 48),
        ("all_to_all_single.default", (X, (1, 2), (3, 5), "0"), (t(3, 4),), 0, 4 * 32),
        ("broadcast.default", (X, 0, "0"), (X,), 0, 4 * 32),
        ("wait_tensor.default", (X,), (X,), 0, 0),
        ("wait_tensors.default", ((X, Y),), (X, Y), 0, 0),
    ],
)
def test_exchanges(op: str, arguments: Any, out: Any, flops: int, read: int) -> None:
    estimate = price(f"_c10d_functional.{op}", *arguments)
    assert estimate.out == out
    assert (estimate.vector_flops, estimate.cost.read_bytes) == (flops, read)


@pytest.mark.parametrize(
    ("op", "arguments", "out", "flops"),
    [
        ("all_gather_into_tensor_out", (X, 4, "0"), t(32, 4), 0),
        ("reduce_scatter_tensor_out", (X, "sum", 4, "0"), t(2, 4), 3 * 2 * 4),
    ],
)
def test_exchanges_into_a_given_tensor(op: str, arguments: Any, out: Any, flops: int) -> None:
    estimate = price(f"_c10d_functional.{op}.default", *arguments, out=out)
    assert (estimate.out, estimate.vector_flops) == ((out,), flops)


NO_GROUP = Opaque("ProcessGroup")


@pytest.mark.parametrize(
    ("op", "arguments", "out", "flops", "sent"),
    [
        ("allreduce_", ((X, Y), NO_GROUP, "sum", None, True, -1), (X, Y), 48, 2 * 3 * 4 * 48 // 4),
        ("allreduce_coalesced_", ((X,), NO_GROUP, "avg"), (X,), 2 * 32, 2 * 3 * 4 * 32 // 4),
        ("_allgather_base_", (t(32, 4), X, NO_GROUP), (t(32, 4),), 0, 3 * 4 * 32),
        (
            "allgather_into_tensor_coalesced_",
            ((t(32, 4), t(64)), (X, Y), NO_GROUP),
            (t(32, 4), t(64)),
            0,
            3 * 4 * 48,
        ),
        ("allgather_", (((Y, Y, Y, Y),), (Y,), NO_GROUP), (Y, Y, Y, Y), 0, 3 * 4 * 16),
        ("_reduce_scatter_base_", (t(2, 4), X, NO_GROUP, "sum"), (t(2, 4),), 3 * 8, 3 * 4 * 8),
        ("reduce_scatter_tensor_coalesced_", ((t(4),), (Y,), NO_GROUP, "avg"), (t(4),), 4 * 4, 3 * 4 * 4),
        ("reduce_scatter_", ((Y,), ((Y, Y, Y, Y),), NO_GROUP, "sum"), (Y,), 3 * 16, 3 * 4 * 16),
        ("alltoall_base_", (X, X, NO_GROUP, (), ()), (X,), 0, 3 * 4 * 32 // 4),
        ("alltoall_", ((Y, Y, Y, Y), (Y, Y, Y, Y), NO_GROUP), (Y, Y, Y, Y), 0, 3 * 4 * 64 // 4),
        ("broadcast_", ((X,), NO_GROUP, 0, 0), (X,), 0, 4 * 32),
    ],
)
def test_exchanges_of_eager_execution(op: str, arguments: Any, out: Any, flops: int, sent: int) -> None:
    estimate = price(f"c10d.{op}.default", *arguments, devices=4)
    assert (estimate.out, estimate.vector_flops, estimate.link_bytes) == (out, flops, sent)


def test_copies_of_fsdp() -> None:
    parts = (t(3), t(2, 2))
    gathered = price("fsdp.all_gather_copy_in.default", parts, t(28), (3, 4), 7, 1)
    assert (gathered.out, gathered.cost.read_bytes, gathered.cost.written_bytes) == (
        (t(7), t(28)),
        4 * 7,
        4 * 7,
    )
    copied = price("fsdp.split_with_sizes_copy.default", t(4, 7), (3, 4), 1, out=(t(4, 3), t(4, 4)))
    assert (copied.cost.read_bytes, copied.cost.written_bytes) == (4 * 28, 4 * 28)
    joined = price("fsdp.chunk_cat.default", (t(3), t(2, 2)), 0, 4, out=t(4, 2))
    assert (joined.cost.read_bytes, joined.cost.written_bytes) == (4 * 7, 4 * 8)
    mixed = (t(3, dtype="bfloat16"), t(2, 2))
    converted = price("fsdp.chunk_cat_mixed_dtype.default", mixed, 0, 4, out=t(4, 2))
    assert (converted.cost.read_bytes, converted.cost.written_bytes) == (2 * 3 + 4 * 4, 4 * 8)
    halves = price(
        "fsdp.chunk_cat.default", (t(3, dtype="bfloat16"), t(2, 2, dtype="bfloat16")), 0, 4, out=t(4, 2)
    )
    assert (halves.out, halves.vector_flops) == ((t(4, 2),), 3 + 2 * 2)  # a conversion for each element
    assert (halves.cost.read_bytes, halves.cost.written_bytes) == (2 * 7, 4 * 8)


def test_a_barrier_sends_nothing() -> None:
    estimate = price("c10d.barrier.default", X, Opaque("ProcessGroup"), ())
    assert (estimate.out, estimate.link_bytes, estimate.cost.read_bytes) == ((None,), 0, 0)


@pytest.mark.parametrize(
    ("op", "arguments", "devices", "sent"),
    [
        # https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: X has 4 * 32 bytes
        ("_c10d_functional.all_reduce.default", (X, "sum", "0"), 2, 2 * 1 * 128 // 2),
        ("_c10d_functional.all_reduce.default", (X, "sum", "0"), 8, 2 * 7 * 128 // 8),
        ("_c10d_functional.all_reduce_.default", (X, "sum", "0"), 1, 0),
        ("_c10d_functional.all_gather_into_tensor.default", (X, 8, "0"), None, 7 * 128),
        ("_c10d_functional.reduce_scatter_tensor.default", (X, "sum", 8, "0"), None, 7 * 128 // 8),
        ("_c10d_functional.all_to_all_single.default", (X, (2,) * 4, (2,) * 4, "0"), 4, 3 * 128 // 4),
        ("_c10d_functional.all_to_all_single.default", (X, (0, 0, 0, 8), (0, 8, 0, 0), "0"), 4, 128),
        ("_c10d_functional.broadcast.default", (X, 0, "0"), None, 128),
        ("_c10d_functional.isend.default", (X, 1, 0, "0"), None, 128),
        ("_c10d_functional.irecv.default", (X, 1, 0, "0"), None, 0),
        ("c10d.send.default", ((X,), Opaque("ProcessGroup"), 1, 0), None, 128),
        ("c10d.recv_.default", ((X,), Opaque("ProcessGroup"), 1, 0), None, 0),
        ("_c10d_functional.batch_p2p_ops", (("isend", "irecv"), (1, 1), (0, 0), (Y, X), "0"), None, 64),
        ("_dtensor.shard_dim_alltoall.default", (X, 0, 1, "0"), 4, 3 * 128 // 4),
        ("symm_mem.one_shot_all_reduce.default", (X, "sum", "0"), 4, 3 * 128),
        ("symm_mem.one_shot_all_reduce_copy.default", (X, X, "sum", "0"), 4, 3 * 128),
        ("symm_mem.two_shot_all_reduce_.default", (X, "sum", "0"), 4, 2 * 3 * 128 // 4),
        ("symm_mem._low_contention_all_gather.default", (X, "0"), 4, 3 * 128),
        ("symm_mem._low_contention_reduce_scatter.default", (X, "sum", "0"), 4, 3 * 128 // 4),
        ("symm_mem.fused_all_gather_matmul.default", (X, (t(4, 2),), 0, "0"), 4, 3 * 128),
        ("symm_mem.fused_matmul_reduce_scatter.default", (X, t(4, 2), "sum", 0, "0"), 4, 3 * 2 * 2 * 4),
    ],
)
def test_bytes_that_a_device_sends(op: str, arguments: Any, devices: int | None, sent: int) -> None:
    known = {} if devices is None else {"devices": devices}
    assert price(op, *arguments, **known).link_bytes == sent


def test_shapes_of_products_fused_with_collectives() -> None:
    gathered = price("symm_mem.fused_all_gather_matmul.default", X, (t(4, 2), t(4, 3)), 0, "0", devices=4)
    assert gathered.out == (t(32, 4), t(32, 2), t(32, 3))
    assert gathered.matrix_flops == 2 * 32 * 4 * (2 + 3)
    scattered = price("symm_mem.fused_matmul_reduce_scatter.default", X, t(4, 2), "sum", 0, "0", devices=4)
    assert scattered.out == (t(2, 2),)
    assert scattered.matrix_flops == 2 * 8 * 4 * 2


def _program(op: str, *arguments: Any, given: Any = X, out: Any = X, role: Any = "user") -> Graph:
    """A program of one collective on its input."""
    node = Node("call", op, (Ref("x"), *arguments), outputs=("y",))
    return Graph((node,), {"x": given, "y": out}, (Input("x", role),), (Output(Ref("y")),))


def test_a_group_of_unknown_size_is_a_size_of_the_program() -> None:
    program = _program("_c10d_functional.all_reduce.default", "sum", "tensor-parallel")
    report = analyze(program)
    size = report.symbols["group_tensor_parallel"]
    assert (size.value, size.given_by, size.where) == (2, "assumption", ("devices of group tensor-parallel",))
    assert report.value(report.total().link_bytes) == 2 * 128 // 2
    assert analyze(program, dims={"group_tensor_parallel": 4}).total().link_bytes == 2 * 3 * 128 // 4
    assert analyze(program, assume=False).symbols["group_tensor_parallel"].value is None


@pytest.mark.parametrize(
    "program",
    [
        _program("_dtensor.shard_dim_alltoall.default", 0, 1, "0", out=t(32, 1)),
        _program("symm_mem._low_contention_all_gather.default", "0", out=t(32, 4)),
        _program("_c10d_functional.all_to_all_single.default", (2,) * 4, (2,) * 4, "0"),
    ],
)
def test_shapes_and_splits_tell_the_size_of_a_group(program: Graph) -> None:
    assert dict(group_sizes(program)) == {"0": 4}
    assert not analyze(program).symbols


@pytest.mark.parametrize(
    ("op", "arguments", "out", "sent"),
    [
        ("all_reduce", ("sum", "0"), X, 2 * 128 // 2),
        ("all_gather_into_tensor", (4, "0"), t(32, 4), 3 * 128),
        ("reduce_scatter_tensor", ("sum", 4, "0"), t(2, 4), 3 * 128 // 4),
        ("all_to_all_single", ((1,) * 4, (2,) * 4, "0"), t(4, 4), 3 * 64 // 4),
        ("_dtensor.shard_dim_alltoall", (0, 1, "0"), t(32, 1), 3 * 128 // 4),
    ],
)
def test_gradients_take_the_way_back(op: str, arguments: Any, out: Any, sent: int) -> None:
    program = _program(
        f"{op if '.' in op else f'_c10d_functional.{op}'}.default",
        *arguments,
        given=t(8, 4, requires_grad=True),
        out=out,
        role="parameter",
    )
    report = analyze(program, training=Training(optimizer="none"))
    (row,) = report.rows
    assert row.backward is not None
    assert report.value(row.backward.link_bytes) == sent


def test_a_program_of_several_devices_is_read() -> None:
    with first_of(4) as (torch, exchange):

        class Parallel(torch.nn.Module):
            """A product split over devices by columns, then by rows, its parts added up; and the other exchanges."""

            def forward(self, x: Any, up: Any, down: Any) -> Any:
                whole = exchange.all_reduce((x @ up).relu() @ down, "sum", "0")
                parts = exchange.reduce_scatter_tensor(whole, "avg", 0, "0")
                return exchange.all_gather_tensor(exchange.all_to_all_single(parts, None, None, "0"), 0, "0")

        exported = torch.export.export(Parallel(), (torch.zeros(16, 8), torch.zeros(8, 6), torch.zeros(6, 8)))
        report = analyze(exported)
    assert report.diagnostics == ()
    assert report.coverage.unknown == 0
    assert report.total().matrix_flops == 2 * 2 * 16 * 8 * 6
