"""A running Python function, as an export's lines show it.

A statement is done when the line changes, or when the operator or module that it runs last has run as often as the line
spells it. Then the next statement of the line begins, as in `a = f(x); b = g(a)`, or a loop's next iteration.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from graphflops.execution.source_lines import CodeLine, Statement, closes, continues, statements
from graphflops.graph import Node


class Running(Struct):
    """A statement that runs."""

    statement: Statement
    part: int  # which of the line's statements it is
    opened: int  # the number of the line at which it began
    first: int  # position of its first call
    operands: set[str] = set()  # what it reads that an earlier piece of it has made
    ran: int = 0  # how often it has run what it runs last
    inside: str = ""  # the module that its last call belongs to
    hidden: set[str] = set()  # values made in functions that it calls
    # Hidden values that variables of those functions must hold, by operator. Of several values that one operator made, as in
    # a loop over steps, only the last is held.
    locals: dict[str, str] = {}
    beside: tuple[str, ...] = ()  # what the function that it called last returned beside its result

    def count(self, node: Node, child: str) -> None:
        """Note a call that may be what the statement runs last. child: the module that the call belongs to."""
        if not child or child != self.inside:
            self.ran += self.statement.role(node.op, child)[1]
        self.inside = child


def begun(line: CodeLine, own: str, place: int, part: int = 0, operands: Iterable[str] = ()) -> Running:
    """A statement of a line at its first call. After the last one comes the first again, as in a loop."""
    parts = statements(line.text, own)
    return Running(parts[part % len(parts)], part % len(parts), line.number, place, {*operands})


class Frame(Struct):
    """A running function."""

    opening: Sequence[
        CodeLine
    ]  # the line of its first call, and the line below it on the stack at that call or the next
    entered: int  # position of its first call
    own: str  # the variable that holds the module
    line: CodeLine  # the line that runs
    running: Running
    # What each variable holds: `x[]` any element of `x`, `x[:]` what `x` holds beside a result if it is a tuple, `#N` a
    # variable that the lines do not name.
    variables: dict[str, tuple[str, ...]] = {}
    # What it holds until it returns: its arguments, and the elements of lists.
    kept: set[str] = set()
    # The variables that it returns beside its own result; False if a loop binds them, whose iterations are not returned.
    returned: dict[str, bool] = {}

    def is_done(self, node: Node, child: str) -> bool:
        """Whether the statement was done before a call on the same line. A lone `return` ends with its function."""
        running, statement = self.running, self.running.statement
        is_inside = bool(child) and child == running.inside
        if statement.is_piece or is_inside or self.line.number != running.opened:
            return False
        times = statement.times + sum(name in self.variables for name in statement.or_numbers)
        parts = statements(self.line.text, self.own)
        if running.ran >= times and statement.runs_last and (statement.returns is None or parts[1:]):
            return True
        after = parts[(running.part + 1) % len(parts)]
        is_other = after is not statement and not statement.role(node.op, child)[0]
        return is_other and after.role(node.op, child)[0]

    def goes_on(self, line: CodeLine) -> bool:
        """Whether a line is another piece of the running expression, or closes what the expression's first line opened."""
        opened = self.running.opened
        if not self.running.statement.is_piece:
            return line.number > opened and closes(line.text)
        if not statements(line.text, self.own)[0].is_piece:
            return False
        return opened <= line.number < self.line.number or continues(line, self.line)

    def begins_again(self, lines: Sequence[CodeLine], depth: int) -> bool:
        """Whether the function is called again: its first line follows a later line, and calls the same module as before.

        A loop's next iteration calls another module. A loop that calls the same module each time is taken for a new call.
        """
        is_first = self.line.number != lines[depth].number and lines[depth : depth + 2] == self.opening
        return is_first and not self.goes_on(lines[depth])
