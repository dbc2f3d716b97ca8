"""Until when Python refers to each tensor, call by call, of functions of a few lines: what a reader of the code would say.

A program is a list of calls: the line that runs (number and text), the modules that it is in, and what it makes of what.
Positions count calls from 0; a tensor without an entry is free after its last use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from graphflops.execution.frames import Lifetimes, References
from graphflops.graph import Node, Ref


class Ran(NamedTuple):
    """One call. stack: of each function that runs the line and its text, outermost first; modules: their paths."""

    made: str
    op: str
    reads: tuple[str, ...]
    stack: tuple[tuple[int, str], ...]
    modules: tuple[str, ...] = ("",)
    function: str = "forward"


def ran(made: str, op: str, reads: str, *stack: Any, modules: tuple[str, ...] = ()) -> Ran:
    """Of one function, or of several that call one another."""
    lines = tuple(stack) if isinstance(stack[0], tuple) else ((stack[0], stack[1]),)
    return Ran(made, op, tuple(reads.split()), lines, modules or ("",) + ("inner",) * (len(lines) - 1))


def node(one: Ran) -> Node:
    files = ("outer.py", "inner.py", "third.py")
    stack = "".join(
        f'File "/home/me/{files[depth]}", line {number}, in {one.function}\n    {text}\n'
        for depth, (number, text) in enumerate(one.stack)
    )
    modules = ";".join(f"L{depth},{path},mine.M{depth}" for depth, path in enumerate(one.modules))
    outputs = tuple(one.made.split())
    args = tuple(Ref(name) for name in one.reads)
    return Node(outputs[0], f"aten.{one.op}", args, (), outputs, python_stack=stack, module_stack=modules)


def lifetimes(*calls: Ran, views: dict[str, str] | None = None, empty: str = "") -> Lifetimes:
    """views: of values that share the memory of others, by name."""
    made = [name for call in calls for name in call.made.split()]
    memory = {name: (views or {}).get(name, name) for name in made}
    reads = [call.reads for call in calls]
    found = References([*map(node, calls)], reads, memory, lambda name: name == empty)
    return found.lifetimes()


def until(*calls: Ran, **more: Any) -> dict[str, int]:
    return dict(lifetimes(*calls, **more).until)


def test_a_variable_holds_its_value_until_it_is_bound_again() -> None:
    """`x` of line 1 until line 2 is done, that of line 2 to the end; what the function is given is not followed."""
    assert until(
        ran("a", "sin.default", "x", 1, "x = torch.sin(x)"),
        ran("b", "cos.default", "a", 2, "x = torch.cos(x)"),
        ran("c", "tan.default", "b", 3, "y = torch.tan(x)"),
        ran("d", "exp.default", "c", 4, "return torch.exp(y)"),
    ) == {"a": 1, "b": 3, "c": 3}


def test_each_name_holds_its_own_value_to_the_end() -> None:
    assert until(
        ran("a", "sin.default", "x", 1, "a = torch.sin(x)"),
        ran("b", "cos.default", "a", 2, "b = torch.cos(a)"),
        ran("c", "tan.default", "b", 3, "c = torch.tan(b)"),
        ran("d", "exp.default", "c", 4, "return torch.exp(c)"),
    ) == {"a": 3, "b": 3, "c": 3}


def test_a_temporary_is_held_by_nobody() -> None:
    """Of `x = cos(sin(x))` no variable has had the sine."""
    assert until(
        ran("a", "sin.default", "x", 1, "x = torch.cos(torch.sin(x))"),
        ran("b", "cos.default", "a", 1, "x = torch.cos(torch.sin(x))"),
        ran("c", "tan.default", "b", 2, "return torch.tan(x)"),
    ) == {"b": 2}


def test_views_hold_the_memory_that_they_show() -> None:
    found = until(
        ran("a", "sin.default", "x", 1, "x = torch.sin(x)"),
        ran("v", "view.default", "a", 2, "y = x.view(32)"),
        ran("b", "cos.default", "a", 3, "x = torch.cos(x)"),
        ran("c", "tan.default", "v", 4, "z = torch.tan(y)"),
        ran("d", "add.Tensor", "b c", 5, "return x + z"),
        views={"v": "a"},
    )
    assert found == {"a": 4, "b": 4, "c": 4}


def test_what_a_module_is_given_lives_until_it_returns() -> None:
    """The caller holds the sine, which the module reads first only; its own variables end with it."""
    calls = (
        ran("a", "sin.default", "x", 1, "return self.inner(torch.sin(x)) * 2"),
        ran("b", "cos.default", "a", (1, "return self.inner(torch.sin(x)) * 2"), (7, "y = torch.cos(x)")),
        ran("c", "tan.default", "b", (1, "return self.inner(torch.sin(x)) * 2"), (8, "z = torch.tan(y)")),
        ran("d", "exp.default", "c", (1, "return self.inner(torch.sin(x)) * 2"), (9, "return torch.exp(z)")),
        ran("e", "mul.Tensor", "d", 1, "return self.inner(torch.sin(x)) * 2"),
    )
    assert until(*calls) == {"a": 3, "b": 3, "c": 3}


def turn(number: int, text: str, made: str, reads: str) -> tuple[Ran, Ran]:
    """A module of a list, of two calls, in a loop on line 3."""
    caller = (3, "x = layer(x)")
    modules = ("", f"layers.{number}")
    return (
        ran(f"{made}0", "sin.default", reads, caller, (7, "y = torch.sin(x)"), modules=modules),
        ran(f"{made}1", "cos.default", f"{made}0", caller, (8, "return torch.cos(y)"), modules=modules),
    )


def test_a_loops_variable_is_bound_in_each_turn() -> None:
    """What a turn is given lives until its module returns, and no longer."""
    found = until(
        *turn(0, "", "a", "x"),
        *turn(1, "", "b", "a1"),
        *turn(2, "", "c", "b1"),
        ran("d", "tan.default", "c1", 4, "return torch.tan(x)"),
    )
    assert found == {"a0": 1, "a1": 3, "b0": 3, "b1": 5, "c0": 5, "c1": 6}


def test_a_list_holds_its_elements() -> None:
    """Until the function returns: what is joined is not freed by that."""
    assert until(
        ran("a", "sin.default", "x", 1, "x = torch.sin(x)"),
        ran("b", "cos.default", "a", 2, "x = torch.cos(x)"),
        ran("c", "cat.default", "a b", 3, "y = torch.cat(found)"),
        ran("d", "tan.default", "c", 4, "y = torch.tan(y)"),
        ran("e", "exp.default", "d", 5, "return torch.exp(y)"),
    ) == {"a": 4, "b": 4, "c": 3, "d": 4}


def test_a_cache_that_begins_empty_lives_as_long_as_the_program() -> None:
    found = until(
        ran("e", "zeros.default", "", (1, "return self.inner(x)"), (7, "past = torch.zeros(0)")),
        ran("a", "cat.default", "e x", (1, "return self.inner(x)"), (8, "keys = torch.cat([past, x])")),
        ran("b", "sin.default", "a", (1, "return self.inner(x)"), (9, "return torch.sin(keys)")),
        ran("c", "cos.default", "b", 2, "y = torch.cos(x)"),
        ran("d", "tan.default", "c", 3, "return torch.tan(y)"),
        empty="e",
    )
    assert found["a"] == 4


def test_several_results_have_a_variable_each() -> None:
    """The second is bound again on line 3."""
    assert until(
        ran("a b", "sort.default", "x", 1, "x, y = torch.sort(x)"),
        ran("c", "sin.default", "a", 2, "z = torch.sin(x)"),
        ran("d", "cos.default", "b", 3, "y = torch.cos(y)"),
        ran("e", "add.Tensor", "c d", 4, "return z + y"),
    ) == {"a": 3, "b": 2, "c": 3, "d": 3}


def test_of_several_results_one_may_be_dropped() -> None:
    """`.values` of a maximum: its positions end with the statement."""
    assert until(
        ran("a b", "max.dim", "x", 1, "y = x.max(dim=2).values"),
        ran("c", "sin.default", "a", 2, "y = torch.sin(y)"),
        ran("d", "cos.default", "c", 3, "return torch.cos(y)"),
    ) == {"a": 1, "c": 2}


def test_calls_without_lines_are_of_the_line_before() -> None:
    """As those that a decomposition adds."""
    first = ran("a", "sin.default", "x", 1, "x = torch.sin(x)")
    second = ran("b", "cos.default", "a", 2, "y = torch.tan(torch.cos(x))")
    third = Ran("c", "tan.default", ("b",), ())
    last = ran("d", "exp.default", "c", 3, "return torch.exp(y)")
    assert until(first, second, third, last) == {"a": 3, "c": 3}


def test_statements_of_one_line_are_done_in_turn() -> None:
    text = "x = torch.sin(x); x = torch.cos(x); y = torch.tan(x)"
    assert until(
        ran("a", "sin.default", "x", 1, text),
        ran("b", "cos.default", "a", 1, text),
        ran("c", "tan.default", "b", 1, text),
        ran("d", "add.Tensor", "b c", 2, "return x + y"),
    ) == {"a": 1, "b": 3, "c": 3}


def helper(made: str, op: str, reads: str, text: str = "x = attend(x)") -> Ran:
    """A call of a function that is no forward and leaves no line: of the line that calls it."""
    return ran(made, op, reads, 1, text)


def test_a_functions_variables_hold_what_it_reads_twice() -> None:
    """Of `attend` the line shows nothing: the sine, which is read twice, is taken to have a variable until it returns."""
    found = until(
        helper("a", "sin.default", "x"),
        helper("b", "cos.default", "a"),
        helper("c", "tan.default", "a"),
        helper("d", "add.Tensor", "b c"),
        ran("e", "exp.default", "d", 2, "x = torch.exp(x)"),
        ran("f", "neg.default", "e", 3, "return torch.neg(x)"),
    )
    assert found == {"a": 3, "d": 4, "e": 5}


@pytest.mark.parametrize(
    ("op", "is_held"),
    [("matmul.default", True), ("bmm.default", True), ("add.Tensor", False), ("mm.default", False)],
)
def test_factors_of_a_batched_product_have_variables(op: str, is_held: bool) -> None:
    found = until(
        helper("a", "sin.default", "x"),
        helper("b", "cos.default", "y"),
        helper("c", op, "a b"),
        helper("d", "tan.default", "c"),
        ran("e", "exp.default", "d", 2, "return torch.exp(x)"),
    )
    assert {name for name in "ab" if found.get(name) == 3} == ({"a", "b"} if is_held else set())


def test_probabilities_that_are_scaled_have_a_variable() -> None:
    """`gate * probabilities`, also after a cast or a dropout; other products of elements have none."""
    for op in ("softmax.int", "relu.default"):
        found = until(
            helper("a", op, "x"),
            helper("b", "dropout.default", "a"),
            helper("c", "mul.Tensor", "b x"),
            helper("d", "tan.default", "c"),
            ran("e", "exp.default", "d", 2, "return torch.exp(x)"),
        )
        assert found.get("b") == (3 if op == "softmax.int" else None)


@pytest.mark.parametrize(("op", "is_held"), [("softmax.int", True), ("relu.default", False)])
def test_what_is_scaled_at_once_has_a_variable_if_it_is_a_distribution(op: str, is_held: bool) -> None:
    found = until(
        helper("a", op, "x"),
        helper("c", "mul.Tensor", "a x"),
        helper("d", "tan.default", "c"),
        ran("e", "exp.default", "d", 2, "return torch.exp(x)"),
    )
    assert found.get("a") == (2 if is_held else None)


def test_what_a_helper_joins_and_reads_itself_has_no_variable_for_that() -> None:
    found = until(
        helper("a", "cat.default", "x y"),
        helper("b", "tan.default", "a"),
        helper("c", "cos.default", "b"),
        ran("e", "exp.default", "c", 2, "return torch.exp(x)"),
    )
    assert "a" not in found


def test_a_loops_state_loses_its_value_to_the_next() -> None:
    """Of `state = decay * state + new` within a function each sum is read twice, and ends where the next is made."""
    calls = [helper("s0", "add.Tensor", "x y")]
    for n in range(3):
        calls += [helper(f"m{n}", "mul.Tensor", f"s{n} x"), helper(f"s{n + 1}", "add.Tensor", f"m{n} y")]
        calls.append(helper(f"o{n}", "sin.default", f"s{n}"))
    calls += [helper("z", "cos.default", "s3"), ran("e", "exp.default", "z", 2, "return torch.exp(x)")]
    found = until(*calls)
    # the sum of each turn is made two calls after the one that it takes the place of is read
    assert found.get("s0", -1) < found.get("s1", -1) < len(calls)


PIECE = ran("a", "sin.default", "x", 1, "torch.sin(x)")
REST = (
    ran("c", "tan.default", "b", 3, "z = torch.tan(y)"),
    ran("d", "exp.default", "c", 4, "return torch.exp(z)"),
)


def test_assumed_variables_are_told_apart() -> None:
    """A piece of a statement in the middle of a line: its value is taken to live until the function returns."""
    found = lifetimes(PIECE, ran("b", "cos.default", "a", 2, "y = torch.cos(*items)"), *REST)
    assert found.until["a"] == 3
    assert found.assumed == {"a"}


def test_a_variable_that_is_read_by_its_name_is_no_assumption() -> None:
    found = lifetimes(PIECE, ran("b", "cos.default", "a", 2, "y = torch.cos(first)"), *REST)
    assert found.until["a"] == 3
    assert not found.assumed


@pytest.mark.parametrize("caller", ["y = self.inner(self.inner(x))", "y = self.f(self.f(x))"])
def test_a_second_run_of_a_function_has_its_own_variables(caller: str) -> None:
    """Its first line comes again: `a` of the first run is gone with that run's last call, not when it is bound anew."""
    outer = (10, caller)
    found = lifetimes(
        ran("a", "sin", "x", outer, (20, "a = x.sin()")),
        ran("b", "cos", "a", outer, (21, "return a.cos()")),
        ran("c", "sin", "b", outer, (20, "a = x.sin()")),
        ran("d", "cos", "c", outer, (21, "return a.cos()")),
        ran("e", "exp", "d", 11, "return y.exp()"),
    )
    # The second run's argument lives until it returns, and `y` until the program does.
    assert dict(found.until) == {"a": 1, "b": 3, "c": 3, "d": 4}


def added(number: int, before: str, module: str, after: str) -> tuple[Ran, Ran]:
    """A turn of a loop on line 3 that adds what a module of a list makes of its operand."""
    caller = (3, "x = x + layer(x)")
    modules = ("", f"layers.{number}")
    inner = ran(module, "sin.default", before, caller, (7, "return torch.sin(x)"), modules=modules)
    return inner, ran(after, "add.Tensor", f"{before} {module}", *caller)


def test_a_turn_that_has_added_begins_anew_with_the_next_module() -> None:
    """`x` holds the first sum until the second is there, not only until the second module returns."""
    found = until(
        *added(0, "x", "a", "s0"),
        *added(1, "s0", "b", "s1"),
        ran("d", "exp.default", "s1", 4, "return torch.exp(x)"),
    )
    assert found == {"s0": 3, "s1": 4}


def test_an_open_statement_that_has_run_all_it_spells_begins_anew_on_its_first_line() -> None:
    """The cosine of a turn is `x` until that of the next is."""
    first, rest = (10, "x = torch.sin("), (12, ").cos()")
    found = until(
        ran("a", "sin.default", "x", *first),
        ran("b", "cos.default", "a", *rest),
        ran("c", "sin.default", "b", *first),
        ran("d", "cos.default", "c", *rest),
        ran("e", "exp.default", "d", 13, "return torch.exp(x)"),
    )
    assert found == {"b": 3, "d": 4}


def test_each_turn_of_a_list_on_several_lines_has_a_variable_of_its_own() -> None:
    """`y = combine([` on line 1 holds what `layer(` on line 2 has made in each turn, not only in the last."""
    turns = [
        ran(
            made,
            "sin.default",
            "x",
            (2, "layer("),
            (7, "return torch.sin(x)"),
            modules=("", f"layers.{number}"),
        )
        for number, made in enumerate("abc")
    ]
    found = lifetimes(
        *turns,
        ran("d", "addcmul.default", "a b c", 1, "y = combine(["),
        ran("e", "exp.default", "d", 4, "y = torch.exp(y)"),
        ran("f", "neg.default", "e", 5, "return torch.neg(y)"),
    )
    assert found.until == {"a": 3, "b": 3, "c": 3, "d": 4, "e": 5}  # the list ends with the statement
    assert not found.assumed
