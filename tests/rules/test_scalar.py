"""Arithmetic on sizes, questions about tensors, promises: exact where known, symbolic where not, free."""

from __future__ import annotations

import math
from typing import Any

import pytest

from graphflops.cost import Cost, data_dependent
from graphflops.dims import call, compare, dim_max, evaluate, symbol
from graphflops.tensor import dtype_named
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
        ("aten.promote_types.default", (dtype_named("int8"), dtype_named("float32")), None),
        ("aten.result_type.Tensor", (t(4), t(4, dtype="int8")), None),
        ("aten.can_cast.default", (dtype_named("int8"), dtype_named("float32")), None),
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


@pytest.mark.parametrize("module", ["math.", "torch.sym_", "torch._sym_"])
@pytest.mark.parametrize(
    "name", ["log", "log2", "exp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan"]
)
def test_functions_of_numbers_are_pythons_and_of_sizes_a_formula(module: str, name: str) -> None:
    assert price(module + name, 0.5).out == (getattr(math, name)(0.5),)
    assert price(module + name, s).out == (call(name, s),)


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("builtins.round", (2.6,), 3),
        ("builtins.round", (s,), call("round", s)),
        ("_operator.pos", (s,), s),
        ("_operator.abs", (-3,), 3),
        ("_operator.abs", (n - s,), dim_max(n - s, s - n)),
        ("builtins.abs", (s,), s),
        ("math.fabs", (-2.5,), 2.5),
        ("_operator.truth", (7,), True),
        ("builtins.bool", (0,), False),
        ("builtins.bool", (s - 3,), compare("!=", s - 3, 0)),
        ("_operator.or_", (6, 3), 7),
        ("_operator.xor", (6, 3), 5),
        ("_operator.rshift", (16, 2), 4),
        ("_operator.gt", (3, 2), True),
        ("math.pow", (2, 10), 1024.0),
        ("_operator.gt", (s, 5), compare(">", s, 5)),
    ],
)
def test_operators_on_numbers(op: str, operands: tuple[Any, ...], expected: Any) -> None:
    (value,) = price(op, *operands).out
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("is_complex", False),
        ("is_signed", True),
        ("storage_offset", data_dependent("storage_offset")),
        ("sym_is_contiguous", True),
        ("is_contiguous", True),
        ("is_conj", False),
        ("is_neg", False),
        ("is_inference", False),
        ("is_pinned", False),
        ("is_distributed", False),
        ("is_coalesced", False),
        ("_is_zerotensor", False),
        ("retains_grad", False),
        ("is_leaf", True),
        ("output_nr", 0),
        ("_version", 0),
        ("_debug_has_internal_overlap", 0),
    ],
)
def test_questions_about_a_plain_tensor(name: str, answer: Any) -> None:
    estimate = price(f"aten.{name}.default", t(4))
    assert estimate.out == (answer,)
    assert not estimate.cost


def test_answers_follow_the_tensor() -> None:
    assert price("aten.is_complex.default", t(4, dtype="complex64")).out == (True,)
    assert price("aten.is_signed.default", t(4, dtype="uint8")).out == (False,)
    assert price("aten.is_leaf.default", t(4, requires_grad=True)).out == (False,)
    assert price("aten._debug_has_internal_overlap.default", t(4, stored=1)).out == (1,)


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


def test_handles_and_tokens_are_made_of_nothing() -> None:
    assert price("profiler._record_function_enter_new.default", "step").out == (None,)
    assert price("aten._make_dep_token.default").out == (t(),)
    for made in (
        price("profiler._record_function_enter.default", "step"),
        price("aten._make_dep_token.default"),
    ):
        assert not made.cost


def test_a_checked_condition_is_read() -> None:
    estimate = price("aten._assert_async.msg", t(dtype="bool"), "positive")
    assert (estimate.out, estimate.cost.read_bytes) == ((), 1)
