"""`.pt2` files as releases of torch wrote them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphflops.analysis import analyze
from graphflops.dims import Expr, parse_dim
from graphflops.exporters.archive import Archive
from graphflops.exporters.pt2 import read
from graphflops.graph import Ref
from graphflops.tensor import FLOAT32, TensorType
from tests.exporters.build import DATA, FILES, LANGUAGE_MODELS, node, parameters


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_release_is_read(path: Path) -> None:
    found = read(path)
    names = {entry.name for entry in found.inputs}
    for entry in found.nodes:
        assert {value for _, value in entry.uses()} <= names, entry.name
        names.update(name for name in entry.outputs if name is not None)
        assert entry.op.startswith(("aten.", "_operator.")), entry.op
    assert names <= found.types.keys()
    assert found.origin.producer in (f"torch {path.stem.partition('-torch')[2]}", "torch <=2.4")
    assert len(found.origin.sha256) == 64
    assert len(found.nx) == len(found.inputs) + len(found.nodes)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_call_is_priced(path: Path) -> None:
    """Those of numbers too, whose operands releases before 2.7 name."""
    assert analyze(path).coverage.unknown == 0


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("conv_static", 31_822),
        ("conv_batch", 31_822),
        ("lm_dynamic", 112_484),
        ("lm_core_aten", 112_484),
        ("lstm_static", 37_888),
    ],
)
def test_parameters(name: str, count: int) -> None:
    for path in DATA.glob(f"{name}-*.pt2"):
        assert parameters(read(path)) == count, path


@pytest.mark.parametrize("path", LANGUAGE_MODELS, ids=lambda path: path.stem)
def test_symbols(path: Path) -> None:
    batch, time = read(path).symbols.values()
    assert (batch.minimum, batch.maximum, batch.hint, batch.where) == (2, 64, 3, ("ids[0]",))
    assert (time.minimum, time.maximum, time.hint, time.where) == (2, 512, 7, ("ids[1]",))


def test_releases_agree() -> None:
    """Same calls, types, modules and lines, whatever symbols are called and whichever of reshape and view."""
    told = []
    for path in LANGUAGE_MODELS:
        found = read(path)
        renamed = {name: f"d{index}" for index, name in enumerate(found.symbols)}
        told.append(
            [
                (
                    entry.op.replace("aten.view.", "aten.reshape."),
                    [_renamed(found.types[name], renamed) for name in entry.outputs if name is not None],
                    entry.module,
                    entry.module_type,
                    entry.source,
                )
                for entry in found.nodes
                if entry.op != "aten.sym_size.int"
            ]
        )
    assert len(told) == 6
    for other in told:
        assert other == told[0]


def _renamed(value: Any, names: dict[str, str]) -> str:
    sizes = value.shape if isinstance(value, TensorType) else (value,)
    symbols = {old: parse_dim(new) for old, new in names.items()}
    return str([str(s.substitute(symbols)) if isinstance(s, Expr) else s for s in sizes])


def test_a_call_of_a_new_file() -> None:
    found = read(DATA / "lm_dynamic-torch2.13.0.pt2")
    attention = node(found, "scaled_dot_product_attention")
    assert attention.op == "aten.scaled_dot_product_attention.default"
    assert attention.args == (Ref("getitem"), Ref("getitem_1"), Ref("getitem_2"), None, 0.0, True)
    assert (attention.module, attention.module_type) == ("blocks.0", "__main__.Block")
    assert attention.source == "models/gen_m.py:15"
    assert str(found.types["scaled_dot_product_attention"]) == "float32[s23, 4, s27, 16]"
    weight = next(entry for entry in found.inputs if entry.target == "blocks.0.qkv.weight")
    assert (weight.name, weight.role) == ("p_blocks_0_qkv_weight", "parameter")
    assert found.types[weight.name] == TensorType((192, 64), FLOAT32, requires_grad=True)
    assert found.modules[""] == "__main__.LM"
    assert found.modules["blocks.0.qkv"] == "torch.nn.modules.linear.Linear"


def test_an_old_file_names_its_operands() -> None:
    found = read(DATA / "lm_dynamic-torch2.6.0.pt2")
    attention = node(found, "scaled_dot_product_attention")
    assert attention.args == ()
    assert attention.kwargs[0] == ("query", Ref("getitem"))
    assert ("is_causal", True) in attention.kwargs
    assert attention.module == "blocks.0"


def test_equal_types_are_one_object() -> None:
    found = read(DATA / "lm_dynamic-torch2.13.0.pt2")
    assert found.types["linear"] is found.types["linear_4"]
    assert found.types["add"] is found.types["layer_norm"]


def test_torch_is_not_imported() -> None:
    heavy = "{'torch', 'sympy', 'numpy', 'pickle', 'networkx', 'onnx'}"
    load_it = f"from graphflops.exporters import load; load({str(FILES[0])!r})"
    code = f"import sys; {load_it}; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_json_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = Archive.read

    def recording(self: Archive, name: str, *args: Any, **kwargs: Any) -> bytes:
        opened.append(name)
        return original(self, name, *args, **kwargs)

    monkeypatch.setattr(Archive, "read", recording)
    read(path)
    assert opened
    # Checkpoints of older releases are pickles: read as data for the sizes that they state, and never run.
    assert all(name.endswith((".json", "data.pkl", ".pt")) for name in opened)
