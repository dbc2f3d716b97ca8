"""Weights and constants as they are stored, beside what the program says of them; pickles are read as data, never run."""

from __future__ import annotations

import contextlib
import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from graphflops import analyze
from graphflops.errors import FileError
from graphflops.exporters.pt2_tables import UnreadableError, tensors
from graphflops.report.contradictions import contradictions
from tests.fuzz.edit_pt2 import graph_of, meta
from tests.fuzz.honest_pt2 import (
    CONSTANTS_CONFIG,
    ROOT,
    WEIGHTS_CONFIG,
    Constants,
    Layers,
    archive,
    members,
    opened,
    with_json,
)

Files = dict[str, bytes]


def said(folder: Path, files: Files) -> list[str]:
    """What is said of the file's weights."""
    (folder / "a.pt2").write_bytes(archive(files))
    found = contradictions(analyze(folder / "a.pt2"))
    assert {one.code for one in found} <= {"GF119"}
    return [one.message for one in found]


def changed(files: Files, config: str, name: str, **fields: Any) -> Files:
    """One entry of a table otherwise."""
    table = opened(files, config)
    table["config"][name]["tensor_meta"] |= fields
    return with_json(files, table, config)


SMALL = {"sizes": [{"as_int": 8}, {"as_int": 9}]}
EXPRESSION = {"sizes": [{"as_expr": {"expr_str": "s0"}}, {"as_int": 8}]}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, ""),
        (SMALL, "float32[8, 9] in the table"),
        (EXPRESSION, "float32[None, 8] in the table"),
        ({"dtype": 6}, "float16[8, 8] in the table"),
        ({"layout": 1}, "sparse float32[8, 8] in the table"),
        ({"strides": [{"as_int": 0}, {"as_int": 1}]}, "with strides [0, 1] in the table"),
    ],
)
@pytest.mark.parametrize(("module", "config"), [(Layers, WEIGHTS_CONFIG), (Constants, CONSTANTS_CONFIG)])
def test_tables(tmp_path: Path, module: Any, config: str, fields: dict[str, Any], says: str) -> None:
    names = {Layers: ("first.weight", "second.weight"), Constants: ("first", "second", "third")}[module]
    for name in names:
        found = said(tmp_path, changed(members(module, 8), config, name, **fields))
        assert [says in text and text.startswith(name) for text in found] == [True] * bool(says)


def test_a_weight_that_is_two_inputs(tmp_path: Path) -> None:
    """torch gives both the one that is stored: two of the three weights are parameters of what it loads."""
    content = opened(members(Layers, 8))
    (spec,) = [
        spec["parameter"]
        for spec in content["graph_module"]["signature"]["input_specs"]
        if spec.get("parameter", {}).get("parameter_name") == "second.weight"
    ]
    spec["parameter_name"] = "first.weight"
    files = with_json(members(Layers, 8), content)
    assert said(tmp_path, files) == ["first.weight is two inputs of the program, p_first_weight too"]
    signature = torch.export.load(io.BytesIO(archive(files))).graph_signature
    assert len(set(signature.parameters)) == 2


@pytest.mark.parametrize(
    ("role", "says"),
    [
        ({"tensor_constant_name": "second.weight"}, "second.weight is not among the stored constants"),
        (
            {"buffer_name": "second.weight", "persistent": False},
            "second.weight is not among the stored constants",
        ),
    ],
)
def test_a_weight_in_the_table_of_another_kind(tmp_path: Path, role: dict[str, Any], says: str) -> None:
    """torch looks in one table for each role, and refuses a file whose tensor is in the other."""
    content = opened(members(Layers, 8))
    (spec,) = [
        one
        for one in content["graph_module"]["signature"]["input_specs"]
        if one.get("parameter", {}).get("parameter_name") == "second.weight"
    ]
    given = spec.pop("parameter")
    kind = "buffer" if "buffer_name" in role else "tensor_constant"
    spec[kind] = {"arg": given["arg"]} | role
    assert said(tmp_path, with_json(members(Layers, 8), content)) == [says]


def test_a_parameter_that_is_not_stored_as_one(tmp_path: Path) -> None:
    table = opened(members(Layers, 8), WEIGHTS_CONFIG)
    table["config"]["second.weight"]["is_param"] = False
    (text,) = said(tmp_path, with_json(members(Layers, 8), table, WEIGHTS_CONFIG))
    assert text == "second.weight is a parameter, and not stored as one"


def test_a_weight_that_the_signature_leaves_out(tmp_path: Path) -> None:
    content = opened(members(Layers, 8))
    del content["graph_module"]["signature"]["input_specs"][0]
    (tmp_path / "a.pt2").write_bytes(archive(with_json(members(Layers, 8), content)))
    with pytest.raises(
        FileError, match=r"input #0 of the program is p_first_weight, in its signature p_second_weight"
    ):
        analyze(tmp_path / "a.pt2")
    with pytest.raises(Exception, match="does not match number of inputs in the graph signature"):
        torch.export.load(tmp_path / "a.pt2")


def test_a_row_that_only_the_program_repeats(tmp_path: Path) -> None:
    content = opened(members(Layers, 8))
    graph_of(content)["tensor_values"]["p_second_weight"]["strides"][0] = {"as_int": 0}
    (text,) = said(tmp_path, with_json(members(Layers, 8), content))
    assert text.endswith("with strides [8, 1] in the table of stored weights")


def test_a_row_that_is_repeated_in_memory(tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 4, bias=False)
    layer.weight = torch.nn.Parameter(torch.ones(1, 8).expand(4, 8))
    torch.export.save(torch.export.export(layer, (torch.ones(2, 8),)), tmp_path / "a.pt2")
    report = analyze(tmp_path / "a.pt2")
    assert not contradictions(report)
    assert report.parameter_dtypes == {"float32": 8 * 4}  # bytes of one row


def test_a_weight_that_the_program_records_by_a_symbol(tmp_path: Path) -> None:
    content = opened(members(Layers, 8))
    size = {"as_expr": {"expr_str": "Symbol('s0', integer=True)", "hint": None}}
    graph_of(content)["tensor_values"]["p_second_weight"]["sizes"][0] = size
    (tmp_path / "a.pt2").write_bytes(archive(with_json(members(Layers, 8), content)))
    assert "GF119" in {one.code for one in contradictions(analyze(tmp_path / "a.pt2"))}


def test_a_dense_weight_that_the_program_records_as_sparse(tmp_path: Path) -> None:
    content = opened(members(Layers, 8))
    graph_of(content)["tensor_values"]["p_second_weight"] = meta([8, 8]) | {"layout": 1}
    (tmp_path / "a.pt2").write_bytes(archive(with_json(members(Layers, 8), content)))
    assert "GF119" in {one.code for one in contradictions(analyze(tmp_path / "a.pt2"))}


def test_a_weight_of_which_a_part_is_stored(tmp_path: Path) -> None:
    files = members(Layers, 8)
    name = ROOT + "data/weights/" + opened(files, WEIGHTS_CONFIG)["config"]["second.weight"]["path_name"]
    stored = len(files[name])
    (text,) = said(tmp_path, {**files, name: files[name][:-4]})
    assert text.endswith(f"stored in {stored - 4} bytes in place of {stored} in the table of stored weights")
    assert said(tmp_path, {**files, name: b""}) == []  # as an export on fake tensors stores all of them


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"path_name": "weight_9"}, "stored in 0 bytes in place of 256"),
        ({"storage_offset": {"as_int": -1}}, "stored from element -1"),
    ],
)
def test_a_weight_that_is_stored_nowhere(tmp_path: Path, told: dict[str, Any], says: str) -> None:
    files = members(Layers, 8)
    table = opened(files, WEIGHTS_CONFIG)
    entry = table["config"]["second.weight"]
    (entry if "path_name" in told else entry["tensor_meta"]).update(told)
    (text,) = said(tmp_path, with_json(files, table, WEIGHTS_CONFIG))
    assert text.endswith(f"{says} in the table of stored weights")


def test_a_weight_that_is_not_stored(tmp_path: Path) -> None:
    files = members(Layers, 8)
    table = opened(files, WEIGHTS_CONFIG)
    del table["config"]["second.weight"]
    (text,) = said(tmp_path, with_json(files, table, WEIGHTS_CONFIG))
    assert text == "second.weight is not among the stored weights"


# Checkpoints


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def with_checkpoint(weights: object) -> Files:
    """The layout of torch 2.8."""
    files = {name: data for name, data in members(Layers, 8).items() if name != WEIGHTS_CONFIG}
    return {
        **files,
        f"{ROOT}data/weights/model.pt": weights if isinstance(weights, bytes) else saved(weights),
    }


def weights(**others: torch.Tensor) -> dict[str, torch.Tensor]:
    named = {f"{name}.weight": tensor for name, tensor in others.items()}
    return {**Layers(8).state_dict(keep_vars=True), **named}


class Harm:
    """A pickle that would run a command."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('run')",)


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        (weights(), ""),
        (OrderedDict(weights()), ""),
        (weights(second=torch.ones(8, 16)[:, :8]), ""),
        (
            weights(second=torch.nn.Parameter(torch.ones(8, 9))),
            "float32[8, 9] in the table of stored weights",
        ),
        (weights(second=torch.ones(1, 1).expand(64, 64)), "float32[64, 64] in the table"),
        (weights(second=torch.ones(8, 8, dtype=torch.bfloat16)), "bfloat16[8, 8] in the table"),
        (weights(second=torch.ones(8, 8).to(torch.float8_e5m2)), "float8_e5m2[8, 8] in the table"),
        (
            {**weights(), "harm": Harm(), "ballast": torch.ones(9000)},
            "the weights take 768 bytes in the program",
        ),
        (pickle.dumps([1] * 20_000), "the weights take 768 bytes in the program"),
        (b"", ""),
    ],
)
def test_checkpoints(tmp_path: Path, checkpoint: object, says: str) -> None:
    found = said(tmp_path, with_checkpoint(checkpoint))
    assert [says in text for text in found] == [True] * bool(says)


def test_tied_weights_of_a_checkpoint(tmp_path: Path) -> None:
    tied = torch.nn.Parameter(torch.ones(8, 8))
    (tmp_path / "a.pt2").write_bytes(archive(with_checkpoint(weights(first=tied, second=tied))))
    assert analyze(tmp_path / "a.pt2").parameters == 2 * 8 * 8


def test_a_packed_checkpoint(tmp_path: Path) -> None:
    for second, count in ((torch.ones(8, 8), 0), (torch.ones(8, 9), 1)):
        files = with_checkpoint(weights(second=second))
        with zipfile.ZipFile(tmp_path / "b.pt2", "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in files.items():
                packed.writestr(name, data)
        assert len(contradictions(analyze(tmp_path / "b.pt2"))) == count


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b".",
        b"\x80\x02",
        b"}",
        b"}(.",
        b"t.",
        b"h\x07.",
        b"X\xff\xff\xff\xffa.",
        b"cos\nsystem\n.",
        b"K\x01K\x02.",
        b"\x8a",
    ],
)
def test_pickles_that_are_no_table(text: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        assert list(tensors(text).values()) == [None]


@pytest.mark.parametrize("protocol", range(6))
def test_no_pickle_is_run(protocol: int) -> None:
    for value in (Harm(), {"a": Harm()}, [Harm()], {"a": {"b": Harm()}}):
        with contextlib.suppress(UnreadableError):
            assert set(tensors(pickle.dumps(value, protocol)).values()) == {None}
