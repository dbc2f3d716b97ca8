"""What Python still refers to while a module runs eagerly.

Eager execution frees a tensor when the last Python reference to it goes, not at its last use. An export records, for each
call, the lines of code that were running and the modules they belong to. From these the references follow:

- The arguments of a module's forward live until it returns: whoever called the module holds them.
- A local variable holds its value until it is bound again or its function returns. `x = self.act(x)` frees the old `x` when
  the line is done, not when `act` has read it.
- A list or tuple in a variable holds its elements: `torch.cat(features)` does not free what it joins. A cache of keys and
  values, which begins with empty tensors that the first ones are joined to, holds them to the end.

It counts which variable a line binds and reads, never what it is called. A result of a line from the middle of a statement
is taken to live until its function returns. Functions that are not a module's forward leave no lines in an export. Of their
values, those that are read twice, multiplied with one another or given to a module are taken to be in variables until the
function returns; the others are free after their last use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress

from graphflops.execution.python_frame import (
    Frame,
    Lifetimes,
    called_by,
    has_dtype,
    has_fact,
    is_next_turn,
    module_variables,
)
from graphflops.execution.source_lines import CodeLine, code_lines, opens
from graphflops.graph import Node
from graphflops.ops import Op

_PASSING = frozenset({"cast", "dropout"})  # kinds of calls that probabilities go through, or are scaled by
# Kinds of modules whose result takes the place of their operand.
_PASSED_THROUGH = frozenset({"softmax", "dropout"})
_BATCHED_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})  # of two tensors that were computed
_JOINS = frozenset({"cat", "stack"})
_AFTER_SOFTMAX = 2  # products of an attention after its softmax: with the values, and the projection
_MOST_ALIKE = 8  # variables of a function that one operator has made


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
        self.lines: Sequence[CodeLine] = ()
        self.in_turns: list[tuple[int, Frame]] = []  # by depth: frames whose line has several statements
        # All frames but the innermost that had hidden values when it began its line.
        self.callers: list[Frame] = []
        self.last = -1  # position of the latest call
        self.modules: list[tuple[int, int]] = []  # first and last call of each run of a module
        self.results = [tuple(filter(None, node.outputs)) for node in nodes]
        self.last_read = {value: place for place, read in enumerate(self.reads) for value in read}
        self.made = {name: place for place, names in enumerate(self.results) for name in names}
        self.own = module_variables(nodes)
        # Results of a softmax, also converted or with some of them dropped.
        self.distributions: set[str] = set()
        computing = [node.outputs and node.operator.kind != "view" for node in nodes]
        read_for_results = compress(self.reads, computing)
        self.readers = Counter(value for read in read_for_results for value in set(read))

    def lifetimes(self) -> Lifetimes:
        """How long Python refers to each tensor."""
        lines: tuple[CodeLine, ...] = ()
        python = modules = None
        reads = self.reads
        for place, node in enumerate(self.nodes):
            if node.python_stack is not python or node.module_stack is not modules:
                python, modules = node.python_stack, node.module_stack
                lines = code_lines(python, modules) or lines
            if lines is not self.lines:
                self.enter(lines, place)
            for depth, each in self.in_turns:
                self.follow_turns(each, depth, place)
            frame = self.frames[-1] if self.frames else None
            is_spelled, is_last = frame.statement.role(node) if frame else (True, False)
            if frame and not frame.runs_in_turns:
                frame.ran += is_last
            self.last = place
            operator = node.operator
            if operator.name in _JOINS:
                self.hold_joined(node, place)
            if not is_spelled or self.callers:
                self.hold_locals(node, operator, place, None if is_spelled else frame)
            is_passing = operator.kind in _PASSING and not self.distributions.isdisjoint(reads[place])
            if is_passing or operator.kind == "softmax":
                self.distributions.update(self.results[place])
        self.leave(0, len(self.nodes) - 1)
        self.hold_arguments()
        longer = [name for name, last in self.assumed.items() if last >= self.until[name]]
        if longer:
            used = {self.memory_of.get(value, value): place for value, place in self.last_read.items()}
            longer = [name for name in longer if used.get(name, -1) < self.assumed[name]]
        return Lifetimes(self.until, frozenset(longer))

    def hold(self, values: Iterable[str], last: int) -> None:
        until = self.until
        for value in values:
            owner = self.memory_of.get(value)
            if owner is not None and until.get(owner, -1) < last:
                until[owner] = last

    def enter(self, lines: Sequence[CodeLine], place: int) -> None:
        """Make `lines` the functions that run: those that have returned are left, statements that are done are closed."""
        self.change(lines, place)
        self.lines = lines
        if lines and has_fact("dictionary of operands", lines[-1].file, lines[-1].text):
            variables = self.frames[-1].variables
            variables.setdefault("**", tuple(value for values in variables.values() for value in values))
        self.in_turns = [(depth, frame) for depth, frame in enumerate(self.frames) if frame.runs_in_turns]
        self.callers = [frame for frame in self.frames[:-1] if frame.hidden]

    def follow_turns(self, frame: Frame, depth: int, place: int) -> None:
        """Close the statement that was done before a call, where a line has several."""
        node = self.nodes[place]
        own = f"{frame.line.module}." if frame.line.module else ""
        child = self.frames[depth + 1].line.module.removeprefix(own) if depth + 1 < len(self.frames) else ""
        if place > frame.first and frame.ends_statement(node, child):
            self.assign(frame)
            frame.start(frame.line, place)
        frame.count(node, child)

    def change(self, lines: Sequence[CodeLine], place: int) -> None:
        """Leave the functions that do not go on, close a statement that is done, enter new functions."""
        frames = self.frames
        shared, depths = self.still_running(lines), min(len(frames), len(lines))
        is_repeated = 0 < shared < depths and (
            any(frames[depth].begins_again(lines, depth) for depth in range(shared, depths))
            or is_next_turn(frames[shared - 1].statement, frames[shared].line.module, lines[shared].module)
        )
        if 0 < shared == len(frames) < len(lines):
            is_repeated = frames[-1].ends_turn(lines[shared].module)
        self.leave(shared, place - 1)
        if frames:
            frame, line = frames[-1], lines[len(frames) - 1]
            if frame.line.number != line.number or (is_repeated and not frame.runs_in_turns):
                if frame.goes_on(line, called_by(lines, len(frames) - 1)):
                    frame.line = line
                else:
                    self.assign(frame, line)
                    frame.start(line, place)
        for depth in range(len(frames), len(lines)):
            if frames and not frames[-1].called:
                frames[-1].called = lines[depth].module
            own = self.own.get(lines[depth].file, "")
            frames.append(Frame(lines[depth], lines[depth : depth + 2], place, own))
            frames[-1].start(lines[depth], place)

    def still_running(self, lines: Sequence[CodeLine]) -> int:
        """How many of the frames go on; all above one whose line has changed have returned."""
        for depth, (frame, line) in enumerate(zip(self.frames, lines, strict=False)):
            if frame.line is line:
                continue
            if not frame.runs(line):
                return depth
            if depth and frame.begins_again(lines, depth):
                # So does a loop over modules, which calls each once.
                while depth > 1 and self.frames[depth - 1].statement.calls_variable:
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
            frame.returned += [v for name in frame.statement.returns for v in frame.variables.get(name, ())]
            for name in [*frame.variables]:
                self.unbind(frame, name, last)
            if self.frames:
                self.frames[-1].weights += frame.returned
            if frame.is_module and frame.entered > 0:
                self.modules.append((frame.entered, last))

    def unbind(self, frame: Frame, name: str, last: int) -> None:
        """A variable no longer holds what it held, from the call after `last` on."""
        values = frame.variables.pop(name, ())
        self.hold(values, last)
        if name[:1] == "#":
            self.assumed.update((self.memory_of.get(value, value), last) for value in values)
        if frame.beside or frame.unsure:
            self.hold(frame.let_go_beside(name, last), last)

    def assign(self, frame: Frame, following: CodeLine | None = None) -> None:
        """The statement of a frame is done: its variables hold what it made, and no longer what they held before.

        following: the next line of the function. Operands of a statement that opened there live until it is done.
        """
        last, statement = self.last, frame.statement
        is_collected = has_fact("results collected", frame.line.file, frame.line.text)
        if frame.locals:
            self.hold(frame.locals, last)
        if frame.unsure:
            for beside, until in frame.beside_of_tuples(self.variables_read(frame)):
                self.hold(beside, until)
        if frame.beside:
            for name in statement.names & frame.beside.keys():  # read as a tensor, so it is no tuple
                del frame.beside[name]
        self.let_go(frame)
        made = self.read_later(frame) if statement.is_piece or statement.targets or is_collected else []
        operands: set[str] = set()
        if statement.is_piece:
            own = [v for v in made if self.made.get(self.memory_of.get(v, v), -1) >= frame.first]
            if following is not None and following.number < frame.line.number and opens(following.text):
                operands = {self.memory_of.get(value, value) for value in own}
            else:
                frame.variables[f"#{last}"] = tuple(own)
        elif is_collected:
            frame.variables[f"[]{last}"] = (*self.results[last], *made)
        values = self.assigned(frame, made)
        for target, held in zip(statement.targets, values, strict=True):
            name = target.replace("#", f"#{frame.opened}.") if "#" in target else target
            kept = frame.variables.get(name, ()) if name.endswith("[]") else ()  # another element each time
            if not kept:
                self.unbind(frame, name, last)
            frame.variables[name] = (*kept, *held)
        if len(statement.targets) == 1 and statement.given and statement.targets[0] not in statement.names:
            frame.bind_beside(statement.targets[0])
        for name, other in statement.aliases:
            self.unbind(frame, name, last)
            frame.variables[name] = frame.variables.get(other, ())
        frame.hidden, frame.locals, frame.weights, frame.turns = set(), operands, [], {}

    def let_go(self, frame: Frame) -> None:
        """Forget what the first operand of a call held, if the call reads another value: `x = outputs[0]` leaves no call.

        The variable has got that value on a line in between; it is one that no variable is known to hold, if there is one.
        Operands on later lines may be the target itself, which had the value of another variable before the loop.
        """
        name = next(iter(frame.statement.given), "")
        is_told = bool(name)
        if not name and frame.statement.is_open:  # the one that it read before
            name = frame.operands.setdefault(frame.opened, self.first_read(frame))
        if not name or not (frame.variables or frame.beside or frame.unsure):
            return
        read = self.read_before(frame)
        if not read or not read.isdisjoint([self.memory_of.get(v, v) for v in frame.variables.get(name, ())]):
            return
        own = () if is_told else [*self.variables_read(frame)]
        target = next((target for target in frame.statement.targets if target in own), "")
        if target:
            frame.replaced.setdefault(target, (name, frame.first - 1))
        else:
            self.unbind(frame, name, frame.first - 1)
            for other in [other for other in frame.variables if other.startswith("#")]:
                values = frame.variables[other]
                if len(values) == 1 and self.memory_of.get(values[0]) in read:
                    frame.variables[name] = frame.variables.pop(other)

    def variables_read(self, frame: Frame) -> Iterator[str]:
        """The variables that hold what a statement reads and has not made."""
        read = self.read_before(frame)
        for name, values in frame.variables.items():
            if not read.isdisjoint(self.memory_of.get(value, value) for value in values):
                yield name

    def first_read(self, frame: Frame) -> str:
        """The variable that holds what a statement reads first, of what it has not made; "" for none."""
        of = {self.memory_of.get(v[0], v[0]): name for name, v in frame.variables.items() if len(v) == 1}
        read = (self.memory_of.get(v, v) for each in self.reads[frame.first : self.last + 1] for v in each)
        return next((name for value in read if (name := of.get(value, "#"))[0] not in "#["), "")

    def read_before(self, frame: Frame) -> set[str]:
        """Owners of the memory that a statement reads and has not made."""
        places = slice(frame.first, self.last + 1)
        values = set().union(*self.reads[places]).difference(*self.results[places])
        return {self.memory_of[value] for value in values if value in self.memory_of}

    def assigned(self, frame: Frame, made: Sequence[str]) -> list[tuple[str, ...]]:
        """What a statement gives each of the variables that it binds. made: what it makes and later ones read."""
        targets = frame.statement.targets
        if not targets:
            return []
        results = self.results[self.last][: 1 if frame.statement.takes_first else None]
        first = tuple(dict.fromkeys((*results, *made)))
        if len(targets) == 1:
            return [first]
        for values in (results, made):
            if len(values) == len(targets):
                return [(value,) for value in values]
        returned = tuple(value for value in frame.weights if value not in first)
        second: tuple[str, ...] = ()
        if not has_fact("no weights", frame.line.file, frame.line.text):
            # What `output, weights = attention(...)` binds to the second name: the softmax, where attention is spelled out.
            second, products = returned, 0
            for place in range(self.last, frame.first - 1, -1):
                products += self.nodes[place].operator.kind == "product"
                second = second or tuple([x for x in self.results[place] if x in self.distributions])
                if second or products > _AFTER_SOFTMAX:
                    break
        frame.returned += second
        return [first, second, *[() for _ in targets[2:]]]

    def read_later(self, frame: Frame) -> list[str]:
        """What a statement makes and later ones read, a tensor and its views once."""
        found: dict[str, str] = {}
        last, last_read = self.last, self.last_read
        for names in self.results[frame.first : last + 1]:
            for name in names:
                if last_read.get(name, -1) > last:
                    found[self.memory_of.get(name, name)] = name
        return [*found.values()]

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

    def hold_locals(self, node: Node, operator: Op, place: int, frame: Frame | None) -> None:
        """Note what variables of a function must hold: what it reads twice, multiplies, or gives to a module.

        Only forwards leave lines, so a call that the line does not spell is made by a function that the line calls.
        frame: whose line does not spell the call, None where one does.
        """
        read = [self.memory_of.get(value, value) for value in self.reads[place]]
        if operator.kind not in _PASSED_THROUGH:
            for caller in self.callers:
                local = (value for value in read if value in caller.hidden)
                caller.locals.update(v for v in local if self.nodes[self.made[v]].operator.name in _JOINS)
        if frame is None:
            return
        inside = [value for value in read if value in frame.hidden]
        if operator.name in _BATCHED_PRODUCTS or operator.kind == "attention":
            frame.locals.update(inside)
        if operator.name == "mul":  # `gate * probabilities`
            frame.locals.update(self.distributions.intersection(inside))
        if operator.kind == "cast":  # `softmax(scores, dtype=torch.float32).to(dtype)` is one statement
            makers = [self.made[value] for value in inside if has_dtype(self.nodes[self.made[value]])]
            self.hold([value for maker in makers for value in self.reads[maker]], self.last)
        self.overwrite(frame, place)
        frame.hidden.update(self.results[place])
        for name in self.results[place]:
            if self.readers[name] > 1:
                frame.locals.add(name)
                # Of many variables that one operator makes, as in a loop over steps, only the last are still held.
                alike = frame.turns.setdefault(node.op, [])
                alike.append(name)
                if len(alike) > _MOST_ALIKE:
                    first = alike.pop(0)
                    frame.locals.discard(first)
                    self.hold([first], self.last)

    def overwrite(self, frame: Frame, place: int) -> None:
        """A variable of a loop (`state = decay * state + new`) loses its value to what the same operators make of it."""
        read = set(self.reads[place])
        for name in [*read]:
            if name in frame.hidden:
                read.update(self.reads[self.made[name]])
        for name in read & frame.locals:
            if self.nodes[self.made[name]].op == self.nodes[place].op:
                frame.locals.remove(name)
                self.hold([name], self.last)

    def hold_arguments(self) -> None:
        """What a module is given from outside lives until its forward returns."""
        modules = self.modules[::-1]  # each before those inside of it
        inner, around = (
            [-1] * len(self.nodes),
            list[int](),
        )  # the innermost module of each call, the one around each
        for number, (first, last) in enumerate(modules):
            around.append(inner[first])
            inner[first : last + 1] = [number] * (last + 1 - first)
        for read, number in zip(self.reads, inner, strict=True):
            for value in read if number >= 0 else ():
                made, holder = self.made.get(value), number
                if made is not None and made < modules[holder][0]:
                    while around[holder] >= 0 and made < modules[around[holder]][0]:
                        holder = around[holder]
                    self.hold((value,), modules[holder][1])
