"""Weights of tensor subclasses: what is stored are the plain tensors that they are made of."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from graphflops import analyze
from graphflops.exporters.pt2 import read
from tests.exporters.build import call, meta, parameters, program, save, tensor

torch = pytest.importorskip("torch")


class Scaled(torch.Tensor):
    """A weight in int8 and a scale for each row."""

    @staticmethod
    def __new__(cls: type, data: Any, scale: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data: Any, scale: Any) -> None:
        self.data_of, self.scale_of = data, scale

    def __tensor_flatten__(self) -> Any:
        return ["data_of", "scale_of"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Scaled(inner["data_of"], inner["scale_of"])

    @classmethod
    def __torch_function__(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight = args[:2]
            return (x @ weight.data_of.to(torch.float32).T) * weight.scale_of
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls: type, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].data_of, args[0].scale_of)
        raise NotImplementedError(func)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weight = Scaled(torch.ones(32, 16, dtype=torch.int8), torch.ones(32))
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight)


def test_a_weight_takes_the_bytes_of_its_parts() -> None:
    """As in the program that torch decomposes, where the parts are parameters."""
    whole = torch.export.export(Layer(), (torch.ones(4, 16),))
    if not any("access_subclass" in str(node.target) for node in whole.graph.nodes):
        pytest.skip("this torch takes subclasses apart when it exports")
    for exported in (whole, whole.run_decompositions()):
        report = analyze(exported)
        assert dict(report.parameter_dtypes) == {"int8": 32 * 16, "float32": 4 * 32}
        assert report.parameters == 32 * 16 + 32
        assert {one.code for one in report.diagnostics} <= {"GF126"}


def taken(whole: str, name: str, out: str) -> dict[str, Any]:
    node = call("torch.ops.export.access_subclass_inner_tensor.default", tensor(whole), out=out)
    node["inputs"].append({"name": "attr", "arg": {"as_string": name}, "kind": 1})
    return node


def nested(*last: dict[str, Any]) -> dict[str, Any]:
    """A weight of two parts, which are parts of a part, each asked for on its own way; last: further calls."""
    inputs: list[dict[str, Any]] = [
        {"parameter": {"arg": {"name": "w"}, "parameter_name": "layer.weight"}},
        {"user_input": {"arg": tensor("x")}},
    ]
    nodes = [
        taken("w", "inner", "a"),
        taken("a", "data", "data"),
        taken("w", "inner", "b"),
        taken("b", "scale", "scale"),
        taken("b", "data", "again"),
        *last,
        call("torch.ops.aten.mul.Tensor", tensor("data"), tensor("again"), out="y"),
        call("torch.ops.aten.mul.Tensor", tensor("y"), tensor("scale"), out="z"),
    ]
    values = {
        name: meta(8, 4, dtype=2 if name in ("data", "again", "y") else 7)
        for name in ("w", "a", "b", "x", "z")
    }
    values |= {name: meta(8, 4, dtype=2) for name in ("data", "again", "y")} | {"scale": meta(8, 1)}
    return program(nodes, values, inputs)


def test_parts_of_parts_count_once(tmp_path: Path) -> None:
    found = read(save(tmp_path / "a.pt2", nested()))
    assert [(entry.name, entry.target) for entry in found.inputs if not entry.alias_of] == [
        ("data", "layer.weight.inner.data"),
        ("scale", "layer.weight.inner.scale"),
        ("x", ""),
    ]
    assert parameters(found) == 8 * 4 + 8


def test_a_weight_that_something_else_reads_too_stays_whole(tmp_path: Path) -> None:
    other = call("torch.ops.aten.relu.default", tensor("w"), out="other")
    content = nested(other)
    content["graph_module"]["graph"]["tensor_values"]["other"] = meta(8, 4)
    found = read(save(tmp_path / "a.pt2", content))
    assert [entry.name for entry in found.inputs] == ["w", "x"]


def test_long_chains_of_parts_take_bounded_memory(tmp_path: Path) -> None:
    names = ["w", *(f"t{place}" for place in range(5000))]
    chain = [taken(whole, "p" * 400, out) for whole, out in pairwise(names)]
    content = nested(*chain)
    nodes = content["graph_module"]["graph"]["nodes"]
    nodes[:] = [*nodes[5:-2], *nodes[:5], *nodes[-2:]]
    content["graph_module"]["graph"]["tensor_values"] |= {name: meta(8, 4) for name in names}
    found = read(save(tmp_path / "a.pt2", content))
    assert max(len(entry.target) for entry in found.inputs) < 2000
