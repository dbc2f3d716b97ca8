"""Integer and shape arithmetic of ONNX at random, compared with what onnxruntime computes.

    python -m tests.oracle.onnx_integers [--count 100000] [--seed N] [--shard I/N] [--only MODEL]

Each model reads the sizes of its inputs, computes with them (division and remainder of either sign, slices that step
backwards, conversions, shapes that are themselves computed) and makes tensors of the results. Every call is run alone by
onnxruntime, so that each expected number is its own. graphflops analyzes the whole model in three forms:

    fixed   the file states all sizes
    open    the file names its sizes; formulas are evaluated afterwards
    bound   the file names its sizes; they are given to the analysis

A result is *different* where graphflops states a type, a size or a content that onnxruntime contradicts, and *untold* where
it states none. A call that onnxruntime refuses is *missed* where graphflops prices it although every operand is known. Prints each
difference and one summary line; exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from graphflops import analyze
from graphflops.dims import Expr, evaluate
from graphflops.errors import GraphflopsError
from graphflops.tensor import TensorType, flat
from tests.oracle import onnx_shape_calls  # noqa: F401 adds its calls to CALLS
from tests.oracle.onnx_integer_calls import CALLS, Operand, Proposal, Refused

if TYPE_CHECKING:
    from graphflops.report import Report

OPSET = 21
CALLS_EACH = 24
FORMS = ("fixed", "open", "bound")
AXES = ("N", "M", "K")


@dataclass
class Model:
    """A model that grows call by call, with the arrays that onnxruntime computes."""

    seed: int
    sizes: dict[str, int]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def constant(self, array: np.ndarray) -> Operand:
        """A new initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return Operand(name, array)

    def pool(self) -> list[Operand]:
        """All values computed so far, and the inputs."""
        return [Operand(name, array) for name, array in self.arrays.items()]

    def proto(self, form: str) -> onnx.ModelProto:
        """The model as a file. With open sizes it lacks refused calls: what they require holds at no size that is tried."""
        shapes = {"x": AXES, "y": AXES[:1]}
        inputs = [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, [self.sizes[axis] if form == "fixed" else axis for axis in axes]
            )
            for name, axes in shapes.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.expected]
        nodes = [node for node in self.nodes if form != "open" or node.name not in self.refused]
        graph = helper.make_graph(nodes, "integers", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


def node_of(op: str, operands: list[str], results: list[str], attributes: dict[str, Any]) -> onnx.NodeProto:
    """A call, named by its first result; the attribute `value` is a tensor of one element, by its type and number."""
    given = {
        name: numpy_helper.from_array(np.array([value[1]], value[0])) if name == "value" else value
        for name, value in attributes.items()
    }
    return helper.make_node(op, operands, results, results[0], **given)


@cache
def session(
    op: str, kinds: tuple[tuple[str, int], ...], attributes: tuple[tuple[str, Any], ...], results: int
) -> Any:
    """onnxruntime's session of one call with operands of these types and ranks; None where it has no such kernel."""
    names = [f"i{at}" for at in range(len(kinds))]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None] * rank)
        for name, (kind, rank) in zip(names, kinds, strict=True)
    ]
    outs = [f"o{at}" for at in range(results)]
    node = node_of(op, names, outs, dict(attributes))
    graph = helper.make_graph([node], "call", inputs, [helper.make_empty_tensor_value_info(o) for o in outs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:
        return None


def run(call: Proposal) -> list[np.ndarray] | None:
    """What onnxruntime computes; None where it refuses the operands. Raises Refused where it has no kernel for their types."""
    kinds = tuple((operand.array.dtype.name, operand.array.ndim) for operand in call.operands)
    made = session(call.op, kinds, tuple(sorted(call.attributes.items())), call.results)
    if made is None:
        raise Refused
    try:
        found = made.run(None, {f"i{at}": operand.array for at, operand in enumerate(call.operands)})
    except Exception:
        return None
    return [np.asarray(array) for array in found]


def build(seed: int) -> Model:
    """A model of its own for every seed."""
    rng = random.Random(seed)
    model = Model(seed, {axis: rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 7, 7, 8, 8)) for axis in AXES})
    values = np.random.default_rng(seed)
    model.arrays["x"] = values.random([model.sizes[axis] for axis in AXES], np.float32)
    model.arrays["y"] = values.random([model.sizes["N"]], np.float32)
    while len(model.nodes) < CALLS_EACH:
        before = len(model.constants)
        try:
            call = rng.choice(CALLS)(rng, model.pool(), model.constant)
            arrays = run(call)
        except Refused:
            del model.constants[before:]
            continue
        if arrays is not None and any(array.size > 4096 for array in arrays):
            del model.constants[before:]
            continue
        outputs = [f"v{len(model.nodes)}_{at}" for at in range(call.results)]
        model.nodes.append(node_of(call.op, [o.name for o in call.operands], outputs, call.attributes))
        if arrays is None:
            model.refused[outputs[0]] = call.op
        else:
            found = dict(zip(outputs, arrays, strict=True))
            model.arrays.update(found)
            model.expected.update(found)
    return model


def difference(ours: TensorType, array: np.ndarray, sizes: dict[str, int]) -> tuple[str, bool]:
    """What graphflops states wrongly of a result ("" where nothing), and whether it states all."""
    if ours.dtype.name != array.dtype.name:
        return f"element type {ours.dtype}, onnxruntime has {array.dtype}", True
    if ours.rank != array.ndim:
        return f"{ours}, onnxruntime has shape {list(array.shape)}", True
    told = True
    for size, length in zip(ours.shape, array.shape, strict=True):
        known = evaluate(size, sizes)
        told = told and known is not None
        if known not in (None, length):
            return f"{ours}, onnxruntime has shape {list(array.shape)}", True
    if ours.value is None:
        return "", told
    for entry, number in zip(flat((ours.value,)), array.flatten().tolist(), strict=True):
        if isinstance(entry, Expr):
            if ours.dtype.is_floating:
                continue  # a quotient of sizes: seen where it is rounded
            entry = evaluate(entry, sizes)
        told = told and entry is not None
        if entry is not None and entry != number and not (entry != entry and number != number):
            return f"contents {ours.value}, onnxruntime has {array.tolist()}", True
    return "", told


def compare(model: Model, form: str, report: Report, tally: Counter[str]) -> None:
    """Compare every result of a model in one form, and print what is different."""
    sizes = {} if form == "fixed" else model.sizes
    operands = {node.name: set(node.input) for node in model.nodes}
    wrongs: set[str] = set()
    for row in report.rows:
        if row.node in model.refused:
            known = all(isinstance(size, int) for named in row.outputs for size in named.type.shape)
            if form != "open" and row.state != "unknown" and known and row.outputs:
                tally["missed"] += 1
                tally[f"missed {row.op}"] += 1
        for named in row.outputs:
            if named.name not in model.expected or not isinstance(named.type, TensorType):
                continue
            tally["results"] += 1
            wrong, told = difference(named.type, model.expected[named.name], sizes)
            tally["untold"] += not told
            if wrong:
                tally["different"] += 1
                cause = "" if operands[row.node].isdisjoint(wrongs) else " (an operand is different already)"
                wrongs.add(named.name)
                tally[f"different {row.op} {form}"] += 1
                print(
                    f"model {model.seed} {form}{cause}: {named.name} = {row.op}: {wrong}; sizes {model.sizes}"
                )


def check(seed: int, tally: Counter[str], folder: Path) -> None:
    """Build one model and compare it in every form."""
    model = build(seed)
    for form in FORMS:
        if form == "open" and 0 in model.sizes.values():
            continue  # a formula takes the sizes of inputs to be at least 1
        path = folder / f"{form}.onnx"
        onnx.save(model.proto(form), path)
        try:
            report = analyze(path, dims=model.sizes if form == "bound" else None)
        except GraphflopsError as error:
            tally["different"] += 1
            tally[f"different {type(error).__name__}"] += 1
            print(f"model {seed} {form}: {error}; sizes {model.sizes}")
            continue
        compare(model, form, report, tally)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="results to compare")
    parser.add_argument("--seed", type=int, default=0, help="number of the first model")
    parser.add_argument("--shard", default="0/1", help="which part of how many")
    parser.add_argument("--only", type=int, help="this model alone; its file is kept in the folder")
    options = parser.parse_args(arguments)
    part, parts = map(int, options.shard.split("/"))
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        if options.only is not None:
            check(options.only, tally, Path("."))
        seed = options.seed + part
        while options.only is None and tally["results"] < options.count // parts:
            check(seed, tally, Path(folder))
            seed += parts
    for name, number in sorted(tally.items()):
        if " " in name:
            print(f"{name}: {number}")
    print(
        f"{tally['results']} results: {tally['untold']} untold, {tally['missed']} missed, {tally['different']} different"
    )
    return 1 if tally["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
