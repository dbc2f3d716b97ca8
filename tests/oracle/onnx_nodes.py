"""ONNX's own conformance cases and sample models, read and analyzed, every type compared with the expected outputs.

    python tests/oracle/onnx_nodes.py [--kinds node,light,...] [--only NAME,NAME] [--shard I/N]

Each case of `onnx.backend.test` is a model with inputs and expected outputs. Small operands that shapes can depend on
(integers, booleans, short vectors of floats) are made constants, and what the files state of intermediate values and
results is removed. No node may be unknown, no type may come from anywhere but our rules, and each result's type must be
that of the expected output. A size that only data can tell stays a symbol: only results of the operators in OPEN may have
one. Prints each failure and one summary line; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference.ops import op_pool_common

from graphflops.dims import Expr
from graphflops.errors import GraphflopsError
from graphflops.exporters import onnx_graph
from graphflops.exporters.onnx_proto import dtype_of
from graphflops.graph import Origin
from graphflops.passes.bind import bind
from graphflops.passes.price import price
from graphflops.tensor import OptionalType, SequenceType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.cost import Value
    from graphflops.tensor import DType

KINDS = ("node", "light", "simple", "pytorch-converted", "pytorch-operator")
MOST_INTEGERS, MOST_FLOATS = 64, 16
# Operators some of whose result sizes only data can tell; as it does the lengths of sequences that a model is given.
OPEN = frozenset({"ImageDecoder", "NonMaxSuppression", "StringNormalizer", "StringSplit", "Unique"})
# By name, why an operator is not priced.
UNPRICED = {"Gradient": "its work is that of a part of the program run backwards, which no operand tells"}


class Case(NamedTuple):
    """A model with one set of inputs and expected outputs, as arrays, lists of arrays, TensorProtos or None."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    outputs: list[Any]


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated kinds of models")
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth case from the Ith")
    options = parser.parse_args(arguments)
    shard, shards = map(int, options.shard.split("/"))
    only = [part for part in options.only.split(",") if part]
    count: Counter[str] = Counter()
    operators: set[str] = set()
    for index, case in enumerate(cases(options.kinds.split(","))):
        if index % shards != shard or (only and not any(part in case.name for part in only)):
            continue
        operators.update(node.op_type for node in case.model.graph.node)
        verdict = judge(case)
        count[verdict.partition(":")[0]] += 1
        if verdict not in ("equal", "open", "deviates"):
            print(f"{case.name} {verdict}")
    for name, reason in UNPRICED.items():
        print(f"deviates by name: {name} ({count['deviates']} models): {reason}")
    print(
        f"onnx {onnx.__version__}: {count.total()} models of {len(operators)} operators: {count['equal']} with every result "
        f"as expected, {count['open']} with sizes that only data can tell, {count['deviates']} deviate by name, {count['wrong']} wrong"
    )
    return 1 if count["wrong"] or not count else 0


def cases(kinds: list[str]) -> Iterator[Case]:
    """Every case of the kinds given."""
    data = Path(onnx.__file__).parent / "backend/test/data"
    for kind in kinds:
        if kind == "node":
            yield from _node_cases()
        elif kind == "light":
            for path in sorted((data / kind).glob("*.onnx")):
                model = onnx.load(path)
                output = _stored(path.with_name(f"{path.stem}_output_0.pb"), model.graph.output[0].type)
                yield Case(path.stem, model, [None] * len(model.graph.input), [output])
        else:
            for path in sorted((data / kind).glob("*/model.onnx")):
                yield from _with_data(path, onnx.load(path))


def _node_cases() -> Iterator[Case]:
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        mock.patch.object(op_pool_common, "pool", _pooled),
        # ONNX documents each case by its source, which takes a third of the time in which it makes them.
        mock.patch("onnx.backend.test.case.base.process_snippet", return_value=("", "")),
    ):
        from onnx.backend.test.case.node import collect_testcases

        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        for inputs, outputs, *_ in case.data_sets:
            yield Case(case.name, case.model, list(inputs), list(outputs))


def _pooled(padded: Any, x_shape: Any, kernel: Any, strides: Any, out_shape: Any, *_: Any, **__: Any) -> Any:
    """A pooled tensor without its values, which take ONNX as long as all other cases together: types are compared."""
    return np.zeros((*x_shape[:2], *out_shape), padded.dtype)


def _with_data(path: Path, model: onnx.ModelProto) -> Iterator[Case]:
    for folder in sorted(path.parent.glob("test_data_set_*")):
        inputs, outputs = (
            [_stored(folder / f"{what}_{place}.pb", value.type) for place, value in enumerate(values)]
            for what, values in (("input", _user_inputs(model)), ("output", model.graph.output))
        )
        yield Case(f"{path.parent.parent.name}/{path.parent.name}", model, inputs, outputs)


def _user_inputs(model: onnx.ModelProto) -> list[Any]:
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in stored]


def _stored(path: Path, typed: onnx.TypeProto) -> Any:
    if not path.exists():
        return None
    if typed.HasField("sequence_type"):
        sequence = onnx.SequenceProto.FromString(path.read_bytes())
        return numpy_helper.to_list(sequence)
    if typed.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return onnx.TensorProto.FromString(path.read_bytes())


def judge(case: Case) -> str:
    """`equal`, `open`, `deviates`, or `wrong: why`."""
    try:
        graph = onnx_graph.Program(stripped(case)).graph(Origin(format="onnx"))
        program = price(graph, bind(graph, {}, {}))
    except GraphflopsError as error:
        return f"wrong: {type(error).__name__}: {error}"
    unknown = [row.op for row in program.main.rows if row.state == "unknown"]
    deviates = unknown and all(op.split(".")[-2] in UNPRICED for op in unknown)
    if unknown and not deviates:
        said = [d.message for d in program.notes.found.values() if d.code in ("GF101", "GF104", "GF118")]
        return f"wrong: unknown {unknown}: {said[:1]}"
    guessed = [d.message for d in program.type_sources if d.code == "GF110"]
    if guessed:
        return f"wrong: {guessed[0]}"
    said = [d.message for d in program.notes.found.values() if d.code != "GF108"]
    if said and not deviates:
        return f"wrong: {said[0]}"
    verdict = "deviates" if deviates else "equal"
    for value, expected, derived in zip(case.model.graph.output, case.outputs, program.main.out, strict=True):
        how = compared(derived, expected, value.type)
        if how == "open" and not _may_be_open(case.model):
            return f"wrong: {value.name} is {derived}, expected {spelled(expected)}"
        if how not in ("equal", "open"):
            return f"wrong: {value.name} is {derived}, expected {how}"
        verdict = how if how == "open" else verdict
    return verdict


def _may_be_open(model: onnx.ModelProto) -> bool:
    sequences = any(value.type.WhichOneof("value") != "tensor_type" for value in model.graph.input)
    return sequences or bool(OPEN & {node.op_type for node in model.graph.node})


def stripped(case: Case) -> onnx.ModelProto:
    """The model without stated types of intermediate values and results, small operands as stored tensors."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.ClearField("type")
    for value, held in zip(_user_inputs(case.model), case.inputs, strict=False):
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type" and held is not None:
            proto = held if isinstance(held, onnx.TensorProto) else _proto(held, value)
            if proto is not None and _is_operand(proto):
                stored = model.graph.initializer.add()
                stored.CopyFrom(proto)
                stored.name = value.name
            elif proto is not None:
                _fix_sizes(model, value.name, proto.dims)
    inputs = _user_inputs(
        model
    )  # a stored tensor that is an input too would be a default, whose contents are open
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def _proto(held: Any, value: onnx.ValueInfoProto) -> onnx.TensorProto | None:
    array = np.asarray(held)
    if array.dtype == object:
        return onnx.helper.make_tensor(
            "", onnx.TensorProto.STRING, array.shape, [str(item) for item in array.flat]
        )
    proto = numpy_helper.from_array(array)
    return proto if proto.data_type == value.type.tensor_type.elem_type else None


def _is_operand(proto: onnx.TensorProto) -> bool:
    elements = int(np.prod(proto.dims))
    if proto.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16):
        return elements <= MOST_FLOATS and len(proto.dims) <= 1
    return proto.data_type != onnx.TensorProto.STRING and elements <= MOST_INTEGERS


def _fix_sizes(model: onnx.ModelProto, name: str, dims: Any) -> None:
    """Cases state the sizes of their inputs; a few leave some open that the data then has."""
    for value in model.graph.input:
        if value.name == name:
            value.type.tensor_type.ClearField("shape")
            value.type.tensor_type.shape.SetInParent()
            for size in dims:
                value.type.tensor_type.shape.dim.add().dim_value = size


def compared(derived: Value, expected: Any, typed: onnx.TypeProto) -> str:
    """`equal`, `open` where equal but for symbols, else the type that was expected."""
    if typed.HasField("optional_type"):
        if not isinstance(derived, OptionalType):
            return "an optional value"
        if expected is None:
            return "equal" if derived.present is not True else "an absent value"
        inner = derived.element
        return "open" if inner is None else compared(inner, expected, typed.optional_type.elem_type)
    if typed.HasField("sequence_type"):
        if not isinstance(derived, SequenceType):
            return "a sequence"
        return _compared_sequence(derived, expected, typed.sequence_type.elem_type)
    if expected is None:
        return "equal" if isinstance(derived, TensorType) else "a tensor"
    shape, dtype = typed_as(expected)
    dtype = dtype_of(typed.tensor_type.elem_type) if typed.tensor_type.elem_type else dtype
    if not isinstance(derived, TensorType) or derived.dtype is not dtype or derived.rank != len(shape):
        return f"{dtype}{list(shape)}"
    if any(
        ours != size for ours, size in zip(derived.shape, shape, strict=True) if not isinstance(ours, Expr)
    ):
        return f"{dtype}{list(shape)}"
    return "open" if any(isinstance(size, Expr) for size in derived.shape) else "equal"


def _compared_sequence(derived: SequenceType, expected: list[Any], typed: onnx.TypeProto) -> str:
    if isinstance(derived.length, int) and derived.length != len(expected):
        return f"a sequence of {len(expected)}"
    verdict = "equal" if isinstance(derived.length, int) else "open"
    elements = derived.items or (derived.element,) * len(expected)
    for element, item in zip(elements, expected, strict=True):
        if element is None:
            return "open"
        how = compared(element, item, typed)
        if how not in ("equal", "open"):
            return f"a sequence of {how}"
        verdict = how if how == "open" else verdict
    return verdict


def typed_as(expected: Any) -> tuple[tuple[int, ...], DType]:
    """Shape and element type of an expected tensor."""
    if isinstance(expected, onnx.TensorProto):
        return tuple(expected.dims), dtype_of(expected.data_type)
    array = np.asarray(expected)
    code = (
        onnx.TensorProto.STRING
        if array.dtype == object
        else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    )
    return array.shape, dtype_of(code)


def spelled(expected: Any) -> str:
    """An expected output as failures print it."""
    if isinstance(expected, list):
        return f"a sequence of {', '.join(map(spelled, expected))}"
    if expected is None:
        return "nothing"
    shape, dtype = typed_as(expected)
    return f"{dtype}{list(shape)}"


if __name__ == "__main__":
    sys.exit(main())
