"""Recorded sizes that agree with the derived ones at the export's example, and nowhere else."""

from __future__ import annotations

import pytest

from graphflops import analyze
from tests.exporters.build import call, meta, program, save, size, tensor


@pytest.mark.parametrize(
    ("recorded", "guards", "differs"),
    [
        (size("s0 * 2", 4), [], False),
        (size("s0 + 2", 4), [], True),
        (size("s1 + 1", 4), [], True),  # another input's size, 3 as well at the example
        (size("s0 + s1 - 1", 4), ["L['x'].size()[0] == (-1) + L['w'].size()[0]"], False),
        (size("s0 * 2", 4), None, False),
        (size("s0 + 2", 4), None, True),
        (size("s1 + 1", 4), None, True),
        (size("s0 + s2", 4), [], True),  # of two inputs with as many rows at the example
        (size("s0 + s2", 4), ["L['x'].size()[0] == L['z'].size()[0]"], False),
        (size("s0 + s2", 4), None, False),  # guards are not told
        (size("s0 + s0 // 2 + 1", 4), [], True),
        (size("s0 + 2 * (s0 // 2)", 4), [], True),
        (size("s0 + 2 * (s0 // 2)", 4), ["L['x'].size()[0] % 2 == 0"], False),
        (size(4), [], True),
    ],
)
def test_a_size_that_agrees_only_at_the_example(recorded, guards, differs, tmp_path) -> None:
    """Two halves of s0 = 2 rows each, recorded with as many rows only at the example or by guards."""
    nodes = [call("torch.ops.aten.cat.default", {"as_tensors": [{"name": "x"}, {"name": "x"}]})]
    values = {
        "x": meta(size("s0", 2), 8),
        "w": meta(size("s1", 3), 8),
        "z": meta(size("s2", 2)),
        "y": meta(recorded, 8),
    }
    inputs = [{"user_input": {"arg": tensor(name)}} for name in "xwz"]
    content = program(nodes, values, inputs, guards_code=guards)
    report = analyze(save(tmp_path / "m.pt2", content))
    assert ("GF102" in [found.code for found in report.diagnostics]) == differs


@pytest.mark.parametrize(("asserted", "differs"), [("Eq(s0, s2)", False), ("s0 <= s2", True)])
def test_assertions_of_the_program_are_guards(asserted, differs, tmp_path) -> None:
    check = call(
        "torch.ops.aten._assert_scalar.default", {"as_sym_bool": {"as_name": "ok"}}, {"as_string": ""}, out=[]
    )
    sizes = [
        call(
            "torch.ops.aten.sym_size.int",
            tensor(name),
            {"as_int": 0},
            out=[{"as_sym_int": {"as_name": rows}}],
        )
        for name, rows in (("x", "n"), ("z", "m"))
    ]
    operands = [{"as_sym_int": {"as_name": name}} for name in "nm"]
    compared = call(
        f"_operator.{'eq' if 'Eq' in asserted else 'le'}", *operands, out=[{"as_sym_bool": {"as_name": "ok"}}]
    )
    nodes = [*sizes, compared, check, call("torch.ops.aten.relu.default", tensor("x"))]
    values = {"x": meta(size("s0", 2), 8), "z": meta(size("s2", 2), 8), "y": meta(size("s2", 2), 8)}
    inputs = [{"user_input": {"arg": tensor(name)}} for name in "xz"]
    held = {
        "sym_int_values": {"n": size("s0", 2), "m": size("s2", 2)},
        "sym_bool_values": {"ok": {"as_expr": {"expr_str": asserted, "hint": None}}},
    }
    report = analyze(save(tmp_path / "m.pt2", program(nodes, values, inputs, graph=held, guards_code=[])))
    assert ("GF102" in [found.code for found in report.diagnostics]) == differs


@pytest.mark.parametrize(("taken", "said"), [(2, []), (3, ["GF102"])])
def test_as_many_pieces_as_the_program_takes(taken, said, tmp_path) -> None:
    """Halves of s0 = 12 columns: their number follows from a size that is open."""
    half = [
        call(
            "torch.ops.aten.sym_size.int", tensor("x"), {"as_int": 1}, out=[{"as_sym_int": {"as_name": "n"}}]
        ),
        call(
            "_operator.floordiv",
            {"as_sym_int": {"as_name": "n"}},
            {"as_int": 2},
            out=[{"as_sym_int": {"as_name": "h"}}],
        ),
    ]
    pieces = [{"name": name} for name in "yzw"[:taken]]
    split = call(
        "torch.ops.aten.split.Tensor",
        tensor("x"),
        {"as_sym_int": {"as_name": "h"}},
        {"as_int": 1},
        out=[{"as_tensors": pieces}],
    )
    columns = size("s0", 12), size("s0//2", 6), size("s0 - s0//2", 6), size("s0//2", 6)
    values = {name: meta(4, each) for name, each in zip("xyzw", columns, strict=True)}
    numbers = {"sym_int_values": {"n": size("s0", 12), "h": size("s0//2", 6)}}
    content = program([*half, split], values, graph=numbers, guards_code=["(L['x'].size()[1] % 2) == 0"])
    found = analyze(save(tmp_path / "m.pt2", content)).diagnostics
    assert [*dict.fromkeys(each.code for each in found)] == said
