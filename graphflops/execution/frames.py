"""What Python still refers to while a module runs eagerly: a tensor is freed when its last reference goes.

References follow from the lines of code that an export records for each call, and from the lines' modules. The caller
of a module's forward holds the arguments until the forward returns. A variable holds its value until it is bound again or
its function returns: `x = self.act(x)` frees the old `x` when the line is done. A list or tuple in a variable holds its
elements. What is joined to the empty tensors of a cache lives until the program ends.

Which variables a line binds and reads matters, never what they are called. If a line is the middle of a statement, its
result is assumed to live until its function returns. Functions other than forwards leave no lines: their values are assumed
to be in variables if they are read twice, multiplied with one another, or joined and passed to a module.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat

from msgspec import Struct

from graphflops.execution.python_frame import Frame, Running, begun
from graphflops.execution.source_lines import CodeLine, code_lines, module_variables, opens, shared
from graphflops.graph import Node

_PASSING = frozenset({"cast", "dropout"})  # kinds of calls that convert or scale probabilities
# Kinds of modules whose result replaces their operand.
_PASSED_THROUGH = frozenset({"softmax", "dropout"})
# Other products are of computed tensors, or of rows that were sorted for them.
_BY_WEIGHTS = frozenset({"linear", "mm", "addmm"})
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
        self.nodes, self.memory_of, self.is_empty = nodes, memory_of, is_empty
        # A size is no element: where an export reads it says nothing of what Python holds.
        self.reads = [
            () if node.operator.name == "size" else read for node, read in zip(nodes, reads, strict=True)
        ]
        self.until: dict[str, int] = {}
        self.assumed: dict[str, int] = {}  # by owner of memory that an unknown variable holds: its last call
        self.frames: list[Frame] = []
        # By variable of a function: what it holds beside a result if it is a tuple, and until when; the known tuples.
        self.beside = defaultdict[tuple[str, int, str], list[tuple[tuple[str, ...], int]]](list)
        self.tuples: set[tuple[str, int, str]] = set()
        self.rebound: set[str] = set()  # owners that a variable no longer holds, because it was bound again
        self.last = -1  # position of the latest call
        # The lines of each call; those of the call before it if it has none.
        self.stacks: list[tuple[CodeLine, ...]] = []
        for node in nodes:
            lines = code_lines(node.python_stack, node.module_stack)
            self.stacks.append(lines or next(reversed(self.stacks), ()))
        self.own = module_variables(nodes)
        # Tensors alone: which variables have the numbers of an open size, no line shows, and no fixed size has any.
        self.results = [tuple([x for x in node.outputs if x and x in memory_of]) for node in nodes]
        self.last_read = {value: place for place, read in enumerate(self.reads) for value in read}
        self.made = {name: place for place, names in enumerate(self.results) for name in names}
        calls = [*zip(nodes, self.reads, self.results, strict=True)]
        self.joined = {made for node, _, names in calls if node.operator.name in _JOINS for made in names}
        self.distributions: set[str] = set()  # results of a softmax, and what casts and dropout make of them
        for node, read, made in calls:
            passes = node.operator.kind in _PASSING and not self.distributions.isdisjoint(read)
            self.distributions.update(made if passes or node.operator.kind == "softmax" else ())
        computing = [node.outputs and node.operator.kind != "view" for node in nodes]
        self.readers = Counter(value for read in compress(self.reads, computing) for value in set(read))

    def lifetimes(self) -> Lifetimes:
        before: Sequence[CodeLine] = ()
        for place, (node, lines) in enumerate(zip(self.nodes, self.stacks, strict=True)):
            if lines is not before:
                self.enter(lines, node, place)
                before = lines
            elif self.frames:
                self.follow(self.frames[-1], node, "", place)
            self.last = place
            self.hold_arguments(place)
            if node.operator.name in _JOINS:
                self.hold_joined(place)
            self.hold_locals(node, place)
        self.leave(0, len(self.nodes) - 1)
        for values, last in (held for variable in self.tuples for held in self.beside[variable]):
            self.hold(values, last)
        used = {self.memory_of.get(value, value): place for value, place in self.last_read.items()}
        longer = [name for name, last in self.assumed.items() if last >= self.until[name]]
        return Lifetimes(self.until, frozenset(x for x in longer if used.get(x, -1) < self.assumed[x]))

    def owners(self, values: Iterable[str]) -> set[str]:
        return {self.memory_of.get(value, value) for value in values}

    def hold(self, values: Iterable[str], last: int) -> None:
        """Keep values at least until a call has run."""
        for owner in map(self.memory_of.get, values):
            if owner is not None and self.until.get(owner, -1) < last:
                self.until[owner] = last

    def enter(self, lines: tuple[CodeLine, ...], node: Node, place: int) -> None:
        """Make `lines` the functions that run: leave those that have returned, close statements that are done.

        A function that runs one call holds nothing past it, so it gets no frame.
        """
        frames = self.frames
        after = self.stacks[min(place + 1, len(self.stacks) - 1)]
        ahead = after if after[: len(lines)] == lines else lines  # with the module that the line calls next
        self.leave(self.still_running(lines, ahead), place - 1)
        longer = len(lines) if node.operator.name in _JOINS else shared(lines, after)
        for depth in range(max(0, len(frames) - 1), max(longer, len(frames))):
            line = lines[depth]
            if depth == len(frames):
                own = self.own.get(line.file, "")
                frames.append(Frame(ahead[depth : depth + 2], place, own, line, begun(line, own, place)))
            elif frames[-1].line.number != line.number and not frames[-1].goes_on(line):
                operands = self.close(frames[-1], line)
                frames[-1].running = begun(line, frames[-1].own, place, operands=operands)
            frames[-1].line = line
            called = lines[depth + 1].module if depth + 1 < len(lines) else ""
            self.follow(frames[-1], node, called if called != line.module else "", place)
        if frames and len(frames) < len(lines):
            frames[-1].running.beside = ()

    def follow(self, frame: Frame, node: Node, child: str, place: int) -> None:
        """Close the frame's statement if it was done before a call."""
        if place > frame.running.first and frame.is_done(node, child):
            self.close(frame)
            frame.running = begun(frame.line, frame.own, place, frame.running.part + 1)
        frame.running.count(node, child)

    def still_running(self, lines: Sequence[CodeLine], ahead: Sequence[CodeLine]) -> int:
        """How many of the frames still run; where a frame's line has changed, those inside it have returned."""
        for depth, (frame, line) in enumerate(zip(self.frames, lines, strict=False)):
            if frame.line is line:
                continue
            if not frame.line.is_beside(line) or (depth and frame.begins_again(ahead, depth)):
                return depth
            if frame.line.number != line.number:
                return depth + 1
        return min(len(self.frames), len(lines))

    def leave(self, depth: int, last: int) -> None:
        """Return from the functions above `depth`: their variables hold their values until the call `last`."""
        while len(self.frames) > depth:
            frame = self.frames.pop()
            self.close(frame)
            if self.frames:
                held = [frame.variables.get(name, ()) for name, is_one in frame.returned.items() if is_one]
                self.frames[-1].running.beside = tuple(value for values in held for value in values)
            for name in [*frame.variables]:
                self.unbind(frame, name, last)
            self.hold(frame.kept, last)

    def unbind(self, frame: Frame, name: str, last: int) -> None:
        """Drop what a variable holds; it was held until the call `last`."""
        values = frame.variables.pop(name, ())
        if beside := frame.variables.pop(f"{name}[:]", ()):
            self.beside[frame.line.file, frame.opening[0].number, name].append((beside, last))
        self.hold(values, last)
        if name[:1] == "#":
            self.assumed.update(dict.fromkeys(self.owners(values), last))

    def close(self, frame: Frame, following: CodeLine | None = None) -> set[str]:
        """Close a frame's statement: its targets hold what it made, and no longer what they held before.

        following: the next line of the function. If it opened the statement, what the statement needs from this piece is
        returned.
        """
        last, running, statement = self.last, frame.running, frame.running.statement
        self.hold((*running.locals.values(), *running.operands), last)
        self.tell_tuples(frame)
        self.let_go(frame)
        made, operands = list[str](), set[str]()
        if statement.is_piece or statement.targets:  # a tensor and its views count once
            made = [*{self.memory_of.get(x, x): x for x in self.read_later(running)}.values()]
        if statement.is_piece:
            own = [v for v in made if self.made.get(self.memory_of.get(v, v), -1) >= running.first]
            if following is not None and following.number < frame.line.number and opens(following.text):
                operands = self.owners(own)
            else:
                frame.variables[f"#{last}"] = tuple(own)
        for target, held in zip(statement.targets, self.assigned(frame, made), strict=True):
            name = target.replace("#", f"#{running.opened}.") if "#" in target else target
            kept = frame.variables.pop(name, ()) if name.endswith("[]") else ()  # each time another element
            self.rebound |= self.owners(frame.variables.get(name, ())) - self.owners(held)
            for dropped in (name, f"{name}[]"):  # with a list, its elements
                self.unbind(frame, dropped, last)
            frame.variables[name] = (*kept, *held)
        self.bind_tuple(frame)
        return operands

    def bind_tuple(self, frame: Frame) -> None:
        """Let the variable that a call's result is bound to hold what the call returns beside it: `outputs = attention(x)`.

        An export has no line that only returns, such as `return x, weights`: the function is assumed to return the weights
        that it binds last.
        """
        running, targets, name = frame.running, frame.running.statement.targets, ""
        if running.beside and running.statement.is_call and len(targets) < 2:
            name = f"{''.join(targets)}[:]"
            frame.variables[name] = running.beside
        elif targets[1:] and not self.distributions.isdisjoint(frame.variables.get(targets[1], ())):
            name = targets[1]
        if name:
            frame.returned = {name: name not in frame.returned}
        elif running.statement.returns is not None:
            frame.returned = dict.fromkeys(running.statement.returns, True)

    def tell_tuples(self, frame: Frame) -> None:
        """A variable that a statement reads as a tensor is no tuple; one whose tensor a line reads without its name is."""
        running = frame.running
        for name in [name[:-3] for name in frame.variables if name.endswith("[:]")]:
            if name in running.statement.names:
                del frame.variables[f"{name}[:]"]
            elif not running.statement.is_piece and not opens(frame.line.text):
                read = self.owners(chain(*self.reads[running.first : self.last + 1]))
                if not read.isdisjoint(self.owners(frame.variables.get(name, ()))):
                    self.tuples.add((frame.line.file, frame.opening[0].number, name))

    def let_go(self, frame: Frame) -> None:
        """Forget what the first operand of a call held if the call reads an unnamed value, as after `x = outputs[0]`.

        Such a line runs no call, so an export does not have it. It is assumed to run right after the last read of the old
        value. The new value is one that no known variable holds, if there is such a value. A variable that is read and bound
        again, as in `x = x.view(8)`, is such an operand.
        """
        first, statement = frame.running.first, frame.running.statement
        again = [x for x in statement.targets if x in statement.names and x not in frame.variables]
        name = next(iter(again or statement.given), "")
        others = [other for other in frame.variables if other[0] == "#"] if name else []
        if not others and name not in frame.variables:
            return
        values = [x for x in chain(*self.reads[first : self.last + 1]) if self.made.get(x, -1) < first]
        known = [frame.variables.get(x, ()) for x in statement.names - {name}]
        read = self.owners(x for x in values if x in self.memory_of) - self.owners(chain(*known))
        if not read or not read.isdisjoint(self.owners(frame.variables.get(name, ()))):
            return
        self.unbind(frame, name, -1)
        for other in others:
            held = self.owners(frame.variables[other])
            if self.owners(values) == held if again else read >= held:
                frame.variables[name] = frame.variables.pop(other)

    def assigned(self, frame: Frame, made: Sequence[str]) -> list[tuple[str, ...]]:
        """The values for each of a statement's targets. made: what the statement makes and later statements read."""
        running, results = frame.running, self.results[self.last]
        targets = running.statement.targets
        first = tuple(dict.fromkeys((*results, *made)))
        if len(targets) <= 1:
            return [first for _ in targets]
        for values in (results, made, self.read_later(running)):
            if len(values) == len(targets):
                return [(value,) for value in values]
        second, products = tuple[str, ...](), 0
        # The second target of `output, weights = attention(...)` gets the softmax that a variable of it still holds.
        for place in range(self.last, running.first - 1, -1):
            products += self.nodes[place].operator.kind == "product"
            weights = filter(self.distributions.__contains__, self.results[place])
            second = tuple([x for x in weights if self.memory_of.get(x, x) not in self.rebound])
            if second or products > _AFTER_SOFTMAX:
                break
        return [first, second, *[() for _ in targets[2:]]]

    def read_later(self, running: Running) -> list[str]:
        """What a statement makes and later statements read, as in `q, k, v = (t.view(2, 8, 4) for t in qkv.chunk(3))`."""
        last, made = self.last, [*chain(*self.results[running.first : self.last + 1])]
        reads = map(self.last_read.get, made, repeat(-1))
        return [name for name, read in zip(made, reads, strict=True) if read > last]

    def hold_arguments(self, place: int) -> None:
        """What a call reads from outside of a forward lives until the forward returns."""
        entered = self.frames[-1].entered if self.frames else 0
        for value in self.reads[place]:
            if (made := self.made.get(value, entered)) < entered:
                inside = [x for x in self.frames if x.entered > made and x.line.function == "forward"]
                if inside:
                    inside[0].kept.add(value)

    def hold_joined(self, place: int) -> None:
        """Operands that a call joins from a variable's list live as long as the variable.

        If the list has values from before the function began, and the caller passes a further argument that is not known to
        hold a tensor, the list is taken to be that argument: it lives as long as the caller.
        A cache of keys and values starts empty; what is joined to it lives as long as the program.
        """
        read = self.reads[place]
        if self.frames and (joined := self.frames[-1].running.statement.joins):
            *callers, frame = self.frames
            frame.variables[f"{joined}[]"] = (*frame.variables.get(f"{joined}[]", ()), *read)
            given = callers[-1].running.statement.given[1:] if callers else ()
            is_longer = any(self.made.get(value, -1) < frame.entered for value in read)
            if is_longer and any(name and name not in callers[-1].variables for name in given):
                callers[-1].kept.update(read)
        if self.nodes[place].operator.name == "cat" and any(self.is_empty(value) for value in read):
            self.hold(self.results[place], len(self.nodes) - 1)

    def hold_locals(self, node: Node, place: int) -> None:
        """Note values that a function's variables must hold: those read twice, multiplied, or joined and passed to a module.

        Only forwards leave lines, so a call that the line does not spell runs in a function that the line calls.
        """
        callers = self.frames[: len(self.stacks[place]) - 1]
        is_spelled = len(callers) == len(self.frames) or self.frames[-1].running.statement.role(node.op)[0]
        if is_spelled and not self.joined:
            return
        read = [self.memory_of.get(value, value) for value in self.reads[place]]
        if node.operator.kind not in _PASSED_THROUGH and not self.joined.isdisjoint(read):
            for caller in callers:
                joined = caller.running.hidden & self.joined
                for value in filter(joined.__contains__, read):
                    caller.running.locals[self.nodes[self.made[value]].op] = value
        if is_spelled:
            return
        running = self.frames[-1].running
        inside = running.hidden.intersection(read).difference(running.locals.values())
        is_product = node.operator.kind == "product" and node.operator.name not in _BY_WEIGHTS
        if is_product or node.operator.kind == "attention":
            running.operands.update(inside)
        if node.operator.name == "mul":  # `gate * probabilities`
            running.operands.update(self.distributions.intersection(inside))
        running.hidden.update(self.results[place])
        self.hold([running.locals.pop(node.op, "")], self.last)
        running.locals.update((node.op, name) for name in self.results[place] if self.readers[name] > 1)
