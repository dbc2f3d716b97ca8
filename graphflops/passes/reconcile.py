"""Fixes the type of every result: compares the derived type with the recorded one, and reports disagreement.

If neither a rule nor the file gives a type, `FallbackTypes` takes what the format infers or the file declares.
"""

from collections.abc import Mapping
from itertools import zip_longest

from graphflops.base.record import replace
from graphflops.cost import Value
from graphflops.dims import Dim, Expr, Meeting, differ, evaluate, symbol
from graphflops.dims.atoms import terms_of
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph, Node, Ref
from graphflops.passes.bind import Binding
from graphflops.passes.claims import Claims, FallbackTypes, paired
from graphflops.passes.price_call import RANKLESS, Priced, outgrown, placeholders_in, put_in, substituted
from graphflops.passes.program import Names, Notes
from graphflops.tensor import BFLOAT16, FLOAT16, FLOAT32, TensorType, UnknownType, sizes_in, with_sizes
from graphflops.view import nested_graphs

_KEPT_BY_DEVICE = frozenset({"normalisation", "attention", "dropout"})
_EXPORT_DYNAMIC = "a size is fixed in the program: export it with dynamic shapes"


class Reconciler:
    """What is known of the types of one program and of its nested graphs."""

    def __init__(self, graph: Graph, binding: Binding, names: Names, notes: Notes) -> None:
        self.program, self.binding, self.names, self.notes = graph, binding, names, notes
        # Whether derived types win, because the file records none that are reliable.
        self.derives = graph.declared is not None
        self.contents: dict[Graph, set[str]] = {}  # by graph, the values whose contents are known
        # Symbols of the file for sizes that were data-dependent during the export.
        self.unbacked = {
            name
            for name, entry in graph.symbols.items()
            if not entry.where and entry.hint is None and name not in binding.given
        }
        self.claims = Claims(graph, binding)
        self.fallback = FallbackTypes(graph) if self.derives else None
        self.named: dict[Expr, Dim] = {}  # by size that is too large to compute with, its name
        # Pairs of sizes that an operator requires to be equal, each with whether one that surely runs does.
        self.equalities: dict[Meeting, bool] = {}

    def begin(self, graph: Graph, values: Mapping[str, Value]) -> None:
        known = ((name, getattr(value, "value", None)) for name, value in values.items())
        self.contents[graph] = {name for name, contents in known if contents is not None}

    def compare_input(self, graph: Graph, name: str, ours: Value) -> None:
        """Report an input of a nested graph that is recorded with another type than the call gives."""
        recorded = self.binding.value(graph, name)
        if self.derives or self.binding.moved or None in (ours, recorded) or _is_same(ours, recorded):
            return
        dtypes = {getattr(value, "dtype", None) for value in (ours, recorded)}
        if (differs := self.claims.contradict(ours, recorded)) or len(dtypes) > 1:
            text = f"{shown(name)} of graph {shown(graph.name)} is given {ours}, the file records {recorded}"
            self.notes.say("GF102" if differs else "GF103", "", text)

    def numbered(self, node: Node, priced: Priced, values: Mapping[str, Value], graph: Graph) -> Priced:
        """Name each data-dependent size: as the file does if it records one, or else by the next number."""
        names: dict[str, Dim] = {}
        for name, derived in zip(node.outputs, priced.estimate.out, strict=False):
            recorded = self.binding.value(graph, name) if name is not None else None
            if recorded is None and name is not None:
                recorded = self._declared(node, name, priced, derived, values, graph)
            for axis, size, known in paired(derived, recorded):
                told = [placeholder for placeholder in priced.placeholders if size is symbol(placeholder)]
                if not told or placeholders_in((known,)):
                    continue
                names[told[0]] = known
                is_of_data = node.operator.kind != "normalisation"  # whose statistics depend on the device
                problem = self.claims.problem(node, graph, name, axis, known) if is_of_data and name else ""
                if problem and name in graph.used and not self.derives:
                    self.say("GF127", node, problem)
        for placeholder in sorted(priced.placeholders - names.keys()):
            names[placeholder] = self.fresh(placeholder)
        estimate = substituted(priced.estimate, names)
        back = priced.gradient
        if back is not None:
            back = replace(back, estimate=substituted(back.estimate, names))
        return replace(priced, estimate=estimate, gradient=back, form=None)

    def _declared(
        self, node: Node, name: str, priced: Priced, derived: Value, values: Mapping[str, Value], graph: Graph
    ) -> Value:
        """The declared type of a result whose sizes come from integers that are not read; None for other results.

        Such integers are in another file, or the caller may replace them. A view has as many elements as its operand.
        """
        declared, fallback = (graph.declared or {}).get(name), self.fallback
        if not fallback or not isinstance(declared, TensorType) or not isinstance(derived, TensorType):
            return None
        operands = [ref.name for ref in node.args if isinstance(ref, Ref)]
        if declared.rank != derived.rank or not fallback.unread(operands, values, graph):
            return None
        source = values[operands[0]]
        if priced.state == "free" and isinstance(source, TensorType) and differ(source.numel, declared.numel):
            self.say("GF102", node, f"derived {source.numel} elements, the file declares {declared}")
            return None
        fallback.sources.setdefault("declared", []).append(name)
        self._alone(node, name)
        return declared

    def _alone(self, node: Node, name: str) -> None:
        """Report that a result's type is only what the file declares, although the call is known."""
        text = f"the sizes of {shown(name)} are what the file declares: nothing that is read confirms them"
        self.say("GF131", node, text)

    def fresh(self, placeholder: str) -> Dim:
        return self.binding.told(self.names.fresh(placeholder.rstrip("?")))

    def reconcile(
        self, node: Node, priced: Priced, values: dict[str, Value], graph: Graph, autocast: bool
    ) -> None:
        """Fix the type of each result: the recorded one, unless the user gave new sizes; report disagreement."""
        if problem := priced.estimate.unknown:
            if self.binding.moved and priced.code in ("GF104", "GF118"):
                raise ModelError(f"{place_of(node)}: {problem}; {_EXPORT_DYNAMIC}")
            self.say(priced.code, node, problem)
        if priced.estimate.hint and not (autocast and priced.estimate.hint[0] == "GF103"):
            self.say(priced.estimate.hint[0], node, priced.estimate.hint[1])
        if priced.met:
            for pair in priced.met:
                self.equalities[pair] = graph is self.program or self.equalities.get(pair, False)
            is_recorded = not (self.derives or self.binding.moved)
            for a, b, is_broadcast in priced.met if is_recorded else ():
                sizes = evaluate(a, self.binding.hints), evaluate(b, self.binding.hints)
                is_one = is_broadcast and 1 in sizes
                if not is_one and None not in sizes and sizes[0] != sizes[1]:
                    text = f"requires {a} = {b}, which are {sizes[0]} and {sizes[1]} in the file"
                    self.say("GF102", node, text)
            # A data-dependent size becomes what an asserted sum leaves for it: `u2 = s0 - u0 - u1`.
            is_asserted = node.operator.name == "check" and graph is self.program
            for difference in (a - b for a, b, _ in priced.met if is_asserted):
                names = difference.symbols & self.unbacked if isinstance(difference, Expr) else ()
                for name in sorted(names, reverse=True):
                    ((own, _),) = symbol(name).terms.items()
                    rest = symbol(name) - difference * terms_of(difference).get(own, 0)
                    if isinstance(rest, int) or name not in rest.symbols:
                        self.unbacked.remove(name)
                        self.binding.learn(name, rest)
                        values.update({key: put_in(value, {name: rest}) for key, value in values.items()})
                        break
        if self.fallback is not None:
            self._take_derived(node, priced, values, graph, self.fallback)
        else:
            self._take_recorded(node, priced, values, graph, autocast)

    def _take_recorded(
        self, node: Node, priced: Priced, values: dict[str, Value], graph: Graph, autocast: bool
    ) -> None:
        derived, is_step, contents = priced.estimate.out, graph.step is not None, self.contents[graph]
        if priced.state != "unknown" and len(derived) != len(node.outputs):
            wanted = len(node.outputs)
            if self.binding.moved:
                text = f"it would give {len(derived)} results, the program takes {wanted}; {_EXPORT_DYNAMIC}"
                raise ModelError(f"{place_of(node)}: {text}")
            self.say("GF105", node, f"rule gives {len(derived)} results, the file records {wanted}")
        for index, name in enumerate(node.outputs):
            ours = derived[index] if index < len(derived) else None
            if is_step and priced.state != "unknown" and isinstance(ours, TensorType) is (name is None):
                text = f"rule gives {ours} as result {index}, the file {name and 'a tensor'}"
                self.say("GF105", node, text)
            if name is None:
                continue
            recorded = self.binding.value(graph, name)
            if recorded is None or _is_same(ours, recorded):
                value = ours
            else:
                if self.unbacked and self._learns(ours, recorded):
                    recorded = self.binding.value(graph, name)
                is_known = ours is not None or priced.state != "unknown"
                is_fixed = node.operator.kind not in _KEPT_BY_DEVICE
                is_compared = is_known and (is_fixed or name in graph.used or is_step)
                chosen = autocast
                if index and node.operator.kind == "normalisation":  # 16-bit norms: float32 on a GPU
                    dtypes = getattr(ours, "dtype", None), getattr(recorded, "dtype", None)
                    chosen |= dtypes[0] in (FLOAT16, BFLOAT16) and dtypes[1] is FLOAT32
                value = self._agreed(node, ours, recorded, chosen, is_compared)
            values[name] = value
            if getattr(value, "value", None) is not None:
                contents.add(name)
        if contents and _writes(node):  # which values share the written memory is not tracked
            known = ((name, values[name]) for name in contents)
            values.update((name, replace(x, value=None)) for name, x in known if isinstance(x, TensorType))
            contents.clear()

    def _take_derived(
        self, node: Node, priced: Priced, values: dict[str, Value], graph: Graph, fallback: FallbackTypes
    ) -> None:
        """Fix the type of each result of a file without recorded types: the derived one, or else the best known."""
        derived = priced.estimate.out
        # A mask that is not used is none of the results of a dropout; operators of runtimes may have more than are known.
        counts_all = node.operator.dialect == "onnx" and not node.operator.is_random
        more = [name for name in node.outputs[len(derived) :] if counts_all or name is not None]
        is_short = node.operator.kind == "control" and len(node.outputs) < len(derived)
        if (more or is_short) and priced.state != "unknown":
            self.say("GF105", node, f"rule gives {len(derived)} results, the file names {len(node.outputs)}")
        for name, value in zip_longest(node.outputs, derived):
            if name is None:
                continue
            if value is not None and not isinstance(value, UnknownType):
                fallback.compare(name, value, graph)
                if priced.outgrown:  # sizes that are too large to compute with get names
                    for size in outgrown(value):
                        if size not in self.named:
                            self.named[size] = self.names.fresh("size")
                            text = "the expression of a size grows too large: the size is called"
                            self.say("GF116", node, f"{text} {self.named[size]}")
                    value = with_sizes(value, lambda x: self.named.get(x, x) if isinstance(x, Expr) else x)
            else:
                value = fallback.of(name, value, graph)
                if priced.state != "unknown" and value is (graph.declared or {}).get(name):
                    self._alone(node, name)
                value = put_in(value, {n: self.fresh(n) for n in placeholders_in(sizes_in(value))})
            values[name] = value

    def _learns(self, ours: Value, recorded: Value) -> bool:
        """Bind an unbacked symbol of the file (`u0`) to the size derived for it; True if there was one."""
        if isinstance(ours, TensorType) and isinstance(recorded, TensorType):
            told = map(self._learns, ours.shape, recorded.shape) if ours.rank == recorded.rank else ()
            return sum(told) > 0  # no axis is skipped
        if not isinstance(recorded, Expr) or not isinstance(ours, (int, Expr)) or isinstance(ours, bool):
            return False
        name = str(recorded)
        used = ours.symbols if isinstance(ours, Expr) else frozenset()
        is_open = name in self.unbacked and name not in self.claims.told
        if not is_open or not self.unbacked.isdisjoint(used) or placeholders_in((ours,)):
            return False
        self.unbacked.remove(name)
        self.binding.learn(name, ours)
        return True

    def _agreed(self, node: Node, ours: Value, recorded: Value, chosen: bool, used: bool) -> Value:
        """Chooses one of two different types and adds a diagnostic. It adds none for an element type that is `chosen` by
        autocasting or by a device (16-bit norms keep float32 statistics on a GPU), and none if `used` is False: unused
        results of operators whose kernels keep different statistics and workspaces on different devices.
        """
        if self.binding.moved:
            return recorded if ours is None else ours
        if isinstance(recorded, float) and self.binding.given:
            # A float that sizes determine is recorded at the export's example, and stays when sizes are given.
            return ours if isinstance(ours, (int, float)) else recorded
        is_packed = ours is None and isinstance(recorded, TensorType) and not node.operator.is_python
        differs = used and not is_packed and self.claims.contradict(ours, recorded)
        if not isinstance(ours, TensorType) or not isinstance(recorded, TensorType):
            if differs:
                self.say(
                    "GF127", node, f"computes {shown(str(ours))}, the file records {shown(str(recorded))}"
                )
            return ours if node.operator.kind == "comparison" and isinstance(ours, Expr) else recorded
        if differs or ours.rank != recorded.rank or any(map(differ, ours.shape, recorded.shape)):
            if used:
                self.say("GF102", node, f"derived {ours}, the file records {recorded}")
            return replace(recorded, requires_grad=ours.requires_grad)
        is_chosen = chosen and ours.dtype.is_floating and recorded.dtype in (FLOAT16, BFLOAT16, FLOAT32)
        if ours.dtype is not recorded.dtype and used and not is_chosen:
            self.say("GF103", node, f"derived {ours}, the file records {recorded}")
        return replace(ours, shape=recorded.shape, dtype=recorded.dtype)

    def say(self, code: str, node: Node, message: str) -> None:
        """Keep a diagnostic: one per operator, or one for all calls, for kinds that would repeat at every call."""
        where = node.op if code == "GF101" else "" if message == RANKLESS else node.name
        self.notes.say(code, node.name, message, message if code == "GF117" else where)


def _writes(node: Node) -> bool:
    """Whether a call, or one in a graph nested in it, changes a tensor. Detaching keeps contents."""
    if node.operator.writes_operands:
        return node.operator.kind != "identity"
    return any(_writes(inner) for graph in nested_graphs(node) for inner in graph.nodes)


def _is_same(ours: Value, recorded: Value) -> bool:
    if not isinstance(ours, TensorType) or not isinstance(recorded, TensorType):
        return False
    return ours.shape == recorded.shape and ours.dtype is recorded.dtype


def place_of(node: Node) -> str:
    """A call in words: its name, its line of code if known, its operator."""
    source = f" ({shown(node.source)})" if node.source else ""
    return f"{shown(node.name)}{source}, {shown(node.op)}"
