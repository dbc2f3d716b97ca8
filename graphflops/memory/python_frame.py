"""A Python function that is running, as the lines of an export tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphflops.memory.line_parts import line_parts, only_statement
from graphflops.memory.statements import is_alike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.graph import Node
    from graphflops.memory.line_parts import Part
    from graphflops.memory.statements import CodeLine


@dataclass(slots=True)
class Frame:
    """A function that is running.

    first: position of the first call of the statement that runs. entered: of the frame's first call.
    variables: what each local variable holds. opening: the line of its first call, and the next line of the stack then.
    hidden: what functions that the statement calls have made. locals: those of them that their variables must hold.
    turns: the latest of locals, by operator.
    weights: probabilities of attentions that modules called by the statement returned. returned: that the frame returns.
    chain: the variable whose methods are called, one a line. parts: the statements of a line of several, and part: the one
    that runs. ran: how often it has run what it runs last. inside: the module that the last call is part of. called: the
    module that the statement called first.
    """

    line: CodeLine
    opening: Sequence[CodeLine]
    entered: int
    first: int
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chain: str = ""
    hidden: set[str] = field(default_factory=set)
    locals: set[str] = field(default_factory=set)
    weights: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    turns: dict[str, list[str]] = field(default_factory=dict)
    parts: Sequence[Part] = ()
    part: int = 0
    ran: int = 0
    inside: str = ""
    called: str = ""

    def start(self, line: CodeLine, place: int) -> None:
        """Begin a line, or its next statement."""
        self.first, self.ran, self.inside, self.called = place, 0, "", ""
        if line is not self.line or not self.parts:
            self.parts, self.part = line_parts(line.text), 0
        else:
            self.part = (self.part + 1) % len(self.parts)
        self.line = line._replace(text=self.parts[self.part].text) if self.parts else line

    def ends_part(self, node: Node, child: str) -> bool:
        """Whether the statement was done before a call; child: the module, called by this line, that the call is part of."""
        part, after = self.parts[self.part], self.parts[(self.part + 1) % len(self.parts)]
        is_done = self.ran >= part.times and (not child or child != self.inside)
        return is_done or (not part.spells(node, child) and after.spells(node, child))

    def count(self, node: Node, child: str) -> None:
        """Note a call that may be what the statement runs last."""
        if not child or child != self.inside:
            self.ran += self.parts[self.part].ends_with(node, child)
        self.inside = child

    def count_own(self, node: Node) -> None:
        """Note a call of the function's own, on a line of one statement."""
        statement = None if self.parts else only_statement(self.line.text)
        self.ran += statement is not None and statement.ends_with(node, "")

    def ends_turn(self, module: str) -> bool:
        """Whether a loop's next turn begins where a module is called: `x = x + layer(x)` has added, and calls once more.

        Each turn first calls the same module, or the next one in a list.
        """
        statement = None if self.parts or not self.called else only_statement(self.line.text)
        is_done = statement is not None and self.ran >= statement.times
        return is_done and is_alike(self.called, module)

    @property
    def is_module(self) -> bool:
        """Whether it is the forward of a module."""
        return self.line.function == "forward"

    def runs(self, line: CodeLine) -> bool:
        """Whether the line may belong to this run of the function."""
        own = self.line
        return own is line or (
            own.module == line.module and own.function == line.function and own.file == line.file
        )

    def begins_again(self, lines: Sequence[CodeLine], depth: int) -> bool:
        """Whether a further run of the function begins: after later lines comes its first one, which calls the same module.

        A loop's next turn calls another module; with a module that is called in each turn, a loop is taken for a call.
        """
        return self.line.number != lines[depth].number and lines[depth : depth + 2] == self.opening
