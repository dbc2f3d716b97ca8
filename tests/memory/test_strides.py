"""Strides beside PyTorch's own: views of views, and results of elementwise operators, at random."""

from __future__ import annotations

import random

import torch
from torch._prims_common import suggest_memory_format

from graphflops.dims import symbol
from graphflops.execution.strides import (
    has_channels_last,
    is_contiguous,
    order_of,
    regrouped,
    row_major,
    size_hint,
)
from tests.memory.one_call import eager
from tests.support import t


def laid(choose: random.Random) -> torch.Tensor:
    """A tensor of up to four axes, permuted, cut, or repeated along one axis."""
    shape = [choose.choice((1, 1, 2, 3, 4, 6)) for _ in range(choose.randrange(1, 5))]
    x = torch.empty(shape, device="meta").permute(choose.sample(range(len(shape)), len(shape)))
    axis = choose.randrange(x.dim())
    way = choose.randrange(4)
    if way == 0 and x.shape[axis] > 1:
        return x.narrow(axis, 0, x.shape[axis] - 1)
    if way == 1 and x.shape[axis] == 1:
        return x.expand(*(3 if place == axis else size for place, size in enumerate(x.shape)))
    return x


def split(choose: random.Random, numel: int) -> list[int]:
    """A shape of so many elements."""
    found = []
    while numel > 1:
        size = choose.choice([divisor for divisor in range(2, numel + 1) if numel % divisor == 0])
        found.append(size)
        numel //= size
    for _ in range(choose.randrange(3)):
        found.insert(choose.randrange(len(found) + 1), 1)
    return found


def test_axes_are_merged_and_split_as_by_view() -> None:
    choose = random.Random(25)
    views = 0
    for _ in range(1500):
        x = laid(choose)
        new = split(choose, x.numel())
        found = regrouped(tuple(x.shape), x.stride(), tuple(new))
        assert is_contiguous(tuple(x.shape), x.stride()) == x.is_contiguous(), (x.shape, x.stride())
        try:
            view = x.view(new)
        except RuntimeError:
            assert found is None, (x.shape, x.stride(), new)
            continue
        views += 1
        assert found is not None, (x.shape, x.stride(), new)
        wide = [axis for axis, size in enumerate(new) if size != 1]
        assert [found[axis] for axis in wide] == [view.stride(axis) for axis in wide], (
            x.shape,
            x.stride(),
            new,
        )
    assert 500 < views < 1400


def test_strides_in_an_order_of_axes() -> None:
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert row_major((2, 3, 4), (1, 2, 0)) == (1, 8, 2)
    assert row_major(()) == ()
    assert order_of((1, 8, 2)) == [1, 2, 0]
    assert not is_contiguous((2, 3), (3,))
    assert is_contiguous((1, 3), (7, 1))
    assert regrouped((0, 3), (1, 5), (3, 0)) == row_major((3, 0))


def test_open_sizes() -> None:
    """A size that nobody gave counts as 97; sizes that go into one another are regrouped."""
    n = symbol("n")
    assert size_hint(n) == 97
    assert size_hint(2 * n + 1) == 195
    assert size_hint(2 * n, 3) == 6
    assert regrouped((n, 4, 6), (24, 6, 1), (n * 4, 6)) == (6, 1)
    assert regrouped((n, 4, 6), (24, 1, 4), (n, 24)) is None
    assert regrouped((n, 4, 6), (48, 6, 1), (n, 24)) == (48, 1)
    assert regrouped((n * 4, 6), (12, 1), (n, 4, 6)) == (48, 12, 1)
    m = symbol("m")
    assert regrouped((n, 6), (12, 1), (m, 6)) == (12, 1)  # a view has as many elements


def operand(choose: random.Random, shape: list[int]) -> torch.Tensor:
    """A transposed tensor that is broadcast to a shape."""
    own = [size if choose.randrange(4) else 1 for size in shape]
    order = choose.sample(range(len(own)), len(own))
    x = torch.empty([own[axis] for axis in order]).permute([order.index(axis) for axis in range(len(own))])
    return x[0] if own[0] == 1 and len(own) > 1 and choose.randrange(2) else x


def test_results_of_elementwise_operators_lie_as_those_of_torch() -> None:
    """The rule is that of TensorIterator on tensors with memory; on meta tensors torch has another one."""
    choose = random.Random(25)
    execution, _ = eager("aten.add.Tensor", t(1), t(1))
    layouts = execution.layouts
    for _ in range(300):
        shape = [choose.choice((1, 2, 3, 4)) for _ in range(choose.randrange(1, 5))]
        operands = [operand(choose, shape), operand(choose, shape)]
        out = operands[0] + operands[1]
        layouts.values = {f"x{place}": t(*x.shape) for place, x in enumerate(operands)}
        layouts.known = {f"x{place}": x.stride() for place, x in enumerate(operands)}
        found = layouts.elementwise(["x0", "x1"], t(*out.shape))
        wide = [axis for axis, size in enumerate(out.shape) if size != 1]
        assert [found[axis] for axis in wide] == [out.stride(axis) for axis in wide], layouts.known


def test_views_have_the_strides_that_torch_gives_them() -> None:
    """Also along axes of size 1, which tell whether a batch of one image has its channels last."""
    chance, seen = random.Random(5), set[bool]()
    for _ in range(3000):
        rank = chance.randint(1, 4)
        shape = [chance.choice((1, 1, 2, 3, 4, 6)) for _ in range(rank)]
        x = torch.empty(shape, device="meta").permute(*chance.sample(range(rank), rank))
        new, rest = [], x.numel()
        while rest > 1:
            size = chance.choice([size for size in range(2, rest + 1) if rest % size == 0])
            new.append(size)
            rest //= size
        for _ in range(chance.randint(0, 2)):
            new.insert(chance.randint(0, len(new)), 1)
        try:
            expected = tuple(x.view(new).stride())
        except RuntimeError:
            expected = None
        assert regrouped(x.shape, x.stride(), new) == expected, (x.shape, x.stride(), new)
        seen.add(expected is None)
    assert seen == {True, False}


def test_channels_are_last_where_torch_says_so() -> None:
    chance = random.Random(6)
    for _ in range(2000):
        x = torch.empty([chance.choice((1, 2, 3, 5)) for _ in range(4)], device="meta")
        x = x.permute(*chance.sample(range(4), 4))
        is_last = suggest_memory_format(x) == torch.channels_last
        is_last = is_last and x.shape[1] != 1 and x.stride(1) == 1
        assert has_channels_last(x.shape, x.stride()) == is_last, (x.shape, x.stride())
    rows = torch.empty(1, 196, 320, device="meta").transpose(1, 2).view(1, 320, 14, 14)
    assert rows.stride() == (320, 1, 4480, 320)
    assert not has_channels_last(rows.shape, rows.stride())
