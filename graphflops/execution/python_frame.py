"""A Python function that is running, as the lines of an export tell.

An export names the line of each call, not the statement. A statement is done when the line changes, or when the operator or
module that it runs last has run as often as it is spelled; on the same line the next one begins then, as in
`a = f(x); b = g(a)`, or a loop's next turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from graphflops.execution.source_lines import CodeLine, Statement, closes, continues, statements
from graphflops.graph import Node


class Frame(Struct):
    """A function that is running."""

    line: CodeLine
    opening: Sequence[CodeLine]  # the line of its first call, and the next line of the stack then
    entered: int  # position of that call
    own: str = ""  # the variable that holds the module
    first: int = 0  # position of the first call of the statement
    parts: Sequence[Statement] = (Statement(),)  # the statements of the line
    part: int = 0  # the one that runs
    statement: Statement = Statement()
    opened: int = 0  # the number of the line at which the statement began
    ran: int = 0  # how often the statement has run what it runs last
    inside: str = ""  # the module that its last call is part of
    # What each local variable holds; `#N`: what an unknown one does.
    variables: dict[str, tuple[str, ...]] = {}
    hidden: set[str] = set()  # what functions that the statement calls have made
    # Those of them that their variables must hold, by operator: of several that one operator has made, as in a loop over
    # steps, only the last.
    locals: dict[str, str] = {}
    operands: set[str] = set()  # what a statement reads that opens on a line above
    # What the function that the statement called last returned beside its result.
    beside: tuple[str, ...] = ()
    # The variables that it returns beside its own result; False for those of a loop, of which it returns no turn's alone.
    returned: dict[str, bool] = {}

    def start(self, line: CodeLine, place: int) -> None:
        """Begin a line."""
        self.parts, self.part, self.opened, self.line = statements(line.text, self.own), -1, line.number, line
        self.start_next(place)

    def start_next(self, place: int) -> None:
        """Begin the next statement of a line, after the last one the first, as in a loop."""
        self.part = (self.part + 1) % len(self.parts)
        self.statement = self.parts[self.part]
        self.first, self.ran, self.inside = place, 0, ""

    def count(self, node: Node, child: str) -> None:
        """Note a call that may be what the statement runs last; child: the module that the call is part of."""
        if not child or child != self.inside:
            self.ran += self.statement.role(node.op, child)[1]
        self.inside = child

    def is_done(self, node: Node, child: str) -> bool:
        """Whether the statement was done before a call on the same line."""
        statement = self.statement
        is_inside = bool(child) and child == self.inside
        if statement.is_piece or is_inside or self.line.number != self.opened:
            return False
        tensors = [name for name in statement.or_numbers if name in self.variables]
        if self.ran >= statement.times + len(tensors) and statement.runs_last:
            return True
        after = self.parts[(self.part + 1) % len(self.parts)]
        return not statement.role(node.op, child)[0] and after.role(node.op, child)[0]

    def goes_on(self, line: CodeLine) -> bool:
        """Whether a line is a further piece of the expression that runs, or ends what its first line has opened."""
        if not self.statement.is_piece:
            return line.number > self.opened and closes(line.text)
        if not statements(line.text, self.own)[0].is_piece:
            return False
        return self.opened <= line.number < self.line.number or continues(line, self.line)

    def runs(self, line: CodeLine) -> bool:
        """Whether the line may belong to this run of the function."""
        own = self.line
        return own is line or (own.function, own.module, own.file) == (line.function, line.module, line.file)

    def begins_again(self, lines: Sequence[CodeLine], depth: int) -> bool:
        """Whether a further run of the function begins: after later lines comes its first one, which calls the same module.

        A loop's next turn calls another module; with a module that is called in each turn, a loop is taken for a call.
        """
        is_first = self.line.number != lines[depth].number and lines[depth : depth + 2] == self.opening
        return is_first and not self.goes_on(lines[depth])
