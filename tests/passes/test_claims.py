"""What a file records of its values against what its operators compute, and what it says of sizes that depend on data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._sympy.value_ranges import ValueRanges

from graphflops import analyze
from graphflops.dims import evaluate
from graphflops.report.contradictions import contradictions
from tests.exporters.build import call, graph, meta, program, save, size, tensor

X = {"user_input": {"arg": tensor("x")}}
Y = [{"user_output": {"arg": tensor("y")}}]
S0, U0, U1 = ("Symbol('s0', integer=True)", "Symbol('u0', integer=True)", "Symbol('u1', integer=True)")
DOUBLE_U0 = f"Mul(Integer(2), {U0})"


def number(name: str, kind: str = "int") -> dict[str, Any]:
    return {f"as_sym_{kind}": {"as_name": name}}


def found(path: Path, nodes: list[Any], values: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    """The contradictions of a program of these calls, by code and node."""
    ranges = fields.pop("ranges", {})
    content = program(nodes, values, outputs=Y, graph=fields, range_constraints=ranges)
    return [(one.code, one.node) for one in contradictions(analyze(save(path / "a.pt2", content)))]


def computed(target: str, *operands: Any, kind: str = "int") -> list[Any]:
    """A number n, and a tensor of so many copies of the input."""
    numbers = [{f"as_{type(x).__name__}": x} if not isinstance(x, dict) else x for x in operands]
    sizes = {"as_sym_ints": [{"as_name": "n"}, {"as_int": 1}]}
    return [
        call(target, *numbers, out=[number("n", kind)], name="n"),
        call("torch.ops.aten.repeat.default", tensor("x"), sizes, name="y"),
    ]


@pytest.mark.parametrize(
    ("target", "operands", "kind", "true", "false"),
    [
        ("_operator.mul", (32, 32), "int", 1024, 8),
        ("_operator.floordiv", (9, 2), "int", 4, 5),
        ("_operator.neg", (-3,), "int", 3, 2),
        ("math.ceil", (2.5,), "int", 3, 2),
        ("torch.sym_max", (3, 4), "int", 4, 3),
        ("_operator.truediv", (5, 2), "float", 2.5, 2.0),
        ("_operator.gt", (3, 2), "bool", True, False),
    ],
)
def test_recorded_numbers(
    tmp_path: Path, target: str, operands: tuple[Any, ...], kind: str, true: Any, false: Any
) -> None:
    nodes = computed(target, *operands, kind=kind)
    values = {"x": meta(4, 8), "y": meta(4 * int(true), 8)}
    nodes[1]["inputs"][1]["arg"] = {"as_ints": [int(true), 1]}
    nodes.append(call("my.uses", number("n", kind), out=[]))
    for recorded, said in ((true, []), (false, [("GF127", "n")])):
        recorded_values = {f"sym_{kind}_values": {"n": {f"as_{kind}": recorded}}}
        assert found(tmp_path, nodes, values, **recorded_values) == said


def test_a_number_recorded_as_a_tensor_and_a_tensor_as_a_number(tmp_path: Path) -> None:
    relu = call("torch.ops.aten.relu.default", tensor("x"), out=[number("r")], name="r")
    both = [relu, call("my.op", tensor("x"), number("r"), name="y")]
    assert found(tmp_path, both, {"x": meta(4), "y": meta(4)}, sym_int_values={"r": {"as_int": 4}}) == [
        ("GF127", "r")
    ]
    many = [call("_operator.mul", tensor("x"), tensor("x"), out="y", name="y")]
    assert found(tmp_path, many, {"x": meta(64), "y": meta(1)}) == [("GF127", "y")]


def test_more_results_than_an_operator_has(tmp_path: Path) -> None:
    two = [
        call("torch.ops.aten.mm.default", tensor("x"), tensor("x"), out=[tensor("y"), tensor("z")], name="y")
    ]
    assert found(tmp_path, two, {"x": meta(8, 8), "y": meta(8, 8), "z": meta(1)}) == [("GF105", "y")]


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (meta(64, 4), meta(64, 4), []),
        (meta(64, 4), meta(size(S0, 8), 4), [("GF127", "")]),
        (meta(64, 4), meta(U0, 4), []),  # a size that the analysis knows and torch did not
        (meta(64, 64), meta(U0, U0), []),
        (meta(64, 32), meta(U0, U0), [("GF102", "y")]),
        (meta(64, 4), meta(DOUBLE_U0, 4), [("GF102", "y")]),
        (meta(size(S0, 64), 4), meta(size(S0, 64), 4), []),
        (meta(size(S0, 64), 8), meta(size(S0, 64), size(S0, 64)), [("GF102", "y")]),
        (meta(size(S0, 64), 64), meta(size(S0, 64), size(S0, 64)), [("GF102", "y")]),
        (meta(size(S0, 64), 4), meta(size(S0, 8), 4), [("GF127", "")]),
        (meta(size(S0, 64), 4), meta(size(f"Mul(Integer(2), {S0})", 8), 4), [("GF127", ""), ("GF102", "y")]),
    ],
)
def test_sizes_at_their_examples(tmp_path: Path, x: Any, y: Any, said: list[Any]) -> None:
    nodes = [call("torch.ops.aten.relu.default", tensor("x"), name="y")]
    assert sorted(found(tmp_path, nodes, {"x": x, "y": y})) == sorted(said)


def test_an_example_outside_of_its_range(tmp_path: Path) -> None:
    nodes = [call("torch.ops.aten.relu.default", tensor("x"), name="y")]
    values = {"x": meta(size(S0, 8)), "y": meta(size(S0, 8))}
    for low, said in ((2, []), (64, [("GF127", "")])):
        assert found(tmp_path, nodes, values, ranges={"s0": {"min_val": low, "max_val": None}}) == said


# Sizes that depend on data

ITEM = call("torch.ops.aten.item.default", tensor("x"), out=[number("n")], name="n")
COPIES = call("torch.ops.aten.expand.default", tensor("x"), {"as_sym_ints": [{"as_name": "n"}]}, name="y")


def checked(target: str, most: int) -> list[Any]:
    """The assertion of a comparison of n with a number."""
    return [
        call(target, number("n"), {"as_int": most}, out=[number("b", "bool")], name="b"),
        call("torch.ops.aten._assert_scalar.default", number("b", "bool"), {"as_string": "no"}, out=[]),
    ]


RANGE = ("min", {"as_int": 0}), ("max", {"as_int": 7})
WITHIN = call("torch.ops.aten.sym_constrain_range.default", number("n"), *RANGE, out=[])


@pytest.mark.parametrize(
    ("checks", "is_said"),
    [
        ([], True),
        (checked("_operator.eq", 7), False),
        (checked("_operator.le", 7), False),
        (checked("_operator.lt", 8), False),
        ([WITHIN], False),
        (checked("_operator.ge", 7), True),
        (checked("_operator.le", 8), True),
        (checked("_operator.le", 7)[:1], True),
    ],
)
def test_a_number_and_a_bound_of_data_are_asserted(tmp_path: Path, checks: list[Any], is_said: bool) -> None:
    nodes, said = [ITEM, *checks, COPIES], [("GF127", "n")] if is_said else []
    known = {"sym_int_values": {"n": {"as_int": 7}}, "sym_bool_values": {"b": {"as_bool": True}}}
    assert found(tmp_path, nodes, {"x": meta(1, dtype=5), "y": meta(7, dtype=5)}, **known) == said
    values = {"x": meta(1, dtype=5), "y": meta(U0, dtype=5)}
    ranges = {"u0": {"min_val": 0, "max_val": 7}}
    open_ = {**known, "sym_int_values": {"n": size(U0)}}
    assert found(tmp_path, nodes, values, ranges=ranges, **open_) == said


def test_one_size_of_different_data(tmp_path: Path) -> None:
    """`nonzero` of x twice is of one size; that of z may be another."""

    def places(of: str, out: str) -> Any:
        return call("torch.ops.aten.nonzero.default", tensor(of), out=out, name=out)

    values = {"x": meta(8), "z": meta(9), "y": meta(U0, 1, dtype=5), "w": meta(U0, 1, dtype=5)}
    add = call("torch.ops.aten.add.Tensor", tensor("w"), tensor("w"), out="v", name="v")
    zeros = call("torch.ops.aten.zeros.default", {"as_ints": [9]}, out="z", name="z")
    values["v"] = values["w"]
    assert found(tmp_path, [places("x", "y"), places("x", "w"), add], values) == []
    assert found(tmp_path, [zeros, places("x", "y"), places("z", "w"), add], values) == [("GF127", "w")]


def test_a_result_that_nothing_uses_takes_memory(tmp_path: Path) -> None:
    """The places of sorted numbers are as many as these."""
    sort = call(
        "torch.ops.aten.sort.default",
        tensor("x"),
        {"as_int": 0},
        {"as_bool": False},
        out=[tensor("y"), tensor("i")],
        name="y",
    )
    values = {"x": meta(8), "y": meta(8), "i": meta(8, dtype=5)}
    assert found(tmp_path, [sort], values) == []
    assert found(tmp_path, [sort], values | {"i": meta(1, dtype=5)}) == [("GF102", "y")]


class Statistics(torch.nn.Module):
    def forward(self, x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.native_batch_norm(x, None, None, mean, mean, False, 0.1, 1e-5)


def test_statistics_that_a_device_does_not_keep(tmp_path: Path) -> None:
    """A CPU returns none in inference, a GPU those of all channels: neither depends on data."""
    torch.export.save(
        torch.export.export(Statistics(), (torch.ones(2, 3, 4), torch.ones(3))), tmp_path / "a.pt2"
    )
    assert not contradictions(analyze(tmp_path / "a.pt2"))


class Counts(torch.nn.Module):
    """Sizes that depend on data: one that is fixed by a check, one that is bounded."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places, times = x.nonzero(), n.item()
        torch._check(places.shape[0] == 5)
        torch._check(times >= 0)
        torch._check(times <= 9)
        return (
            places.float() @ torch.ones(2, 3),
            torch.zeros(times, 3) @ torch.ones(3, 3),
            x[x > 0],
            x.unique(),
        )


def test_what_torch_says_of_data_is_asserted(tmp_path: Path) -> None:
    exported = torch.export.export(Counts(), (torch.ones(2, 3), torch.tensor(8)))
    for one in (exported, exported.run_decompositions()):
        torch.export.save(one, tmp_path / "a.pt2")
        report = analyze(tmp_path / "a.pt2")
        assert not contradictions(report)
        assert str(report.totals.cost.matrix_flops) == "18*u1 + 60"  # 2 * 5 * 2 * 3; 2 * u1 * 3 * 3


def test_a_boolean_is_at_most_one(tmp_path: Path) -> None:
    """torch records that of it, and asserts it of a number that is made of the boolean."""

    class Gate(torch.nn.Module):
        def forward(self, x: torch.Tensor, is_open: torch.Tensor) -> torch.Tensor:
            return x * is_open.item()

    exported = torch.export.export(Gate(), (torch.ones(2, 3), torch.tensor(True)))
    for one in (exported, exported.run_decompositions()):
        torch.export.save(one, tmp_path / "a.pt2")
        assert not contradictions(analyze(tmp_path / "a.pt2"))


class Selected(torch.nn.Module):
    """Rows that a mask selects, and those that the same mask selects after a conversion to what it is."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = x[:, 0] > 0
        return x[mask], (2 * x)[mask.to(torch.bool).to("cpu")]


def test_what_is_selected_by_a_mask_is_as_large_after_a_conversion_of_the_mask(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Selected(), (torch.ones(4, 3),), strict=False), tmp_path / "a.pt2")
    report = analyze(tmp_path / "a.pt2")
    assert not contradictions(report)
    assert [str(row.outputs[0].type.shape) for row in report.rows if row.op == "aten.index.Tensor"] == [
        "(u0, 3)"
    ] * 2


class Rows(torch.nn.Module):
    """The first n rows, of which the program asserts that there are more than 1, or as many in the input."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        some, within = n.unbind()
        first, other = some.item(), within.item()
        torch._check(first >= 2)
        torch._check(first <= 20)
        torch._check(other >= 0)
        torch._check(other <= x.shape[0])
        return x[:first] * 2, x[:other] * 2


@pytest.mark.parametrize("is_open", [False, True])
def test_an_end_of_a_slice_lies_behind_the_axis_unless_the_program_asserts_otherwise(
    tmp_path: Path, is_open: bool
) -> None:
    rows = torch.export.Dim("rows", min=3, max=100) if is_open else None
    arguments = torch.ones(10, 4), torch.tensor([5, 6])
    exported = torch.export.export(Rows(), arguments, dynamic_shapes=({0: rows}, None))
    torch.export.save(exported, tmp_path / "a.pt2")
    report = analyze(tmp_path / "a.pt2")
    assert not contradictions(report)
    first, other = (row.outputs[0].type.shape[0] for row in report.rows if row.op == "aten.mul.Tensor")
    counts = {"u0": 15, "u1": 7, **{name: 10 for name in report.symbols if name[0] == "s"}}
    assert [evaluate(size, counts) for size in (first, other)] == [10, 7]


@pytest.mark.parametrize(("rows", "said"), [(f"Mul(Integer(64), {U0})", []), (U0, [("GF102", "y")])])
def test_a_size_without_an_example_is_what_is_computed_of_it(
    tmp_path: Path, rows: str, said: list[Any]
) -> None:
    """64 rows for each u0, recorded as one."""
    sizes = {"as_sym_ints": [{"as_name": "n"}, {"as_int": 1}]}
    nodes = [
        call("torch.ops.aten.item.default", tensor("k"), out=[number("k0")], name="k0"),
        call("_operator.mul", number("k0"), {"as_int": 64}, out=[number("n")], name="n"),
        call("torch.ops.aten.repeat.default", tensor("x"), sizes, name="y"),
    ]
    values = {"x": meta(1, 8), "k": meta(dtype=5), "y": meta(size(rows), 8)}
    recorded = {"k0": size(U0), "n": size(f"Mul(Integer(64), {U0})")}
    inputs = [X, {"user_input": {"arg": tensor("k")}}]
    ranges = {"u0": {"min_val": 0, "max_val": None}}
    content = program(
        nodes, values, inputs=inputs, outputs=Y, graph={"sym_int_values": recorded}, range_constraints=ranges
    )
    assert [
        (one.code, one.node) for one in contradictions(analyze(save(tmp_path / "a.pt2", content)))
    ] == said


class Cut(torch.nn.Module):
    """The rows before and behind places that data tell, of which the program asserts nothing."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[: n.item()] * 2, x[n.item() :] * 2


@pytest.mark.parametrize("is_open", [False, True])
def test_a_slice_that_data_end_has_a_size_of_its_own(is_open: bool) -> None:
    """At most all rows, as torch records it; a file that records less contradicts its slice."""
    axes = ({0: torch.export.Dim.DYNAMIC}, None) if is_open else None
    exported = torch.export.export(Cut(), (torch.ones(10, 4), torch.tensor(6)), dynamic_shapes=axes)
    report = analyze(exported)
    assert not contradictions(report)
    assert report.value(report.total().vector_flops) == (None if is_open else 2 * 10 * 4)
    sizes = [row.outputs[0].type.shape[0] for row in report.rows if row.op == "aten.mul.Tensor"]
    given = analyze(exported, dims=dict(zip(map(str, sizes), (3, 7), strict=True)))
    assert given.total().vector_flops == (3 + 7) * 4
    assert not contradictions(given)
    for name in exported.range_constraints:
        if str(name) == str(sizes[0]):
            exported.range_constraints[name] = ValueRanges(0, 2)
    assert [one.code for one in contradictions(analyze(exported))] == ["GF102"]


class Narrowed(torch.nn.Module):
    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        n = start.item()
        torch._check(n >= 0)
        torch._check(n + 2 <= x.shape[1])
        return x.narrow(1, n, 2) * 2


@pytest.mark.parametrize("core", [False, True])
def test_two_columns_from_a_place_of_data_on(core: bool) -> None:
    """torch records max(0, n + 2 - min(s, n)) columns of s, which are two wherever the place is within the axis."""
    given = torch.zeros(3, 9), torch.tensor(4)
    exported = torch.export.export(Narrowed(), given, dynamic_shapes=({1: torch.export.Dim.AUTO}, None))
    report = analyze(exported.run_decompositions() if core else exported)
    assert not contradictions(report)
    last = report.rows[-1].outputs[0].type.shape[1]
    assert [evaluate(last, {"s27": 9, "u0": n}) for n in (0, 4, 7)] == [2, 2, 2]


class Split(torch.nn.Module):
    """Each part of the rows through a layer, as many rows each as data tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        sizes = counts.tolist()
        for count in sizes:
            torch._check(count >= 0)
        return torch.cat([self.layer(part) for part in x.split(sizes)]) * x[:, :1]


@pytest.mark.parametrize("axes", [({0: torch.export.Dim.DYNAMIC}, None), None])
def test_parts_that_are_asserted_to_be_all_rows_cost_what_all_rows_do(axes: Any) -> None:
    """Where the number of rows is fixed, each part alone is assumed to be as long as all of them; together they are not."""
    example = (torch.ones(6 if axes else 9, 8), torch.tensor([2, 3, 1] if axes else [2, 3, 4]))
    exported = torch.export.export(Split(), example, dynamic_shapes=axes)
    report = analyze(exported, dims={"x[0]": 9} if axes else {})
    assert report.total().matrix_flops == 2 * 9 * 8 * 4
    assert not report.diagnostics


def test_graphs_of_one_name(tmp_path: Path) -> None:
    """torch runs the last of them in the place of all."""
    from tests.exporters.build import refused

    def branch(name: str, function: str) -> Any:
        inner = [call(f"torch.ops.aten.{function}.default", tensor("a"), out="b")]
        return {
            "as_graph": {
                "name": name,
                "graph": graph([tensor("a")], inner, [tensor("b")], {"a": meta(4), "b": meta(4)}),
            }
        }

    def conditional(one: str, other: str, function: str) -> Any:
        branches = branch(one, function), branch(other, "cos")
        operands = {"as_tensors": [{"name": "x"}]}
        return program(
            [call("torch.ops.higher_order.cond", {"as_bool": True}, *branches, operands)],
            {"x": meta(4), "y": meta(4)},
        )

    for names, function in ((("f", "g"), "sin"), (("f", "f"), "cos")):
        assert analyze(save(tmp_path / "a.pt2", conditional(*names, function)))
    refused(save(tmp_path / "a.pt2", conditional("f", "f", "sin")), "graph f is there twice")
