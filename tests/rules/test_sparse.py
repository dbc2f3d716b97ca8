"""Tensors that store some of their elements: what is counted is what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.dims import symbol
from graphflops.graph import Graph, Input, Node, Output, Ref, Symbol
from graphflops.tensor import TensorType
from tests.support import price, shapes, t

EDGES = 40
GRAPH = t(16, 32, nonzeros=EDGES)


def test_memory_is_of_the_stored_elements_and_their_places() -> None:
    assert GRAPH.nbytes == EDGES * (4 + 8 + 8)
    assert GRAPH.like().nbytes == 4 * 16 * 32


@pytest.mark.parametrize("op", ["aten.mm.default", "aten.matmul.default", "aten._sparse_mm.default"])
def test_a_product_takes_the_stored_elements_only(op: str) -> None:
    product = price(f"sparse.{op}", GRAPH, t(32, 8))
    assert shapes(product) == [(16, 8)]
    assert product.matrix_flops == 2 * EDGES * 8
    assert product.cost.read_bytes == EDGES * 20 + 4 * 32 * 8
    other = price(f"sparse.{op}", t(8, 16), GRAPH)
    assert (shapes(other), other.matrix_flops) == ([(8, 32)], 2 * EDGES * 8)


def test_other_products() -> None:
    assert price("sparse.aten.mv.default", GRAPH, t(32)).out == (t(16),)
    added = price("sparse.aten.addmm.default", t(16, 8), GRAPH, t(32, 8))
    assert (added.matrix_flops, added.vector_flops) == (2 * EDGES * 8, 16 * 8)
    sampled = price("sparse.aten.sparse_sampled_addmm.default", GRAPH, t(16, 8), t(8, 32))
    assert (sampled.matrix_flops, sampled.vector_flops) == (2 * EDGES * 8, 3 * EDGES)
    both = price("sparse.aten.mm.default", GRAPH, t(32, 8, nonzeros=9))
    assert both.matrix_flops == 2 * symbol("products?")
    assert both.out == (t(16, 8, nonzeros=symbol("nnz?")),)


def test_made_of_elements_a_tensor_stores_as_many() -> None:
    made = price("aten.sparse_coo_tensor.indices_size", t(2, EDGES, dtype="int64"), t(EDGES), (16, 32))
    assert (made.out, made.cost.written_bytes, made.alias) == ((GRAPH,), 0, True)
    sized = price("aten.sparse_coo_tensor.indices", t(2, EDGES, dtype="int64"), t(EDGES))
    assert [value.nonzeros for value in sized.out if isinstance(value, TensorType)] == [EDGES]
    assert shapes(sized) == [(symbol("largest0?"), symbol("largest1?"))]
    empty = price("aten.sparse_coo_tensor.size", (16, 32))
    assert (empty.out, empty.cost.written_bytes) == ((t(16, 32, nonzeros=0),), 0)
    found = price("aten.to_sparse.default", t(16, 32))
    assert found.out == (t(16, 32, nonzeros=symbol("nnz?")),)


@pytest.mark.parametrize(
    ("op", "arguments", "out", "flops", "functions"),
    [
        ("to_dense.default", (), t(16, 32), EDGES, 0),
        ("coalesce.default", (), GRAPH, EDGES, 0),
        ("_indices.default", (), t(2, EDGES, dtype="int64"), 0, 0),
        ("values.default", (), t(EDGES), 0, 0),
        ("_nnz.default", (), EDGES, 0, 0),
        ("relu.default", (), GRAPH, EDGES, 0),
        ("tanh.default", (), GRAPH, 0, EDGES),
        ("mul.Tensor", (2.0,), GRAPH, EDGES, 0),
        ("mul.Tensor", (t(16, 32),), GRAPH, EDGES, 0),
        ("mul_.Tensor", (2.0,), GRAPH, EDGES, 0),
        ("add.Tensor", (t(16, 32, nonzeros=2),), t(16, 32, nonzeros=EDGES + 2), EDGES + 2, 0),
        ("add.Tensor", (t(16, 32),), t(16, 32), EDGES, 0),
        ("t.default", (), t(32, 16, nonzeros=EDGES), 0, 0),
        ("detach.default", (), GRAPH, 0, 0),
        ("_sparse_sum.default", (), t(), EDGES, 0),
        ("_sparse_sum.dim", ([1],), t(16, nonzeros=EDGES), EDGES, 0),
        ("_sparse_softmax.int", (1,), GRAPH, 4 * EDGES, EDGES),
        ("sym_size.int", (0,), 16, 0, 0),
    ],
)  # fmt: skip
def test_element_by_element(op: str, arguments: Any, out: Any, flops: int, functions: int) -> None:
    estimate = price(f"sparse.aten.{op}", GRAPH, *arguments)
    assert estimate.out == (out,)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops, functions)


def test_places_in_other_forms() -> None:
    rows, columns = t(EDGES, dtype="int64"), t(EDGES, dtype="int64")
    starts = price("aten._convert_indices_from_coo_to_csr.default", rows, 16)
    assert starts.out == (t(17, dtype="int64"),)
    back = price(
        "aten._convert_indices_from_csr_to_coo.default", t(17, dtype="int64"), columns, out_int32=True
    )
    assert back.out == (t(2, EDGES, dtype="int32"),)


def test_sequences_are_padded_to_the_longest() -> None:
    padded = price("aten._jagged_to_padded_dense_forward.default", t(9, 4), (t(3, dtype="int64"),), (6,))
    assert (shapes(padded), padded.vector_flops) == ([(2, 6, 4)], 0)
    assert padded.cost.read_bytes == 4 * 9 * 4 + 8 * 3
    packed = price("aten._padded_dense_to_jagged_forward.default", t(2, 6, 4), (t(3, dtype="int64"),), 9)
    assert shapes(packed) == [(9, 4)]
    assert packed.cost.read_bytes == 4 * 9 * 4 + 8 * 3


def program(op: str, **fields: Any) -> Graph:
    n = symbol("a_nnz")
    types = {"a": t(16, 32, nonzeros=n), "x": t(32, 8), "y": t(16, 8)}
    call = Node("y", op, (Ref("a"), Ref("x")), outputs=("y",))
    inputs = (Input("a", "user"), Input("x", "user"))
    symbols = {"a_nnz": Symbol("a_nnz", where=("stored elements of a",))}
    return Graph((call,), types, inputs, (Output(Ref("y")),), symbols=symbols, **fields)


def test_how_many_are_stored_can_be_given() -> None:
    report = analyze(program("aten.matmul.default"))
    assert report.total().matrix_flops == 16 * symbol("a_nnz")
    given = analyze(program("aten.matmul.default"), dims={"a_nnz": EDGES})
    assert given.value(given.total().matrix_flops) == 2 * EDGES * 8
    assert given.value(given.totals.peak_bytes) == EDGES * 20 + 4 * (32 * 8 + 16 * 8)


def test_a_dense_rule_is_not_asked_about_stored_elements() -> None:
    report = analyze(program("aten.cdist.default"))
    assert dict(report.coverage.unknown_ops) == {"aten.cdist.default": 1}
    assert [d.message.partition(":")[0] for d in report.diagnostics] == [
        "no rule for operator aten.cdist.default on sparse tensors"
    ]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_programs_of_torch_are_read(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")

    class Convolution(torch.nn.Module):
        """A graph convolution: features of neighbours added up by edges, given as a matrix and as a list."""

        def forward(self, matrix: Any, edges: Any, weights: Any, features: Any) -> Any:
            made = torch.sparse_coo_tensor(edges, weights, (16, 16))
            return matrix @ features + torch.sparse.mm(made, features) + matrix.coalesce().values().sum()

    matrix = torch.eye(16).to_sparse()
    edges = torch.zeros(2, EDGES, dtype=torch.int64)
    exported = torch.export.export(Convolution(), (matrix, edges, torch.zeros(EDGES), torch.zeros(16, 8)))
    torch.export.save(exported, tmp_path / "graph.pt2")
    for model in (exported, tmp_path / "graph.pt2"):
        report = analyze(model, dims={"matrix_nnz": 16})
        assert report.coverage.unknown == 0
        assert report.diagnostics == ()
        assert report.value(report.total().matrix_flops) == 2 * 16 * 8 + 2 * EDGES * 8


SIX = t(4, 5, nonzeros=6)
ONE_FLOP = "abs neg sgn sign square floor ceil round trunc deg2rad rad2deg"
ONE_EVALUATION = "sin sinh tan asin asinh atan atanh sqrt expm1 log1p erf"


@pytest.mark.parametrize(
    ("name", "flops", "evaluations"),
    [
        *((name, 1, 0) for name in ONE_FLOP.split()),
        *((name, 0, 1) for name in ONE_EVALUATION.split()),
        ("clone", 0, 0),
    ],
)
def test_functions_that_keep_zero_work_on_what_is_stored(name: str, flops: int, evaluations: int) -> None:
    estimate = price(f"sparse.aten.{name}.default", SIX)
    assert estimate.out == (SIX,)
    assert (estimate.vector_flops, estimate.transcendentals) == (flops * 6, evaluations * 6)


def test_dividing_and_converting_what_is_stored() -> None:
    half = t(4, 5, nonzeros=6, dtype="float16")
    assert price("sparse.aten.div.Scalar", SIX, 2.0).vector_flops == 6
    for converted in (
        price("sparse.aten.to.dtype", SIX, half.dtype),
        price("sparse.aten.to.device", SIX, "cpu", half.dtype),
        price("sparse.aten.to.dtype_layout", SIX, dtype=half.dtype),
        price("sparse.aten._to_copy.default", SIX, dtype=half.dtype),
    ):
        assert (converted.out, converted.vector_flops) == ((half,), 6)


@pytest.mark.parametrize(
    ("op", "arguments", "out"),
    [
        ("transpose.int", (0, 1), t(5, 4, nonzeros=6)),
        ("numpy_T.default", (), t(5, 4, nonzeros=6)),
        ("adjoint.default", (), t(5, 4, nonzeros=6)),
        ("alias.default", (), SIX),
        ("sym_numel.default", (), 20),
        ("is_coalesced.default", (), False),
        ("col_indices.default", (), t(6, dtype="int64")),
        ("row_indices.default", (), t(6, dtype="int64")),
        ("crow_indices.default", (), t(4 + 1, dtype="int64")),
        ("ccol_indices.default", (), t(5 + 1, dtype="int64")),
    ],
)
def test_views_and_questions_are_free(op: str, arguments: tuple[Any, ...], out: Any) -> None:
    estimate = price(f"sparse.aten.{op}", SIX, *arguments)
    assert estimate.out == (out,)
    assert not estimate.cost


def test_promises_about_a_sparse_tensor_cost_nothing() -> None:
    estimate = price("sparse.aten._assert_tensor_metadata.default", SIX)
    assert (estimate.out, bool(estimate.cost)) == ((), False)


@pytest.mark.parametrize("op", ["sparse_mask", "to_dense_backward"])
def test_elements_at_the_places_of_another_tensor_are_moved(op: str) -> None:
    stored = 6 * (4 + 2 * 8)
    estimate = price(f"sparse.aten.{op}.default", t(4, 5), SIX)
    assert estimate.out == (SIX,)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (2 * stored, stored)


@pytest.mark.parametrize(
    "op", ["aten._sparse_mm_reduce_impl.default", "sparse.aten._sparse_mm_reduce_impl.default"]
)
def test_a_product_that_reduces_says_which_element_it_chose(op: str) -> None:
    trained = t(5, 3, requires_grad=True)
    for b, reduce, chosen in ((trained, "amax", (4, 3)), (trained, "sum", (0,)), (t(5, 3), "amax", (0,))):
        estimate = price(op, SIX, b, reduce)
        assert (estimate.matrix_flops, estimate.out) == (2 * 6 * 3, (t(4, 3), t(*chosen, dtype="int64")))


def test_tensors_made_of_places_and_values_are_held_as_they_are() -> None:
    places = (t(5, dtype="int64"), t(6, dtype="int64"))
    for made in (
        price("aten.sparse_csr_tensor.crow_col_value_size", *places, t(6), (4, 5)),
        price("aten._sparse_csr_tensor_unsafe.default", *places, t(6), (4, 5)),
        price(
            "aten._sparse_coo_tensor_with_dims_and_tensors.default",
            2,
            0,
            (4, 5),
            t(2, 6, dtype="int64"),
            t(6),
        ),
    ):
        assert made.out == (SIX,)
        assert not made.cost


@pytest.mark.parametrize("op", ["to_dense", "_to_dense", "to_mkldnn"])
def test_another_layout_of_a_dense_tensor_is_a_copy(op: str) -> None:
    estimate = price(f"aten.{op}.default", t(4, 5))
    assert (estimate.out, estimate.cost.read_bytes, estimate.cost.written_bytes) == ((t(4, 5),), 80, 80)
