"""Tied weights in `.pt2` files: those that share a payload, and those that only their uses show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphflops.exporters.pt2 import read
from graphflops.graph import Graph
from tests.exporters.build import call, listed, meta, parameters, program, save, tensor


def tied_program(module: str = "head") -> dict[str, Any]:
    stack = "L__self__,,M;L__self__emb,emb,torch.nn.Embedding"
    inputs = [
        {"parameter": {"arg": {"name": "p_emb"}, "parameter_name": "emb.weight"}},
        {"parameter": {"arg": {"name": "p_head"}, "parameter_name": f"{module}.weight"}},
        {"parameter": {"arg": {"name": "p_other"}, "parameter_name": "other.weight"}},
        {"user_input": {"arg": tensor("x")}},
    ]
    nodes = [
        call(
            "torch.ops.aten.embedding.default",
            tensor("p_head"),
            tensor("x"),
            metadata={"nn_module_stack": stack},
        ),
        call("torch.ops.aten.linear.default", tensor("y"), tensor("p_head"), out="z"),
    ]
    values = {name: meta(8, 4) for name in ("p_emb", "p_head", "x", "y", "z")} | {"p_other": meta(9, 4)}
    return program(nodes, values, inputs)


def payloads(**path_names: str) -> dict[str, bytes]:
    names = {"emb": "emb.weight", "head": "head.weight", "other": "other.weight"}
    config = {
        names[key]: {"path_name": path, "is_param": True, "tensor_meta": meta(9 if key == "other" else 8, 4)}
        for key, path in path_names.items()
    }
    return {"m/data/weights/model_weights_config.json": json.dumps({"config": config}).encode()}


def aliases(graph: Graph) -> dict[str, str]:
    return {entry.target: entry.alias_of for entry in graph.inputs if entry.alias_of}


def test_tied_weights_share_a_payload(tmp_path: Path) -> None:
    extra = payloads(emb="weight_0", head="weight_0", other="weight_1")
    extra |= {"m/data/weights/weight_0": bytes(128), "m/data/weights/weight_1": bytes(128)}
    found = read(save(tmp_path / "a.pt2", tied_program(), extra=extra))
    assert aliases(found) == {"head.weight": "emb.weight"}
    assert parameters(found) == 8 * 4 + 9 * 4


def test_fake_weights_share_an_empty_payload(tmp_path: Path) -> None:
    """Weights of a program on fake tensors are stored in one empty member: that ties nothing; use does."""
    extra = payloads(emb="weight_0", head="weight_0", other="weight_0") | {"m/data/weights/weight_0": b""}
    found = read(save(tmp_path / "a.pt2", tied_program(), extra=extra))
    assert aliases(found) == {"head.weight": "emb.weight"}
    assert parameters(found) == 8 * 4 + 9 * 4


def test_tied_weights_of_the_old_layout(tmp_path: Path) -> None:
    found = read(save(tmp_path / "a.pt2", tied_program(), member="serialized_exported_program.json"))
    assert aliases(found) == {"head.weight": "emb.weight"}


def test_a_weight_that_nothing_uses_is_not_tied(tmp_path: Path) -> None:
    assert aliases(read(save(tmp_path / "a.pt2", tied_program("emb.inner")))) == {
        "emb.inner.weight": "emb.weight"
    }
    content = tied_program()
    content["graph_module"]["graph"]["nodes"][0]["metadata"] = {}
    assert aliases(read(save(tmp_path / "b.pt2", content))) == {}


def test_a_module_all_of_whose_weights_are_tied(tmp_path: Path) -> None:
    content = tied_program()
    whole, signature = content["graph_module"]["graph"], content["graph_module"]["signature"]
    signature["input_specs"][2:2] = [
        {"parameter": {"arg": {"name": name}, "parameter_name": target}}
        for name, target in (("p_emb_bias", "emb.bias"), ("p_bias", "bias"))
    ]
    whole["inputs"] = listed(signature["input_specs"])
    whole["tensor_values"] |= {"p_emb_bias": meta(4), "p_bias": meta(4)}
    whole["nodes"][0]["inputs"].append({"name": "padding_idx", "arg": tensor("p_bias"), "kind": 1})
    assert aliases(read(save(tmp_path / "a.pt2", content))) == {
        "head.weight": "emb.weight",
        "bias": "emb.bias",
    }


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        (
            "shared.weight",
            (8, 4),
            {"shared.weight": "emb.weight"},
        ),  # as the tied two, of a module that makes no calls
        ("shared.weight", (7, 4), {}),
        ("head.bias", (5,), {"head.decoder.bias": "head.bias"}),  # of a module within its own
        ("other.bias", (5,), {}),
    ],
)
def test_a_tied_weight_of_a_module_that_makes_no_calls(
    target: str, shape: tuple[int, ...], expected: dict[str, str], tmp_path: Path
) -> None:
    content = tied_program()
    whole, signature = content["graph_module"]["graph"], content["graph_module"]["signature"]
    signature["input_specs"][2:2] = [
        {"parameter": {"arg": {"name": "p_more"}, "parameter_name": target}},
        {"parameter": {"arg": {"name": "p_bias"}, "parameter_name": "head.decoder.bias"}},
    ]
    whole["inputs"] = listed(signature["input_specs"])
    whole["tensor_values"] |= {"p_more": meta(*shape), "p_bias": meta(5)}
    whole["nodes"][1]["inputs"].append({"name": "bias", "arg": tensor("p_bias"), "kind": 1})
    found = aliases(read(save(tmp_path / "a.pt2", content)))
    assert found == {"head.weight": "emb.weight"} | expected
