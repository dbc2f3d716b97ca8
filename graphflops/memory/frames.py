"""What Python still refers to while a module runs eagerly.

Eager execution frees a tensor when the last Python reference to it goes, not at its last use. An export records, for each
call, the lines of code that were running and the modules they belong to. From these the references follow:

- The arguments of a module's forward live until it returns: whoever called the module holds them.
- A local variable holds its value until the variable is assigned again or its function returns. `x = self.act(x)` frees the
  old `x` when the line is done, not when `act` has read it.
- A list or tuple in a variable holds its elements: `torch.cat(features)` does not free what it joins.

Only the text of the lines is read, with regular expressions; no source file is opened and nothing is evaluated. Functions
that are not a module's forward leave no frames in an export. Of their values, those that are read twice or given to a module
are taken to be in local variables until the function returns; the others are free after their last use.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphflops.memory.statements import (
    JOINED,
    CodeLine,
    assigned_names,
    code_lines,
    is_next_turn,
    is_spelled,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.graph import Node


@dataclass(slots=True)
class _Frame:
    """A function that is running.

    first, last: positions of the first and the last call of the statement that runs. entered: of the frame's first call.
    variables: what each local variable holds.
    hidden: what functions that the statement calls have made. locals: those of them that their variables must hold.
    """

    line: CodeLine
    entered: int
    first: int
    last: int
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    locals: list[str] = field(default_factory=list)

    @property
    def is_module(self) -> bool:
        return self.line.function == "forward"

    def runs(self, line: CodeLine) -> bool:
        """Whether the line may belong to this run of the function."""
        own = self.line
        return (own.file, own.function, own.module) == (line.file, line.function, line.module)


def held_until(nodes: Sequence[Node], memory_of: Mapping[str, str]) -> dict[str, int]:
    """For each tensor that Python refers to past its last use: the position of the last call during which it does.

    nodes: the calls in program order. memory_of: by value, the value whose memory it shares. Keys are such owners.
    """
    return _References(nodes, memory_of).found()


class _References:
    """Follows the functions that run, call by call."""

    def __init__(self, nodes: Sequence[Node], memory_of: Mapping[str, str]) -> None:
        self.nodes = nodes
        self.memory_of = memory_of
        self.until: dict[str, int] = {}
        self.frames: list[_Frame] = []
        self.modules: list[tuple[int, int]] = []  # first and last call of each run of a module
        computed = [node for node in nodes if node.operator.kind != "view"]
        self.readers = Counter(value for node in computed for value in set(node.reads()))

    def found(self) -> dict[str, int]:
        lines: tuple[CodeLine, ...] = ()
        for place, node in enumerate(self.nodes):
            lines = code_lines(node.python_stack, node.module_stack) or lines
            self.enter(lines, place)
            self.hold_joined(node, place)
            self.hold_locals(node, lines)
        self.leave(0, len(self.nodes) - 1)
        self.hold_arguments()
        return self.until

    def hold(self, values: Sequence[str], last: int) -> None:
        for value in values:
            owner = self.memory_of.get(value)
            if owner is not None and self.until.get(owner, -1) < last:
                self.until[owner] = last

    def enter(self, lines: Sequence[CodeLine], place: int) -> None:
        """Make `lines` the functions that run: those that have returned are left, statements that are done are closed."""
        frames = self.frames
        shared = self.still_running(lines)
        is_repeated = 0 < shared < min(len(frames), len(lines)) and is_next_turn(
            frames[shared - 1].line, frames[shared].line.module, lines[shared]
        )
        self.leave(shared, place - 1)
        if frames:
            frame, line = frames[-1], lines[len(frames) - 1]
            if frame.line.number != line.number or is_repeated:
                self.assign(frame)
                frame.line, frame.first = line, place
        for line in lines[len(frames) :]:
            frames.append(_Frame(line, place, place, place))
        for frame in frames:
            frame.last = place

    def still_running(self, lines: Sequence[CodeLine]) -> int:
        """How many of the frames go on; all above one whose line has changed have returned."""
        for depth, (frame, line) in enumerate(zip(self.frames, lines, strict=False)):
            if not frame.runs(line):
                return depth
            if frame.line.number != line.number:
                return depth + 1
        return min(len(self.frames), len(lines))

    def leave(self, depth: int, last: int) -> None:
        """Return from the functions above `depth`: their variables held their values until then."""
        while len(self.frames) > depth:
            frame = self.frames.pop()
            self.assign(frame)
            for values in frame.variables.values():
                self.hold(values, last)
            if frame.is_module and frame.entered > 0:
                self.modules.append((frame.entered, last))

    def assign(self, frame: _Frame) -> None:
        """The statement of a frame is done: its variables hold what it made, and no longer what they held before."""
        self.hold(frame.locals, frame.last)
        frame.hidden, frame.locals = set(), []
        names = assigned_names(frame.line.text)
        results = tuple(name for name in self.nodes[frame.last].outputs if name is not None)
        for index, name in enumerate(names):
            if len(names) == 1:
                values = results
            elif len(results) == len(names):
                values = results[index : index + 1]
            elif index == 0:
                values = results
            else:
                values = self.probabilities(frame) if index == 1 else ()
            self.hold(frame.variables.get(name, ()), frame.last)
            frame.variables[name] = values

    def probabilities(self, frame: _Frame) -> tuple[str, ...]:
        """What `output, weights = attention(...)` binds to the second name: the softmax, where attention is spelled out."""
        products = 0
        for place in range(frame.last, frame.first - 1, -1):
            operator = self.nodes[place].operator
            products += operator.kind == "product"
            if operator.kind == "softmax":
                return tuple(name for name in self.nodes[place].outputs if name is not None)
            if products > 2:  # past the product with the values and the projection after it
                break
        return ()

    def hold_joined(self, node: Node, place: int) -> None:
        """What a variable's list holds that a call joins lives as long as the variable."""
        joins = node.operator.name in ("cat", "stack") and self.frames
        if joins and JOINED.search(self.frames[-1].line.text):
            self.frames[-1].variables[f"#{place}"] = tuple(value for _, value in node.uses())

    def hold_locals(self, node: Node, lines: Sequence[CodeLine]) -> None:
        """Note what variables of a function must hold: what it reads twice, or gives to a module.

        Only forwards leave lines, so a call that the line does not spell is made by a function that the line calls.
        """
        read = node.reads()
        for frame in self.frames[:-1]:
            frame.locals += [value for value in read if value in frame.hidden]
        if self.frames and lines and not is_spelled(node, lines[-1].text):
            made = [name for name in node.outputs if name is not None]
            self.frames[-1].hidden.update(made)
            self.frames[-1].locals += [name for name in made if self.readers[name] > 1]

    def hold_arguments(self) -> None:
        """What a module is given from outside lives until its forward returns."""
        made = {
            name: place for place, node in enumerate(self.nodes) for name in node.outputs if name is not None
        }
        used = [[value for _, value in node.uses()] for node in self.nodes]
        for first, last in self.modules:
            for place in range(first, last + 1):
                self.hold([value for value in used[place] if made.get(value, first) < first], last)
