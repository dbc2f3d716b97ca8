"""How long Python refers to each tensor, told from lines of code: positions of calls, by the rules of the language.

What a function returns is held by no variable of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from graphflops.execution.frames import References
from graphflops.graph import Node, Ref

if TYPE_CHECKING:
    from collections.abc import Sequence

Lines = tuple[tuple[int, str], ...]  # a stack, outermost first


def call(name: str, op: str, reads: str, *lines: tuple[int, str], modules: str = "") -> Node:
    """A call, made by the forward of the outermost module on a line, of its parts on further lines."""
    file = ("net.py", "part.py", "inner.py", "core.py")
    python = "".join(
        f'File "{file[depth]}", line {number}, in forward\n    {text}\n'
        for depth, (number, text) in enumerate(lines)
    )
    paths = ["", *modules.split()]
    stack = ";".join(f"L['self'].{path},{path},Module" if path else "L['self'],,Net" for path in paths)
    args = tuple(Ref(read) for read in reads.split())
    if op in ("cat", "stack"):
        args = (args,)
    return Node(name, f"aten.{op}.default", args, outputs=(name,), python_stack=python, module_stack=stack)


def until(nodes: Sequence[Node], **views: str) -> dict[str, int]:
    """By result, the last call during which it is held though no call reads it any more, or it reads it itself."""
    memory = {name: views.get(name, name) for node in nodes for name in node.outputs if name}
    read = [node.reads() for node in nodes]
    return dict(References(nodes, read, memory, lambda value: False).lifetimes().until)


def test_a_variable_holds_its_value_until_it_is_bound_again_or_its_function_returns() -> None:
    nodes = [
        call("a", "sin", "x", (1, "y = torch.sin(x)")),
        call("b", "tanh", "a", (2, "z = torch.tanh(y)")),
        call("c", "cos", "b", (3, "y = torch.cos(z)")),
        call("d", "relu", "c", (4, "w = torch.relu(y)")),
        call("e", "exp", "d", (5, "return torch.exp(w)")),
    ]
    assert until(nodes) == {"a": 2, "b": 4, "c": 4, "d": 4}


def test_a_variable_that_is_read_while_it_is_bound_again_holds_its_value_until_then() -> None:
    nodes = [
        call("a", "sin", "x", (1, "x = torch.sin(x)")),
        call("b", "tanh", "a", (2, "x = torch.tanh(x)")),
        call("c", "cos", "b", (3, "x = torch.cos(x)")),
    ]
    assert until(nodes) == {"a": 1, "b": 2, "c": 2}


def test_what_a_part_makes_is_let_go_when_it_returns() -> None:
    line = (1, "x = self.part(x)")
    nodes = [
        call("a", "sin", "x", line, (7, "y = torch.sin(x)"), modules="part"),
        call("b", "tanh", "a", line, (8, "z = torch.tanh(y)"), modules="part"),
        call("c", "cos", "b", line, (9, "return torch.cos(z)"), modules="part"),
        call("d", "relu", "c", (2, "x = torch.relu(x)")),
        call("e", "exp", "d", (3, "return torch.exp(x)")),
    ]
    assert until(nodes) == {"a": 2, "b": 2, "c": 3, "d": 4}


@pytest.mark.parametrize(
    ("kinds", "lines"),
    [
        (("sin", "tanh"), ((7, "y = torch.sin(x)"), (8, "return torch.tanh(y)"))),
        (("cos", "relu"), ((10, "z = torch.cos(x)"), (11, "return torch.relu(z)"))),  # it goes another way
    ],
)
def test_a_part_that_runs_twice_returns_in_between(kinds: Any, lines: Any) -> None:
    first, second = (1, "x = self.part(x)"), (2, "x = self.part(x)")
    nodes = [
        call("a", "sin", "x", first, (7, "y = torch.sin(x)"), modules="part"),
        call("b", "tanh", "a", first, (8, "return torch.tanh(y)"), modules="part"),
        call("c", kinds[0], "b", second, lines[0], modules="part"),
        call("d", kinds[1], "c", second, lines[1], modules="part"),
    ]
    assert until(nodes) == {"a": 1, "b": 3, "c": 3, "d": 3}


def test_a_part_of_a_part_that_a_loop_runs_twice_leaves_the_one_around_it_running() -> None:
    line, inner = (1, "x = self.part(x)"), (8, "x = self.inner(x)")
    turns = [
        node
        for turn, given in enumerate(("k", "b0"))
        for node in (
            call(
                f"a{turn}", "tanh", given, line, inner, (20, "y = torch.tanh(x)"), modules="part part.inner"
            ),
            call(
                f"b{turn}",
                "cos",
                f"a{turn}",
                line,
                inner,
                (21, "return torch.cos(y)"),
                modules="part part.inner",
            ),
        )
    ]
    first = call("k", "sin", "x", line, (7, "k = torch.sin(x)"), modules="part")
    last = call("d", "relu", "b1", line, (9, "return torch.relu(x)"), modules="part")
    assert until([first, *turns, last]) == {"k": 5, "a0": 2, "b0": 4, "a1": 4, "b1": 5, "d": 5}


def test_a_variable_that_has_got_another_value_in_between_has_let_go() -> None:
    """`x = y` leaves no call: that `x` is read as `y` tells it."""
    nodes = [
        call("a", "sin", "z", (1, "x = torch.sin(z)")),
        call("b", "tanh", "z", (2, "y = torch.tanh(z)")),
        call("c", "cos", "b", (4, "w = torch.cos(x)")),
        call("d", "exp", "c", (5, "return torch.exp(w)")),
    ]
    assert until(nodes) == {"b": 3, "c": 3}


def test_a_part_that_a_loop_runs_twice_begins_with_the_same_part_of_its_own() -> None:
    """However deep the first call of that is."""
    line, paths = (1, "x = self.part(x)"), "part part.inner part.inner.core"
    deep = (7, "y = self.inner(x)"), (20, "return self.core(x)"), (30, "return torch.sin(x)")
    nodes = [
        node
        for turn in range(2)
        for node in (
            call(f"a{turn}", "sin", f"b{turn - 1}", line, *deep, modules=paths),
            call(f"b{turn}", "tanh", f"a{turn}", line, (8, "return torch.tanh(y)"), modules="part"),
        )
    ]
    assert until(nodes) == {"a0": 1, "b0": 3, "a1": 3, "b1": 3}


@pytest.mark.parametrize(("argument", "last"), [("found", 4), ("None", 2)])
def test_a_list_that_a_part_is_given_lives_as_long_as_its_caller(argument: str, last: int) -> None:
    line = (3, f"y = self.part(x, {argument})")
    nodes = [
        call("a", "sin", "x", (1, "v = torch.sin(x)")),
        call("b", "cos", "x", (2, "v = torch.cos(x)")),
        call("c", "cat", "a b", line, (7, "return torch.cat(given)"), modules="part"),
        call("d", "relu", "c", (4, "y = torch.relu(y)")),
        call("e", "exp", "d", (5, "return torch.exp(y)")),
    ]
    assert until(nodes)["a"] == last


def test_the_argument_of_a_part_lives_until_it_returns() -> None:
    line = (2, "return self.part(x)")
    nodes = [
        call("a", "sin", "x", (1, "x = torch.sin(x)")),
        call("b", "tanh", "a", line, (7, "x = torch.tanh(x)"), modules="part"),
        call("c", "cos", "b", line, (8, "x = torch.cos(x)"), modules="part"),
        call("d", "relu", "c", line, (9, "return torch.relu(x)"), modules="part"),
    ]
    assert until(nodes) == {"a": 3, "b": 2, "c": 3}


def test_turns_of_a_loop_over_parts_bind_the_variable_again() -> None:
    line = (1, "x = layer(x)")
    nodes = [
        node
        for turn in range(3)
        for node in (
            call(f"a{turn}", "sin", f"b{turn - 1}", line, (7, "y = torch.sin(x)"), modules=f"layers.{turn}"),
            call(f"b{turn}", "tanh", f"a{turn}", line, (8, "return torch.tanh(y)"), modules=f"layers.{turn}"),
        )
    ]
    assert until(nodes) == {"a0": 1, "b0": 3, "a1": 3, "b1": 5, "a2": 5, "b2": 5}


def test_views_of_a_tensor_hold_its_memory() -> None:
    nodes = [
        call("a", "sin", "x", (1, "y = torch.sin(x)")),
        call("v", "t", "a", (2, "v = y.t()")),
        call("b", "tanh", "v", (3, "y = torch.tanh(v)")),
        call("c", "cos", "b", (4, "v = torch.cos(y)")),
        call("d", "relu", "c", (5, "return torch.relu(v)")),
    ]
    assert until(nodes, v="a") == {"a": 3, "b": 4, "c": 4}


def test_two_targets_hold_two_results() -> None:
    nodes = [
        call("a", "sin", "x", (1, "y, z = torch.sin(x), torch.cos(x)")),
        call("b", "cos", "x", (1, "y, z = torch.sin(x), torch.cos(x)")),
        call("c", "add", "a b", (2, "y = y + z")),
        call("d", "relu", "c", (3, "z = torch.relu(y)")),
        call("e", "exp", "d", (4, "return torch.exp(z)")),
    ]
    assert until(nodes) == {"a": 2, "b": 3, "c": 4, "d": 4}


def test_what_a_list_gets_that_is_joined_lives_until_its_function_returns() -> None:
    nodes = [
        call("a", "sin", "x", (1, "found.append(torch.sin(x))")),
        call("b", "cos", "x", (2, "found.append(torch.cos(x))")),
        call("c", "cat", "a b", (3, "y = torch.cat(found)")),
        call("d", "relu", "c", (4, "y = torch.relu(y)")),
    ]
    assert until(nodes) == {"a": 3, "b": 3, "c": 3, "d": 3}


def test_layers_of_a_list_that_are_called_again_run_again() -> None:
    """Two loops over the same layers, one after the other."""
    nodes = [
        call(
            f"{name}{turn}", "sin", read, (number, text), (7, "return torch.sin(x)"), modules=f"layers.{turn}"
        )
        for name, number, text, reads in (
            ("a", 1, "x = layer(x)", ("x", "a0")),
            ("b", 2, "y = layer(x)", ("a1", "a1")),
        )
        for turn, read in enumerate(reads)
    ]
    assert until(nodes) == {"a0": 1, "a1": 3, "b0": 3, "b1": 3}


def test_a_statement_on_several_lines_holds_what_its_lines_have_made() -> None:
    nodes = [
        call("a", "sin", "x", (3, "torch.sin(x),")),
        call("b", "cos", "x", (4, "torch.cos(x),")),
        call("c", "add", "a b", (2, "y = torch.add(")),
        call("d", "relu", "c", (6, "y = torch.relu(y)")),
        call("e", "exp", "d", (7, "return torch.exp(y)")),
    ]
    assert until(nodes) == {"a": 2, "b": 2, "c": 3, "d": 4}


@pytest.mark.parametrize("targets", ["out, p", "out, p, cache"])
def test_the_probabilities_of_an_attention_are_its_second_result(targets: str) -> None:
    line = (1, f"{targets} = self.attend(x)")
    nodes = [
        call("s", "matmul", "x x", line, (7, "scores = q @ k"), modules="attend"),
        call("w", "softmax", "s", line, (8, "w = scores.softmax(-1)"), modules="attend"),
        call("o", "matmul", "w x", line, (9, "return w @ v, w"), modules="attend"),
        call("d", "relu", "o", (2, "y = torch.relu(out)")),
        call("e", "exp", "d", (3, "return torch.exp(y)")),
    ]
    assert until(nodes) == {"s": 2, "w": 4, "o": 4, "d": 4}


def test_weights_of_the_statement_before_are_not_what_a_second_variable_gets() -> None:
    nodes = [
        call("w", "softmax", "x", (1, "x = x.softmax(-1)")),
        call("o", "matmul", "w w", (2, "x, weights = attend(x)")),
        call("d", "relu", "o", (3, "y = torch.relu(x)")),
        call("e", "exp", "d", (4, "return torch.exp(y)")),
    ]
    assert until(nodes) == {"w": 1, "o": 3, "d": 3}


@pytest.mark.parametrize(("products", "is_held"), [(1, True), (3, True), (4, False)])
def test_so_many_products_of_an_attention_follow_its_softmax(products: int, is_held: bool) -> None:
    """Of the values, with them, and the projection; what has more is no attention, so the weights are no result."""
    line, names = (2, "x, weights = attend(x)"), ["w", *(f"o{turn}" for turn in range(products))]
    nodes = [
        call("n", "neg", "x", (1, "x = torch.neg(x)")),
        call("w", "softmax", "n", line),
        *(call(made, "linear", f"{read} v", line) for read, made in pairwise(names)),
        call("d", "relu", names[-1], (3, "y = torch.relu(x)")),
        call("e", "exp", "d", (4, "return torch.exp(y)")),
    ]
    assert ("w" in until(nodes)) is is_held
    assert until(nodes).get("w", products + 3) == products + 3


def test_a_part_of_a_part_returns_before_it() -> None:
    outer, inner = (1, "x = self.part(x)"), (7, "y = self.inner(x)")
    nodes = [
        call("a", "sin", "x", outer, inner, (20, "z = torch.sin(x)"), modules="part part.inner"),
        call("b", "tanh", "a", outer, inner, (21, "return torch.tanh(z)"), modules="part part.inner"),
        call("c", "cos", "b", outer, (8, "y = torch.cos(y)"), modules="part"),
        call("d", "relu", "c", outer, (9, "return torch.relu(y)"), modules="part"),
        call("e", "exp", "d", (2, "return torch.exp(x)")),
    ]
    assert until(nodes) == {"a": 1, "b": 2, "c": 3, "d": 4}


def test_what_no_variable_holds_lives_until_the_part_of_a_part_returns_that_is_given_it() -> None:
    outer, inner = (2, "x = self.part(x)"), (7, "y = self.inner(torch.sin(x))")
    nodes = [
        call("n", "neg", "x", (1, "x = torch.neg(x)")),
        call("a", "sin", "n", outer, inner, modules="part"),
        call("b", "tanh", "a", outer, inner, (20, "z = torch.tanh(x)"), modules="part part.inner"),
        call("c", "cos", "b", outer, inner, (21, "return torch.cos(z)"), modules="part part.inner"),
        call("d", "relu", "c", outer, (8, "return torch.relu(y)"), modules="part"),
        call("e", "exp", "d", (3, "return torch.exp(x)")),
    ]
    assert until(nodes) == {"n": 4, "a": 3, "b": 3, "c": 4, "d": 5}


def test_a_variable_of_a_loop_over_steps_is_replaced_in_the_next() -> None:
    """What a function without lines of its own makes and reads twice its variables hold, of each operator the last.

    It is held while the next is made.
    """
    line = (1, "y = scan(x)")
    nodes = [
        node
        for turn in range(10)
        for node in (
            call(f"w{turn}", "exp", "x", line),
            call(f"s{turn}", "mul", f"w{turn} x", line),
            call(f"u{turn}", "neg", f"w{turn}", line),
        )
    ]
    nodes.append(call("y", "add", "s9 u9", line))
    nodes.append(call("z", "relu", "y", (2, "return torch.relu(y)")))
    found = until(nodes)
    assert all(
        found[f"w{turn}"] == 3 * (turn + 1) for turn in range(10)
    )  # of the last until the statement is done
    assert found["y"] == 31
