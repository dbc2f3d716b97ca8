"""Gradients of linear algebra against FlopCounterMode around torch's own backward, every result having a gradient."""

from __future__ import annotations

from typing import Any

import pytest

from graphflops.cost import Estimate
from graphflops.passes.gradients import gradient
from graphflops.rules import find
from graphflops.tensor import DTYPES, TensorType
from tests.support import t

torch = pytest.importorskip("torch")


def square(n: int = 6, *batch: int, dtype: Any = None) -> Any:
    """A positive definite matrix, so that whatever is asked of it exists."""
    x = torch.rand(*batch, n, n, dtype=dtype or torch.float32)
    return x @ x.mH + n * torch.eye(n)


def rows(*shape: int) -> Any:
    return torch.rand(*shape) + torch.eye(*shape[-2:])


def factors(n: int = 6) -> tuple[Any, Any]:
    return tuple(torch.linalg.lu_factor(square(n)))


def typed(value: Any) -> Any:
    """A torch value as rules see it."""
    if not isinstance(value, torch.Tensor):
        return value
    dtype = DTYPES[str(value.dtype).removeprefix("torch.")]
    return TensorType(tuple(value.shape), dtype, requires_grad=value.requires_grad)


def differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def ours(op: str, *arguments: Any, **named: Any) -> Estimate:
    """What the backward of a call costs by our rules."""
    rule = find(op)
    assert rule is not None, op
    given = rule.bound(op, arguments, named.items())
    estimate = gradient(rule, given, rule.call(given))
    assert estimate is not None, op
    return estimate


def theirs(op: str, wanted: list[Any], *arguments: Any, **named: Any) -> int:
    """What FlopCounterMode counts in the backward, in real FLOPs."""
    from torch.utils.flop_counter import FlopCounterMode

    function = torch.ops
    for part in op.split("."):
        function = getattr(function, part)
    results = function(*arguments, **named)
    results = [r for r in (results if isinstance(results, (list, tuple)) else (results,)) if r.requires_grad]
    # of singular and eigenvectors only what their phase does not change has a gradient
    results = [r.abs() if r.is_complex() else r for r in results]
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(results, wanted, [torch.ones_like(r) for r in results], allow_unused=True)
    return counter.get_total_flops() * (4 if wanted[0].is_complex() else 1)


def case(op: str, *arguments: Any, **named: Any) -> Any:
    return pytest.param(op, arguments, named, id=op)


SHAPES = ((6, 6), (8, 5), (5, 8))
COMPLEX = torch.complex64
CASES = [
    case("linalg_cholesky_ex", square()),
    case("linalg_cholesky", square(6, 3)),
    case("linalg_cholesky", square(6, dtype=COMPLEX)),
    *(case("linalg_lu", rows(*shape)) for shape in SHAPES),
    case("linalg_lu_factor", rows(2, 6, 6)),
    case("linalg_lu_factor_ex", rows(8, 5)),
    case("lu_unpack", *factors()),
    case("linalg_det", square()),
    case("linalg_slogdet", square()),
    *(case("linalg_qr", rows(*shape)) for shape in SHAPES),
    case("linalg_qr", rows(2, 6, 6), "complete"),
    case("linalg_householder_product", rows(8, 5), torch.rand(5)),
    case("linalg_householder_product", rows(8, 5), torch.rand(3)),
    case("linalg_householder_product", rows(6, 6), torch.rand(6)),
    case("ormqr", rows(6, 4), torch.rand(4), rows(6, 3)),
    case("linalg_eigh", square()),
    case("linalg_eigh", square(6, 2)),
    case("linalg_eigvalsh", square()),
    case("linalg_eig", square(6, dtype=COMPLEX)),
    case("linalg_eigvals", square(6, dtype=COMPLEX)),
    *(case("linalg_svd", rows(*shape), False) for shape in SHAPES),
    case("linalg_svd", rows(6, 6), True),
    *(case("linalg_svdvals", rows(*shape)) for shape in SHAPES),
    case("linalg_cond", square()),
    case("linalg_cond", square(), -2),
    case("linalg_matrix_norm", rows(3, 6, 5), "nuc"),
    case("linalg_matrix_norm", rows(3, 6, 5), 2),
    case("linalg_matrix_norm", rows(6, 3, 5), -2, (0, 2)),
    case("linalg_matrix_norm", rows(6, 5), "fro"),
    case("linalg_norm", rows(6, 5), "nuc"),
    case("nuclear_norm", rows(6, 5)),
    case("linalg_norm", rows(6, 5), 2),
    case("linalg_norm", rows(6, 5), None),
    case("linalg_inv", square()),
    case("linalg_inv", square(6, dtype=COMPLEX)),
    case("linalg_inv_ex", square(6, 2)),
    case("linalg_tensorinv", square().reshape(6, 2, 3), 1),
    case("cholesky_inverse", square()),
    *(case("linalg_pinv", rows(*shape)) for shape in SHAPES),
    case("linalg_solve", square(), rows(6, 4)),
    case("linalg_solve", square(6, 3), rows(6, 4)),
    case("linalg_solve", square(), torch.rand(6)),
    case("linalg_solve", square(), rows(4, 6), left=False),
    case("linalg_tensorsolve", square().reshape(2, 3, 6), torch.rand(2, 3)),
    case("linalg_solve_triangular", square(), rows(6, 4), upper=True),
    case("linalg_solve_triangular", square(), rows(4, 6), upper=True, left=False),
    case("triangular_solve", rows(6, 4), square()),
    case("cholesky_solve", rows(6, 4), square()),
    case("linalg_lu_solve", *factors(), rows(6, 4)),
    case("linalg_lu_solve", *factors(), rows(6, 4), adjoint=True),
    case("linalg_lu_solve", *factors(), rows(4, 6), left=False),
    case("linalg_lu_solve", *factors(), rows(4, 6), left=False, adjoint=True),
    case("lu_solve", rows(6, 4), *factors()),
    *(
        case(op, rows(m, n))
        for op, m, n in (("linalg_polar", 8, 5), ("linalg_polar", 6, 6))
        if hasattr(torch.linalg, "polar")
    ),
    *([case("linalg_matrix_sqrth", square())] if hasattr(torch.linalg, "matrix_sqrth") else []),
]


def wants(arguments: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """Each differentiable operand on its own, and all of them together."""
    places = [place for place, x in enumerate(arguments) if differentiable(x)]
    return [*((place,) for place in places), *([tuple(places)] if len(places) > 1 else [])]


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize(("op", "arguments", "named"), CASES)
def test_matrix_work_is_that_of_torch(op: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    for places in wants(arguments):
        leaves = [
            x.clone().requires_grad_(place in places) if differentiable(x) else x
            for place, x in enumerate(arguments)
        ]
        wanted = [leaves[place] for place in places]
        expected = theirs(f"aten.{op}", wanted, *leaves, **named)
        found = ours(f"aten.{op}.default", *map(typed, leaves), **named)
        assert found.matrix_flops == expected, f"{op} {places}"
        assert [x.shape for x in found.out] == [tuple(x.shape) for x in wanted]


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_least_squares_beside_the_product_inside_the_pseudo_inverse(
    m: int, n: int, places: tuple[int, ...]
) -> None:
    leaves = [x.requires_grad_(place in places) for place, x in enumerate((rows(m, n), torch.rand(m, 4)))]
    found = ours("aten.linalg_lstsq.default", *map(typed, leaves))
    expected = theirs("aten.linalg_lstsq", [leaves[place] for place in places], *leaves)
    assert found.matrix_flops == expected + 2 * n * min(m, n) * m


@pytest.mark.parametrize(
    ("op", "arguments", "named", "solves"),
    [
        ("linalg_solve", (t(6, 6, requires_grad=True), t(6, 4)), {}, 2 * 6 * 6 * 4),
        ("linalg_solve", (t(3, 6, 6, requires_grad=True), t(6, 4)), {}, 3 * 2 * 6 * 6 * 4),
        ("linalg_solve_triangular", (t(6, 6), t(6, 4, requires_grad=True)), {"upper": True}, 6 * 6 * 4),
        ("linalg_det", (t(6, 6, requires_grad=True),), {}, 2 * 6 * 6 * 6),
    ],
)
def test_solves_are_vector_work(op: str, arguments: Any, named: Any, solves: int) -> None:
    assert ours(f"aten.{op}.default", *arguments, **named).vector_flops == solves


def test_training_computes_the_vectors_that_eigenvalues_and_singular_values_are_differentiated_by() -> None:
    """9 n^3 operations with eigenvectors, of which the forward counts 4/3 n^3."""
    n = 30
    back = ours("aten.linalg_eigvalsh.default", t(n, n, requires_grad=True))
    assert back.vector_flops == 9 * n**3 - 4 * n**3 // 3 + n * n


@pytest.mark.parametrize(
    ("op", "x", "matrix", "vector"),
    [
        # Eigenvectors of the root in 9 n^3 operations, four products with them, five for each pair of eigenvalues.
        ("linalg_matrix_sqrth", t(6, 6, requires_grad=True), 4 * 2 * 6**3, 9 * 6**3 + 5 * 6**2),
        # Eigenvectors of the square factor, six products of 8 rows with a square and eight of squares.
        (
            "linalg_polar",
            t(8, 5, requires_grad=True),
            6 * 2 * 8 * 5**2 + 8 * 2 * 5**3,
            9 * 5**3 + 3 * 8 * 5 + 6 * 5**2,
        ),
    ],
)
def test_operators_of_later_releases_by_the_products_in_their_formulas(
    op: str, x: TensorType, matrix: int, vector: int
) -> None:
    found = ours(f"aten.{op}.default", x)
    assert (found.matrix_flops, found.vector_flops) == (matrix, vector)
    assert [y.shape for y in found.out] == [x.shape]


@pytest.mark.parametrize(("shape", "products"), [((6, 6), 4 * 6**3), ((8, 5), 5**3 + 5 * 8 * 5**2)])
def test_singular_vectors_divide_by_differences_of_squared_values(
    shape: tuple[int, int], products: int
) -> None:
    """Products of the shorter side's vectors, and seven operations for each pair of its 6 or 5 values."""
    found = ours("aten.linalg_svd.default", t(*shape, requires_grad=True), False)
    assert (found.matrix_flops, found.vector_flops) == (2 * products, 7 * min(shape) ** 2)
