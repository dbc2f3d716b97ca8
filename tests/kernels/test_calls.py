"""One call with numbers for its sizes: tensors, arguments, results and costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.cost import Cost
from graphflops.dims import symbol
from graphflops.graph import Ref
from graphflops.kernels.call import ConcreteCall, OpenSizeError, Sizes, Tensor, Work
from graphflops.kernels.kernel import Attention, Kernel, Product, bytes_of
from graphflops.tensor import TensorType
from tests.one_call import g, program_of
from tests.support import t
from tests.time.one_call import one_call

N = symbol("n")


def test_sizes_have_numbers_where_their_symbols_do() -> None:
    sizes = Sizes({"n": 5})
    assert [sizes(each) for each in (7, N, 2 * N + 1, N - 9)] == [7, 5, 11, 0]
    assert sizes(2**80) == 2**80
    for far in (2**80 + 1, symbol("m"), N * 2**80):
        with pytest.raises(OpenSizeError):
            sizes(far)


def test_types_are_bound_to_numbers() -> None:
    sizes = Sizes({"n": 5})
    x = replace(t("n", 3), stored=None)
    assert sizes.bound(x) == t(5, 3)
    whole = t(4, 3)
    assert sizes.bound(whole) is whole
    assert sizes.bound(7) == 7


def test_tensors_have_numbers_for_sizes_and_strides() -> None:
    sizes = Sizes({"n": 5})
    assert sizes.tensor(g("n", 3, dtype="bfloat16")) == Tensor((5, 3), "bfloat16", 16, (3, 1), 2 * 15, True)
    assert sizes.tensor(t("n", 3), (1, N)) == Tensor((5, 3), "float32", 32, (1, 5), 4 * 15)
    assert sizes.known(t("m", 3)) is None
    assert sizes.known(t(2**40, 2**41)) is None  # more than any device has
    assert sizes.known(t("n")) == Tensor((5,), "float32", 32, (1,), 20)


@pytest.mark.parametrize(
    ("tensor", "rank", "numel", "full", "contiguous", "repeated", "transposed"),
    [
        (Tensor((4, 8), "float32", 32, (8, 1), 128), 2, 32, 128, True, False, False),
        (Tensor((4, 8), "float32", 32, (0, 1), 32), 2, 32, 128, False, True, False),
        (Tensor((1, 8), "float32", 32, (0, 1), 32), 2, 8, 32, True, False, False),
        (Tensor((2, 8), "float32", 32, (0, 1), 32), 2, 16, 64, False, True, False),
        (Tensor((4, 8), "bfloat16", 16, (1, 4), 64), 2, 32, 64, False, False, True),
        (Tensor((8,), "int4", 4, (1,), 4), 1, 8, 4, True, False, False),
        (Tensor((8,), "float32", 32, (2,), 32), 1, 8, 32, False, False, False),
        (Tensor((), "float32", 32, (), 4), 0, 1, 4, True, False, False),
        (Tensor((2, 4, 8), "float32", 32, (32, 2, 8), 256), 3, 64, 256, False, False, False),
        (Tensor((2, 4, 8), "float32", 32, (32, 1, 4), 256), 3, 64, 256, False, False, True),
        (Tensor((4, 1), "float32", 32, (1, 1), 16), 2, 4, 16, True, False, False),
    ],
)
def test_facts_of_a_tensor(
    tensor: Tensor, rank: int, numel: int, full: int, contiguous: bool, repeated: bool, transposed: bool
) -> None:
    assert (tensor.rank, tensor.numel, tensor.full_bytes) == (rank, numel, full)
    facts = (tensor.is_contiguous, tensor.is_repeated, tensor.is_transposed)
    assert facts == (contiguous, repeated, transposed)


def test_operands_by_argument_and_in_order() -> None:
    call = one_call("aten.linear.default", g(4, 8), t(6, 8), g(6))
    assert call.operand("b", "weight") == call.named("x1")
    assert call.operand("bias", "a") == call.named("x2")
    assert call.operand("missing") is None
    assert [x.shape for x in call.operands] == [(4, 8), (6, 8), (6,)]
    assert call.named("nothing") is None
    assert call.of("x1") == (8, 1)
    assert call.typed("x1").shape == (6, 8)
    wanted = [call.wants(name) for name in ("a", "b", "weight", "bias", "missing")]
    assert wanted == [True, False, False, True, False]
    assert call.wants("b", "bias")
    assert not call.wants()


def test_results_and_their_strides() -> None:
    call = one_call("aten.sort.default", t(4, 8), outputs=2, out_strides=(1, 4))
    first, second = call.results
    assert (first.strides, second.strides, second.dtype) == ((1, 4), (8, 1), "int64")
    assert call.out == first
    none = replace(call.call, node=replace(call.call.node, outputs=()))
    assert [x.strides for x in ConcreteCall(none, call.values, call.strides, call.sizes).results] == [
        (8, 1)
    ] * 2
    empty = replace(call.call, estimate=replace(call.call.estimate, out=()))
    assert ConcreteCall(empty, call.values, {}, call.sizes).out is None


def test_types_of_operands_and_results_are_bound() -> None:
    main = program_of("aten.relu.default", t("n", 8)).main
    call = ConcreteCall(main.calls[0], main.values, {}, Sizes({"n": 5}))
    assert [x.shape for x in call.bound_types.values() if isinstance(x, TensorType)] == [(5, 8), (5, 8)]
    assert set(call.bound_types) == {"x0", "y0"}


def test_arguments_by_their_own_names() -> None:
    call = one_call("aten.softmax.int", t(4, 8), -1)
    assert call.own == {"self": Ref("x0"), "dim": -1}
    assert call.arguments["axis"] == -1


def test_costs_as_numbers() -> None:
    call = one_call("aten.relu.default", g(4, 8))
    assert call.cost == Work(vector_flops=32, read_bytes=128, written_bytes=128)
    assert Work.__struct_fields__ == Cost.__struct_fields__
    assert call.backward_cost.read_bytes == 2 * 128
    assert one_call("aten.relu.default", t(4, 8)).backward_cost == Work(0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("sizes", "written", "launched"),
    [
        (Product(4, 8, 6), 0, False),
        (Product(4, 8, 6), 1, True),
        (Attention(1, 1, 1, 0, 8, 8), 0, False),
        (None, 0, True),
    ],
)
def test_products_without_a_result_are_not_launched(sizes: Any, written: int, launched: bool) -> None:
    assert Kernel("other", "float32", written_bytes=written, sizes=sizes).is_launched is launched


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 4), ("bfloat16", 2), ("int4", 0.5), ("tfloat32", 4)]
)
def test_bytes_of_an_element(dtype: str, width: float) -> None:
    assert bytes_of(dtype) == width
