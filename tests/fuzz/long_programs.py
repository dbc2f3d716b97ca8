"""Long programs of simple shapes, in which superlinear work shows: each a function of the number of calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.exporters.build import call, meta, program, save, size, tensor

_ATEN = "torch.ops.aten."
_SIDE = 64
Made = tuple[list[Any], dict[str, Any], str]  # calls, types of values, the result


def _square(name: str) -> dict[str, Any]:
    return meta(_SIDE, _SIDE, requires_grad=name.startswith("p"))


def _typed(nodes: list[Any], result: str) -> Made:
    """The program of calls on square matrices: `x` and parameters `p...` come from outside."""
    names = {"x", *(node["outputs"][0]["as_tensor"]["name"] for node in nodes)}
    for node in nodes:
        for entry in node["inputs"]:
            arg = entry["arg"]
            names |= {one["name"] for one in arg.get("as_tensors", ())} | {
                arg[key]["name"] for key in ("as_tensor",) if key in arg
            }
    return nodes, {name: _square(name) for name in sorted(names)}, result


def _unary(word: str, name: str, out: str) -> Any:
    return call(_ATEN + word, tensor(name), out=out)


def _binary(word: str, one: str, other: str, out: str) -> Any:
    return call(_ATEN + word, tensor(one), tensor(other), out=out)


def chain(count: int) -> Made:
    """One elementwise call after another."""
    nodes = [_binary("mul.Tensor", "x", "p", "v0")]
    nodes += [_unary("relu.default", f"v{i}", f"v{i + 1}") for i in range(count)]
    return _typed(nodes, f"v{count}")


def fan(count: int) -> Made:
    """One value that every other call reads, and a sum of all results."""
    nodes = [_binary("mul.Tensor", "x", "p", "h"), _unary("relu.default", "h", "s0")]
    for i in range(count // 2):
        nodes.append(_unary("sigmoid.default", "h", f"v{i}"))
        nodes.append(_binary("add.Tensor", f"s{i}", f"v{i}", f"s{i + 1}"))
    return _typed(nodes, f"s{count // 2}")


def layers(count: int) -> Made:
    """Linear layers, each in a module of its own."""
    nodes = []
    for i in range(count):
        stack = {"nn_module_stack": f"L['self'],,M;L['self'].l{i},l{i},torch.nn.Linear"}
        x = tensor(f"v{i - 1}" if i else "x")
        nodes.append(call(_ATEN + "linear.default", x, tensor(f"p{i}"), out=f"v{i}", metadata=stack))
    return _typed(nodes, f"v{count - 1}")


def in_place(count: int) -> Made:
    """Views of views, written in place."""
    nodes = [_binary("mul.Tensor", "x", "p", "v0")]
    for i in range(count):
        turned = call(_ATEN + "transpose.int", tensor(f"v{i}"), {"as_int": 0}, {"as_int": 1}, out=f"t{i}")
        nodes += [turned, _unary("relu_.default", f"t{i}", f"v{i + 1}")] if i % 2 else []
        nodes += [] if i % 2 else [_binary("add_.Tensor", f"v{i}", "x", f"v{i + 1}")]
    return _typed(nodes, f"v{count}")


def crossed(count: int) -> Made:
    """Values that are read in the opposite order of that in which they are made."""
    half = count // 2
    nodes = [_binary("mul.Tensor", "x", "p", f"a{i}") for i in range(half)]
    nodes.append(_unary("relu.default", "x", "b0"))
    nodes += [_binary("mul.Tensor", f"b{i}", f"a{half - 1 - i}", f"b{i + 1}") for i in range(half)]
    return _typed(nodes, f"b{half}")


def attentions(count: int) -> Made:
    """Attention after attention."""
    nodes = [_binary("mul.Tensor", "x", "p", "v0")]
    for i in range(count):
        given = [tensor(f"v{i}")] * 3
        nodes.append(call(_ATEN + "scaled_dot_product_attention.default", *given, out=f"v{i + 1}"))
    return _typed(nodes, f"v{count}")


def symbols(count: int) -> Made:
    """Operands that each have a size of their own."""
    nodes = [_binary("mul.Tensor", f"x{i}", "p", f"v{i}") for i in range(count)]
    values = {name: meta(size(f"s{i}", 64), _SIDE) for i in range(count) for name in (f"x{i}", f"v{i}")}
    return nodes, {**values, "p": meta(_SIDE, requires_grad=True)}, f"v{count - 1}"


SHAPES: tuple[Callable[[int], Made], ...] = (*(chain, fan, layers, in_place, crossed, attentions, symbols),)


def written(shape: Callable[[int], Made], count: int, path: Path) -> Path:
    """The file of a program of so many calls."""
    nodes, values, result = shape(count)
    made = {node["outputs"][0]["as_tensor"]["name"] for node in nodes}
    given = [name for name in values if name not in made]
    weights = [
        {"parameter": {"arg": {"name": name}, "parameter_name": f"{name}.weight"}}
        for name in given
        if name.startswith("p")
    ]
    inputs = [{"user_input": {"arg": tensor(name)}} for name in given if not name.startswith("p")]
    ranges = {f"s{i}": {"min_val": 2, "max_val": None} for i in range(count)} if shape is symbols else {}
    outputs = [{"user_output": {"arg": tensor(result)}}]
    return save(path, program(nodes, values, [*weights, *inputs], outputs, range_constraints=ranges))
