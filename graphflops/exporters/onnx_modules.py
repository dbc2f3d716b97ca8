"""Finds the module of each call of an ONNX file where the file records none, or a wrong one.

A call's module is "recorded" in metadata; "rewritten" if an exporter's optimizer replaced other calls by this one; "named"
by the call's name, such as `/blocks/blocks.0/fc/MatMul`; or unknown ("none") for calls that a quantizer added. A parameter's
name decides for rewritten and unknown ones, and completes a path from a call's name; others inherit their neighbours'.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from graphflops.base.record import replace
from graphflops.exporters.sources import REPEATED, Evidence, unquantized
from graphflops.graph import Argument, Graph, Input, Node

_PARAMETER = re.compile(r"(?:[A-Za-z_]\w*|\d+)(?:\.\w+)+", re.ASCII)  # `blocks.0.fc.weight`
_GENERATED = re.compile(r".*_\d+|.*[^\w.].*|\d.*", re.ASCII | re.DOTALL)  # `val_7`, `onnx::Conv_42`
_SCALES = ("_scale", "_zero_point")


class Placement:
    """The modules of a program's calls. evidence: by name of a call, how its module is known; "recorded" if not listed."""

    def __init__(
        self, nodes: Sequence[Node], inputs: Sequence[Input], evidence: Mapping[str, Evidence]
    ) -> None:
        self.nodes, self.inputs, self.evidence = nodes, inputs, evidence
        self.stored = {entry.name: _owner(entry.target) for entry in inputs if entry.role != "user"}
        self.users: dict[str, list[Node]] = defaultdict(list)
        self.operands: dict[str, tuple[str, ...]] = {}
        self.elsewhere: set[str] = set()  # values that recorded calls or several modules use
        rewritten: dict[str, str] = {}
        for node in nodes:
            self.operands[node.name] = used = node.reads()
            for name in used:
                self.users[name].append(node)
            if self._how(node) == "recorded":
                self.elsewhere.update(used)
            elif self._how(node) == "rewritten":
                own = node.module
                self.elsewhere.update(name for name in used if rewritten.setdefault(name, own) != own)
        # The module that a parameter's name decides, else the one that is recorded or named.
        self.modules = {
            node.name: (self._by_weight(node) if self._how(node) in ("rewritten", "none") else "")
            or node.module
            for node in nodes
        }
        # Completes paths from names of calls by enclosing modules that only names of parameters show.
        whole: dict[str, str] = {}
        owners = set(self.stored.values())
        for node in nodes:
            if self._how(node) == "named" and node.module and node.module not in owners:
                for name in self.operands[node.name]:
                    pairs = _aligned(node.module.split("."), self.stored.get(name, "").split("."))
                    whole = {prefix: path for prefix, path in pairs.items() if prefix != path} | whole
        self._rename(whole)
        self._rename(self._second_calls())
        self._inherit()

    def _how(self, node: Node) -> Evidence:
        return self.evidence.get(node.name, "recorded")

    def _second_calls(self) -> dict[str, str]:
        """By path of a module's second call (`head.0_1`): the path of its first call, which uses the same parameters."""
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
            parent, first = renamed(parent, found), REPEATED.sub("", last)
            if first not in ("", last) and path not in owners:
                first = f"{parent}.{first}" if parent else first
                if first in uses and uses[path] <= uses[first]:
                    found[path] = renamed(first, found)
        return found

    def _by_weight(self, node: Node) -> str:
        """The module of the parameter that a call uses; "" if calls of other modules use the parameter too."""
        for name in self.operands[node.name]:
            if name.endswith(_SCALES):
                continue
            # The operand is a stored tensor, or one that is dequantized, as the name that onnxruntime gives it shows.
            base = unquantized(name)
            forms = (self.stored[form] for form in (f"{base}_quantized", base) if form in self.stored)
            owner = self.stored.get(name) or next(forms, "")
            if owner and name not in self.elsewhere:
                return owner
        return ""

    def _rename(self, paths: Mapping[str, str]) -> None:
        """Replace prefixes of those paths that come from names of calls."""
        if paths:
            named = [node.name for node in self.nodes if self._how(node) == "named"]
            known = {path: renamed(path, paths) for path in {self.modules[name] for name in named}}
            self.modules.update((name, known[self.modules[name]]) for name in named)

    def _inherit(self) -> None:
        """Give each call without a module that of the calls that use its results or make its operands: the deeper one."""
        open_ = [node for node in self.nodes if self._how(node) == "none" and not self.modules[node.name]]
        makers = {name: node for node in self.nodes for name in node.outputs if name is not None}
        after: dict[str, str | None] = {}
        for node in reversed(open_):
            after[node.name] = self._used_by(node, after)
        before: dict[str, str] = {}
        for node in open_:
            made = [makers[name] for name in self.operands[node.name] if name in makers]
            inside = [before.get(maker.name) or self._around(maker) for maker in made]
            before[node.name] = max(inside, key=_depth, default="")
            self.modules[node.name] = max((after[node.name] or "", before[node.name]), key=_depth)

    def _used_by(self, node: Node, after: Mapping[str, str | None]) -> str | None:
        """The module that uses a call's results: if an addition of a bias does, its own; if a layer does, the one around."""
        for user in (user for name in node.outputs for user in self.users.get(name or "", ())):
            if user.name not in after:
                is_bias = user.operator.name == "add" and self._has_weight(user)
                return self.modules[user.name] if is_bias else self._around(user)
            if after[user.name] is not None:
                return after[user.name]
        return None

    def _around(self, node: Node) -> str:
        """The module around the layer, for a call with parameters; any other call's own module."""
        module = self.modules[node.name]
        return module.rpartition(".")[0] if self._has_weight(node) else module

    def _has_weight(self, node: Node) -> bool:
        module = self.modules[node.name]
        return bool(module) and any(self.stored.get(name) == module for name in self.operands[node.name])

    def owned(self, entry: Input) -> Input:
        """The input. A stored tensor whose name an exporter made up is put in the module of the first call that uses it."""
        base, users = unquantized(entry.target), self.users.get(entry.name)
        is_made_up = entry.role != "user" and not _PARAMETER.fullmatch(base) and _GENERATED.fullmatch(base)
        if not is_made_up or not users:
            return entry
        name = entry.target.rpartition("/")[2].replace(".", "_")
        return replace(entry, target=".".join(filter(None, (self.modules[users[0].name], name))))


def placed(
    nodes: Sequence[Node], inputs: Sequence[Input], modules: Mapping[str, str], evidence: Mapping[str, Evidence]
) -> tuple[tuple[Node, ...], tuple[Input, ...], dict[str, str]]:  # fmt: skip
    """The calls and stored tensors in their modules, and the type of each module by path."""
    placement = Placement(nodes, inputs, evidence)
    paths = placement.modules
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
    # A path from names of calls may have no call left under it.
    gone = {prefix for before, after in moved.items() if before != after for prefix in _prefixes(before)}
    alive = {prefix for path in paths.values() for prefix in _prefixes(path)} if gone else set()
    empty = {path for path in gone - alive if path in modules}
    kept = {path: kind for path, kind in types.items() if path not in empty}
    return tuple(found), tuple([placement.owned(entry) for entry in inputs]), kept


def _with_nested(node: Node, moved: Mapping[str, str]) -> Node:
    """The call, with new module paths for the calls of graphs in its attributes."""
    if not any(isinstance(value, Graph) for _, value in node.kwargs):
        return node

    def inside(value: Argument) -> Argument:
        if not isinstance(value, Graph):
            return value
        nodes = [replace(each, module=renamed(each.module, moved)) for each in value.nodes]
        return replace(value, nodes=tuple([_with_nested(each, moved) for each in nodes]))

    return replace(node, kwargs=tuple([(key, inside(value)) for key, value in node.kwargs]))


def renamed(path: str, paths: Mapping[str, str]) -> str:
    """The path with its longest prefix that is in `paths` replaced."""
    for prefix in reversed(_prefixes(path)):
        if prefix in paths:
            return paths[prefix] + path[len(prefix) :]
    return path


def _aligned(path: Sequence[str], owner: Sequence[str]) -> dict[str, str]:
    """For each prefix of a path, the matching prefix of the parameter's module; {} if the path does not abbreviate it."""
    if path[-1] != owner[-1]:
        return {}
    found: dict[str, str] = {}
    end = len(owner)
    for length in range(len(path), 0, -1):
        while end and owner[end - 1] != path[length - 1]:
            end -= 1
        if not end:
            return {}
        found[".".join(path[:length])] = ".".join(owner[:end])
        end -= 1
    return found


def _prefixes(path: str) -> list[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _owner(target: str) -> str:
    """The module of a parameter, by its name; "" if the name is not a parameter's."""
    name = unquantized(target)
    return name.rpartition(".")[0] if _PARAMETER.fullmatch(name) else ""


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0
