"""A running function as lines of code tell it, one question at a time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.execution.python_frame import Frame, begun
from graphflops.execution.source_lines import CodeLine, statements
from graphflops.graph import Node, Ref

ADD = Node("y", "aten.add.Tensor", (Ref("x"), Ref("z")), outputs=("y",))
SUM = Node("y", "aten.sum.default", (Ref("x"),), outputs=("y",))
RELU = Node("y", "aten.relu.default", (Ref("x"),), outputs=("y",))


def line(text: str, number: int = 10, module: str = "block") -> CodeLine:
    return CodeLine("model.py", "forward", number, text, module)


def frame(text: str, number: int = 10, **fields: Any) -> Frame:
    """A function whose statement is that of a line, at its first call."""
    own = line(text, number)
    return Frame((own,), 3, "self", own, begun(own, "self", 3), **fields)


def test_a_line_begins_with_its_first_statement() -> None:
    found = begun(line("a = f(x); b = g(a)"), "self", 3)
    assert (found.first, found.ran, found.inside, found.part, found.opened) == (3, 0, "", 0, 10)
    assert found.statement.targets == ("a",)


def test_statements_of_a_line_run_in_turns() -> None:
    for part, target in enumerate("abab"):
        found = begun(line("a = f(x); b = g(a)"), "self", 4, part)
        assert (found.part, found.first, found.opened) == (part % 2, 4, 10)
        assert found.statement.targets == (target,)


@pytest.mark.parametrize(
    ("text", "ran", "inside", "child", "ends"),
    [
        ("x = x + self.layer(x)", 1, "", "layer", True),
        ("x = x + self.layer(x)", 0, "layer", "layer", False),  # it has not added yet
        ("x = self.a(x) + self.b(x) + x", 1, "", "a", False),  # it adds twice
        ("x = self.a(x) + self.b(x) + x", 2, "", "a", True),
        ("x = layer(x)", 1, "layers.0", "layers.0", False),
        ("x = layer(x)", 1, "layers.0", "head", True),
        ("x = self.drop(self.norm(x))", 0, "norm", "drop", False),
        ("x = [layer(x) for layer in self.layers]", 0, "layers.0", "layers.1", False),
        ("self.layer(x) + x", 1, "", "layers.1", False),  # a piece of a statement
    ],
)
def test_a_turn_ends_where_the_next_module_is_called(
    text: str, ran: int, inside: str, child: str, ends: bool
) -> None:
    found = frame(text)
    found.running.ran, found.running.inside = ran, inside
    assert found.is_done(RELU, child) is ends


def test_the_last_operator_of_a_statement_is_counted_each_time() -> None:
    found = frame("x = self.act(x) + x + z").running
    for node, child, ran in ((RELU, "act", 0), (ADD, "", 1), (ADD, "", 2)):
        found.count(node, child)
        assert (found.ran, found.inside) == (ran, child)


def test_several_calls_inside_of_one_module_count_once() -> None:
    found = frame("x = self.act(x)").running
    for child, ran in (("act", 1), ("act", 1), ("other", 1), ("act", 2)):
        found.count(RELU, child)
        assert found.ran == ran


@pytest.mark.parametrize(("held", "ran", "is_done"), [((), 2, True), (("a",), 2, False), (("a",), 3, True)])
def test_one_more_is_added_where_a_variable_beside_a_number_holds_a_tensor(
    held: tuple[str, ...], ran: int, is_done: bool
) -> None:
    found = frame("x = x + g * f(y * (1 + a) + b)", variables=dict.fromkeys(held, ("tensor",)))
    found.running.ran = ran
    assert found.is_done(ADD, "") is is_done


@pytest.mark.parametrize(
    ("ran", "inside", "node", "child", "is_done"),
    [
        (0, "", ADD, "", False),
        (1, "", ADD, "", True),
        (1, "act", RELU, "act", False),  # still inside of the module
        (1, "act", RELU, "other", True),
        (0, "", SUM, "", True),  # the next statement's, but not this one's
        (0, "", RELU, "", False),  # `+` may be elementwise
        (0, "", RELU, "act", False),
    ],
)
def test_a_statement_ends_when_all_that_it_runs_has_run(
    ran: int, inside: str, node: Node, child: str, is_done: bool
) -> None:
    found = frame("x = self.act(x) + z; y = x.sum()")
    found.running.ran, found.running.inside = ran, inside
    assert found.is_done(node, child) is is_done


@pytest.mark.parametrize(
    ("opened", "text", "number", "goes_on"),
    [
        ("x = f(x,", ")", 12, True),
        ("x = f(x,", "y = g(x)", 12, False),
        ("x = f(x,", ")", 8, False),  # of a statement above
        ("x = self.act(", "x = self.act(", 10, False),  # it is on that line
        ("self.act(x)", ".view(4)", 11, True),  # pieces of an expression
        ("self.act(x)", "+ self.b(x)", 11, True),
        ("self.act(x)", "self.b(x)", 11, False),
        ("self.act(x)", "y = g(x)", 11, False),
        ("self.act(x)", "+ self.b(x)", 9, False),
        ("x = f(x)", "+ self.b(x)", 11, False),  # a whole statement
    ],
)
def test_whether_an_expression_goes_on(opened: str, text: str, number: int, goes_on: bool) -> None:
    assert frame(opened).goes_on(line(text, number)) is goes_on


def test_a_line_of_another_file_function_or_module_is_of_another_run() -> None:
    found = line("x = f(x)")
    assert found.is_beside(found)
    assert found.is_beside(line("y = g(x)", 11))
    for other in ({"file": "other.py"}, {"function": "helper"}, {"module": "head"}):
        assert not found.is_beside(replace(line("x = f(x)"), **other))


def test_a_function_begins_again_at_its_first_line() -> None:
    lines = [line("x = f(x)"), line("return relu(x)", 3, "block.act")]
    found = frame("y = g(x)", 12)
    found.opening = tuple(lines)
    assert found.begins_again(tuple(lines), 0)
    assert not found.begins_again((lines[0], line("return relu(x)", 3, "block.gate")), 0)
    found.line = lines[0]
    assert not found.begins_again(tuple(lines), 0)


CAST = Node("y", "aten.to.dtype", (Ref("x"),), outputs=("y",))
RELU_IN_PLACE = Node("y", "aten.relu_.default", (Ref("x"),), outputs=("y",))
MATMUL = Node("y", "aten.matmul.default", (Ref("x"), Ref("z")), outputs=("y",))


@pytest.mark.parametrize(
    ("text", "node", "child", "spells", "ends"),
    [
        ("y = x.to(dtype)", CAST, "", True, True),
        ("y = x.float()", CAST, "", True, True),
        ("y = f(x)", CAST, "", False, False),
        ("y = x.to(dtype) + 1", CAST, "", True, False),
        ("y = torch.relu(x)", RELU, "", True, True),
        ("y = torch.relu(x)", RELU_IN_PLACE, "", True, True),
        ("y = torch.relu(x)", ADD, "", False, False),
        ("y = torch.relu(x) + z", ADD, "", True, True),
        ("y = x @ z", MATMUL, "", True, True),
        ("y = x @ z", SUM, "", False, False),
        ("y = self.act(x) + z", RELU, "act", True, False),
        ("y = self.act(x + z)", RELU, "act", True, True),
        ("y = self.act(x)", RELU, "block.act", True, True),
        ("y = self.act(x)", RELU, "gate", False, False),
        ("y = self.layers[0](x)", RELU, "layers.0", True, True),
        ("y = layer(x)", RELU, "layers.0", False, True),  # whatever the variable holds
    ],
)
def test_what_a_statement_calls_and_what_it_runs_last(
    text: str, node: Node, child: str, spells: bool, ends: bool
) -> None:
    (statement,) = statements(text, "self")
    assert statement.role(node.op, child) == (spells, ends)


def test_after_the_last_statement_of_a_line_comes_the_first() -> None:
    """In a loop's next turn: the sum is of the second, the relu begins again."""
    found = frame("x = torch.relu(x); y = x.sum()")
    found.running = begun(found.line, "self", 4, 1)
    assert found.is_done(RELU, "")
    assert not found.is_done(SUM, "")
