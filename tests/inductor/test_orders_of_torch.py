"""Orders of kernels: beside inductor's own functions, which are given the same graphs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor import memory
from torch.utils._ordered_set import OrderedSet

from graphflops.inductor.fusing import Kernel
from graphflops.inductor.plan import _Order, lowest_peak
from tests.inductor.test_kernels import op


class Node:
    """A kernel as inductor's scheduler has it."""

    def __init__(self, index: int, kernel: Kernel) -> None:
        self.index, self.kernel = index, kernel
        self.outputs: list[Any] = []
        self.mpi_node: Any = None
        self.unmet_dependencies = [SimpleNamespace(name=name) for name in kernel.reads]

    def get_outputs(self) -> list[Any]:
        return self.outputs

    def get_buffer_names(self) -> list[str]:
        return [buffer.name for buffer in self.outputs]


class Buffer:
    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.mpi_buffer = SimpleNamespace(size_free=size, size_alloc=size, succ_nodes=OrderedSet())

    def get_name(self) -> str:
        return self.name


def scheduler(kernels: list[Kernel], sizes: dict[str, int], given: set[str]) -> tuple[list[Any], Any, Any]:
    """Its nodes, and by name the buffers that are given and those that are made."""
    buffers = {name: Buffer(name, size) for name, size in sizes.items()}
    nodes = [Node(index, kernel) for index, kernel in enumerate(kernels)]
    maker = {name: node for node in nodes for name in (*node.kernel.outputs, *node.kernel.inside)}
    for node in nodes:
        node.outputs = [buffers[name] for name in (*node.kernel.outputs, *node.kernel.inside)]
        read = [name for name in node.kernel.reads if name in maker or name in given]
        before = OrderedSet(maker[name] for name in read if name in maker)
        node.mpi_node = SimpleNamespace(
            index=node.index,
            size=sum(buffer.mpi_buffer.size_alloc for buffer in node.outputs),
            pred_buffers=OrderedSet(buffers[name] for name in read),
            pred_nodes=before,
            succ_nodes=OrderedSet(),
        )
        for name in read:
            buffers[name].mpi_buffer.succ_nodes.add(node)
        for other in before:
            other.mpi_node.succ_nodes.add(node)
    is_read = {name for kernel in kernels for name in kernel.reads}
    inputs = {name: buffers[name] for name in given & is_read}
    return nodes, inputs, {name: buffers[name] for name in maker}


def at_random(choose: random.Random) -> tuple[list[Kernel], dict[str, int]]:
    """Kernels of one or two results, of which some stay inside, that read what was made before, or given."""
    names, kernels = ["given 0", "given 1", "weight"], []
    for place in range(choose.randrange(3, 14)):
        reads = tuple(choose.sample(names, min(len(names), choose.randrange(1, 4))))
        outputs = tuple(f"t{place}{each}" for each in "ab"[: choose.randrange(1, 3)])
        inside = (f"i{place}",) if choose.random() < 0.3 else ()
        kernels.append(Kernel((op("pointwise", outputs[0], *reads),), outputs, inside, reads))
        names += outputs
    sizes = {name: choose.randrange(1, 30) for name in names}
    sizes |= {name: choose.randrange(1, 30) for kernel in kernels for name in kernel.inside}
    return kernels, sizes


@pytest.mark.parametrize("seed", range(3))
def test_orders_are_those_of_inductor(seed: int) -> None:
    choose, given = random.Random(seed), {"given 0", "given 1"}
    for _ in range(80):
        kernels, sizes = at_random(choose)
        made = [name for kernel in kernels for name in kernel.outputs]
        outputs = {name for name in made if choose.random() < 0.2} | {made[-1]}
        outputs |= {"given 0"} if choose.random() < 0.3 else set()
        plan = _Order(kernels, sizes.__getitem__, given, outputs)
        nodes, inputs, buffers = scheduler(kernels, sizes, given)
        order: Any = OrderedSet(outputs)
        least = memory.topological_sort_lpmf(nodes, inputs, buffers, order)
        assert plan.least_memory() == [node.index for node in least]
        assert plan.smallest_first() == [node.index for node in memory.topological_sort_dfs(nodes)]
        orders = [list(range(len(kernels))), plan.least_memory(), plan.smallest_first()]
        best = min(orders, key=lambda order: max(0, *plan.live(order)))  # the first of equal ones
        assert [one for one, _ in lowest_peak(kernels, sizes.__getitem__, given, outputs)] == [
            kernels[at] for at in best
        ]


def test_kernels_that_are_given_out_of_order_run_in_order() -> None:
    """Each after what it reads; among these orders the one with the lowest peak is chosen."""
    kernels = [
        Kernel((op("pointwise", out, *reads),), (out,), (), reads)
        for out, reads in (("c", ("b",)), ("a", ("x",)), ("b", ("a",)), ("d", ("x",)))
    ]
    plan = _Order(kernels, lambda _: 1, {"x"}, {"c", "d"})
    assert plan.as_written() == [1, 2, 0, 3]
    found = lowest_peak(kernels, lambda _: 1, {"x"}, {"c", "d"})
    assert [kernel.outputs[0] for kernel, _ in found] == ["a", "b", "c", "d"]
