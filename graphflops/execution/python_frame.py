"""A running Python function, as an export's lines show it.

An export names the line of each call, not the statement. A statement is done when the line changes, or when the operator or
module that it runs last has run as often as the line spells it. On the same line the next statement then begins, as in
`a = f(x); b = g(a)`, or a loop's next iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from graphflops.execution.source_lines import CodeLine, Statement, closes, continues, statements
from graphflops.graph import Node


class Frame(Struct):
    """A running function."""

    line: CodeLine
    opening: Sequence[CodeLine]  # the line of its first call, and the line below it on the stack at that call
    entered: int  # position of its first call
    own: str = ""  # the variable that holds the module
    first: int = 0  # position of the first call of the statement
    parts: Sequence[Statement] = (Statement(),)  # the statements of the line
    part: int = 0  # which of them runs
    statement: Statement = Statement()
    opened: int = 0  # the number of the line at which the statement began
    ran: int = 0  # how often it has run what it runs last
    inside: str = ""  # the module that its last call belongs to
    # What each local variable holds; `#N` stands for a variable that is not known.
    variables: dict[str, tuple[str, ...]] = {}
    hidden: set[str] = set()  # values made in functions that the statement calls
    # Hidden values that variables of those functions must hold, by operator. Of several values that one operator made, as in
    # a loop over steps, only the last is held.
    locals: dict[str, str] = {}
    operands: set[str] = set()  # what a statement that opened on an earlier line reads
    # What the function that the statement called last returned beside its result.
    beside: tuple[str, ...] = ()
    # The variables that it returns beside its own result; False if a loop binds them, whose iterations are not returned.
    returned: dict[str, bool] = {}

    def start(self, line: CodeLine, place: int) -> None:
        """Begin a line's first statement."""
        self.parts, self.part, self.opened, self.line = statements(line.text, self.own), -1, line.number, line
        self.start_next(place)

    def start_next(self, place: int) -> None:
        """Begin the next statement of the line; after the last one, the first again, as in a loop."""
        self.part = (self.part + 1) % len(self.parts)
        self.statement = self.parts[self.part]
        self.first, self.ran, self.inside = place, 0, ""

    def count(self, node: Node, child: str) -> None:
        """Note a call that may be what the statement runs last. child: the module that the call belongs to."""
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
        """Whether a line is another piece of the running expression, or closes what the expression's first line opened."""
        if not self.statement.is_piece:
            return line.number > self.opened and closes(line.text)
        if not statements(line.text, self.own)[0].is_piece:
            return False
        return self.opened <= line.number < self.line.number or continues(line, self.line)

    def runs(self, line: CodeLine) -> bool:
        """Whether a line may belong to this run of the function."""
        own = self.line
        return own is line or (own.function, own.module, own.file) == (line.function, line.module, line.file)

    def begins_again(self, lines: Sequence[CodeLine], depth: int) -> bool:
        """Whether the function is called again: its first line follows a later line, and calls the same module as before.

        A loop's next iteration calls another module. A loop that calls the same module each time is taken for a new call.
        """
        is_first = self.line.number != lines[depth].number and lines[depth : depth + 2] == self.opening
        return is_first and not self.goes_on(lines[depth])
