"""Arithmetic on sizes, questions about tensors, promises: exact where known, symbolic where not, free."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graphflops.cost import Cost, data_dependent
from graphflops.dims import call, compare, dim_max, evaluate, symbol
from tests.support import price, t

s, n = symbol("s"), symbol("n")


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("_operator.add", (s, 3), s + 3),
        ("_operator.sub", (s, s), 0),
        ("_operator.mul", (s, n), s * n),
        ("_operator.mul", (s, 2.0), 2 * s),
        ("_operator.mul", (3, 0.5), 1.5),
        ("_operator.mul", (s, 0.3), None),
        ("_operator.floordiv", (8 * s, 4), 2 * s),
        ("_operator.floordiv", (s, 0), None),
        ("_operator.mod", (6 * s, 3), 0),
        ("_operator.mod", (7, 0), None),
        ("_operator.truediv", (s, 2), call("truediv", s, 2)),
        ("_operator.truediv", (3, 2), 1.5),
        ("_operator.pow", (s, 2), s * s),
        ("_operator.pow", (2, 10), 1024),
        ("_operator.pow", (2, -1), 0.5),
        ("_operator.pow", (-8.0, 0.5), None),  # a complex number is no size
        ("_operator.neg", (s,), -s),
        ("_operator.lshift", (s, 3), 8 * s),
        ("_operator.and_", (True, False), False),
        ("_operator.ge", (s, 0), 1),
        ("_operator.lt", (s, 5), compare("<", s, 5)),
        ("_operator.eq", (4, 4), True),
        ("_operator.ne", (s, s), 0),
        ("_operator.getitem", ((s, 7), 1), 7),
        ("torch.sym_max", (s, 1), dim_max(s, 1)),
        ("torch.sym_min", (s, s + 1), s),
        ("builtins.max", (2, 3), 3),
        ("torch.sym_not", (compare("<", s, 5),), compare("==", compare("<", s, 5), 0)),
        ("torch.sym_not", (False,), True),
        ("torch.sym_ite", (True, s, n), s),
        ("torch.sym_sum", ((s, n, 3),), s + n + 3),
        ("torch.sym_float", (3,), 3.0),
        ("torch.sym_float", (s,), s),
        ("torch.sym_int", (3.7,), 3),
        ("torch._sym_sqrt", (16,), 4.0),
        ("torch.sym_sqrt", (s,), call("sqrt", s)),
        ("math.sqrt", (-1.0,), None),
        ("math.trunc", (s,), s),
        ("math.ceil", (call("truediv", s, 2),), -((-call("truediv", s, 2)) // 1)),
        ("math.floor", (2.5,), 2),
        ("aten.sym_size.int", (t(4, "s"), -1), s),
        ("aten.sym_stride.int", (t(4, "s", 2), 0), 2 * s),
        ("aten.sym_numel.default", (t(4, "s"),), 4 * s),
        ("aten.sym_storage_offset.default", (t(4),), data_dependent("storage_offset")),
        ("aten.dim.default", (t(4, "s"),), 2),
        ("aten.is_floating_point.default", (t(4, dtype="int8"),), False),
        ("aten.is_same_size.default", (t(4, "s"), t(4, "s")), True),
        ("aten.is_same_size.default", (t(4), t(5)), False),
        ("aten.is_same_size.default", (t("n"), t("s")), None),
        ("aten.item.default", (t(dtype="int64", value=s),), s),
        ("aten.is_nonzero.default", (t(dtype="bool", value=0),), False),
    ],
)
def test_numbers(op: str, operands: tuple[Any, ...], expected: Any) -> None:
    estimate = price(op, *operands)
    (value,) = estimate.out
    assert value == expected
    assert type(value) is type(expected)
    assert estimate.cost == Cost()


def test_all_sizes_and_strides_at_once() -> None:
    assert price("aten.sym_size.default", t(4, "s")).out == (4, s)
    assert price("aten.sym_stride.default", t(4, "s")).out == (s, 1)


def test_an_element_read_out_is_named_and_costs_its_reading() -> None:
    estimate = price("aten._local_scalar_dense.default", t(dtype="int64"))
    assert estimate.out == (symbol("item?"),)
    assert (estimate.cost.read_bytes, estimate.cost.written_bytes) == (8, 0)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("aten._assert_scalar.default", (1, "s >= 0")),
        ("aten._assert_tensor_metadata.default", (t(4), None, None, None)),
        ("aten.sym_constrain_range_for_size.default", (s,)),
        ("aten._print.default", ("hello",)),
        ("profiler._record_function_exit._RecordFunction", (None,)),
    ],
)
def test_promises_and_notes_cost_nothing_and_give_nothing(op: str, operands: tuple[Any, ...]) -> None:
    estimate = price(op, *operands)
    assert estimate.out == ()
    assert estimate.cost == Cost()


def test_functional_promises_hand_on_their_token() -> None:
    token = t()
    assert price("aten._functional_assert_scalar.default", 1, "", token).out == (token,)
    assert price("aten._functional_sym_constrain_range.default", s, 0, None, token).out == (token,)
    checked = price("aten._functional_assert_async.msg", t(dtype="bool"), "", token)
    assert (checked.out, checked.cost.read_bytes) == ((token,), 1)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        ("_operator.pow", (10, 10**9)),
        ("_operator.pow", (2**64, 2**64)),
        ("_operator.lshift", (1, 2**40)),
        ("_operator.mul", ("a", 2**32)),
        ("_operator.mul", ((0,), 2**32)),
        ("_operator.mod", ("%4000000000d", 1)),
        ("_operator.add", ((1,), (2,))),
        ("_operator.mul", (2**4000, 2**4000)),
    ],
)
def test_what_a_file_makes_up_to_take_all_memory_has_no_value(op: str, operands: tuple[Any, ...]) -> None:
    assert price(op, *operands).out == (None,)


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_fraction_of_sizes_is_truncated_towards_zero(size: int) -> None:
    half = call("truediv", s - 4, 2)
    assert evaluate(price("math.trunc", half).out[0], {"s": size}) == int((size - 4) / 2)
    assert evaluate(price("math.fmod", s - 4, 3).out[0], {"s": size}) == math.fmod(size - 4, 3)
