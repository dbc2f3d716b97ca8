"""How an operator's name finds its rule, and what registering refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graphflops.cost import Estimate
from graphflops.errors import RuleError
from graphflops.ops import operator
from graphflops.ops.table import INDEX, RULES
from graphflops.passes.price_call import reason
from graphflops.rules import registry
from graphflops.tensor import TensorType
from tests.generated import index_of_rules
from tests.support import price, t


@pytest.fixture
def table(monkeypatch):
    registry.find("aten.mm.default")
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))


def test_an_overload_falls_back_to_its_base_name():
    assert registry.find("aten.mm.default").key == "aten.mm"


def test_an_in_place_operator_is_priced_by_the_functional_rule():
    assert registry.find("aten.relu_.default").key == registry.find("aten.relu.default").key


def test_an_unknown_operator_has_no_rule():
    assert registry.find("mine.magic.default") is None


def test_a_rule_of_ones_own_is_found(table):
    @registry.rule("mine.scale")
    def scale(x, factor=2):
        return Estimate((x.like(),), vector_flops=x.numel, reads=(x,))

    assert price("mine.scale.default", t(4, 8)).vector_flops == 4 * 8


def test_a_rule_of_ones_own_states_its_kind(table):
    registry.rule("mine.gate", kind="elementwise")(lambda x: Estimate())
    assert operator("mine.gate.default").kind == "elementwise"
    with pytest.raises(RuleError, match="there is no kind of operators gates; there are elementwise, "):
        registry.rule("mine.other_gate", kind="gates")


def test_a_second_rule_for_one_operator_is_refused(table):
    with pytest.raises(RuleError, match=r"aten\.mm has a rule already, in graphflops\.rules\.matmul"):
        registry.rule("aten.mm")(lambda a, b: Estimate())


def test_the_index_says_where_each_rule_is():
    registered = {
        rule.key: rule.home for rule in registry.known() if rule.home.startswith("graphflops.rules.")
    }
    differ = {*registered.items()} ^ {(key, home.module) for key, home in RULES.items()}
    assert not differ, (
        f"run `python -m tests.generated`: {sorted(differ)[:5]} differ between index.txt and the rules"
    )
    written = INDEX.read_text(encoding="utf-8")
    assert written == index_of_rules(), "run `python -m tests.generated`"


def test_an_unknown_operator_imports_no_module_of_rules():
    code = (
        "import sys\nfrom graphflops.rules import registry\n"
        "before = set(sys.modules)\nassert registry.find('mine.magic.default') is None\n"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('graphflops.rules')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "annotations", [{"x": TensorType, "factor": int}, {"x": "TensorType", "factor": "int"}]
)
def test_kinds_of_arguments_are_known_from_types_and_from_texts(annotations):
    def scaled(x, *, factor):
        return Estimate(x, flops=factor * x.numel)

    scaled.__annotations__ = annotations
    rule = registry.Rule("mine.scaled", scaled)
    faults = [
        reason(rule, "mine.scaled", arguments, TypeError(), traced=False)
        for arguments in ({"x": t(2), "factor": "two"}, {"x": 2, "factor": 2}, {"factor": 2})
    ]
    assert faults == [
        ("factor of mine.scaled must be an integer, not 'two'", True),
        ("x of mine.scaled must be a tensor, not 2", True),
        ("mine.scaled is called without its operand x", True),
    ]
