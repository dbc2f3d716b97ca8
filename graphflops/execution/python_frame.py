"""A Python function that is running, as the lines of an export tell, and what is known of the code of libraries.

An export names the line of each call, not the statement. Of a line with several, `a = f(x); b = g(a)`, or with a loop and
its body, a statement is done when the operator or module that it runs last has run as often as it is spelled. Then the next
one begins, and after the last one the first, as in a loop.

What an export does not show of a library is told by the paths of its files. A user's own code is priced as it stands,
whatever its functions are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct, field

from graphflops.execution.source_lines import (
    CodeLine,
    Statement,
    closes,
    code_lines,
    continues,
    module_variable,
    runs_in_turns,
    statements,
)
from graphflops.graph import Node
from graphflops.tensor import DType

_TRANSFORMERS = r"(?:^|[/\\])transformers[/\\](?:models[/\\]\w+[/\\]\w+|masking_utils|modeling_\w+)\.py$"
_DEBERTA = r"(?:^|[/\\])transformers[/\\]models[/\\](?:deberta|deberta_v2)[/\\]\w+\.py$"
# By fact: the path of the file, and what the line has.
_FACTS = {
    # An attention mask that is built only if it has to be. Whether padding hides anything is a question about data, which
    # an export cannot ask, so there it is always built.
    "export-only mask": (
        _TRANSFORMERS,
        r"\b(?:\w*create_\w*masks?|mask_function|_update_causal_mask|_prepare_4d\w+)\(",
    ),
    # One of them that hides nothing, which attention that is spelled out adds.
    "mask of nothing": (_TRANSFORMERS, r"\bcreate_bidirectional_mask\("),
    # What masks are made from stays in a dictionary: the embeddings of the tokens.
    "dictionary of operands": (_TRANSFORMERS, r"\bcreate_\w*masks?\(\*\*\w+"),
    # The model always asks its encoder for the results of all layers.
    "results collected": (_DEBERTA, r"^output_states, attn_weights = layer_module\("),
    # Modules return None beside their result unless attention weights are asked for.
    "no weights": (_DEBERTA, r"^(?:attention_output, att_matrix|output_states, attn_weights) ="),
}


@lru_cache(maxsize=4096)
def has_fact(fact: str, file: str, text: str) -> bool:
    """Whether something is known of a line of a file."""
    path, words = _FACTS[fact]
    return re.search(path, file) is not None and re.search(words, text) is not None


_NUMBERED = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a module's path that is a number


class Lifetimes(Struct, frozen=True):
    """What Python holds past its last use."""

    until: Mapping[str, int]  # by owner of memory, the position of the last call during which it refers to it
    assumed: frozenset[str]  # those of which the lines do not say it


class Frame(Struct):
    """A function that is running."""

    line: CodeLine
    opening: Sequence[CodeLine]  # the line of its first call, and the next line of the stack then
    entered: int  # position of that call
    own: str = ""  # the variable that holds the module
    first: int = 0  # position of the first call of the statement
    parts: Sequence[Statement] = (Statement(),)  # the statements of the line
    statement: Statement = field(default_factory=Statement)  # the one that runs
    part: int = 0
    opened: int = 0  # the number of the line at which the statement began
    runs_in_turns: bool = False
    ran: int = 0  # how often the statement has run what it runs last
    inside: str = ""  # the module that its last call is part of
    called: str = ""  # the module that it called first
    # What each local variable holds; `#N`: what an unknown one does.
    variables: dict[str, tuple[str, ...]] = {}
    beside: dict[str, tuple[str, ...]] = {}  # weights of attentions, if it holds a tuple
    weights: list[str] = []  # those that modules called by the statement returned
    returned: list[str] = []  # those that the frame returns
    hidden: set[str] = set()  # what functions that the statement calls have made
    locals: set[str] = set()  # those of them that their variables must hold
    turns: dict[str, list[str]] = {}  # the latest of locals, by operator
    # By `opened`, for a statement with operands on later lines: the variable that it reads.
    operands: dict[int, str] = {}
    bound: set[str] = set()  # variables that had weights beside them
    # Those that such a statement binds, to a tuple or to a tensor, with what was held beside it until when.
    unsure: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    # By such a variable: the one whose value was read before, and until when that held it, if this holds a tuple.
    replaced: dict[str, tuple[str, int]] = {}

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
            self.parts, self.part = statements(line.text, self.own), 0
            self.runs_in_turns = runs_in_turns(line.text, self.own)
            self.opened = line.number
        self.line, self.statement = line, self.parts[self.part]

    def goes_on(self, line: CodeLine, inner: str) -> bool:
        """Whether a line is of the expression that runs: a further one, or an earlier one of those that it has run.

        inner: the module that the line calls. Behind the operands of a call on several lines the expression may go on; then
        it comes back to its first line, unless that has run all that it spells or calls the module again: a loop's turn.
        """
        if self.statement.is_open and not self.statement.is_piece:
            if line.number != self.opened:
                return line.number > self.opened and closes(line.text)
            is_again = bool(self.called and inner) and is_alike(self.called, inner)
            return self.line.number != line.number and self.ran < self.statement.times and not is_again
        if not (self.statement.is_piece and statements(line.text, self.own)[0].is_piece):
            return False
        return self.opened <= line.number < self.line.number or continues(line, self.line)

    def bind_beside(self, name: str) -> None:
        """A variable holds the weights that its value came with, if that is a tuple.

        Of `x = f(x)` it is none. Where operands stand on later lines, what reads the value tells.
        """
        self.beside[name] = tuple(self.weights)
        self.returned = [*self.weights] or self.returned
        if name in self.bound and self.weights:  # a loop's turn: a function returns no turn's alone
            self.returned = []
        self.bound.add(name)
        if self.statement.is_open and "" in self.statement.given:
            self.unsure.setdefault(name, [])

    def let_go_beside(self, name: str, last: int) -> tuple[str, ...]:
        """What a variable held beside its value until a call, as far as that is known to have been a tuple."""
        values = self.beside.pop(name, ())
        if name not in self.unsure:
            return values
        self.unsure[name].append((values, last))
        return ()

    def beside_of_tuples(self, read: Iterable[str]) -> Iterator[tuple[tuple[str, ...], int]]:
        """What was held beside values that the statement shows to be of tuples. read: variables that hold what it reads."""
        statement = self.statement
        for name in [*read] if statement.mentioned and not statement.is_open else ():
            if name in self.unsure and (name not in statement.mentioned or name in statement.numbered):
                yield from self.unsure.pop(name)
                if name in self.replaced:
                    other, until = self.replaced.pop(name)
                    yield self.variables.pop(other, ()), until

    def ends_statement(self, node: Node, child: str) -> bool:
        """Whether the statement was done before a call; child: the module, called by this line, that the call is part of."""
        after = self.parts[(self.part + 1) % len(self.parts)]
        is_done = self.ran >= self.statement.times and (not child or child != self.inside)
        return is_done or (not self.statement.role(node, child)[0] and after.role(node, child)[0])

    def count(self, node: Node, child: str) -> None:
        """Note a call that may be what the statement runs last."""
        if not child or child != self.inside:
            self.ran += self.statement.role(node, child)[1]
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
        return own is line or (own.function, own.module, own.file) == (line.function, line.module, line.file)

    def begins_again(self, lines: Sequence[CodeLine], depth: int) -> bool:
        """Whether a further run of the function begins: after later lines comes its first one, which calls the same module.

        A loop's next turn calls another module; with a module that is called in each turn, a loop is taken for a call.
        """
        is_first = self.line.number != lines[depth].number and lines[depth : depth + 2] == self.opening
        return is_first and not self.goes_on(lines[depth], called_by(lines, depth))


def called_by(lines: Sequence[CodeLine], depth: int) -> str:
    """The module that a line of a stack calls; "" for none."""
    return lines[depth + 1].module if depth + 1 < len(lines) else ""


def is_next_turn(caller: Statement, before: str, now: str) -> bool:
    """Whether a statement that calls another module than before is a loop's next turn, not a further call in one turn.

    `x = layer(x)` calls one module a turn, and so does `x = self.layers[i](x)`; `self.drop(self.norm(x))` calls two. Layers
    of a list are numbered: other numbers are parts of names (`self.conv_1a`).
    """
    return before != now and (caller.calls_variable or is_alike(before, now))


def is_alike(module: str, other: str) -> bool:
    """Whether two modules are the same, or have the same place in two parts of a list."""
    return _without_numbers(module) == _without_numbers(other)


@lru_cache(maxsize=4096)
def _without_numbers(module: str) -> str:
    return _NUMBERED.sub("#", module)


def has_dtype(node: Node) -> bool:
    """Whether a softmax converts its operand first."""
    given = node.arguments().values() if node.operator.kind == "softmax" else ()
    return any(isinstance(argument, DType) for argument in given)


def module_variables(nodes: Sequence[Node]) -> dict[str, str]:
    """By file: the variable that holds the module whose forward runs, as its calls of other modules show it."""
    found: dict[str, str] = {}
    files: dict[str, set[str]] = {}  # by stack
    for stack, modules, module in dict.fromkeys([(n.python_stack, n.module_stack, n.module) for n in nodes]):
        if stack in files and files[stack] <= found.keys():
            continue
        lines = code_lines(stack, modules)
        files[stack] = {line.file for line in lines}
        inner_modules = [*[line.module for line in lines[1:]], module]
        for line, inner in zip(lines, inner_modules, strict=False):
            if inner != line.module and line.file not in found:
                name = module_variable(line.text, inner.removeprefix(line.module).removeprefix("."))
                found.update({line.file: name} if name else {})
    return found
