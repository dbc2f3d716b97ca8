"""Kernels of the loss of a training step: those that an H200's profiler shows after the forward of `model(x).sum()`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import graphflops
from graphflops.analysis import as_graph
from graphflops.kernels.call import Sizes
from graphflops.kernels.rowwise import loss_kernels
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from tests.one_call import g
from tests.support import t

RESULT = 6 * 5 * 4  # bytes


def kernels(loss, *, stores_gradients):
    graph = as_graph(graphflops.capture(nn.Linear(3, 5), (torch.randn(6, 3),)))
    program = price(graph, bind(graph, {}, {}), training=graphflops.Training(loss=loss))
    found = loss_kernels(program, Sizes({}), stores_gradients=stores_gradients)
    return [(kernel.family, kernel.read_bytes, kernel.written_bytes) for kernel in found]


@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_a_sum_reads_the_result_and_its_gradient_is_one_number(loss):
    assert kernels(loss, stores_gradients=False) == [("reduction", RESULT, 4), ("elementwise", 0, 4)]


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
