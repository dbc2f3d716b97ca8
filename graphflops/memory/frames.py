"""What Python still refers to while a module runs eagerly.

Eager execution frees a tensor when the last Python reference to it goes, not at its last use. An export records, for each
call, the lines of code that were running and the modules they belong to. From these the references follow:

- The arguments of a module's forward live until it returns: whoever called the module holds them.
- A local variable holds its value until the variable is assigned again or its function returns. `x = self.act(x)` frees the
  old `x` when the line is done, not when `act` has read it.
- A list or tuple in a variable holds its elements: `torch.cat(features)` does not free what it joins. A cache of keys and
  values, which begins with empty tensors that the first ones are joined to, holds them to the end.

Only the text of the lines is read; no source file is opened and nothing is evaluated. Functions
that are not a module's forward leave no frames in an export. Of their values, those that are read twice, multiplied with one
another or given to a module are taken to be in local variables until the function returns; the others are free after their
last use.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graphflops.memory.python_frame import Frame
from graphflops.memory.statements import (
    BATCHED_PRODUCTS,
    JOINED,
    PASSED_THROUGH,
    CodeLine,
    assigned_names,
    calls_variable,
    chained_name,
    code_lines,
    collects_results,
    dictionary_of_mask,
    first_argument,
    further_arguments,
    has_dtype,
    is_module_of,
    is_next_turn,
    is_spelled,
    is_weights,
    joins,
    receiver,
    takes_first,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphflops.graph import Node


_PASSING = frozenset(
    {"cast", "dropout"}
)  # kinds of calls that probabilities go through as they are, or scaled
_MOST_ALIKE = 8  # variables of a function that one operator has made


def held_until(
    nodes: Sequence[Node], memory_of: Mapping[str, str], is_empty: Callable[[str], bool]
) -> dict[str, int]:
    """For each tensor that Python refers to past its last use: the position of the last call during which it does.

    nodes: the calls in program order. memory_of: by value, the value whose memory it shares. Keys are such owners.
    is_empty: whether a value is a vector without elements.
    """
    return _References(nodes, memory_of, is_empty).found()


class _References:
    """Follows the functions that run, call by call."""

    def __init__(
        self, nodes: Sequence[Node], memory_of: Mapping[str, str], is_empty: Callable[[str], bool]
    ) -> None:
        self.is_empty = is_empty
        self.nodes = nodes
        self.memory_of = memory_of
        self.until: dict[str, int] = {}
        self.frames: list[Frame] = []
        self.lines: Sequence[CodeLine] = ()
        self.last = -1  # position of the latest call
        self.modules: list[tuple[int, int]] = []  # first and last call of each run of a module
        self.reads = {node.name: node.reads() for node in nodes}
        self.last_read = {value: place for place, node in enumerate(nodes) for value in self.reads[node.name]}
        self.makers = {name: node for node in nodes for name in node.outputs if name is not None}
        self.made = {
            name: place for place, node in enumerate(nodes) for name in node.outputs if name is not None
        }
        # Results of a softmax, also converted or with some of them dropped.
        self.distributions: set[str] = set()
        computed = [node for node in nodes if node.outputs and node.operator.kind != "view"]
        self.readers = Counter(value for node in computed for value in set(self.reads[node.name]))

    def found(self) -> dict[str, int]:
        lines: tuple[CodeLine, ...] = ()
        for place, node in enumerate(self.nodes):
            lines = code_lines(node.python_stack, node.module_stack) or lines
            self.enter(lines, place)
            if joins(node):
                self.hold_joined(node, place)
            self.hold_locals(node, lines)
            kind = node.operator.kind
            if kind == "softmax" or (kind in _PASSING and self.reads_distribution(node)):
                self.distributions.update(name for name in node.outputs if name is not None)
        self.leave(0, len(self.nodes) - 1)
        self.hold_arguments()
        return self.until

    def hold(self, values: Iterable[str], last: int) -> None:
        for value in values:
            owner = self.memory_of.get(value)
            if owner is not None and self.until.get(owner, -1) < last:
                self.until[owner] = last

    def enter(self, lines: Sequence[CodeLine], place: int) -> None:
        """Make `lines` the functions that run: those that have returned are left, statements that are done are closed."""
        if lines is not self.lines:
            self.change(lines, place)
            self.lines = lines
            self.hold_mask_arguments()
        for depth, frame in enumerate(self.frames):
            if frame.parts:
                self.follow_parts(frame, depth, place)
                self.hold_mask_arguments()
        if self.frames:
            self.frames[-1].count_own(self.nodes[place])
        self.last = place

    def follow_parts(self, frame: Frame, depth: int, place: int) -> None:
        """Close the statement that was done before a call, where a line has several."""
        node = self.nodes[place]
        own = f"{frame.line.module}." if frame.line.module else ""
        child = self.frames[depth + 1].line.module.removeprefix(own) if depth + 1 < len(self.frames) else ""
        if place > frame.first and frame.ends_part(node, child):
            self.assign(frame)
            frame.start(frame.line, place)
        frame.count(node, child)

    def change(self, lines: Sequence[CodeLine], place: int) -> None:
        """Leave the functions that do not go on, close a statement that is done, enter new functions."""
        frames = self.frames
        shared, depths = self.still_running(lines), min(len(frames), len(lines))
        is_repeated = 0 < shared < depths and (
            any(frames[depth].begins_again(lines, depth) for depth in range(shared, depths))
            or is_next_turn(frames[shared - 1].line, frames[shared].line.module, lines[shared])
        )
        if 0 < shared == len(frames) < len(lines):
            is_repeated = frames[-1].ends_turn(lines[shared].module)
        self.leave(shared, place - 1)
        if frames:
            frame, line = frames[-1], lines[len(frames) - 1]
            if frame.line.number != line.number or (is_repeated and not frame.parts):
                self.assign(frame)
                frame.start(line, place)
        for depth in range(len(frames), len(lines)):
            if frames and not frames[-1].called:
                frames[-1].called = lines[depth].module
            frames.append(Frame(lines[depth], lines[depth : depth + 2], place, place))
            frames[-1].start(lines[depth], place)

    def still_running(self, lines: Sequence[CodeLine]) -> int:
        """How many of the frames go on; all above one whose line has changed have returned."""
        for depth, (frame, line) in enumerate(zip(self.frames, lines, strict=False)):
            if not frame.runs(line):
                return depth
            if depth and frame.begins_again(lines, depth):
                return self.caller_of_run(depth)
            if frame.line.number != line.number:
                return depth + 1
        return min(len(self.frames), len(lines))

    def caller_of_run(self, depth: int) -> int:
        """How many frames go on where the one at `depth` runs again: so does a loop over modules, which calls each once."""
        while depth > 1 and calls_variable(self.frames[depth - 1].line.text):
            depth -= 1
        return depth

    def leave(self, depth: int, last: int) -> None:
        """Return from the functions above `depth`: their variables held their values until then."""
        while len(self.frames) > depth:
            frame = self.frames.pop()
            self.assign(frame)
            for values in frame.variables.values():
                self.hold(values, last)
            if self.frames:
                self.frames[-1].weights += frame.returned
            if frame.is_module and frame.entered > 0:
                self.modules.append((frame.entered, last))

    def assign(self, frame: Frame) -> None:
        """The statement of a frame is done: its variables hold what it made, and no longer what they held before."""
        last = self.last
        self.hold(frame.locals, last)
        self.let_go(frame)
        names = assigned_names(frame.line.text) or chained_name(frame.line.text, frame.chain)
        frame.chain = receiver(frame.line.text) or (frame.chain if names else "")
        assigned = self.assigned(frame, names)
        if collects_results(frame.line.text):
            frame.variables[f"#{last}"] = assigned[0]
        for name, values in zip(names, assigned, strict=True):
            for old in [key for key in frame.variables if key == name or is_module_of(key, name)]:
                self.hold(frame.variables.pop(old), last)
            frame.variables[name] = values
        for name, other in frame.parts[frame.part].rest if frame.parts else ():
            self.hold(frame.variables.get(name, ()), last)
            frame.variables[name] = frame.variables.get(other, ())
        frame.hidden, frame.locals, frame.weights, frame.turns = set(), set(), [], {}

    def let_go(self, frame: Frame) -> None:
        """Forget what the first argument of a call held, if the call reads another value: `x = outputs[0]` leaves no call.

        The variable has got that value on a line in between, which the export does not record.
        """
        text = frame.line.text
        name = first_argument(text) or (
            "hidden_states" if text.endswith("(") and calls_variable(text) else ""
        )
        held = {self.memory_of.get(value, value) for value in frame.variables.get(name, ())}
        if not held:
            return
        places = range(frame.first, self.last + 1)
        made = {value for place in places for value in self.nodes[place].outputs}
        read = {
            self.memory_of[value]
            for place in places
            for value in self.reads[self.nodes[place].name]
            if value not in made and value in self.memory_of
        }
        if read and held.isdisjoint(read):
            self.hold(frame.variables.pop(name), frame.first - 1)

    def assigned(self, frame: Frame, names: Sequence[str]) -> list[tuple[str, ...]]:
        """What a statement gives each of the variables that it assigns."""
        if not names:
            return []
        results = tuple(name for name in self.nodes[self.last].outputs if name is not None)
        results = results[:1] if takes_first(frame.line.text) else results
        read_later = self.read_later(frame)
        first = (*results, *read_later)
        if len(names) == 1:
            if not names[0].endswith("outputs"):
                return [first]
            # A loop over layers returns what it collects, not the last one.
            if not calls_variable(frame.line.text):
                frame.returned = [*frame.weights]
            return [(*first, *frame.weights)]
        for values in (results, read_later):
            if len(values) == len(names):
                return [(value,) for value in values]
        second = self.probabilities(frame) if is_weights(names[1]) or names[1] == "_" else ()
        frame.returned += second if is_weights(names[1]) else ()
        return [first, second, *[() for _ in names[2:]]]

    def read_later(self, frame: Frame) -> list[str]:
        """What a statement makes and later ones read, a tensor and its views once."""
        found: dict[str, str] = {}
        last = self.last
        for place in range(frame.first, last + 1):
            for name in self.nodes[place].outputs:
                if name is not None and self.last_read.get(name, -1) > last:
                    found[self.memory_of.get(name, name)] = name
        return [*found.values()]

    def probabilities(self, frame: Frame) -> tuple[str, ...]:
        """What `output, weights = attention(...)` binds to the second name: the softmax, where attention is spelled out."""
        products = 0
        for place in range(self.last, frame.first - 1, -1):
            node = self.nodes[place]
            products += node.operator.kind == "product"
            made = tuple(name for name in node.outputs if name in self.distributions)
            if made:
                return made
            if products > 2:  # past the product with the values and the projection after it
                break
        return ()

    def hold_joined(self, node: Node, place: int) -> None:
        """What a variable's list holds that a call joins lives as long as the variable.

        A list with results from before the function began, to whose caller no tensor is known by the name of a further
        argument, is that argument: it lives as long as the caller.
        A cache of keys and values begins empty; what is joined to it lives as long as the program that has the cache.
        """
        read = self.reads[node.name]
        if self.frames and JOINED.search(self.frames[-1].line.text):
            *callers, frame = self.frames
            frame.variables[f"#{place}"] = read
            given = further_arguments(callers[-1].line.text) if callers else ()
            is_longer = any(self.made.get(value, -1) < frame.entered for value in read)
            if is_longer and any(name not in callers[-1].variables for name in given):
                callers[-1].variables[f"#{place}"] = read
        if node.operator.name == "cat" and any(self.is_empty(value) for value in read):
            self.hold([name for name in node.outputs if name is not None], len(self.nodes) - 1)

    def reads_distribution(self, node: Node) -> bool:
        """Whether a call reads probabilities."""
        return not self.distributions.isdisjoint(self.reads[node.name])

    def hold_mask_arguments(self) -> None:
        """`create_causal_mask(**mask_kwargs)`: the dictionary holds the hidden states until the function returns."""
        for frame in self.frames[-1:]:
            name = dictionary_of_mask(frame.line.text)
            if name and name not in frame.variables:
                frame.variables[name] = frame.variables.get("hidden_states", ())

    def hold_locals(self, node: Node, lines: Sequence[CodeLine]) -> None:
        """Note what variables of a function must hold: what it reads twice, multiplies, or gives to a module.

        Only forwards leave lines, so a call that the line does not spell is made by a function that the line calls.
        """
        callers = [frame for frame in self.frames[:-1] if frame.hidden]
        if callers and node.operator.kind not in PASSED_THROUGH:
            read = self.owners_read(node)
            for frame in callers:
                frame.locals.update(
                    value for value in read if value in frame.hidden and joins(self.makers[value])
                )
        if not self.frames or not lines or is_spelled(node, lines[-1].text):
            return
        frame = self.frames[-1]
        inside = [value for value in self.owners_read(node) if value in frame.hidden]
        if node.operator.name in BATCHED_PRODUCTS or node.operator.kind == "attention":
            frame.locals.update(inside)
        if node.operator.name == "mul":  # `gate * probabilities`
            frame.locals.update(self.distributions.intersection(inside))
        if node.operator.kind == "cast":  # `softmax(scores, dtype=torch.float32).to(dtype)` is one statement
            makers = [maker for value in inside if has_dtype(maker := self.makers[value])]
            self.hold([value for maker in makers for value in self.reads[maker.name]], self.last)
        self.overwrite(frame, node)
        made = [name for name in node.outputs if name is not None]
        frame.hidden.update(made)
        for name in made:
            if self.readers[name] > 1:
                frame.locals.add(name)
                self.end_turn(frame, frame.turns.setdefault(node.op, []), name)

    def owners_read(self, node: Node) -> list[str]:
        """Owners of the memory that a call reads."""
        return [self.memory_of.get(value, value) for value in self.reads[node.name]]

    def end_turn(self, frame: Frame, alike: list[str], name: str) -> None:
        """Of many variables that one operator makes, as in a loop over steps, only the last are still held."""
        alike.append(name)
        if len(alike) > _MOST_ALIKE:
            first = alike.pop(0)
            frame.locals.discard(first)
            self.hold([first], self.last)

    def overwrite(self, frame: Frame, node: Node) -> None:
        """A variable of a loop (`state = decay * state + new`) loses its value to what the same operators make of it."""
        read = set(self.reads[node.name])
        for name in [*read]:
            if name in frame.hidden:
                read.update(self.reads[self.makers[name].name])
        for name in read & frame.locals:
            if self.makers[name].op == node.op:
                frame.locals.remove(name)
                self.hold([name], self.last)

    def hold_arguments(self) -> None:
        """What a module is given from outside lives until its forward returns."""
        made = self.made
        used = [
            [(made[value], value) for value in self.reads[node.name] if value in made] for node in self.nodes
        ]
        for first, last in self.modules:
            given = [value for read in used[first : last + 1] for place, value in read if place < first]
            self.hold(given, last)
