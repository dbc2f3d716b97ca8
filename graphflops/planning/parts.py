"""Finds which weights tensor parallelism splits, from the calls that use their results.

A product is split by the columns of its weight. Its result stays split as long as each call works on the parts alone. The
next product by a weight is split by rows, and the devices add up its partial sums. If a call needs a whole value, the
products that the value came from are not split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from graphflops.dims import Dim, prod
from graphflops.graph import Graph, Node, Ref
from graphflops.tensor import TensorType, grouped

INDIVISIBLE = "does not divide"
_FEW = 1024  # columns of a product that each device may run whole


class Part(NamedTuple):
    """A value that is split along an axis."""

    axis: int
    origins: frozenset[str]  # the products whose columns it comes from
    # How many pieces there are if several devices hold the same one (fewer heads than devices); 0: one on each device.
    pieces: int = 0
    # The heads are repeated along the next axis, which the devices with the same head share.
    is_repeated: bool = False


class Exchanged(NamedTuple):
    """A value that the devices of a group exchange."""

    call: str  # the product
    value: str
    side: str  # `in`: the operand of a split product; `out`: a sum of partial results


@dataclass
class Split:
    """A program as one of `devices` runs it."""

    graph: Graph
    devices: int
    parts: dict[str, Part] = field(default_factory=dict)  # values that are split, weights among them
    exchanged: list[Exchanged] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # products that stay whole, with the reason
    factors: dict[str, int] = field(default_factory=dict)  # by product, which factor of its columns is split
    # By product, the number of heads if there are fewer than devices; 0 if that was tried in vain. None: several devices
    # may not hold the same head.
    pieces: dict[str, int] | None = None
    fewer: dict[str, int] = field(default_factory=dict)  # entries for `pieces` that this run found

    def problem(self, node: Node) -> tuple[str, frozenset[str]] | None:
        """Adds a call; if it does not work on parts, returns why and the products that the parts come from."""
        why = self.of(node)
        origins = [self.parts[name].origins for name in node.reads() if name in self.parts]
        return (why, frozenset[str]().union(*origins)) if why else None

    def of(self, node: Node) -> str:
        """Adds a call. Returns "" if it works on the parts of its operands, else why it does not."""
        parts = {name: self.parts[name] for name in node.reads() if name in self.parts}
        weight = self.weight(node)
        if weight is not None:
            return self._product(node, *weight, parts)
        if node.operator.name == "embedding" and not parts:
            table, result = node.arguments().get("weight"), node.outputs[0]
            is_weight = isinstance(table, Ref) and table.name in self.weights and self._divides(table.name, 0)
            if isinstance(table, Ref) and is_weight and result and node.name not in self.refused:
                # `refused` has the embedding if the table is tied to the weight of a product that is not split.
                self.parts[table.name] = Part(0, frozenset({node.name}))
                self.exchanged.append(Exchanged(node.name, result, "out"))
            return ""
        if not parts or not any(node.outputs):
            return ""
        out = [name for name in node.outputs if name is not None]
        axes = {self.axis_of_result(node, name, part.axis) for name, part in parts.items()}
        axis = axes.pop() if len(axes) == 1 else None
        origins = frozenset[str]().union(*(part.origins for part in parts.values()))
        made = None if axis is None else self._made(node, parts, Part(axis, origins))
        if axis is None or made is None:
            return f"{node.op} needs the whole"
        if not all(self._divides(name, axis, made.pieces) for name in out):
            heads = self.size(out[0], axis)
            if self.pieces is not None and 1 < heads < self.devices and self.devices % heads == 0:
                # Several devices can hold the same head.
                self.fewer.update((origin, heads) for origin in origins if origin not in self.pieces)
            return f"{node.op}: {INDIVISIBLE}"
        if not self._beside(node, parts, made):
            return f"{node.op} reads a whole operand"
        self.parts.update((name, made) for name in out if name in self.types)
        return ""

    def _made(self, node: Node, parts: Mapping[str, Part], made: Part) -> Part | None:
        """The part that a call makes, with its pieces; None if its operands are in different pieces."""
        kinds = {(part.pieces, part.is_repeated) for part in parts.values()}
        if node.operator.kind == "attention":
            # Queries need a piece on each device, whatever the pieces of keys are.
            query = node.arguments().get("query")
            name = query.name if isinstance(query, Ref) else ""
            return made if (0, False) in kinds and name in parts and not parts[name].pieces else None
        if len(kinds) > 1:
            return None
        pieces, is_repeated = kinds.pop()
        (name, part), out = next(iter(parts.items())), node.outputs[0] or ""
        before = [self.size(name, part.axis + further) for further in (0, 1)]
        after = [self.size(out, made.axis + further) for further in (0, 1)]
        if not pieces or (is_repeated and after[0] == before[0] * before[1]):
            return made
        if node.operator.name == "expand" and before[1] == 1 < after[1]:
            is_even = after[1] % (self.devices // pieces) == 0
            return made._replace(pieces=pieces, is_repeated=True) if is_even else None
        kept = made._replace(pieces=pieces, is_repeated=is_repeated)
        return None if is_repeated and after != before else kept

    def shape(self, name: str) -> tuple[Dim, ...]:
        """The shape of a split value on one device."""
        part, sizes = self.parts[name], list(self.types[name].shape)
        sizes[part.axis] = self.size(name, part.axis) // (part.pieces or self.devices)
        if part.is_repeated:
            sizes[part.axis + 1] = self.size(name, part.axis + 1) // (self.devices // part.pieces)
        return tuple(sizes)

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The types of the tensors of the unsplit program."""
        return {name: typed for name, typed in self.graph.types.items() if isinstance(typed, TensorType)}

    def rank(self, name: str) -> int:
        """The rank of a tensor; 0 for other values."""
        return self.types[name].rank if name in self.types else 0

    def weight(self, node: Node) -> tuple[str, str, int, int] | None:
        """The operand and the parameter of a product by a parameter, with the parameter's axes of columns and of rows."""
        if node.operator.kind != "product":
            return None
        given = node.arguments()
        operand = given.get("a", given.get("#0"))
        other = given.get("weight", given.get("b", given.get("#1")))
        if not isinstance(operand, Ref) or not isinstance(other, Ref) or other.name not in self.weights:
            return None
        rank = self.rank(other.name)
        return (operand.name, other.name, *((0, 1) if "weight" in given else (rank - 1, rank - 2)))

    @cached_property
    def weights(self) -> Mapping[str, Node | None]:
        """Parameters (None), and the views and conversions of parameters, with the calls that make them."""
        given = [entry.name for entry in self.graph.inputs if entry.role == "parameter"]
        found: dict[str, Node | None] = dict.fromkeys(given)
        for node in self.graph.nodes:
            reads = node.reads()
            if node.operator.kind in ("view", "cast", "identity") and reads and reads[0] in found:
                found.update((name, node) for name in node.outputs if name is not None)
        return found

    def _divide(self, weight: str, part: Part) -> None:
        """Splits a weight, and the parameter that it is a view or conversion of."""
        self.parts[weight] = part
        if (node := self.weights[weight]) is not None:
            operand = node.reads()[0]
            becomes = [self.axis_of_result(node, operand, axis) for axis in range(self.rank(operand))]
            axis = becomes.index(part.axis) if part.axis in becomes else part.axis
            self._divide(operand, part._replace(axis=axis))

    @property
    def given(self) -> frozenset[str]:
        """Names of the inputs that the user gives."""
        return frozenset([entry.name for entry in self.graph.inputs if entry.role == "user"])

    def _product(
        self, node: Node, operand: str, weight: str, columns: int, rows: int, parts: Mapping[str, Part]
    ) -> str:
        out, given = node.outputs[0], node.arguments().get("bias")
        assert out is not None
        bias = given.name if isinstance(given, Ref) else None
        part = parts.get(operand)
        if part is None:
            tied = parts.get(weight)  # to the table of an embedding
            is_other = tied is not None and (tied.axis != columns or node.name in self.refused)
            if is_other or len(parts) > (tied is not None):
                return "another operand is split"
            if node.name in self.refused:
                return ""
            pieces = (self.pieces or {}).get(node.name, 0)
            if not self._divides(weight, columns, pieces):
                size = self.size(weight, columns)
                why = INDIVISIBLE if size >= _FEW else "few, they stay whole"  # of a router
                self.refused[node.name] = f"{size} columns: {why}"
                return ""
            origin = frozenset({node.name})
            self._divide(weight, Part(columns, origin, pieces))
            self.parts[out] = Part(self.rank(out) - 1, origin, pieces)
            if bias is not None and self.rank(bias):
                self.parts[bias] = Part(self.rank(bias) - 1, origin, pieces)
            self.exchanged.append(Exchanged(node.name, operand, "in"))
            return ""
        if part.pieces:
            return f"{node.op} adds up copies"
        if part.axis != self.rank(operand) - 1:
            return f"{node.op} reads another axis than the split one"
        self._divide(weight, Part(rows, part.origins))
        self.exchanged.append(Exchanged(node.name, out, "out"))
        return ""

    def size(self, name: str, axis: int) -> int:
        """The size of an axis; 0 if it is open or does not exist."""
        size = self.types[name].shape[axis] if 0 <= axis < self.rank(name) else 0
        return size if isinstance(size, int) else 0

    def _divides(self, name: str, axis: int, pieces: int = 0) -> bool:
        size = self.size(name, axis)
        return name not in self.types or (size > 0 and size % (pieces or self.devices) == 0)

    def _beside(self, node: Node, parts: Mapping[str, Part], made: Part) -> bool:
        """Whether each whole operand has size 1 along the split axis, or is a parameter or a cache that can be split too."""
        out = next((name for name in node.outputs if name is not None), "")
        is_by_place = node.operator.is_pointwise or node.operator.name == "copy"
        if not is_by_place and node.operator.kind not in ("attention", "product", "movement"):
            return True
        for name in node.reads():
            place = made.axis - self.rank(out) + self.rank(name)
            if name in parts or place < 0 or self.size(name, place) == 1:
                continue
            is_cache = name in self.given and self.rank(name) == self.rank(out) > 2
            is_split = is_cache if not node.operator.is_pointwise else name in self.weights
            if (is_split or self._is_repeated(name, place)) and self._divides(name, place, made.pieces):
                self.parts[name] = Part(place, frozenset(), made.pieces)
            elif node.operator.kind != "movement":
                return False
        return True

    def _is_repeated(self, name: str, axis: int) -> bool:
        """Whether a value is expanded along an axis for a single call: each device then expands it for its own part."""
        maker = self.graph.makers.get(name)
        if maker is None or maker.operator.name != "expand" or len(self.readers.get(name, ())) > 1:
            return False
        operand = maker.reads()[0]
        return self.size(operand, axis - self.rank(name) + self.rank(operand)) == 1

    @cached_property
    def readers(self) -> Mapping[str, list[Node]]:
        """By value: the calls with results that read it."""
        nodes = [node for node in self.graph.nodes if any(node.outputs)]
        return grouped((name, node) for node in nodes for name in {*node.reads()})

    def axis_of_result(self, node: Node, name: str, axis: int) -> int | None:
        """The split axis of the results, if an operand is split along `axis`; None if the call needs the whole operand."""
        out = next((one for one in node.outputs if one is not None), "")
        kind, word, given = node.operator.kind, node.operator.name, node.arguments()
        rank, ranked = self.rank(name), self.rank(out)
        if node.operator.is_pointwise or word == "copy":
            return axis + ranked - rank
        if node.operator.reads_sizes:
            return axis if rank == ranked and self.size(name, axis) == self.size(out, axis) else None
        if kind == "attention":
            return axis if rank == ranked == 4 and axis == 1 else None
        if kind in ("normalisation", "softmax"):
            last = given.get("normalized_shape", given.get("shape"))
            first = axis_of(given.get("axis", given.get("axes", -1)), rank)
            return axis if axis < (rank - len(last) if isinstance(last, tuple) else first) else None
        if kind == "reduction":
            axes = given.get("axes", given.get("axis"))
            listed = axes if isinstance(axes, tuple) else (axes,)
            reduced = {axis_of(one, rank) for one in listed if isinstance(one, int)}
            if not reduced or axis in reduced:
                return None
            return axis if rank == ranked else axis - sum(one < axis for one in reduced)
        if kind == "product":
            return axis if rank == ranked > 2 and axis < rank - 2 else None
        if word == "cat":
            return axis if axis != axis_of(given.get("axis", 0), rank) else None
        return self._viewed(node, name, axis, given) if kind in ("view", "movement", "sequence") else None

    def _viewed(self, node: Node, name: str, axis: int, given: Mapping[str, object]) -> int | None:
        word, rank = node.operator.name, self.rank(name)
        outputs = [one for one in node.outputs if one is not None]
        if (order := node.operator.turned(given, rank)) is not None:
            return order.index(axis)
        ranked, parameters = self.rank(outputs[0]), node.operator.parameters
        if "axis" in parameters and not {"end_axis", "shape"}.intersection(parameters):
            along, is_less = axis_of(given.get("axis", 0), rank), ranked < rank
            if along != axis:
                return axis - (is_less and along < axis)
            is_whole = len(outputs) > 1 or self.size(name, axis) == self.size(outputs[0], axis)
            return axis if is_whole and not is_less else None
        if word == "expand":
            return axis + ranked - rank
        moved = given.get("axes") if node.operator.kind == "movement" else ()
        if isinstance(moved, tuple) and axis in [axis_of(one, rank) for one in moved]:
            return None  # rolled or flipped
        before, after = map(self.types.get, (name, outputs[0]))
        origins = self.parts[name].origins if name in self.parts else ()
        factor = max([self.factors.get(one, 0) for one in origins], default=0)
        if before is None or after is None:
            return None
        return regrouped(before.shape, after.shape, axis, factor if len(before.shape) == axis + 1 else 0)


def regrouped(before: Sequence[Dim], after: Sequence[Dim], axis: int, factor: int = 0) -> int | None:
    """The axis that a split axis becomes in a reshaped tensor; None if no factor of it can be split.

    factor: which of several factors to split; any will do, because columns of a weight can be in any order.
    """
    done, size = prod(before[:axis]), before[axis]
    for place in range(len(after)):
        if prod(after[:place]) == done and after[place] != 1:
            ends = range(place + 1, len(after) + 1)
            parts = next((end - place for end in ends if prod(after[place:end]) == size), 1)
            chosen = after[place + factor] if factor < parts else None
            is_known = isinstance(chosen, int) and isinstance(size, int)
            return place + factor if is_known or chosen == size else None
    return None


def axis_of(given: object, rank: int) -> int:
    """An axis argument as a non-negative index; the last axis if it is not a number."""
    given = given[0] if isinstance(given, tuple) and given else given
    return given % max(rank, 1) if isinstance(given, int) else rank - 1
