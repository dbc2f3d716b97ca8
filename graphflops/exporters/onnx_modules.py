"""The module of each call of an ONNX file where the file does not record it, or records another one.

What is known of a call's module is its evidence: recorded in metadata; rewritten, where an exporter's optimizer put the
call in the place of others; read off a name such as `/blocks/blocks.0/fc/MatMul`; or nothing, for what a quantizer added.
A parameter's name contains its module, so it decides where a call was rewritten or is without a module,
and completes a path read off a name. Other calls without a module inherit that of their neighbours.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from graphflops.exporters.sources import Evidence, unquantized
from graphflops.graph import Argument, Graph, Input, Node

_PARAMETER = re.compile(r"(?:[A-Za-z_]\w*|\d+)(?:\.\w+)+", re.ASCII)  # `blocks.0.fc.weight`
_GENERATED = re.compile(r".*_\d+|.*[^\w.].*|\d.*", re.ASCII | re.DOTALL)  # `val_7`, `onnx::Conv_42`
_SCALES = ("_scale", "_zero_point")
_REPEATED = re.compile(r"(.+)_\d+", re.ASCII)  # the scope of a second call of one module
_BIAS = frozenset({"add"})


class Placement:
    """The modules of the calls of one program. evidence: by name of a call, what its module is known by; else recorded."""

    def __init__(
        self, nodes: Sequence[Node], inputs: Sequence[Input], evidence: Mapping[str, Evidence]
    ) -> None:
        self.nodes, self.inputs, self.evidence = nodes, inputs, evidence
        self.stored = {entry.name: _owner(entry.target) for entry in inputs if entry.role != "user"}
        self.users: dict[str, list[Node]] = defaultdict(list)
        self.operands: dict[str, tuple[str, ...]] = {}
        self.elsewhere: set[str] = set()  # values that calls use whose module is recorded, or differs
        rewritten: dict[str, str] = {}
        for node in nodes:
            self.operands[node.name] = used = node.reads()
            for name in used:
                self.users[name].append(node)
            if self._how(node) == "recorded":
                self.elsewhere.update(used)
            elif self._how(node) == "rewritten":
                self.elsewhere.update(
                    name for name in used if rewritten.setdefault(name, node.module) != node.module
                )
        # modules as recorded or named, and those that a parameter's name decides
        self.modules = {
            node.name: (self._by_weight(node) if self._how(node) in ("rewritten", "none") else "")
            or node.module
            for node in nodes
        }

    def of_nodes(self) -> dict[str, str]:
        """By call: its module."""
        self._rename(self._completed())
        # by path of the second call of a module (`head.0_1`), the path of the first, which uses the same parameters
        uses: dict[str, set[str]] = {}
        for node in self.nodes:
            if self._how(node) == "named":
                weights = {name for name in self.operands[node.name] if name in self.stored}
                for path in _prefixes(self.modules[node.name]):
                    uses.setdefault(path, set()).update(weights)
        owners = {path for owner in self.stored.values() for path in _prefixes(owner)}
        found: dict[str, str] = {}
        for path in sorted(uses, key=len):
            parent, _, last = path.rpartition(".")
            parent, repeated = renamed(parent, found, {}), _REPEATED.fullmatch(last)
            if repeated is not None and path not in owners:
                first = f"{parent}.{repeated[1]}" if parent else repeated[1]
                if first in uses and uses[path] <= uses[first]:
                    found[path] = renamed(first, found, {})
        self._rename(found)
        self._inherit()
        return self.modules

    def of_inputs(self) -> tuple[Input, ...]:
        """The inputs; a stored tensor whose name an exporter made up belongs to the module of its first call."""
        return tuple([self._owned(entry) for entry in self.inputs])

    def _how(self, node: Node) -> Evidence:
        return self.evidence.get(node.name, "recorded")

    def _by_weight(self, node: Node) -> str:
        """The module of the parameter that a call uses; "" where calls of other modules use the parameter too."""
        for name in self.operands[node.name]:
            if name.endswith(_SCALES):
                continue
            owner = self.stored.get(name) or self.stored.get(self._dequantized(name), "")
            if owner and name not in self.elsewhere:
                return owner
        return ""

    def _dequantized(self, name: str) -> str:
        """The stored tensor that a value is the dequantized form of, by the name that onnxruntime gives the value."""
        base = unquantized(name)
        return next((known for known in (f"{base}_quantized", base) if known in self.stored), "")

    def _completed(self) -> dict[str, str]:
        """By path read off a name, the whole path, with enclosing modules that only names of parameters show."""
        found: dict[str, str] = {}
        owners = set(self.stored.values())
        for node in self.nodes:
            path = node.module
            if self._how(node) != "named" or not path or path in owners:
                continue
            for name in self.operands[node.name]:
                for prefix, whole in _aligned(path.split("."), self.stored.get(name, "").split(".")):
                    if prefix != whole:
                        found.setdefault(prefix, whole)
        return found

    def _rename(self, paths: Mapping[str, str]) -> None:
        """Replace the beginnings of paths read off names."""
        if not paths:
            return
        known: dict[str, str] = {}
        for node in self.nodes:
            if self._how(node) == "named":
                path = self.modules[node.name]
                self.modules[node.name] = renamed(path, paths, known)

    def _inherit(self) -> None:
        """Modules of calls without evidence, the last first: a call serves what uses its results."""
        open_ = {
            node.name for node in self.nodes if self._how(node) == "none" and not self.modules[node.name]
        }
        if not open_:
            return
        makers = {name: node for node in self.nodes for name in node.outputs if name is not None}
        after: dict[str, str | None] = {}
        for node in reversed(self.nodes):
            if node.name in open_:
                after[node.name] = self._used_by(node, after)
        before: dict[str, str] = {}
        for node in self.nodes:
            if node.name in open_:
                made = [makers[name] for name in self.operands[node.name] if name in makers]
                inside = [before.get(maker.name) or self._around(maker) for maker in made]
                before[node.name] = max(inside, key=_depth, default="")
                self.modules[node.name] = max((after[node.name] or "", before[node.name]), key=_depth)

    def _used_by(self, node: Node, after: Mapping[str, str | None]) -> str | None:
        """The module that uses a call's results: of an added bias the bias's, else the one around a layer."""
        for name in node.outputs:
            for user in self.users.get(name or "", ()):
                if user.name in after:
                    module = after[user.name]
                else:
                    module = self.modules[user.name]
                    if user.operator.name not in _BIAS or not self._has_weight(user):
                        module = self._around(user)
                if module is not None:
                    return module
        return None

    def _around(self, node: Node) -> str:
        """The module that calls the layer of a call with parameters; of another call its own module."""
        module = self.modules[node.name]
        return module.rpartition(".")[0] if self._has_weight(node) else module

    def _has_weight(self, node: Node) -> bool:
        module = self.modules[node.name]
        return bool(module) and any(self.stored.get(name) == module for name in self.operands[node.name])

    def _owned(self, entry: Input) -> Input:
        base = unquantized(entry.target)
        if entry.role == "user" or _PARAMETER.fullmatch(base) or not _GENERATED.fullmatch(base):
            return entry
        users = self.users.get(entry.name)
        if not users:
            return entry
        module = self.modules[users[0].name]
        name = entry.target.rpartition("/")[2].replace(".", "_")
        target = f"{module}.{name}" if module else name
        return replace(entry, target=target, alias_of=entry.alias_of)


def placed(
    nodes: Sequence[Node],
    inputs: Sequence[Input],
    modules: Mapping[str, str],
    evidence: Mapping[str, Evidence],
) -> tuple[tuple[Node, ...], tuple[Input, ...], dict[str, str]]:
    """The calls and stored tensors in their modules, and the type of each module by path."""
    placement = Placement(nodes, inputs, evidence)
    paths = placement.of_nodes()
    moved = {node.module: paths[node.name] for node in nodes if evidence.get(node.name) == "named"}
    types = {path: kind for path, kind in modules.items() if moved.get(path, path) == path}
    found = []
    for node in nodes:
        path = paths[node.name]
        if path != node.module:
            for prefix in _prefixes(path):
                types.setdefault(prefix, modules.get(prefix, ""))
        kind = node.module_type if path == node.module else types.get(path, "")
        changed = replace(node, module=path, module_type=kind) if path != node.module else node
        found.append(_with_nested(changed, moved))
    # Paths read off names may have nothing under them any more.
    gone = {prefix for before, after in moved.items() if before != after for prefix in _prefixes(before)}
    alive = {prefix for path in paths.values() for prefix in _prefixes(path)} if gone else set()
    empty = {path for path in gone - alive if path in modules}
    return tuple(found), placement.of_inputs(), {path: k for path, k in types.items() if path not in empty}


def _with_nested(node: Node, moved: Mapping[str, str]) -> Node:
    """The call, the calls of graphs in its attributes under their new paths."""
    if not any(isinstance(value, Graph) for _, value in node.kwargs):
        return node
    known: dict[str, str] = {}

    def inside(value: Argument) -> Argument:
        if not isinstance(value, Graph):
            return value
        nodes = [replace(each, module=renamed(each.module, moved, known)) for each in value.nodes]
        return replace(value, nodes=tuple([_with_nested(each, moved) for each in nodes]))

    return replace(node, kwargs=tuple([(key, inside(value)) for key, value in node.kwargs]))


def renamed(path: str, paths: Mapping[str, str], known: dict[str, str]) -> str:
    """The path with its longest beginning that has another name replaced."""
    found = known.get(path)
    if found is None:
        found = path
        for prefix in [*_prefixes(path)][::-1]:
            if prefix in paths:
                found = paths[prefix] + path[len(prefix) :]
                break
        known[path] = found
    return found


def _aligned(path: Sequence[str], owner: Sequence[str]) -> list[tuple[str, str]]:
    """Each beginning of a path beside that of the parameter's module; [] where the path is no abbreviation of it."""
    if path[-1] != owner[-1]:
        return []
    ends = []
    at = len(owner)
    for part in reversed(path):
        while at and owner[at - 1] != part:
            at -= 1
        if not at:
            return []
        ends.append(at)
        at -= 1
    pairs = zip(range(1, len(path) + 1), reversed(ends), strict=True)
    return [(".".join(path[:length]), ".".join(owner[:end])) for length, end in pairs]


def _prefixes(path: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _owner(target: str) -> str:
    """The module of a parameter by its name; "" where the name is not a parameter's."""
    name = unquantized(target)
    return name.rpartition(".")[0] if _PARAMETER.fullmatch(name) else ""


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0
