"""Small `.pt2` files made for a test: the JSON that torch writes, in an archive as torch lays it out."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from graphflops.errors import FileError
from graphflops.exporters import load
from graphflops.graph import Graph, Node
from graphflops.ops.operator import orders

DATA = Path(__file__).parent.parent / "data" / "pt2"


def size(value: int | str, hint: int | None = None) -> dict[str, Any]:
    """A size: a number, or an expression with its example value."""
    if isinstance(value, int):
        return {"as_int": value}
    return {"as_expr": {"expr_str": value, "hint": None if hint is None else {"as_int": hint}}}


def meta(*sizes: int | str | dict[str, Any], dtype: int = 7, **fields: Any) -> dict[str, Any]:
    """A tensor's recorded type, float32 unless said."""
    listed = [entry if isinstance(entry, dict) else size(entry) for entry in sizes]
    zero = {"as_int": 0}
    return {
        "dtype": dtype,
        "sizes": listed,
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": 1} for _ in listed],
        "storage_offset": zero,
        "layout": 7,
    } | fields


def tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def call(
    target: str,
    *inputs: Any,
    out: str | list[Any] = "y",
    metadata: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A call: each input is an argument, or (name, argument) for a keyword; `out` names its results."""
    op = target.removeprefix("torch.ops.")
    names = next(iter(orders(op)), ())
    other = "" if op.startswith("higher_order.") else "a{}"
    listed = [
        {"name": item[0], "arg": item[1], "kind": 2}
        if isinstance(item, tuple)
        else {"name": names[index] if index < len(names) else other.format(index), "arg": item, "kind": 1}
        for index, item in enumerate(inputs)
    ]
    outputs = [tensor(out)] if isinstance(out, str) else out
    return {"target": target, "inputs": listed, "outputs": outputs, "metadata": metadata or {}} | fields


def graph(
    inputs: list[Any], nodes: list[Any], outputs: list[Any], values: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """A graph; `values` are the types of its tensors."""
    return {
        "inputs": inputs,
        "outputs": outputs,
        "nodes": nodes,
        "tensor_values": values,
        "sym_int_values": {},
        "sym_bool_values": {},
        "is_single_tensor_return": False,
        "custom_obj_values": {},
        "sym_float_values": {},
    } | fields


def program(
    nodes: list[Any] | None = None,
    values: dict[str, Any] | None = None,
    inputs: list[Any] | None = None,
    outputs: list[Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A program `x -> y`, one relu unless said; `inputs` and `outputs` are specs of the signature."""
    nodes = [call("torch.ops.aten.relu.default", tensor("x"))] if nodes is None else nodes
    values = {"x": meta(4, 8), "y": meta(4, 8)} if values is None else values
    inputs = [{"user_input": {"arg": tensor("x")}}] if inputs is None else inputs
    outputs = [{"user_output": {"arg": tensor("y")}}] if outputs is None else outputs
    whole = graph(listed(inputs), nodes, listed(outputs), values) | fields.pop("graph", {})
    return {
        "graph_module": {"graph": whole, "signature": {"input_specs": inputs, "output_specs": outputs}},
        "opset_version": {"aten": 10},
        "range_constraints": {},
        "schema_version": {"major": 8, "minor": 20},
        "torch_version": "2.13.0+cpu",
    } | fields


def listed(specs: list[Any]) -> list[Any]:
    """The inputs or outputs of a graph that have these specs."""
    given = [next((value for value in spec.values() if value is not None), {}) for spec in specs]
    args = [value.get("arg", value.get("value")) for value in given]
    return [{"as_tensor": arg} if "name" in arg else arg for arg in args if arg is not None]


def save(
    path: Path,
    content: dict[str, Any] | bytes | str,
    member: str = "m/models/model.json",
    extra: dict[str, bytes] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Write an archive with a program and whatever else is asked for."""
    data = json.dumps(content).encode() if isinstance(content, dict) else content
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(member, data)
        for name, other in (extra or {}).items():
            archive.writestr(name, other)
    return path


FILES = sorted(DATA.glob("*.pt2"))
LANGUAGE_MODELS = sorted(DATA.glob("lm_dynamic-*.pt2"))
SMALL = DATA / "conv_static-torch2.13.0.pt2"
PROGRAM = "m/models/model.json"


def node(graph: Graph, name: str) -> Node:
    return next(entry for entry in graph.nodes if entry.name == name)


def parameters(graph: Graph) -> int:
    return sum(
        graph.types[entry.name].numel  # type: ignore[union-attr, misc]
        for entry in graph.inputs
        if entry.role == "parameter" and not entry.alias_of
    )


def refused(path: Path, *says: str, seconds: float = 5.0) -> str:
    """The message with which a file is refused: one printable line that says all of this."""
    started = time.process_time()
    with pytest.raises(FileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.isprintable(), repr(message)
    assert len(message) < 1200
    for part in says:
        assert part in message, message
    assert time.process_time() - started < seconds
    assert caught.value.__cause__ is None
    return message
