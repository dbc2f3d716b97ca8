"""Changes an ONNX file as the checks of an audit say, with onnx-ir. Runs in a child process.

Weights in external files stay where they are and are not read, unless a fix computes with them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from graphflops.onnx_audit.registry import Edit
from graphflops.runtime.onnx_run import opened_session

_UNARY_FIRST = frozenset({"Transpose", "Cast", "Reshape"})  # the first operand of these may be another one


def apply(source: str, target: str, folder: str, fixes: Sequence[Sequence[Edit]]) -> list[int]:
    """Write the file at `source` with the fixes to `target`; returns the places of the fixes that could be applied.

    folder: the folder of the file's external data.
    """
    model = ir.load(source, format="protobuf")
    ir.external_data.set_base_dir(model.graph, folder)
    editor = _Editor(model, folder)
    applied = [place for place, edits in enumerate(fixes) if editor.apply(edits)]
    editor.finish()
    ir.save(model, target, format="protobuf")
    return applied


class _Editor:
    """The values of a model by name, without names that several nested graphs use, and the changes of them."""

    def __init__(self, model: ir.Model, folder: str) -> None:
        self.model = model
        self.folder = folder
        values = [value for graph in model.graphs() for value in _values(graph)]
        times = Counter(value.name for value in values)
        self.values = {str(value.name): value for value in values if times[value.name] == 1}
        self.idle = {id(value) for value in values if not (value.uses() or value.is_graph_output())}
        # Names, by kind of edit.
        self.waiting: dict[str, list[str]] = {"stored": [], "folded": [], "dropped": []}

    def apply(self, edits: Sequence[Edit]) -> bool:
        """Apply all of these, or none: False if a value is not there, or an input or output would be lost."""
        possible = all(edit.kind == "functions" or self._can(edit) for edit in edits)
        for edit in edits if possible else ():
            if edit.kind in self.waiting:
                self.waiting[edit.kind].append(edit.value)
            else:
                self._change(edit)
        return possible

    def finish(self) -> None:
        """Apply together the changes that need a session or a library's rule, and remove what became unused."""
        # computed once by onnxruntime's own kernels, and stored under their names
        if names := self.waiting["stored"]:
            values = [self.values[name] for name in names]
            graph, functions = ir.convenience.extract(self.model.graph, [], values), self.model.functions
            part = ir.Model(graph, ir_version=self.model.ir_version, functions=list(functions.values()))
            session = opened_session(ir.to_proto(part).SerializeToString(), self.folder, is_alike=True)
            for name, array in zip(names, session.run(names, {}), strict=True):
                self._keep(name, array)
        self._fold(self.waiting["folded"])
        # remove what nothing uses any more, and what is to be dropped; what was idle before stays
        wanted = set[int]()
        waiting = [self.values[name] for name in self.waiting["dropped"]]
        while waiting:  # its users reach no output either
            value = waiting.pop()
            wanted.add(id(value))
            waiting += [made for node, _ in value.uses() for made in node.outputs if id(made) not in wanted]
        for graph in self.model.graphs():
            for node in reversed(list(graph)):
                free = all(not value.uses() and not value.is_graph_output() for value in node.outputs)
                if free and any(id(value) not in self.idle or id(value) in wanted for value in node.outputs):
                    graph.remove(node, safe=True)
            for name, value in list(graph.initializers.items()):
                kept = value.uses() or value.is_graph_output() or value.is_graph_input()
                if not kept and (id(value) not in self.idle or id(value) in wanted):
                    del graph.initializers[name]

    def _can(self, edit: Edit) -> bool:
        value, other = self.values.get(edit.value), self.values.get(edit.other)
        if value is None or value.is_graph_input() or (edit.other and other is None):
            return False
        node = value.producer()
        match edit.kind:
            case "instead":
                assert other is not None
                outside = other.graph is self.model.graph and other.producer() is None
                if other.graph is not value.graph and not outside:
                    return False  # made in another branch
                # `other` takes the name of the program's result, unless it is stored, an input or another result.
                return not value.is_graph_output() or not (outside or other.is_graph_output())
            case "operand":
                return node is not None and not node.domain and node.op_type in _UNARY_FIRST
            case "scalar" | "vector":
                return node is not None and (value.graph is self.model.graph or not value.is_graph_output())
            case "stored" | "folded" | "attention":
                known = self.values.keys() >= set(edit.operands)
                return value.graph is self.model.graph and node is not None and known
        return edit.kind != "dropped" or not value.is_graph_output()

    def _change(self, edit: Edit) -> None:
        if edit.kind == "functions":
            RemoveUnusedFunctionsPass()(self.model)  # type: ignore[no-untyped-call]
            return
        value = self.values[edit.value]
        match edit.kind:
            case "instead":
                other, name = self.values[edit.other], value.name
                if value.is_graph_output():
                    value.name, other.name = None, name
                    other.type, other.shape = value.type or other.type, value.shape or other.shape
                ir.convenience.replace_all_uses_with(value, other, replace_graph_outputs=True)
            case "operand":
                node = value.producer()
                assert node is not None
                node.replace_input_with(0, self.values[edit.other])
                if edit.numbers:
                    node.attributes["perm"] = ir.AttrInt64s("perm", edit.numbers)
            case "attention":
                self._fuse(value, edit)
            case "scalar" | "vector":
                numbers = np.array(edit.numbers, np.int64)
                self._keep(edit.value, numbers if edit.kind == "vector" else numbers[0])
            case "undeclared":
                value.shape = value.type = None
            case "sized":
                axis, size = edit.numbers
                assert value.shape is not None
                value.shape = ir.Shape([*value.shape[:axis], size, *value.shape[axis + 1 :]])

    def _fuse(self, value: ir.Value, edit: Edit) -> None:
        """Let one Attention make a value, under the name of the call that made it."""
        before, name = value.producer(), value.name
        assert before is not None
        made = ir.Value(type=value.type, shape=value.shape)
        operands = [self.values[operand] for operand in edit.operands]
        attributes = ir.convenience.convert_attributes({"scale": edit.scale})
        node = ir.Node("", "Attention", operands, attributes, outputs=[made], name=before.name)
        node.metadata_props.update(before.metadata_props)
        value.graph.insert_before(before, node)  # type: ignore[union-attr]
        ir.convenience.replace_all_uses_with(value, made, replace_graph_outputs=True)
        value.name, made.name = None, name
        self.values[edit.value] = made

    def _keep(self, name: str, array: Any) -> None:
        value = self.values[name]
        value.name = None
        self.values[name] = stored = ir.val(name, const_value=ir.tensor(array, name=name))
        self.model.graph.register_initializer(stored)
        ir.convenience.replace_all_uses_with(value, stored, replace_graph_outputs=True)

    def _fold(self, names: Sequence[str]) -> None:
        """Make batch norms part of the convolutions before them, which keep their names, by a rule of onnxscript."""
        if not names:
            return
        from onnxscript import rewriter
        from onnxscript.rewriter.rules.common import _fuse_batchnorm as library

        norms = {name: self.values[name].producer() for name in names}
        convolutions = {name: norm.inputs[0].producer() for name, norm in norms.items()}  # type: ignore[union-attr]

        class Chosen(library.FuseBatchNormIntoConv):
            def check(self, context: Any, x: Any, inbound_out: Any, batchnorm_out: Any) -> Any:
                if batchnorm_out.name in names:
                    return super().check(context, x, inbound_out, batchnorm_out)
                return rewriter.MatchResult().fail("not chosen")

        rewriter.RewriteRuleSet([Chosen.rule()]).apply_to_model(self.model)  # type: ignore[no-untyped-call]
        for value in _values(self.model.graph):
            before, node = convolutions.get(str(value.name)), value.producer()
            if before is not None and node is not None and node.op_type == "Conv":
                node.name = before.name
                node.metadata_props.clear()
                node.metadata_props.update(before.metadata_props)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from (value for value in node.outputs if value.name)
