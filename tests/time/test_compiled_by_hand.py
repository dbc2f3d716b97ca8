"""What torch.compile launches of one call, with the CPU's time: costs are powers of ten, so that a sum shows its parts."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.devices import HOPPER
from graphflops.graph import Graph, Input, Node, Output, Ref
from graphflops.inductor.plan import Plans
from graphflops.kernels.kernel import Convolution, Product
from graphflops.passes.attention import facts_of
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.compiled import CompiledLauncher
from tests.one_call import g, program_of
from tests.support import t

COSTS = {
    "compiled.guards": 1.0,
    "compiled.autograd": 20.0,
    "compiled.parameter": 1e9,
    "compiled.inference.fused": 100.0,
    "compiled.training.fused": 1e3,
    "compiled.inference.library": 1e4,
    "forward.further_kernel": 0.25,
    "compiled.training.library": 1e5,
    "compiled.training.attention": 1e6,
    "compiled.training.convolution_gradient": 1e7,
    "compiled.collective": 1e8,
    "recurrent.call": 1e10,
    "recurrent.layer": 1e11,
    "recurrent.step": 1e12,
}


def launched(op: str, *args: Any, is_backward: bool = False, **more: Any) -> tuple[list[Any], float]:
    """The kernels of a phase but for the loss, and the CPU's time."""
    program = program_of(op, *args, **more)
    records = program.training is not None
    launcher = CompiledLauncher(program, {}, Plans(program, HOPPER), COSTS)
    found = launcher.backward() if is_backward else launcher.forward(records=records)
    kernels = [kernel for launch in found if launch.row >= 0 for kernel in launch.kernels or ()]
    return kernels, sum(launch.host_seconds for launch in found)


def test_guards_come_first_and_autograd_in_training() -> None:
    kernels, host = launched("aten.relu.default", t(4, 64))
    assert (len(kernels), host) == (1, 1 + 100)
    kernels, host = launched("aten.relu.default", g(4, 64))
    assert (len(kernels), host) == (1, 1 + 20 / 2 + 1e3)
    kernels, host = launched("aten.relu.default", g(4, 64), is_backward=True)
    assert host == 20 / 2 + 1e3
    assert kernels[-1].variant == "fused"


def test_what_no_graph_nests_runs_once() -> None:
    program = program_of("aten.relu.default", g(4, 64))
    launcher = CompiledLauncher(program, {}, Plans(program, HOPPER), COSTS)
    launches = [*launcher.forward(records=True), *launcher.backward()]
    assert {launch.times for launch in launches} == {1}


N = 4 * 64


@pytest.mark.parametrize(
    ("op", "operands", "loads", "slow", "read", "written"),
    [
        # an element takes a quarter of a load beside its own, and 2.75 more where places are computed; a narrow load takes
        # three quarters, an exponential a tenth, an element of a joined part a half
        ("relu.default", (t(4, 64),), 1, 0.25, 4 * N, 4 * N),
        ("add.Tensor", (t(4, 64), t(4, 64)), 2, 0.25, 8 * N, 4 * N),
        ("add.Tensor", (t(4, 64), t(4, 1)), 1.75, 3, 4 * (N + 4), 4 * N),
        ("exp.default", (t(4, 64),), 1, 0.25 + 0.1, 4 * N, 4 * N),
        ("cat.default", ((t(2, 64), t(2, 64)),), 2, 3 + 2 * 0.5, 4 * N, 4 * N),
        ("native_dropout.default", (t(4, 64), 0.5, True), None, None, 4 * N, None),
    ],
)
def test_loops_that_inductor_writes(
    op: str, operands: Any, loads: Any, slow: Any, read: int, written: Any
) -> None:
    outputs = 2 if "native" in op else 1
    kernels, _ = launched(f"aten.{op}", *operands, outputs=outputs)
    if loads is None:
        return
    (kernel,) = kernels
    assert kernel.vector_flops == int(N * (loads + slow))
    assert (kernel.read_bytes, kernel.written_bytes) == (read, written)


def test_pooling_takes_the_time_of_its_windows() -> None:
    (kernel,), _ = launched("aten.max_pool2d.default", t(2, 3, 8, 8), (2, 2), (2, 2))
    results = 2 * 3 * 4 * 4
    assert kernel.vector_flops == results * (3 + 1 + 2.5 * 4)  # of four positions


def test_reductions_that_inductor_writes() -> None:
    (kernel,), _ = launched("aten.sum.dim_IntList", t(4, 64), (1,))
    assert (kernel.family, kernel.vector_flops) == ("reduction", N)
    (kernel,), _ = launched("aten.sum.dim_IntList", t(64, 4), (0,))
    assert (kernel.variant, kernel.vector_flops) == ("fused.outer", int(N * 2.2))


def test_gradients_of_functions_compute_them_again() -> None:
    """Of erf the gradient computes an exponential again."""
    (kernel,), _ = launched("aten.erf.default", g(4, 64), is_backward=True)
    assert kernel.vector_flops == int(N * (0.25 + 2 + 0.1))
    (kernel,), _ = launched("aten.relu.default", g(4, 64), is_backward=True)
    assert kernel.vector_flops == N * (0.25 + 2)


@pytest.mark.parametrize(
    ("table", "dtype", "loads"),
    [
        ((100, 64), "float32", 4.7),
        ((1000, 8), "float32", 350_000 // 8000),
        ((10, 8), "float32", 1_400),
        ((1000, 300), "float32", 4.7),
        ((100_000, 60), "bfloat16", 4.7),
    ],
)
def test_additions_to_few_places_wait_for_one_another(table: Any, dtype: str, loads: float) -> None:
    operands = (g(*table, dtype=dtype), t(4, 5, dtype="int64"))
    kernels, _ = launched("aten.embedding.default", *operands, is_backward=True)
    added = kernels[-2 if dtype == "bfloat16" else -1]  # before the sums are converted
    rows = 20 * table[1]
    width = 2 if dtype == "bfloat16" else 4
    # Loads of the table's places and of what is added to them; of long rows the numbers are few.
    numbers = 0.75 if table[1] > 8 else 1
    assert added.vector_flops == round(rows * (3 + 2 + numbers + loads))
    assert added.written_bytes == 4 * rows  # in float32
    assert added.read_bytes == min(4 * rows, 4 * table[0] * table[1]) + width * rows + 8 * 20


def test_libraries_take_the_time_of_their_calls() -> None:
    kernels, host = launched("aten.mm.default", t(8, 16), t(16, 8))
    assert ([kernel.family for kernel in kernels], host) == (["matmul"], 1 + 1e4)
    kernels, host = launched("aten.mm.default", g(8, 16), g(16, 8), is_backward=True)
    assert ([kernel.family for kernel in kernels], host) == (["matmul"] * 2, 10 + 2 * 1e5)
    sdpa = [g(2, 4, 64, 64, dtype="bfloat16") for _ in range(3)]
    for is_backward, start in ((False, 11), (True, 10)):
        kernels, host = launched("aten.scaled_dot_product_attention.default", *sdpa, is_backward=is_backward)
        assert ([kernel.family for kernel in kernels], host) == (["attention"], start + 1e6)


def test_products_run_with_padded_sizes() -> None:
    half = {"dtype": "bfloat16"}
    kernels, _ = launched("aten.linear.default", t(12, 64, **half), t(30, 64, **half), t(30, **half))
    (product,) = [kernel for kernel in kernels if kernel.family == "matmul"]
    assert product.sizes == Product(16, 32, 64)


def conv(*, is_backward: bool, channels: int = 16) -> Any:
    """A convolution of 3 x 3 in half precision with bias, whose gradients are all wanted."""
    half = {"dtype": "bfloat16"}
    operands = (g(2, channels, 16, 16, **half), g(32, channels, 3, 3, **half), g(32, **half))
    args = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    return launched("aten.convolution.default", *operands, *args, is_backward=is_backward)


@pytest.mark.parametrize("is_late", [True, False])
def test_collectives_run_beside_what_comes_before_a_late_wait(is_late: bool) -> None:
    """One of an open size is unknown, which no start or wait hides."""
    call = ("r", "aten.mm.default", (Ref("x"), Ref("x")))
    start = ("s", "_c10d_functional.all_reduce.default", (Ref("x"), "sum", "0"))
    wait = ("w", "_c10d_functional.wait_tensor.default", (Ref("s"),))
    nodes = [
        Node(*each, outputs=each[:1]) for each in ((start, call, wait) if is_late else (start, wait, call))
    ]
    for size, of_collective in ((8, ["all", "start", "wait"] if is_late else ["all"]), ("n", ["all"])):
        types = {name: t(size, size) for name in "xsrw"}
        graph = Graph(tuple(nodes), types, (Input("x", "user"),), (Output(Ref("w")), Output(Ref("r"))))
        program = price(graph, bind(graph, {}, {}), facts_of)
        launches = CompiledLauncher(program, {}, Plans(program, HOPPER), COSTS).forward(records=False)
        copied = COSTS["compiled.inference.fused"]  # the operand, before it is changed
        found = [each for each in launches if each.row == 0 and each.host_seconds != copied]
        assert [each.part for each in found] == of_collective
        assert (found[-1].kernels is None) is (size == "n")


def test_convolutions() -> None:
    kernels, host = conv(is_backward=False)
    assert [kernel.family for kernel in kernels if isinstance(kernel.sizes, Convolution)] == ["convolution"]
    written = [kernel for kernel in kernels if kernel.variant == "fused"]
    assert host == 11 + 1e5 + 1e3 * len(written)
    kernels, host = conv(is_backward=True)
    own = [kernel.sizes.phase for kernel in kernels if isinstance(kernel.sizes, Convolution)]
    assert sorted(own) == ["input_gradient", "weight_gradient"]
    assert host // 1e7 == 2


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((2, 16, 64), (32, 16, 3)),
        ((2, 16, 8, 8), (32, 16, 3, 3)),
        ((2, 16, 8, 8), (16, 1, 3, 3)),
    ],
)
def test_inductor_writes_the_sum_of_the_gradient_of_a_bias(
    x: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    """The library's convolutions are those of the operand and the weight alone."""
    one, none = (1,) * (len(x) - 2), (0,) * (len(x) - 2)
    args = (one, one, one, False, none, x[1] // weight[1])
    kernels, _ = launched(
        "aten.convolution.default", g(*x), g(*weight), g(weight[0]), *args, is_backward=True
    )
    own = [kernel.family for kernel in kernels if kernel.variant != "fused"]
    assert own == ["convolution", "convolution"]
