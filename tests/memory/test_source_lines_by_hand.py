"""What one line of code tells: its statements, what each binds, reads and calls, and whether it goes on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from graphflops.execution.source_lines import (
    CodeLine,
    Statement,
    closes,
    code_lines,
    continues,
    module_variable,
    module_variables,
    opens,
    statements,
)
from graphflops.graph import Node, Ref


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("y = f(x)", {"targets": ("y",), "called": set(), "given": ("x",)}),
        ("y = f(x)", {"runs_last": ("",), "times": 1, "is_piece": False}),
        ("y = torch.relu(x)", {"called": {"relu"}, "given": ("x",), "times": 1}),
        ("y = self.act(x)", {"called": {".act"}, "runs_last": (".act",)}),
        ("y = self.layers[0](x)", {"called": {".layers.0"}, "runs_last": (".layers.0",)}),
        ("y = self.layers[i](x)", {"called": set(), "runs_last": ("",)}),
        ("y = x + z", {"called": {"add"}, "times": 1, "given": ()}),
        ("y = x + z + f(w)", {"runs_last": ("add",), "times": 2}),
        ("y = x + 1 + z", {"times": 1}),  # with a number it may be one
        ("y = f(x) + 1", {"times": 1, "runs_last": ("add",)}),
        ("y = -x", {"called": {"neg"}, "runs_last": ("neg",)}),
        ("y = x @ z", {"called": {"matmul"}}),
        ("y = x[1:] < z.T", {"called": set(), "runs_last": ()}),
        ("x += f(z)", {"targets": ("x",), "runs_last": ("add",), "given": ()}),
        ("x: Tensor = f(z)", {"targets": ("x",), "given": ("z",)}),
        ("x: Tensor", {"targets": ()}),
        ("a, b = f(x)", {"targets": ("a", "b")}),
        ("[a, *b] = f(x)", {"targets": ("a", "b")}),
        ("held.cache = f(x)", {"targets": ("held.cache",)}),
        ("found[i] = f(x)", {"targets": ("found[]",)}),
        ("found[i + 1] = f(x)", {"targets": ("found[]",)}),
        ("found[self.i] = f(x)", {"targets": ("found[]",)}),
        ("found[0] = f(x)", {"targets": ("found[0]",)}),
        ("y = torch.cat(found, -1)", {"joins": "found", "given": ("found", "")}),
        ("y = torch.cat([a, b], -1)", {"joins": "", "given": ("", "")}),
        ("y = torch.hstack(found)", {"joins": "found"}),
        ("y = torch.sum(found)", {"joins": ""}),
        ("y = f(x, z=w, v=1)", {"given": ("x", "w", "")}),
        ("y = f(x).view(4)[0]", {"given": ("x",), "runs_last": ()}),
        ("y = x.view(4)", {"given": ("",)}),
        ("return f(x), z", {"is_piece": False, "runs_last": ()}),
        ("return x, f(z)", {"runs_last": ("",)}),
        ("return f(x)", {"is_piece": False, "runs_last": ("",)}),
        ("f(x)", {"is_piece": True, "targets": ()}),
        ("for layer in self.layers:", {"is_piece": True}),
        ("if (y := f(x)) is None:", {"targets": ("y",), "is_piece": False}),
        ("if f(x) > 0:", {"is_piece": False, "called": set()}),
        ("elif f(x):", {"is_piece": False, "given": ("x",)}),
        ("while f(x):", {"given": ("x",)}),
        ("with f(x) as z:", {"is_piece": False}),
        ("y = x ** 2 / z", {"called": {"pow", "div", "mul"}, "runs_last": ("div", "mul")}),
    ],
)  # fmt: skip
def test_the_facts_of_a_statement(text: str, facts: dict[str, Any]) -> None:
    (found,) = statements(text, "self")
    for name, value in facts.items():
        own = getattr(found, name)
        assert (set(own) if isinstance(value, set) else own) == value, name


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("a = f(x); b = g(a)", [("a",), ("b",)]),
        ("a = f(x); b = a", [("a",)]),
        ("b = a; c = f(b)", [("c",)]),  # nothing runs yet where a name gets another
        ("a = f(x); found.append(a)", [("a",)]),
        ("found.append(a)", [()]),
        ("a = f(x); found.append(g(a))", [("a",), ("found[]",)]),
        ("a = f(x); found.extend(a)", [("a",), ()]),
        ("for layer in layers: x = layer(x)", [("x",)]),
        ("for layer in layers: x = layer(x); y = f(x)", [("x",), ("y",)]),
        ("if c: x = f(x)", [("x",)]),
        ("else: x = f(x)", [("x",)]),
        ("", [()]),
        (")", [()]),
        ("x,", [()]),
    ],
)
def test_statements_of_a_line(text: str, targets: list[tuple[str, ...]]) -> None:
    assert [each.targets for each in statements(text)] == targets


@pytest.mark.parametrize(
    ("text", "is_open", "given"),
    [
        ("x = self.act(", True, ("",)),
        ("x = self.act(y,", True, ("y",)),
        ("x = f(", True, ("",)),
        ("x = (", True, ()),
        ("x = y + \\", True, ()),
        ("x = self.act(y)", False, ("y",)),
        ("x = [self.act(y), {", True, ()),
    ],
)
def test_statements_that_go_on_below(text: str, is_open: bool, given: tuple[str, ...]) -> None:
    """Their operands stand there: a call has at least one."""
    assert opens(text) is is_open
    if not text.endswith("{"):
        (found,) = statements(text, "self")
        assert found.given == given


@pytest.mark.parametrize(
    ("text", "is_end"),
    [
        (")", True),
        ("] * 2", True),
        ("} + x", True),
        (") = f(x)", False),
        ("); y = 1", False),
        ("x)", False),
        ("", False),
    ],
)
def test_ends_of_what_a_line_above_has_opened(text: str, is_end: bool) -> None:
    assert closes(text) is is_end


@pytest.mark.parametrize(
    ("text", "targets"), [(") = f(x)", ("#0", "#1")), ("] = f(x)", None), ("x = f(y)", ("x",))]
)
def test_variables_that_stand_on_a_line_above(text: str, targets: tuple[str, ...] | None) -> None:
    found = statements(text)[0]
    assert not found.is_piece
    if targets == ("x",):
        assert found.targets == targets
    else:
        assert all(name.startswith("#") or "[]" in name for name in found.targets)


def line(text: str, number: int) -> CodeLine:
    return CodeLine("model.py", "forward", number, text, "")


@pytest.mark.parametrize(
    ("before", "text", "number", "goes_on"),
    [
        ("self.act(x)", ".view(4)", 11, True),
        ("self.act(x)", "+ y", 11, True),
        ("self.act(x)", "y", 11, False),
        ("self.act(x),", "y", 11, True),  # the next operand
        ("self.act(", "y", 11, True),
        ("self.act(x)", ".view(4)", 10, False),
        ("self.act(x)", ".view(4)", 9, False),
    ],
)
def test_pieces_of_one_expression(before: str, text: str, number: int, goes_on: bool) -> None:
    assert continues(line(text, number), line(before, 10)) is goes_on


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        ("x = self.act(x)", "act", "self"),
        ("x = module.block.act(x)", "block.act", "module"),
        ("x = self.act(x)", "gate", ""),
        ("x = f(x)", "act", ""),
        ("x = self.a.act(x)", "act", ""),
    ],
)
def test_the_variable_that_holds_a_module(text: str, path: str, name: str) -> None:
    assert module_variable(text, path) == name


def test_the_variables_that_hold_the_modules_of_each_file() -> None:
    """A file's variable is told by the first line that calls a module of its own, which may have left no line."""
    lines = (
        'File "/home/me/a.py", line 3, in forward\n    x = model.part(x)\n',
        'File "/home/me/b.py", line 5, in forward\n    x = self.act(x)\n',
    )
    stack = "L0,,mine.A;L1,part,mine.B"
    nodes = [
        Node(
            "y",
            "aten.relu.default",
            (Ref("x"),),
            outputs=("y",),
            python_stack="".join(lines),
            module_stack=stack,
        )
    ]
    assert module_variables(nodes) == {"/home/me/a.py": "model"}
    inside = replace(nodes[0], module="part.act", module_stack=f"{stack};L2,part.act,mine.Act")
    assert module_variables([*nodes, inside]) == {"/home/me/a.py": "model", "/home/me/b.py": "self"}


def test_lines_of_a_stack_are_of_the_modules_whose_forwards_they_are() -> None:
    """A function that is no forward is of the module around it; more forwards than modules are of the last."""
    stack = "".join(
        f'File "/home/me/model.py", line {number}, in {function}\n    {text}\n'
        for number, function, text in (
            *((3, "main", "run()"), (5, "forward", "x = self.a(x)"), (7, "helper", "y = f(x)")),
            *((9, "forward", "z = g(y)"), (11, "forward", "w = h(z)")),
        )
    )
    modules = "L0,,mine.Outer;L1,a,mine.A"
    found = code_lines(stack, modules)
    assert [each.number for each in found] == [3, 5, 7, 9, 11]
    assert [each.module for each in found] == ["", "", "", "a", "a"]
    assert [each.text for each in found][1] == "x = self.a(x)"
    assert found[2].function == "helper"
    assert code_lines("", modules) == ()
    assert [each.module for each in code_lines(stack, "L0,,mine.Outer;L1,a")] == [
        ""
    ] * 5  # an entry without a class
    assert [each.module for each in code_lines(stack, "")] == [""] * 5


CAST = Node("y", "aten.to.dtype", (Ref("x"),), outputs=("y",))
RELU = Node("y", "aten.relu.default", (Ref("x"),), outputs=("y",))
PLUS = Node("y", "aten.add_.Tensor", (Ref("x"), Ref("z")), outputs=("y",))


@pytest.mark.parametrize(
    ("text", "node", "spells", "ends"),
    [
        ("y = x.half()", CAST, True, True),
        ("y = x.half()", RELU, False, False),
        ("y = x.relu()", CAST, False, False),
        ("y = x.relu()", RELU, True, True),
        ("y += x", PLUS, True, True),
        ("y = x.half() + z", CAST, True, False),
        ("y = x.add(z)", PLUS, True, True),
        ("y = x > 0", RELU, False, False),
    ],
)
def test_whether_a_statement_spells_a_call(text: str, node: Node, spells: bool, ends: bool) -> None:
    (found,) = statements(text)
    assert found.role(node.op) == (spells, ends)


def test_of_a_piece_nothing_is_known() -> None:
    assert statements("x,")[0] == Statement()
    facts = Statement()
    assert (facts.is_piece, facts.times, facts.targets, facts.given) == (True, 0, (), ())


@pytest.mark.parametrize(
    ("text", "is_piece"),
    [
        ("torch.sin(x)", True),
        ("(y := torch.sin(x))", False),  # it has a variable
        ("y = torch.sin(x)", False),
        ("return torch.sin(x)", False),
        ("for x in torch.sin(y):", True),  # the variable holds its rows, not it
    ],
)
def test_pieces_are_what_no_variable_gets(text: str, is_piece: bool) -> None:
    assert statements(text)[0].is_piece is is_piece
