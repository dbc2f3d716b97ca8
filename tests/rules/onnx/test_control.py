from dataclasses import dataclass

import pytest

from graphflops.cost import Cost
from graphflops.dims import compare, dim_min, prod, symbol
from graphflops.rules.onnx.loops import before
from graphflops.tensor import BOOL, INT64, SequenceType, TensorType, UnknownType
from tests.support import price, shapes, t

B, S, N = map(symbol, "bsn")


FREE = Cost()


@dataclass(frozen=True)
class Run:
    """What a nested graph returned and costs."""

    out: tuple
    cost: Cost = FREE
    name: str = "body"
    stuck: str = ""


def branch(*out, flops=0):
    """A branch that returns these values."""
    return lambda: Run(out, Cost(matrix_flops=flops))


def number(value=None, dtype="int64"):
    """A scalar, known or not."""
    return t(dtype=dtype, value=value)


def truth(value=None):
    """A condition, known or not."""
    return t(dtype=BOOL, value=value)


def total(estimate):
    """Matrix work of a call and of what runs in it."""
    inner = (run.cost.matrix_flops * times for run, times in estimate.regions)
    return sum(inner, start=estimate.matrix_flops)


# If.


def test_if_takes_the_branch_that_is_known():
    branches = {"then_branch": branch(t(1), flops=10), "else_branch": branch(t(2), flops=20)}
    yes, no = price("onnx.If.25", truth(1), **branches), price("onnx.If.25", truth(0), **branches)
    assert (shapes(yes), total(yes)) == ([(1,)], 10)
    assert (shapes(no), total(no)) == ([(2,)], 20)


def test_if_takes_the_dearer_branch():
    estimate = price(
        "onnx.If.25",
        truth(),
        then_branch=branch(t(8, 8), flops=1024),
        else_branch=branch(t(8, 8), flops=2048),
    )
    assert total(estimate) == 2048
    assert shapes(estimate) == [(8, 8)]
    assert [times for _, times in estimate.regions] == [1, 0]


def test_sizes_that_differ_between_branches():
    branches = {"then_branch": branch(t("s", 4), t(3)), "else_branch": branch(t(7, 4), t(9))}
    condition = compare("<", S, 7)
    first, second = shapes(price("onnx.If.25", truth(condition), **branches))
    assert [str(size) for size in (*first, *second)] == ["where((s < 7), s, 7)", "4", "where((s < 7), 3, 9)"]
    first, second = shapes(price("onnx.If.25", truth(), **branches))
    assert (first[1], first[0] == second[0]) == (4, False)


def test_contents_that_differ_between_branches():
    one, other = (t(2, dtype="int64", value=(1, size)) for size in (S, 4))
    estimate = price(
        "onnx.If.25", truth(compare("<", S, 4)), then_branch=branch(one), else_branch=branch(other)
    )
    assert [str(size) for size in estimate.out[0].value] == ["1", "where((s < 4), s, 4)"]


def test_branches_of_different_rank():
    """`squeeze` of an axis that may be of length one: a size that has a name is taken not to be one."""
    branches = {"then_branch": branch(t("b")), "else_branch": branch(t("b", "s"))}
    assert price("onnx.If.25", truth(compare("==", S, 1)), **branches).out == (t("b", "s"),)
    assert price("onnx.If.25", truth(compare("<", S, 64)), **branches).out == (UnknownType(t().dtype),)
    assert price("onnx.If.25", truth(), **branches).out == (UnknownType(t().dtype),)


def test_branches_that_return_sequences():
    one, other = SequenceType(t(2), 3, (t(2),) * 3), SequenceType(t(2), S)
    estimate = price("onnx.If.25", truth(), then_branch=branch(one), else_branch=branch(other))
    assert estimate.out == (SequenceType(t(2)),)


# Loop.


def declaring(run, *types):
    """A nested graph for which the file states these types of its inputs."""
    run.declared = types
    return run


def body(step, flops=0, goes_on=None):
    """A body: `step` maps its turn and carried values to what it returns behind the condition."""

    def run(index, holds, *state):
        condition = holds if goes_on is None else truth(goes_on(index.value, *state))
        cost = flops(*state) if callable(flops) else flops
        return Run((condition, *step(index.value, *state)), Cost(matrix_flops=cost))

    return declaring(run)


KEPT = body(lambda index, x: (x, x), flops=1024)


@pytest.mark.parametrize("trips", [5, S, 1000])
def test_loop_multiplies_its_body(trips):
    estimate = price("onnx.Loop.16", number(trips), truth(1), t(8, 8), body=KEPT)
    assert total(estimate) == 1024 * trips
    assert shapes(estimate) == [(8, 8), (trips, 8, 8)]


def test_an_unknown_trip_count_has_a_name():
    for trips, condition in (
        (None, truth(1)),
        (number(), None),
        (number(2**63 - 1), truth(1)),
        (number(5), truth()),
    ):
        estimate = price("onnx.Loop.16", trips, condition, t(8, 8), body=KEPT)
        assert total(estimate) == 1024 * symbol("loop_trips?")
        assert shapes(estimate)[1] == (symbol("loop_trips?"), 8, 8)
    by_data = body(lambda index, x: (x,), flops=1, goes_on=lambda index, x: None)
    assert total(price("onnx.Loop.16", number(100), truth(1), t(8), body=by_data)) == symbol("loop_trips?")


@pytest.mark.parametrize("trips, condition", [(number(0), None), (number(5), truth(0))])
def test_a_loop_that_does_not_turn_returns_what_it_was_given(trips, condition):
    growing = body(lambda index, x: (x.like((x.shape[0] + 1,)), x), flops=7)
    estimate = price("onnx.Loop.16", trips, condition, t(3), body=growing)
    assert estimate.out[0] == t(3)
    assert estimate.out[1].shape[0] == 0
    assert total(estimate) == 0


@pytest.mark.parametrize("trips, expected", [(4, 4), (S, S)])
def test_a_carried_size_that_grows(trips, expected):
    growing = body(lambda index, x: (x.like((x.shape[0] + 2, 8)),), flops=lambda x: 10 * x.shape[0])
    estimate = price("onnx.Loop.16", number(trips), None, t("n", 8), body=growing)
    assert shapes(estimate) == [(N + 2 * expected, 8)]
    # n, n + 2, n + 4, ... rows, ten operations each
    assert total(estimate) == 10 * (N * expected + expected * (expected - 1))


def test_a_cost_that_grows_with_the_square_of_the_turn():
    growing = body(lambda index, x: (x.like((x.shape[0] + 1,)),), flops=lambda x: x.shape[0] * x.shape[0])
    estimate = price("onnx.Loop.16", number(7), None, t(1), body=growing)
    assert total(estimate) == 1 + 4 + 9 + 16 + 25 + 36 + 49
    assert [times for _, times in estimate.regions] == [7]


def test_a_carried_size_without_a_formula_is_followed_for_a_while():
    doubling = body(lambda index, x: (x.like((2 * x.shape[0],)),), flops=lambda x: x.shape[0])
    estimate = price("onnx.Loop.16", number(5), None, t(3), body=doubling)
    assert (shapes(estimate), total(estimate)) == ([(3 * 32,)], 3 + 6 + 12 + 24 + 48)
    (shape,) = shapes(price("onnx.Loop.16", number(S), None, t(3), body=doubling))
    assert str(shape[0]) == "Symbol('carried_0_0_0?')"


def test_carried_numbers_are_followed():
    counting = body(lambda index, i: (number(i.value + 2), number(i.value)))
    estimate = price("onnx.Loop.16", number(4), None, number(1), body=counting)
    assert [value.value for value in estimate.out] == [9, (1, 3, 5, 7)]
    assert price("onnx.Loop.16", number(S), None, number(1), body=counting).out[0].value == 1 + 2 * S


@pytest.mark.parametrize(
    "relation, start, step, bound, expected",
    [
        ("<", 0, 1, S, S),
        ("<", 0, 2, S, (S + 1) // 2),
        ("<=", 1, 1, S, S),
        ("!=", 0, 1, S, S),
        ("<", 0, 3, 10, 4),
        ("<", 100, 1, 10, 1),
    ],
)
def test_a_condition_on_a_counter_says_how_often_a_loop_turns(relation, start, step, bound, expected):
    counting = body(
        lambda index, i: (number(i.value + step),),
        flops=1,
        goes_on=lambda index, i: compare(relation, i.value + step, bound),
    )
    assert total(price("onnx.Loop.16", None, truth(1), number(start), body=counting)) == expected
    limited = price("onnx.Loop.16", number(3), truth(1), number(start), body=counting)
    assert total(limited) == dim_min(3, expected)


def test_a_loop_goes_on_as_long_as_two_conditions_hold():
    both = body(  # as a loop over the steps of a sequence that counts them twice
        lambda index, i: (number(i.value + 2),),
        flops=1,
        goes_on=lambda index, i: compare("<", index, 3) * compare("<", i.value + 2, N),
    )
    assert total(price("onnx.Loop.16", None, truth(1), number(0), body=both)) == dim_min(4, (N + 1) // 2)
    assert total(price("onnx.Loop.16", number(50), truth(1), number(0), body=both)) == dim_min(
        4, (N + 1) // 2
    )


def test_a_condition_that_only_single_turns_tell():
    powers = body(
        lambda index, i: (number(2 * i.value),) if i.value is not None else (number(),),
        flops=1,
        goes_on=lambda index, i: None if i.value is None else compare("<", 2 * i.value, 100),
    )
    assert total(price("onnx.Loop.16", None, truth(1), number(1), body=powers)) == 7


def test_a_sequence_that_grows():
    collecting = body(lambda index, x: tuple(price("onnx.SequenceInsert.11", x, t(2, "s")).out))
    estimate = price("onnx.Loop.16", number(N), None, SequenceType(None, 0, ()), body=collecting)
    assert estimate.out == (SequenceType(t(2, "s"), N),)


def test_the_number_of_a_turn_has_the_axes_that_the_body_takes():
    """As onnxruntime runs it: tf2onnx crops in a loop whose body takes a list of one number."""
    kept = declaring(lambda index, holds: Run((holds, index)), TensorType((1,), INT64))
    assert shapes(price("onnx.Loop.16", number(5), None, body=kept)) == [(5, 1)]


def test_a_formula_that_grows_on_the_way_stays_as_it_is():
    row, wide = symbol("turn_0"), prod(N + symbol(f"a{place}") for place in range(9))
    assert before(N, dim_min(row + 1, N) + row, "turn_0") == 2 * row + 1
    assert before(N, wide + row, "turn_0") == wide + row


def test_loops_within_loops_have_turns_of_their_own():
    def inner(index, holds, x):
        return Run((holds, x.like((x.shape[0] + 1,))), Cost(matrix_flops=x.shape[0]))

    def outer(index, holds, x):
        estimate = price("onnx.Loop.16", number(index.value), None, x, body=declaring(inner))
        return Run((holds, x), Cost(matrix_flops=total(estimate)))

    # turn i runs 0 + 1 + ... + (i - 1); the sum of that for i = 0 ... 5
    estimate = price("onnx.Loop.16", number(6), None, t(0), body=declaring(outer))
    assert total(estimate) == 0 + 0 + 1 + 3 + 6 + 10


def test_a_carried_value_that_becomes_another_kind():
    growing = body(lambda index, x: (x.like((1, *x.shape)),))
    assert shapes(price("onnx.Loop.16", number(3), None, t("s"), body=growing)) == [(1, 1, 1, S)]
    assert price(
        "onnx.Loop.16", number(10**18), None, t("s"), body=declaring(lambda *x: Run((truth(1), t(1, 1))))
    ).out == (UnknownType(),)


def test_sizes_handed_on_from_one_carried_value_to_the_next():
    shifting = body(lambda index, *state: (t(2), *state[:-1]))
    estimate = price("onnx.Loop.16", number(S), None, *(t(1) for _ in range(7)), body=shifting)
    assert all(str(shape[0]).startswith("Symbol('carried_0_") for shape in shapes(estimate))
    estimate = price("onnx.Loop.16", number(3), None, *(t(1) for _ in range(7)), body=shifting)
    assert shapes(estimate) == [(2,)] * 3 + [(1,)] * 4


def test_loops_nested_deeply_take_no_time():
    calls = []

    def nest(depth):
        def run(index, holds, x):
            calls.append(depth)
            if depth == 0:
                return Run((holds, x.like((x.shape[0] + 1,))))
            return Run((holds, *price("onnx.Loop.16", number(S), None, x, body=nest(depth - 1)).out))

        return declaring(run)

    price("onnx.Loop.16", number(S), None, t(1), body=nest(12))
    assert len(calls) < 20_000


def test_trips_without_end_take_no_time():
    for endless in (2**31 - 1, 2**63 - 1):
        estimate = price("onnx.Loop.16", number(endless), None, t(8, 8), body=KEPT)
        assert total(estimate) == 1024 * symbol("loop_trips?")
    estimate = price("onnx.Loop.16", number(10**18), None, t(8, 8), body=KEPT)
    assert total(estimate) == 1024 * 10**18


# Scan.


def test_scan_runs_once_per_slice():
    def step(state, slice_):
        assert slice_.shape == (B, 8)
        return Run((state, state, slice_), Cost(matrix_flops=64))

    step.declared = (t("b"), t("b", 8))
    estimate = price("onnx.Scan.16", t("b"), t("s", "b", 8), body=step, num_scan_inputs=1)
    assert shapes(estimate) == [(B,), (S, B), (S, B, 8)]
    assert total(estimate) == 64 * S


def test_scan_axes():
    def step(slice_):
        return Run((slice_, slice_))

    step.declared = ()
    estimate = price(
        "onnx.Scan.11",
        t(2, 3, "s"),
        body=step,
        num_scan_inputs=1,
        scan_input_axes=(-1,),
        scan_output_axes=(1, -1),
        scan_output_directions=(0, 1),
    )
    assert shapes(estimate) == [(2, S, 3), (2, 3, S)]


def test_scan_8_has_a_batch():
    def step(state, slice_):
        assert (state.shape, slice_.shape) == ((4,), (8,))
        return Run((state, slice_), Cost(matrix_flops=64))

    step.declared = ()
    estimate = price("onnx.Scan.8", None, t("b", 4), t("b", "s", 8), body=step, num_scan_inputs=1)
    assert shapes(estimate) == [(B, 4), (B, S, 8)]
    assert total(estimate) == 64 * B * S


# SequenceMap.


def test_sequence_map_runs_once_per_element():
    def double(x, y):
        out = x.like((*x.shape, *y.shape))
        return Run((out,), Cost(matrix_flops=2 * out.numel))

    pair = SequenceType(None, 2, (t(2), t(3)))
    estimate = price("onnx.SequenceMap.17", pair, t(5), body=double)
    assert estimate.out[0].items == (t(2, 5), t(3, 5))
    assert total(estimate) == 2 * (2 * 5 + 3 * 5)
    many = price("onnx.SequenceMap.17", SequenceType(t(4), S), SequenceType(t(6), S), body=double)
    assert many.out == (SequenceType(t(4, 6), S),)
    assert total(many) == 2 * 4 * 6 * S


def test_types_are_values_of_their_own():
    assert isinstance(
        price("onnx.If.25", truth(1), then_branch=branch(t(1)), else_branch=branch(t(1))).out[0], TensorType
    )
