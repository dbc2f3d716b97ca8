"""Kernels of the loss of a training step: those that an H200's profiler shows after the forward of `model(x).sum()`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import graphflops
from graphflops.analysis import as_graph
from graphflops.devices import HOPPER, device
from graphflops.execution.runs import Runs
from graphflops.kernels.call import Sizes
from graphflops.kernels.kernel import Product
from graphflops.kernels.rowwise import loss_kernels
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.time.launches import Launcher
from tests.one_call import g
from tests.support import t

RESULT = 6 * 5 * 4  # bytes


def kernels(loss, *, stores_gradients):
    graph = as_graph(graphflops.capture(nn.Linear(3, 5), (torch.randn(6, 3),)))
    program = price(graph, bind(graph, {}, {}), training=graphflops.Training(loss=loss))
    found = loss_kernels(program, Sizes({}), stores_gradients=stores_gradients)
    return [(kernel.family, kernel.read_bytes, kernel.written_bytes) for kernel in found]


def test_a_sum_reads_the_result_and_its_gradient_is_one_number():
    assert kernels("sum", stores_gradients=False) == [("reduction", RESULT, 4), ("elementwise", 0, 4)]


def test_a_mean_divides_its_gradient_for_each_element():
    written = ("elementwise", 4, RESULT)
    assert kernels("mean", stores_gradients=False) == [
        ("reduction", RESULT, 4),
        ("elementwise", 0, 4),
        written,
    ]


def test_a_compiled_backward_reads_a_gradient_that_is_stored():
    *_, stored = kernels("sum", stores_gradients=True)
    assert stored == ("elementwise", 4, RESULT)


def test_gradients_from_outside_and_a_loss_of_the_program_need_no_sum():
    assert kernels("given", stores_gradients=True) == []
    assert kernels("cross-entropy", stores_gradients=True) == []


def test_results_that_are_no_tensors_have_no_sum():
    """A size among the results, and a result that wants no gradient."""
    values = {"n": 3, "y": t(4, 8), "z": g(4, 8)}
    main = SimpleNamespace(graph=SimpleNamespace(seeds=("n", "y", "missing", "z", "z")), values=values)
    program = SimpleNamespace(main=main, training=SimpleNamespace(loss="sum"))
    summed, one = loss_kernels(program, Sizes({}), stores_gradients=False)
    assert (summed.vector_flops, summed.read_bytes, one.written_bytes) == (4 * 8, 4 * 4 * 8, 4)


class Head(nn.Module):
    """A product whose result `ends` returns."""

    def __init__(self, ends):
        super().__init__()
        self.body, self.head, self.ends = nn.Linear(8, 8), nn.Linear(8, 5, bias=False), ends

    def forward(self, x):
        return self.ends(self.head(self.body(x)))


def gradients(module, loss="sum"):
    """Kernels of the gradients of a module, after those of the loss."""
    graph = as_graph(graphflops.capture(module, (torch.randn(6, 8),)))
    program = price(graph, bind(graph, {}, {}), training=graphflops.Training(loss=loss, optimizer="none"))
    launcher = Launcher(program, {}, Runs((), HOPPER, is_eager=True), device("h200").host.seconds)
    return [kernel for launch in launcher.backward()[1:] for kernel in launch.kernels]


def is_repeat(kernel):
    """Whether it reads one number of 4 bytes and writes it to each element of the head's result."""
    return (kernel.read_bytes, kernel.written_bytes) == (4, 4 * 6 * 5)


OF_INPUT = Product(6, 8, 5, layout="nn")  # the result's gradient times the weight, both in order


@pytest.mark.parametrize("ends", [lambda y: y, lambda y: y.view(2, 3, 5)])
def test_each_product_copies_a_repeated_number_in_the_order_that_it_reads(ends):
    """An H200's profiler shows two copies beside the products of a head, and that of the weight reads rows in order."""
    first, of_input, second, of_weight, *_ = gradients(Head(ends))
    assert all(map(is_repeat, (first, second)))
    assert (of_input.sizes, of_weight.sizes) == (OF_INPUT, Product(5, 8, 6, layout="nn"))


@pytest.mark.parametrize(
    ("ends", "loss"),
    [(torch.relu, "sum"), (lambda y: y, "mean"), (lambda y: (y, torch.relu(y)), "sum")],
)
def test_a_gradient_with_a_value_for_each_element_is_read_as_it_lies(ends, loss):
    """Behind an activation, of a mean, and the sum of two gradients."""
    found = gradients(Head(ends), loss)
    products = [kernel.sizes for kernel in found if kernel.family == "matmul"]
    assert products[:2] == [OF_INPUT, Product(5, 8, 6, layout="nt")]
    assert not any(map(is_repeat, found))


def test_a_norm_reads_a_repeated_number_in_order():
    first, *_ = gradients(nn.Sequential(nn.Linear(8, 5), nn.LayerNorm(5)))
    assert is_repeat(first)
