"""Result types of transforms, factorizations and solvers against torch, on small tensors."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from graphflops.tensor import DTYPES, TensorType
from tests.support import price

KINDS = ("float32", "complex64")
BATCHES = ((), (2,), (0,))


def typed(value: Any) -> Any:
    """A torch value as rules see it."""
    if hasattr(value, "dtype"):
        return TensorType(tuple(value.shape), DTYPES[str(value.dtype).removeprefix("torch.")])
    return tuple(map(typed, value)) if isinstance(value, (list, tuple)) else value


def agree(op: str, *arguments: Any, **named: Any) -> None:
    """The operator's results have the types that its rule says."""
    torch = pytest.importorskip("torch")
    packet = torch.ops
    for name in op.split("."):
        packet = getattr(packet, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = packet(*arguments, **named)
    expected = typed(results if isinstance(results, (list, tuple)) else (results,))
    out = price(op, *map(typed, arguments), **{name: typed(value) for name, value in named.items()}).out
    assert [(x.shape, x.dtype.name) for x in out if isinstance(x, TensorType)] == [
        (x.shape, x.dtype.name) for x in expected
    ], f"{op} {typed(arguments)} {named}"


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_fourier(name: str) -> None:
    torch = pytest.importorskip("torch")
    real_only = name in ("rfft", "ihfft")
    for dtype in ("int32", "float64" if real_only else "complex64"):
        x = torch.zeros(3, 4, 6, dtype=getattr(torch, dtype))
        for n, dim in ((None, -1), (5, 0), (8, -1)):
            agree(f"aten.fft_{name}.default", x, n, dim)
        for s, dim in ((None, [2, 0]), ([5, -1], [0, 2]), ([4, 7], [2, 0])):
            agree(f"aten.fft_{name}n.default", x, s, dim)
            agree(f"aten.fft_{name}2.default", x, s)
        for s in (None, [3], [-1, -1, 4]):
            agree(f"aten.fft_{name}n.default", x, s)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", BATCHES)
def test_square_factorizations(kind: str, batch: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    x = 4 * torch.eye(4, dtype=getattr(torch, kind)).expand(*batch, 4, 4).clone()
    names = "cholesky_ex ldl_factor ldl_factor_ex det slogdet eigh eigvalsh eig eigvals inv inv_ex"
    for name in names.split():
        agree(f"aten.linalg_{name}.default", x)
    for name in ("_linalg_det", "_linalg_slogdet", "_linalg_eigh", "logdet", "cholesky_inverse"):
        agree(f"aten.{name}.default", x)
    if hasattr(torch.ops.aten, "cholesky"):  # gone in torch 2.15
        agree("aten.cholesky.default", x)
    agree("aten._linalg_eigh.default", x, "L", False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", BATCHES)
def test_factorizations(kind: str, batch: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    for sizes in ((4, 4), (5, 3), (3, 5)):
        x = torch.rand(*batch, *sizes).to(getattr(torch, kind))
        for name in (
            "linalg_lu_factor_ex",
            "linalg_lu",
            "geqrf",
            "linalg_svdvals",
            "linalg_svd",
            "_linalg_svd",
        ):
            agree(f"aten.{name}.default", x)
        for mode in ("reduced", "complete", "r"):
            agree("aten.linalg_qr.default", x, mode)
        for some, vectors in itertools.product((True, False), (True, False)):
            agree("aten.svd.default", x, some, vectors)
            agree("aten._linalg_svd.default", x, some, vectors)


@pytest.mark.parametrize("kind", KINDS)
def test_solvers(kind: str) -> None:
    torch = pytest.importorskip("torch")

    def near_identity(*sizes: int) -> Any:
        return torch.eye(4, dtype=getattr(torch, kind)).expand(*sizes).clone()

    def values(*sizes: int) -> Any:
        return torch.ones(*sizes, dtype=getattr(torch, kind))

    pairs = (
        ((2, 4, 4), (2, 4, 3)),
        ((2, 4, 4), (2, 4)),
        ((2, 4, 4), (4,)),
        ((4, 4), (5, 4, 3)),
        ((4, 4), (4, 5)),
    )
    for matrix, sides in pairs:
        for name in ("_linalg_solve_ex", "linalg_solve_ex", "linalg_solve"):
            agree(f"aten.{name}.default", near_identity(*matrix), values(*sides))
    agree("aten._linalg_solve_ex.default", near_identity(2, 4, 4), values(2, 3, 4), left=False)
    agree("aten.triangular_solve.default", values(4, 3), near_identity(2, 4, 4))
    agree("aten.cholesky_solve.default", values(5, 1, 4, 3), near_identity(2, 4, 4))
    for driver, rows in itertools.product(("gels", "gelsy", "gelsd", "gelss"), (3, 4, 5)):
        tall = torch.eye(rows, 4, dtype=getattr(torch, kind)).expand(2, rows, 4).clone()
        agree("aten.linalg_lstsq.default", tall, values(2, rows, 3), None, driver=driver)
    for order in (None, 1, -2):
        agree("aten.linalg_cond.default", near_identity(2, 4, 4), order)
    agree("aten.linalg_pinv.default", values(2, 5, 3), 1e-3)
    agree("aten.linalg_matrix_rank.default", values(2, 5, 3), 1e-3)


def test_short_time_transforms() -> None:
    torch = pytest.importorskip("torch")
    x, window = torch.zeros(2, 50), torch.ones(8)
    for hop, align in itertools.product((3, 4, 5), (None, True)):
        agree("aten.stft.default", x, 16, hop, 8, window, False, None, True, align)
        agree("aten.stft.center", x, 15, hop, 8, window, True, "reflect", False, False, True, None)
    frames = torch.zeros(2, 9, 12, dtype=torch.complex64)
    for hop, length in itertools.product((4, 5), (None, 40)):
        agree("aten.istft.default", frames, 16, hop, None, torch.ones(16), True, False, None, length)


def test_reductions() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(3, 4, 6)
    for name in ("sum", "mean", "nansum", "nanmean", "amax", "amin", "logsumexp", "linalg_vector_norm"):
        for dim, keepdim in itertools.product(([0], [-1, 0]), (False, True)):
            overload = {"sum": "dim_IntList", "mean": "dim"}.get(name, "default")
            order = (2,) if name == "linalg_vector_norm" else ()
            agree(f"aten.{name}.{overload}", x, *order, dim, keepdim)
    for name in ("max", "min", "median", "nanmedian"):
        agree(f"aten.{name}.default", x)
        agree(f"aten.{name}.dim", x, 1, True)
    for name in ("var", "std", "var_mean", "std_mean"):
        agree(f"aten.{name}.correction", x.to(torch.complex64), [1], keepdim=True)
    for name in ("trapezoid", "cumulative_trapezoid"):
        agree(f"aten.{name}.x", x, torch.arange(4.0, dtype=torch.float64), dim=1)
    agree("aten.cov.default", x[0], aweights=torch.ones(6, dtype=torch.float64))
    agree("aten.quantile.default", x, torch.rand(2), 1, True)
    agree("aten.segment_reduce.default", x, "sum", lengths=torch.tensor([[1, 3], [2, 2], [4, 0]]), axis=1)
