"""What Python still refers to while a module runs eagerly.

Eager execution frees a tensor when the last Python reference to it goes, not at its last use. For each call, an export
records the lines of code that were running and the modules that they belong to. The references follow from these:

- The arguments of a module's forward live until it returns: the caller of the module holds them.
- A local variable holds its value until it is bound again or its function returns. `x = self.act(x)` frees the old `x` when
  the line is done, not when `act` has read it.
- A list or tuple in a variable holds its elements: `torch.cat(features)` does not free what it joins. A cache of keys and
  values starts with empty tensors; what is joined to them lives until the program ends.

Only which variables a line binds and reads matters, never what they are called.

If a line is the middle of a statement, its result is assumed to live until its function returns. Functions other than
forwards leave no lines in an export. Their values are assumed to be in variables if they are read twice, multiplied with one
another, or joined and passed to a module; the others are free after their last use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress

from msgspec import Struct

from graphflops.execution.python_frame import Frame
from graphflops.execution.source_lines import CodeLine, code_lines, has_fact, module_variables, opens
from graphflops.graph import Node

_PASSING = frozenset({"cast", "dropout"})  # kinds of calls that convert or scale probabilities
# Kinds of modules whose result replaces their operand.
_PASSED_THROUGH = frozenset({"softmax", "dropout"})
_BATCHED_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})  # of two computed tensors
_JOINS = frozenset({"cat", "stack"})
_AFTER_SOFTMAX = 3  # products after a softmax: project the values, weigh them, project the result


class Lifetimes(Struct, frozen=True):
    """Tensors that Python holds past their last use."""

    until: Mapping[str, int]  # by owner of memory, the last call during which Python refers to it
    assumed: frozenset[str]  # owners for which the lines do not show it


class References:
    """Follows the running functions, call by call."""

    def __init__(
        self,
        nodes: Sequence[Node],  # the calls in program order
        reads: Sequence[tuple[str, ...]],  # by call, the values that it reads
        memory_of: Mapping[str, str],  # by value, the value whose memory it shares
        is_empty: Callable[[str], bool],  # whether a value is a vector without elements
    ) -> None:
        self.nodes, self.reads, self.memory_of, self.is_empty = nodes, reads, memory_of, is_empty
        self.until: dict[str, int] = {}
        self.assumed: dict[str, int] = {}  # by owner of memory that an unknown variable holds: its last call
        self.frames: list[Frame] = []
        # By variable of a function: what it holds beside a result if it is a tuple, and until when; the known tuples.
        self.beside = defaultdict[tuple[str, int, str], list[tuple[tuple[str, ...], int]]](list)
        self.tuples: set[tuple[str, int, str]] = set()
        # The frames above the innermost that had hidden values when the innermost began its line.
        self.callers: list[Frame] = []
        self.last = -1  # position of the latest call
        self.own = module_variables(nodes)
        self.results = [tuple(filter(None, node.outputs)) for node in nodes]
        self.last_read = {value: place for place, read in enumerate(self.reads) for value in read}
        made = self.made = {name: place for place, names in enumerate(self.results) for name in names}
        # By place, what it reads of what calls made, each with the place of its call.
        self.read = [[(value, made[value]) for value in read if value in made] for read in self.reads]
        # Results of a softmax, and what casts and dropout make of them.
        self.distributions: set[str] = set()
        computing = [node.outputs and node.operator.kind != "view" for node in nodes]
        self.readers = Counter(value for read in compress(self.reads, computing) for value in set(read))

    def lifetimes(self) -> Lifetimes:
        """How long Python refers to each tensor."""
        lines = before = tuple[CodeLine, ...]()
        python = modules = None
        for place, node in enumerate(self.nodes):
            if node.python_stack is not python or node.module_stack is not modules:
                python, modules = node.python_stack, node.module_stack
                lines = code_lines(python, modules) or lines
            if lines is not before:
                self.enter(lines, node, place)
                before = lines
            elif self.frames:
                self.follow(self.frames[-1], node, "", place)
            self.last = place
            if node.operator.name in _JOINS:
                self.hold_joined(node, place)
            self.hold_locals(node, place)
            kind, read = node.operator.kind, self.reads[place]
            if kind == "softmax" or (kind in _PASSING and not self.distributions.isdisjoint(read)):
                self.distributions.update(self.results[place])
        self.leave(0, len(self.nodes) - 1)
        for values, last in (held for variable in self.tuples for held in self.beside[variable]):
            self.hold(values, last)
        used = {self.memory_of.get(value, value): place for value, place in self.last_read.items()}
        longer = [name for name, last in self.assumed.items() if last >= self.until[name]]
        return Lifetimes(self.until, frozenset(x for x in longer if used.get(x, -1) < self.assumed[x]))

    def hold(self, values: Iterable[str], last: int) -> None:
        """Keep values at least until a call has run."""
        until = self.until
        for value in values:
            owner = self.memory_of.get(value)
            if owner is not None and until.get(owner, -1) < last:
                until[owner] = last

    def enter(self, lines: Sequence[CodeLine], node: Node, place: int) -> None:
        """Make `lines` the functions that run: leave those that have returned, close statements that are done."""
        frames = self.frames
        self.leave(self.still_running(lines), place - 1)
        for depth in range(max(0, len(frames) - 1), len(lines)):
            line = lines[depth]
            called = lines[depth + 1].module if depth + 1 < len(lines) else ""
            child = called if called != line.module else ""
            if depth == len(frames):
                frames.append(Frame(line, lines[depth : depth + 2], place, self.own.get(line.file, "")))
                frames[-1].start(line, place)
            elif frames[-1].line.number != line.number and not frames[-1].goes_on(line):
                self.assign(frames[-1], line)
                frames[-1].start(line, place)
            frames[-1].line = line
            self.follow(frames[-1], node, child, place)
        if lines and has_fact("dictionary of operands", lines[-1].file, lines[-1].text):
            variables = frames[-1].variables
            variables.setdefault("**", tuple(value for values in variables.values() for value in values))
        self.callers = [frame for frame in frames[:-1] if frame.hidden]

    def follow(self, frame: Frame, node: Node, child: str, place: int) -> None:
        """Close the frame's statement if it was done before a call."""
        if place > frame.first and frame.is_done(node, child):
            self.assign(frame)
            frame.start_next(place)
        frame.count(node, child)

    def still_running(self, lines: Sequence[CodeLine]) -> int:
        """How many of the frames still run; where a frame's line has changed, those inside it have returned."""
        for depth, (frame, line) in enumerate(zip(self.frames, lines, strict=False)):
            if frame.line is line:
                continue
            if not frame.runs(line):
                return depth
            if depth and frame.begins_again(lines, depth):
                # A loop over modules, which calls each of them once, begins again too.
                while depth > 1 and "" in self.frames[depth - 1].statement.runs_last:
                    depth -= 1
                return depth
            if frame.line.number != line.number:
                return depth + 1
        return min(len(self.frames), len(lines))

    def leave(self, depth: int, last: int) -> None:
        """Return from the functions above `depth`: their variables hold their values until the call `last`."""
        while len(self.frames) > depth:
            frame = self.frames.pop()
            self.assign(frame)
            if self.frames:
                held = [frame.variables.get(name, ()) for name, is_one in frame.returned.items() if is_one]
                self.frames[-1].beside = tuple(value for values in held for value in values)
            for name in [*frame.variables]:
                self.unbind(frame, name, last)
            if frame.line.function == "forward":
                # What comes from outside the forward lives until the forward returns.
                first, read = frame.entered, self.read[frame.entered : last + 1]
                self.hold({value for made in read for value, place in made if place < first}, last)

    def unbind(self, frame: Frame, name: str, last: int) -> None:
        """Drop what a variable holds; it was held until the call `last`."""
        values = frame.variables.pop(name, ())
        if beside := frame.variables.pop(f"{name}[:]", ()):
            self.beside[frame.line.file, frame.opening[0].number, name].append((beside, last))
        self.hold(values, last)
        if name[:1] == "#":
            self.assumed.update((self.memory_of.get(value, value), last) for value in values)

    def assign(self, frame: Frame, following: CodeLine | None = None) -> None:
        """Close a frame's statement: its targets hold what it made, and no longer what they held before.

        following: the next line of the function. If it opened the statement, its operands live until the statement is done.
        """
        last, statement = self.last, frame.statement
        if frame.locals or frame.operands:
            self.hold((*frame.locals.values(), *frame.operands), last)
        self.tell_tuples(frame)
        self.let_go(frame)
        made = self.read_later(frame) if statement.is_piece or statement.targets else []
        frame.operands = set()
        if statement.is_piece:
            own = [v for v in made if self.made.get(self.memory_of.get(v, v), -1) >= frame.first]
            if following is not None and following.number < frame.line.number and opens(following.text):
                frame.operands = {self.memory_of.get(value, value) for value in own}
            else:
                frame.variables[f"#{last}"] = tuple(own)
        for target, held in zip(statement.targets, self.assigned(frame, made), strict=True):
            name = target.replace("#", f"#{frame.opened}.") if "#" in target else target
            kept = frame.variables.get(name, ()) if name.endswith("[]") else ()  # each time another element
            if not kept:
                self.unbind(frame, name, last)
            frame.variables[name] = (*kept, *held)
        self.bind_tuple(frame)
        frame.hidden, frame.locals, frame.beside = set(), {}, ()

    def bind_tuple(self, frame: Frame) -> None:
        """Let the variable that a call's result is bound to hold what the call returns beside it: `outputs = attention(x)`.

        An export has no line that only returns, such as `return x, weights`: the function is assumed to return the weights
        that it binds last.
        """
        targets, name = frame.statement.targets, ""
        if frame.beside and frame.statement.is_call and len(targets) < 2:
            name = f"{''.join(targets)}[:]"
            frame.variables[name] = frame.beside
        elif targets[1:] and not self.distributions.isdisjoint(frame.variables.get(targets[1], ())):
            name = targets[1]
        if name:
            frame.returned = {name: name not in frame.returned}
        elif frame.statement.returns is not None:
            frame.returned = dict.fromkeys(frame.statement.returns, True)

    def tell_tuples(self, frame: Frame) -> None:
        """A variable that a statement reads as a tensor is no tuple; one whose tensor a line reads without its name is."""
        for name in [name[:-3] for name in frame.variables if name.endswith("[:]")]:
            if name in frame.statement.names:
                del frame.variables[f"{name}[:]"]
            elif not frame.statement.is_piece and not opens(frame.line.text):
                reads = self.reads[frame.first : self.last + 1]
                read = {self.memory_of.get(value, value) for values in reads for value in values}
                if not read.isdisjoint(self.memory_of.get(x, x) for x in frame.variables.get(name, ())):
                    self.tuples.add((frame.line.file, frame.opening[0].number, name))

    def let_go(self, frame: Frame) -> None:
        """Forget what the first operand of a call held if the call reads another value, as after `x = outputs[0]`.

        Such a line runs no call, so an export does not have it. It is assumed to run right after the last read of the old
        value. The new value is one that no known variable holds, if there is such a value.
        """
        name = frame.statement.given[0] if frame.statement.given else ""
        if not name:
            return
        places = slice(frame.first, self.last + 1)
        values = set().union(*self.reads[places]).difference(*self.results[places])
        read = {self.memory_of[value] for value in values if value in self.memory_of}
        held = [self.memory_of.get(value, value) for value in frame.variables.get(name, ())]
        if read and read.isdisjoint(held):
            self.unbind(frame, name, -1)
            for other in [other for other in frame.variables if other[0] == "#"]:
                if read.issuperset(self.memory_of.get(value, value) for value in frame.variables[other]):
                    frame.variables[name] = frame.variables.pop(other)

    def assigned(self, frame: Frame, made: Sequence[str]) -> list[tuple[str, ...]]:
        """The values for each of a statement's targets. made: what the statement makes and later statements read."""
        targets, results = frame.statement.targets, self.results[self.last]
        first = tuple(dict.fromkeys((*results, *made)))
        if len(targets) <= 1:
            return [first for _ in targets]
        for values in (results, made, self.names_read_later(frame)):
            if len(values) == len(targets):
                return [(value,) for value in values]
        second, products = tuple[str, ...](), 0
        if not has_fact("no weights", frame.line.file, frame.line.text):
            # The second target of `output, weights = attention(...)` gets the softmax, where the attention is spelled out.
            for place in range(self.last, frame.first - 1, -1):
                products += self.nodes[place].operator.kind == "product"
                second = tuple([x for x in self.results[place] if x in self.distributions])
                if second or products > _AFTER_SOFTMAX:
                    break
        return [first, second, *[() for _ in targets[2:]]]

    def read_later(self, frame: Frame) -> list[str]:
        """What a statement makes and later statements read; a tensor and its views count once."""
        return [*{self.memory_of.get(x, x): x for x in self.names_read_later(frame)}.values()]

    def names_read_later(self, frame: Frame) -> list[str]:
        """The same, with each view by its name, as in `q, k, v = (t.view(2, 8, 4) for t in qkv.chunk(3))`."""
        names = [name for results in self.results[frame.first : self.last + 1] for name in results]
        return [name for name in names if self.last_read.get(name, -1) > self.last]

    def hold_joined(self, node: Node, place: int) -> None:
        """Operands that a call joins from a variable's list live as long as the variable.

        If the list has values from before the function began, and the caller passes a further argument that is not known to
        hold a tensor, the list is taken to be that argument: it lives as long as the caller.
        A cache of keys and values starts empty; what is joined to it lives as long as the program.
        """
        read = self.reads[place]
        if self.frames and self.frames[-1].statement.joins:
            *callers, frame = self.frames
            frame.variables[f"[]{place}"] = read
            given = callers[-1].statement.given[1:] if callers else ()
            is_longer = any(self.made.get(value, -1) < frame.entered for value in read)
            if is_longer and any(name and name not in callers[-1].variables for name in given):
                callers[-1].variables[f"[]{place}"] = read
        if node.operator.name == "cat" and any(self.is_empty(value) for value in read):
            self.hold(self.results[place], len(self.nodes) - 1)

    def hold_locals(self, node: Node, place: int) -> None:
        """Note values that a function's variables must hold: those read twice, multiplied, or joined and passed to a module.

        Only forwards leave lines, so a call that the line does not spell runs in a function that the line calls.
        """
        read = [self.memory_of.get(value, value) for value in self.reads[place]]
        if node.operator.kind not in _PASSED_THROUGH:
            for caller in self.callers:
                for value in read:
                    maker = self.nodes[self.made[value]] if value in caller.hidden else None
                    if maker is not None and maker.operator.name in _JOINS:
                        caller.locals[maker.op] = value
        frame = self.frames[-1] if self.frames else None
        if frame is None or frame.statement.role(node.op)[0]:
            return
        inside = frame.hidden.intersection(read).difference(frame.locals.values())
        if node.operator.name in _BATCHED_PRODUCTS or node.operator.kind == "attention":
            frame.operands.update(inside)
        if node.operator.name == "mul":  # `gate * probabilities`
            frame.operands.update(self.distributions.intersection(inside))
        frame.hidden.update(self.results[place])
        self.hold([frame.locals.pop(node.op, "")], self.last)
        frame.locals.update((node.op, name) for name in self.results[place] if self.readers[name] > 1)
