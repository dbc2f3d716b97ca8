"""Reports against limits: what is found, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphflops.budget import limits
from graphflops.budget.baseline import Before, measured
from graphflops.budget.check import RULES, compared
from graphflops.budget.measure import Measures
from graphflops.cost import Cost
from graphflops.dims import dim_max, symbol
from graphflops.report import Report, SymbolInfo, Totals
from graphflops.report.findings import Finding
from tests.render.reports import HINTS, linear, made, plain

TOKENS = 3 * 7  # the sizes of `HINTS`
FREE = {**HINTS, "s27": SymbolInfo(None, None, where=("ids[1]",))}


def report(**fields: Any) -> Report:
    """Two equal layers and a head: products of 64 x 64, 64 x 64 and 64 x 100 for each token."""
    rows = [
        linear("fc", "blocks.0.fc", 64, 64),
        linear("fc_1", "blocks.1.fc", 64, 64),
        plain("relu", "aten.relu.default", "blocks.1", "torch.nn.ReLU", source="model.py:30"),
        linear("head", "head", 64, 100, source="model.py:40"),
    ]
    held = {"blocks.0.fc": 64 * 64, "blocks.1.fc": 64 * 64, "head": 64 * 100}
    return made(
        rows, **{"parameters": sum(held.values()), "parameter_modules": held, "parameter_bytes": 4, **fields}
    )


def unknown(**fields: Any) -> Report:
    """The same with a call of unknown cost in the first layer."""
    known = report()
    call = plain("fused", "mylib.fused.default", "blocks.0", "", state="unknown", cost=Cost())
    return made([*known.rows, call._replace(source="model.py:50")], **fields)


def found(report: Report, before: Before | None = None, **given: Any) -> list[Finding]:
    (budget,) = limits.given(given).budgets
    return compared(Measures(report), budget, before)[0]


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def before(report: Report, **given: Any) -> Before:
    return measured(Measures(report), limits.given(given).budgets)


FLOPS = 2 * TOKENS * 64 * (64 + 64 + 100)


@pytest.mark.parametrize(
    "given",
    [
        {"matrix_flops": FLOPS},
        {"macs": FLOPS // 2},
        {"parameters": 64 * (64 + 64 + 100)},
        {"peak_bytes": 4096 * TOKENS},
        {"vector_flops": TOKENS * 64},
        {"transcendentals": TOKENS * 64},
        {"masked_flops": 0},
        {"modules": {"head": {"matrix_flops": 2 * TOKENS * 64 * 100, "parameters": 6400}}},
        {"modules": {"blocks": {"macs": TOKENS * 64 * 128}, "blocks.*.fc": {"macs": TOKENS * 64 * 64}}},
        {"coverage": "100 %"},
        {"forbid": ["aten.nonzero", "aten.lin"]},
    ],
)
def test_limits_that_are_just_kept(given: dict[str, Any]) -> None:
    assert found(report(), **given) == []


@pytest.mark.parametrize(
    "given, says",
    [
        ({"matrix_flops": FLOPS - 1}, "1 FLOP (<0.1 %) over the limit of 612.9 kFLOP"),
        ({"macs": FLOPS // 2 - 1}, "macs is 306.4 kMAC"),
        (
            {"parameters": "14 k"},
            "592 (4.2 %) over the limit of 14.00 k; most in blocks.*.fc 8,192 at model.py:17, head",
        ),
        ({"peak_bytes": "80 kB"}, "peak_bytes is 86.02 kB at ids[0]=3, ids[1]=7"),
        ({"vector_flops": 0}, "most in blocks.* aten.relu.default 1,344 FLOP at model.py:30"),
        ({"parameter_bytes": 3}, "1 B (33.3 %) over the limit of 3 B"),
        ({"modules": {"head": {"parameters": 6399}}}, "parameters of head is 6,400"),
        ({"modules": {"blocks.*.fc": {"macs": 0}}}, "macs of blocks.*.fc (each of 2) is 86.02 kMAC"),
    ],
)
def test_limits_that_are_broken(given: dict[str, Any], says: str) -> None:
    (finding,) = found(report(), **given)
    assert finding.code == "GF301"
    assert finding.severity == "error"
    assert says in finding.message


def test_where_it_comes_from() -> None:
    (finding,) = found(report(), matrix_flops="1 k")
    assert (
        "most in blocks.*.fc aten.linear.default (x2) 344.1 kFLOP at model.py:17, "
        "head aten.linear.default 268.8 kFLOP at model.py:40"
    ) in finding.message
    assert finding.source == "model.py:17"
    (peak,) = found(report(), peak_bytes=1)
    assert (peak.node, peak.op, peak.module, peak.source) == (
        "head",
        "aten.linear.default",
        "head",
        "model.py:40",
    )


def test_modules_that_differ_are_told_apart() -> None:
    rows = report().rows
    wider = made([*rows, linear("more", "blocks.1.fc", 64, 64)])
    findings = found(wider, modules={"blocks.*.fc": {"macs": 1}})
    assert [finding.module for finding in findings] == ["blocks.0.fc", "blocks.1.fc"]


def test_a_module_that_is_not_there() -> None:
    (finding,) = found(report(), modules={"block.*": {"macs": "1 T"}})
    assert finding.code == "GF308"
    assert "no module matches block.*; the model has blocks, blocks.*, blocks.*.fc, head" in finding.message


# What cannot be told


def test_a_call_of_unknown_cost_makes_upper_limits_undecidable() -> None:
    (finding,) = found(unknown(), matrix_flops="1 T", peak_bytes="1 T", parameters=0, parameter_bytes=0)
    assert finding.code == "GF303"
    assert "matrix_flops, peak_bytes cannot be checked: the cost of 1 call is unknown" in finding.message
    assert "mylib.fused.default" in finding.message
    assert finding.source == "model.py:50"


def test_what_is_broken_all_the_same_is_broken() -> None:
    assert codes(found(unknown(), matrix_flops=1)) == ["GF301"]


def test_only_modules_with_the_unknown_call_are_undecidable() -> None:
    head, layers = found(unknown(), modules={"head": {"macs": 1}, "blocks.*": {"macs": "1 T"}})
    assert (head.code, head.module) == ("GF301", "head")
    assert (layers.code, layers.module) == ("GF303", "blocks.0")


@pytest.mark.parametrize("pattern", ["mylib.fused.default", "mylib.fused", "mylib.*"])
def test_an_unknown_operator_can_be_allowed_by_name(pattern: str) -> None:
    assert found(unknown(), matrix_flops="1 T", coverage="100 %", unknown=[pattern]) == []


def test_coverage() -> None:
    (finding,) = found(unknown(), coverage="80.1 %")
    assert finding.code == "GF305"
    assert "4 of 5 calls is known, 80.0 %, where 80.1 % are asked for" in finding.message
    assert found(unknown(), coverage="80 %") == []


def test_a_size_without_a_value_is_asked_for() -> None:
    (finding,) = found(report(symbols=FREE), matrix_flops="1 T")
    assert finding.code == "GF304"
    assert "matrix_flops depends on ids[1], left open" in finding.message
    assert "dims" in finding.fix


def test_what_no_open_size_is_in_is_told() -> None:
    assert found(report(symbols=FREE), parameters="1 M") == []


def test_forbidden_operators() -> None:
    first, second = found(report(), forbid=["aten.linear"])
    assert first.code == second.code == "GF307"
    assert first.message == "aten.linear.default is called 2 times in blocks.*.fc; aten.linear is forbidden"
    assert (second.module, second.source) == ("head", "model.py:40")


# What has grown


def test_growth_is_found_and_placed() -> None:
    old = before(report())
    more = made([*report().rows, linear("more", "head", 64, 100, source="model.py:41")])
    (finding,) = found(more, old, matrix_flops="+10 %")
    added = 2 * TOKENS * 64 * 100
    assert finding.code == "GF302"
    assert (
        f"268.8 kFLOP ({100 * added / FLOPS:.1f} %) more than before, where +10 % is allowed"
        in finding.message
    )
    assert "grown in head aten.linear.default (x2) 268.8 kFLOP at model.py:40" in finding.message
    assert "blocks" not in finding.message
    assert found(more, old, matrix_flops=f"+10 % or {added}") == []
    assert found(more, old, matrix_flops="+50 %") == []


def test_less_is_no_growth() -> None:
    assert found(made([*report().rows[:2]]), before(report()), matrix_flops="+0 %", peak_bytes="+0 %") == []


def test_parameters_that_grow_are_placed() -> None:
    held = {"blocks.0.fc": 4096, "blocks.1.fc": 4096, "head": 6500}
    (finding,) = found(report(parameters=14_692, parameter_modules=held), before(report()), parameters="+0 %")
    assert "100 (0.7 %) more than before" in finding.message
    assert "grown in head 100 at model.py:40" in finding.message


def test_one_module_against_before() -> None:
    given = {"modules": {"head": {"macs": "+1 %"}}}
    old = before(report(), **given)
    assert old.modules == {"head": {"macs": TOKENS * 64 * 100}}
    assert found(report(), old, **given) == []
    more = made([*report().rows, linear("more", "head", 64, 100)])
    (finding,) = found(more, old, **given)
    assert (finding.code, finding.module) == ("GF302", "head")


@pytest.mark.parametrize(
    "old, code",
    [
        (None, "GF306"),
        (Before(sizes={"ids[0]": 3, "ids[1]": 7}), "GF306"),
        (Before(sizes={"ids[0]": 3, "ids[1]": 8}, totals={"matrix_flops": 10**12}), "GF309"),
    ],
)
def test_nothing_to_compare_with(old: Before | None, code: str) -> None:
    assert codes(found(report(), old, matrix_flops="+1 %")) == [code]


def test_an_absolute_limit_stands_without_a_baseline() -> None:
    assert codes(found(report(), None, matrix_flops=["+1 %", 1])) == ["GF306", "GF301"]


def test_formulas_that_have_not_changed_have_not_grown() -> None:
    free = report(symbols=FREE)
    assert found(free, before(free), matrix_flops="+0 %", peak_bytes="+0 %") == []
    more = made([*free.rows, linear("more", "head", 64, 100)], symbols=FREE)
    assert codes(found(more, before(free), matrix_flops="+0 %")) == ["GF304"]


def test_a_formula_that_became_a_number() -> None:
    old = replace(before(report(symbols=FREE)), sizes=Measures(report()).sizes)
    assert codes(found(report(), old, matrix_flops="+0 %")) == ["GF309"]


# Training


def test_with_training_the_whole_step_counts() -> None:
    rows = [row._replace(backward=row.cost * 2) for row in report().rows]
    forward = made(rows)
    step = replace(
        forward,
        backward=Totals(forward.totals.cost * 2, 10**9, "head"),
        optimizer=Totals(Cost(vector_flops=5)),
    )
    assert found(step, matrix_flops=3 * FLOPS, peak_bytes="1 GB") == []
    assert codes(found(step, matrix_flops=3 * FLOPS - 1)) == ["GF301"]
    assert codes(found(step, modules={"head": {"macs": 3 * TOKENS * 6400 - 1}})) == ["GF301"]


def test_a_peak_that_is_the_larger_of_two() -> None:
    larger = dim_max(symbol("s23") * 100, symbol("s27") * 10)
    lone = report(totals=Totals(Cost(), larger, "head"))
    assert found(lone, peak_bytes=300) == []
    assert codes(found(lone, peak_bytes=299)) == ["GF301"]


def test_names_from_files_are_harmless() -> None:
    row = plain("x", "evil\x1b[31m.op", "a\u202e.b", "", source="m\n.py:3")
    for finding in found(made([row]), vector_flops=0, forbid=["evil*"]):
        assert finding.message.isprintable()


def test_every_finding_has_its_rule() -> None:
    for code, rule in RULES.items():
        assert code.startswith("GF3")
        assert rule.help.endswith(".")
        assert rule.summary.endswith(".")
