"""A Python function that is running, as the lines of an export tell.

An export names the line of each call, not the statement. Of a line with several, `a = f(x); b = g(a)`, or with a loop and
its body, a statement is done when the operator or module that it runs last has run as often as it is spelled. Then the next
one begins, and after the last one the first, as in a loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphflops.memory.source_lines import (
    Statement,
    code_lines,
    continues,
    module_variable,
    runs_in_turns,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.graph import Node
    from graphflops.memory.source_lines import CodeLine

_NUMBERED = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a module's path that is a number


@dataclass(slots=True)
class Frame:
    """A function that is running.

    own: the variable that holds the module. opening: the line of its first call, and the next line of the stack then.
    entered: position of that call. first: position of the first call of the statement that runs. ran: how often that
    has run what it runs last. inside: the module that its last call is part of. called: the module that it called
    first. variables: what each local variable holds; `#N`: what an unknown one does. beside: weights of attentions
    that a variable holds if it holds a tuple. weights: those that modules called by the statement returned. returned:
    that the frame returns. hidden: what functions that the statement calls have made. locals: those of them that
    their variables must hold. turns: the latest of locals, by operator. opened: the number of the line at which the
    statement began.
    """

    line: CodeLine
    opening: Sequence[CodeLine]
    entered: int
    own: str = ""
    first: int = 0
    parts: Sequence[Statement] = (Statement(),)
    part: int = 0
    opened: int = 0
    runs_in_turns: bool = False
    ran: int = 0
    inside: str = ""
    called: str = ""
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    beside: dict[str, tuple[str, ...]] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    locals: set[str] = field(default_factory=set)
    turns: dict[str, list[str]] = field(default_factory=dict)

    @property
    def statement(self) -> Statement:
        """The statement that runs."""
        return self.parts[self.part]

    @property
    def is_module(self) -> bool:
        """Whether it is the forward of a module."""
        return self.line.function == "forward"

    def start(self, line: CodeLine, place: int) -> None:
        """Begin a line, or its next statement."""
        self.first, self.ran, self.inside, self.called = place, 0, "", ""
        if line is self.line and self.runs_in_turns:
            self.part = (self.part + 1) % len(self.parts)
        else:
            self.parts, self.part, self.runs_in_turns = (
                statements(line.text, self.own),
                0,
                runs_in_turns(line.text),
            )
            self.opened = line.number
        self.line = line

    def goes_on(self, line: CodeLine) -> bool:
        """Whether a line is of the expression that runs: a further one, or an earlier one of those that it has run."""
        if not (self.statement.is_piece and statements(line.text)[0].is_piece):
            return False
        return self.opened <= line.number < self.line.number or continues(line, self.line)

    def ends_statement(self, node: Node, child: str) -> bool:
        """Whether the statement was done before a call; child: the module, called by this line, that the call is part of."""
        after = self.parts[(self.part + 1) % len(self.parts)]
        is_done = self.ran >= self.statement.times and (not child or child != self.inside)
        return is_done or (not self.statement.spells(node, child) and after.spells(node, child))

    def count(self, node: Node, child: str) -> None:
        """Note a call that may be what the statement runs last."""
        if not child or child != self.inside:
            self.ran += self.statement.ends_with(node, child)
        self.inside = child

    def ends_turn(self, module: str) -> bool:
        """Whether a loop's next turn begins where a module is called: `x = x + layer(x)` has added, and calls once more.

        Each turn first calls the same module, or the next one in a list.
        """
        is_one = not self.runs_in_turns and self.called and not self.statement.is_piece
        return bool(is_one) and self.ran >= self.statement.times and is_alike(self.called, module)

    def runs(self, line: CodeLine) -> bool:
        """Whether the line may belong to this run of the function."""
        own = self.line
        return own is line or own[:2] + own[4:] == line[:2] + line[4:]

    def begins_again(self, lines: Sequence[CodeLine], depth: int) -> bool:
        """Whether a further run of the function begins: after later lines comes its first one, which calls the same module.

        A loop's next turn calls another module; with a module that is called in each turn, a loop is taken for a call.
        """
        return self.line.number != lines[depth].number and lines[depth : depth + 2] == self.opening


def is_next_turn(caller: Statement, before: str, now: str) -> bool:
    """Whether a statement that calls another module than before is a loop's next turn, not a further call in one turn.

    `x = layer(x)` calls one module a turn, and so does `x = self.layers[i](x)`; `self.drop(self.norm(x))` calls two. Layers
    of a list are numbered: other numbers are parts of names (`self.conv_1a`).
    """
    return before != now and (caller.calls_variable or is_alike(before, now))


def is_alike(module: str, other: str) -> bool:
    """Whether two modules are the same, or have the same place in two parts of a list."""
    return _NUMBERED.sub("#", module) == _NUMBERED.sub("#", other)


def module_variables(nodes: Sequence[Node]) -> dict[str, str]:
    """By file: the variable that holds the module whose forward runs, as its calls of other modules show it."""
    found: dict[str, str] = {}
    for node in nodes:
        lines = code_lines(node.python_stack, node.module_stack)
        for line, inner in zip(lines, [*(line.module for line in lines[1:]), node.module], strict=False):
            if line.file not in found and inner != line.module:
                name = module_variable(line.text, inner.removeprefix(line.module).removeprefix("."))
                found.update({line.file: name} if name else {})
    return found
