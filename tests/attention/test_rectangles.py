"""Counting by blocks against counting all pairs at once; ranges against the numbers in them; numbers against torch's."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from graphflops.attention import elementwise, rectangles
from graphflops.attention.conditions import Affine
from graphflops.attention.elementwise import Function, Interval, extended, primitive
from graphflops.attention.rectangles import HIDDEN, MIXED, SEEN, Counted, count
from graphflops.dims import evaluate, symbol
from graphflops.errors import ModelError
from graphflops.ops import operator
from graphflops.tensor import BFLOAT16, BOOL, DTYPES, FLOAT32, INT32, DType


def counted(matrix: Any, rows: int, columns: int) -> Counted:
    """What a matrix of truth values lets through, in blocks."""
    queries, keys = matrix.shape
    partial = full = partial_pairs = full_pairs = 0
    for top, left in itertools.product(range(0, queries, rows), range(0, keys, columns)):
        block = matrix[top : top + rows, left : left + columns]
        if block.sum() == rows * columns:
            full, full_pairs = full + 1, full_pairs + block.size
        elif block.any():
            partial, partial_pairs = partial + 1, partial_pairs + block.size
    return Counted(int(matrix.sum()), partial, full, partial_pairs, full_pairs)


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("at_once", [50, 2**18])
def test_any_matrix(settles: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a block is evaluated in parts."""
    monkeypatch.setattr(rectangles, "_AT_ONCE", at_once)
    monkeypatch.setattr(rectangles, "_INNER", 3)
    drawn = np.random.default_rng(0)
    for density in (0.0, 0.02, 0.5, 0.97, 1.0):
        queries, keys, rows, columns = (int(drawn.integers(1, most)) for most in (70, 70, 20, 20))
        matrix = drawn.random((queries, keys)) < density
        matrix[: queries // 2, keys // 3 :] = True

        def settled(lead: Any, top: Any, bottom: Any, left: Any, right: Any, of: Any = matrix) -> Any:
            parts = (of[a : z + 1, c : e + 1] for a, z, c, e in zip(top, bottom, left, right, strict=True))
            return np.array([SEEN if x.all() else MIXED if x.any() else HIDDEN for x in parts], np.int8)

        found = count(
            lambda lead, q, k, of=matrix: of[q, k],
            *([()], queries, keys, rows, columns),
            settled=settled if settles else None,
        )
        assert found == counted(matrix, rows, columns)


def test_every_batch_entry_and_head_is_asked() -> None:
    found = count(lambda lead, q, k: k < 10 * lead[0] + lead[1], np.ndindex(2, 3), 5, 20)
    assert found.pairs == 5 * (0 + 1 + 2 + 10 + 11 + 12)


def test_more_pairs_than_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rectangles, "MOST_PAIRS", 999)
    with pytest.raises(ModelError, match="more than 999 pairs"):
        count(lambda lead, q, k: q >= k, [()], 40, 40)


DIRECTIONS = [(1, -1), (-1, 1), (1, 0), (-1, 0), (0, 1), (0, -1)]


def test_bands_in_closed_form() -> None:
    drawn = random.Random(0)
    for _ in range(300):
        sizes = [drawn.randint(1, 40) for _ in range(2)]
        block = [drawn.randint(1, 9) for _ in range(2)]
        chosen = drawn.sample(DIRECTIONS, drawn.randint(0, 4))
        case = tuple(Affine(*direction, drawn.randint(-12, 25)) for direction in chosen)
        q, k = np.ogrid[: sizes[0], : sizes[1]]
        holds = [term.row * q + term.column * k + term.constant >= 0 for term in case]
        want = counted(np.logical_and.reduce(np.broadcast_arrays(q == q, k == k, *holds)), *block)
        found = rectangles.closed_blocks(case, *sizes, *block)
        assert found == want._replace(pairs=0), case


def test_bands_of_any_length() -> None:
    drawn = random.Random(1)
    for _ in range(200):
        length, block = drawn.randint(1, 40), drawn.randint(1, 7)
        chosen = drawn.sample(DIRECTIONS[:2], drawn.randint(0, 2))
        case = tuple(Affine(*direction, drawn.randint(0, 20)) for direction in chosen)
        found = rectangles.formulas(case, symbol("s"), block)
        assert found is not None
        numbers = [evaluate(x, {"s": length}) for x in found if x is not None]
        assert tuple(numbers) == rectangles.closed_blocks(case, length, length, block, block), (
            case,
            length,
            block,
        )


# Operators


def split(text: str) -> list[str]:
    return text.split()


INTEGERS = [-7, -2, -1, 0, 1, 3, 8]
NUMBERS = [-2.5, -1.0, -0.1, 0.0, 0.3, 1.0, 7.75]
OF_INTEGERS = split(
    "add.Tensor sub.Tensor rsub.Tensor mul.Tensor floor_divide.default remainder.Tensor minimum.default maximum.default"
    " eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor"
    " neg.default abs.default sign.default bitwise_not.default div.Tensor clamp_min.Tensor clamp_max.Tensor"
)
OF_NUMBERS = split(
    "add.Tensor sub.Tensor mul.Tensor div.Tensor floor_divide.default remainder.Tensor fmod.Tensor minimum.default"
    " maximum.default atan2.default pow.Tensor_Tensor"
    " lt.Tensor ge.Tensor eq.Tensor neg.default abs.default sign.default floor.default ceil.default trunc.default"
    " round.default exp.default exp2.default expm1.default log.default log2.default log10.default log1p.default sqrt.default"
    " rsqrt.default reciprocal.default square.default sin.default cos.default tan.default asin.default acos.default"
    " atan.default sinh.default cosh.default tanh.default asinh.default acosh.default atanh.default sigmoid.default"
    " silu.default relu.default softplus.default erf.default isnan.default isinf.default isfinite.default"
)
CALLS = [*((op, INT32) for op in OF_INTEGERS), *((op, FLOAT32) for op in OF_NUMBERS)]
UNARY = split(
    "neg abs sign bitwise_not floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin"
    " cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid silu relu softplus erf isnan isinf isfinite"
)


def operands(op: str, dtype: DType) -> list[torch.Tensor]:
    """Every pair of numbers, or every number."""
    values = INTEGERS if dtype is INT32 else NUMBERS
    number = 1 if op.partition(".")[0] in UNARY else 2
    whole = op.startswith(("floor_divide", "remainder")) and dtype is INT32  # dividing by zero is an error
    pairs = [x for x in itertools.product(values, repeat=number) if not (whole and x[-1] == 0)]
    return [torch.tensor(column, dtype=getattr(torch, dtype.name)) for column in zip(*pairs, strict=True)]


def torch_result(op: str, given: list[torch.Tensor]) -> tuple[torch.Tensor, DType]:
    word, _, overload = op.partition(".")
    found = getattr(getattr(torch.ops.aten, word), overload)(*given)
    return found, DTYPES[str(found.dtype).removeprefix("torch.")]


@pytest.mark.parametrize(("op", "dtype"), CALLS, ids=str)
def test_numbers_are_those_of_torch(op: str, dtype: DType) -> None:
    given = operands(op, dtype)
    expected, result = torch_result(op, given)
    function = Function(operator(f"aten.{op}").name, (dtype,) * len(given), result)
    found = elementwise.computed(*primitive(function, [x.numpy() for x in given]))
    np.testing.assert_allclose(found.astype(np.float64), expected.double().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("op", "dtype"), CALLS, ids=str)
def test_no_number_is_outside_of_its_range(op: str, dtype: DType) -> None:
    """For every pair of ranges between the numbers, what comes of the numbers in them."""
    values = INTEGERS if dtype is INT32 else NUMBERS
    ends = list(itertools.combinations_with_replacement(values, 2))
    name = operator(f"aten.{op}").name
    number = 1 if op.partition(".")[0] in UNARY else 2
    for chosen in itertools.product(ends, repeat=number):
        inside = [[x for x in values if low <= x <= high] for low, high in chosen]
        pairs = [
            x
            for x in itertools.product(*inside)
            if not (x[-1] == 0 and name in ("floor_divide", "remainder"))
        ]
        if not pairs:
            continue
        given = [
            torch.tensor(column, dtype=getattr(torch, dtype.name)) for column in zip(*pairs, strict=True)
        ]
        expected, result = torch_result(op, given)
        ranges = [Interval(np.float64(low), np.float64(high)) for low, high in chosen]
        found = extended(*primitive(Function(name, (dtype,) * number, result), ranges))
        exact = expected.double().numpy()
        exact = exact[~np.isnan(exact)]
        rounds = np.isfinite(exact) & (
            result.kind == "float"
        )  # numpy's functions are not torch's to the last bit
        slack = np.where(rounds, 1e-6 * (1 + np.abs(np.where(rounds, exact, 0))), 0)
        assert ((found.low <= exact + slack) & (exact - slack <= found.high)).all(), (chosen, found)


def test_ranges_of_monotone_conditions_settle() -> None:
    """What lets whole blocks be skipped."""
    q, k = (
        Interval(np.array([128.0, 0.0]), np.array([255.0, 127.0])),
        Interval(np.array([0.0, 128.0]), np.array([127.0, 255.0])),
    )
    found = extended(Function("ge", (INT32, INT32), BOOL), [q, k])
    assert found.low.tolist() == found.high.tolist() == [1, 0]
    place = Interval(np.array([130.0, 120.0]), np.array([140.0, 140.0]))
    divisor = Interval(np.float64(128), np.float64(128))
    found = extended(Function("remainder", (INT32, None), INT32), [place, divisor])
    assert (found.low.tolist(), found.high.tolist()) == ([2, 0], [12, 127])


def test_what_does_not_fit_is_open() -> None:
    large = Interval(np.float64(0), np.float64(2**20))
    found = extended(Function("mul", (INT32, INT32), INT32), [large, large])
    assert (found.low, found.high) == (-np.inf, np.inf)


def test_bfloat16_is_rounded() -> None:
    numbers = torch.tensor([1.0, 1.001, 1.004, 257.0, -3.14159, float("inf")])
    assert elementwise.converted(numbers.numpy(), BFLOAT16).tolist() == numbers.bfloat16().float().tolist()
