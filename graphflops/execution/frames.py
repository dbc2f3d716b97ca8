"""What Python still refers to while a module runs eagerly.

Eager execution frees a tensor when the last Python reference to it goes, not at its last use. An export records, for each
call, the lines of code that were running and the modules they belong to. From these the references follow:

- The arguments of a module's forward live until it returns: whoever called the module holds them.
- A local variable holds its value until it is bound again or its function returns. `x = self.act(x)` frees the old `x` when
  the line is done, not when `act` has read it.
- A list or tuple in a variable holds its elements: `torch.cat(features)` does not free what it joins. A cache of keys and
  values, which begins with empty tensors that the first ones are joined to, holds them to the end.

It counts which variable a line binds and reads, never what it is called.

A result of a line from the middle of a statement is taken to live until its function returns. Functions that are not a
module's forward leave no lines in an export. Of their values, those that are read twice, multiplied with one another or
joined and given to a module are taken to be in variables; the others are free after their last use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress

from msgspec import Struct

from graphflops.execution.python_frame import Frame
from graphflops.execution.source_lines import CodeLine, code_lines, has_fact, module_variables, opens
from graphflops.graph import Node

_PASSING = frozenset({"cast", "dropout"})  # kinds of calls that probabilities go through, or are scaled by
# Kinds of modules whose result takes the place of their operand.
_PASSED_THROUGH = frozenset({"softmax", "dropout"})
_BATCHED_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})  # of two tensors that were computed
_JOINS = frozenset({"cat", "stack"})
_AFTER_SOFTMAX = 3  # products of an attention after its softmax: of the values, with them, and the projection


class Lifetimes(Struct, frozen=True):
    """What Python holds past its last use."""

    until: Mapping[str, int]  # by owner of memory, the position of the last call during which it refers to it
    assumed: frozenset[str]  # those of which the lines do not say it


class References:
    """Follows the functions that run, call by call."""

    def __init__(
        self,
        nodes: Sequence[Node],  # the calls in program order
        reads: Sequence[tuple[str, ...]],  # by place, the values that they read
        memory_of: Mapping[str, str],  # by value, the value whose memory it shares
        is_empty: Callable[[str], bool],  # whether a value is a vector without elements
    ) -> None:
        self.nodes, self.reads, self.memory_of, self.is_empty = nodes, reads, memory_of, is_empty
        self.until: dict[str, int] = {}
        self.assumed: dict[str, int] = {}  # by owner of memory that an unknown variable holds: until when
        self.frames: list[Frame] = []
        # By variable of a function, what it held beside a result and until when, if it is a tuple; those that are.
        self.beside = defaultdict[tuple[str, int, str], list[tuple[tuple[str, ...], int]]](list)
        self.tuples: set[tuple[str, int, str]] = set()
        # All frames but the innermost that had hidden values when it began its line.
        self.callers: list[Frame] = []
        self.last = -1  # position of the latest call
        self.own = module_variables(nodes)
        self.results = [tuple(filter(None, node.outputs)) for node in nodes]
        self.last_read = {value: place for place, read in enumerate(self.reads) for value in read}
        made = self.made = {name: place for place, names in enumerate(self.results) for name in names}
        # By place, what it reads of what calls made, each with the place of its call.
        self.read = [[(value, made[value]) for value in read if value in made] for read in self.reads]
        # Results of a softmax, also converted or with some of them dropped.
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
        """Make `lines` the functions that run: those that have returned are left, statements that are done are closed."""
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
        """Close the statement that was done before a call."""
        if place > frame.first and frame.is_done(node, child):
            self.assign(frame)
            frame.start_next(place)
        frame.count(node, child)

    def still_running(self, lines: Sequence[CodeLine]) -> int:
        """How many of the frames go on; all above one whose line has changed have returned."""
        for depth, (frame, line) in enumerate(zip(self.frames, lines, strict=False)):
            if frame.line is line:
                continue
            if not frame.runs(line):
                return depth
            if depth and frame.begins_again(lines, depth):
                # So does a loop over modules, which calls each once.
                while depth > 1 and "" in self.frames[depth - 1].statement.runs_last:
                    depth -= 1
                return depth
            if frame.line.number != line.number:
                return depth + 1
        return min(len(self.frames), len(lines))

    def leave(self, depth: int, last: int) -> None:
        """Return from the functions above `depth`: their variables held their values until then."""
        while len(self.frames) > depth:
            frame = self.frames.pop()
            self.assign(frame)
            if self.frames:
                held = [frame.variables.get(name, ()) for name, is_one in frame.returned.items() if is_one]
                self.frames[-1].beside = tuple(value for values in held for value in values)
            for name in [*frame.variables]:
                self.unbind(frame, name, last)
            if frame.line.function == "forward":
                # What its module is given from outside lives until it returns.
                first, read = frame.entered, self.read[frame.entered : last + 1]
                self.hold({value for made in read for value, place in made if place < first}, last)

    def unbind(self, frame: Frame, name: str, last: int) -> None:
        """A variable no longer holds what it held, from the call after `last` on."""
        values = frame.variables.pop(name, ())
        if beside := frame.variables.pop(f"{name}[:]", ()):
            self.beside[frame.line.file, frame.opening[0].number, name].append((beside, last))
        self.hold(values, last)
        if name[:1] == "#":
            self.assumed.update((self.memory_of.get(value, value), last) for value in values)

    def assign(self, frame: Frame, following: CodeLine | None = None) -> None:
        """The statement of a frame is done: its variables hold what it made, and no longer what they held before.

        following: the next line of the function. Operands of a statement that opened there live until it is done.
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
            kept = frame.variables.get(name, ()) if name.endswith("[]") else ()  # another element each time
            if not kept:
                self.unbind(frame, name, last)
            frame.variables[name] = (*kept, *held)
        self.bind_tuple(frame)
        frame.hidden, frame.locals, frame.beside = set(), {}, ()

    def bind_tuple(self, frame: Frame) -> None:
        """What a call returns beside its result is held by the variable that gets it: `outputs = self.attention(x)`.

        A line that only returns, `return x, weights`, is not known: the weights that a function binds last are taken to be
        returned.
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
        """What a statement reads as a tensor is no tuple; a variable is one whose result a whole line reads unnamed."""
        for name in [name[:-3] for name in frame.variables if name.endswith("[:]")]:
            if name in frame.statement.names:
                del frame.variables[f"{name}[:]"]
            elif not frame.statement.is_piece and not opens(frame.line.text):
                reads = self.reads[frame.first : self.last + 1]
                read = {self.memory_of.get(value, value) for values in reads for value in values}
                if not read.isdisjoint(self.memory_of.get(x, x) for x in frame.variables.get(name, ())):
                    self.tuples.add((frame.line.file, frame.opening[0].number, name))

    def let_go(self, frame: Frame) -> None:
        """Forget what the first operand of a call held, if the call reads another value: `x = outputs[0]` leaves no call.

        The variable has got that value on a line in between, taken to be right after what it held was read last. It is one
        that no variable is known to hold, if there is one.
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
        """What a statement gives each of the variables that it binds. made: what it makes and later ones read."""
        targets, results = frame.statement.targets, self.results[self.last]
        first = tuple(dict.fromkeys((*results, *made)))
        if len(targets) <= 1:
            return [first for _ in targets]
        for values in (results, made, self.names_read_later(frame)):
            if len(values) == len(targets):
                return [(value,) for value in values]
        second, products = tuple[str, ...](), 0
        if not has_fact("no weights", frame.line.file, frame.line.text):
            # What `output, weights = attention(...)` binds to the second name: the softmax, where attention is spelled out.
            for place in range(self.last, frame.first - 1, -1):
                products += self.nodes[place].operator.kind == "product"
                second = tuple([x for x in self.results[place] if x in self.distributions])
                if second or products > _AFTER_SOFTMAX:
                    break
        return [first, second, *[() for _ in targets[2:]]]

    def read_later(self, frame: Frame) -> list[str]:
        """What a statement makes and later ones read, a tensor and its views once."""
        return [*{self.memory_of.get(x, x): x for x in self.names_read_later(frame)}.values()]

    def names_read_later(self, frame: Frame) -> list[str]:
        """The same with all views, as in `q, k, v = (t.view(2, 8, 4) for t in qkv.chunk(3))`."""
        names = [name for results in self.results[frame.first : self.last + 1] for name in results]
        return [name for name in names if self.last_read.get(name, -1) > self.last]

    def hold_joined(self, node: Node, place: int) -> None:
        """What a variable's list holds that a call joins lives as long as the variable.

        A list with results from before the function began, to whose caller no tensor is known by the name of a further
        argument, is that argument: it lives as long as the caller.
        A cache of keys and values begins empty; what is joined to it lives as long as the program that has the cache.
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
        """Note what variables of a function must hold: what it reads twice, multiplies, or joins and gives to a module.

        Only forwards leave lines, so a call that the line does not spell is made by a function that the line calls.
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
