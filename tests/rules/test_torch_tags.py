"""The table of rules against torch's own list of operators: what a new torch brings shows here by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from graphflops.rules.registry import Rule, find

# Operators of one backend, of the tests of torch, or of layouts that an exported program cannot hold.
PRIVATE = ("mkldnn", "miopen", "cudnn", "_mps", "vulkan", "_test", "_nested", "_sparse", "sparse_", "_cslt")
# Keywords that say where and how a result is stored; they are taken away before a rule is called.
DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "out"})
# Parameters that a rule cannot name: words of Python.
UNNAMEABLE = frozenset({"from"})


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_every_core_pointwise_and_reduction_operator_has_a_rule(torch: Any) -> None:
    wanted = [
        getattr(torch.Tag, name) for name in ("core", "pointwise", "reduction") if hasattr(torch.Tag, name)
    ]
    missing = [
        name
        for name, operator in operators(torch)
        if any(tag in operator.tags for tag in wanted) and find(name) is None
    ]
    assert not missing, "\n".join(missing)


def test_rules_take_the_arguments_of_every_overload_they_serve(torch: Any) -> None:
    clashes: dict[str, list[str]] = defaultdict(list)
    for name, operator in operators(torch):
        rule = find(name)
        if rule is not None:
            for complaint in complaints(rule, operator._schema):
                clashes[complaint].append(name)
    assert not clashes, "\n".join(f"{complaint}: {names}" for complaint, names in clashes.items())


def complaints(rule: Rule, schema: Any) -> Iterator[str]:
    """What the schema allows in a call and the rule would refuse."""
    arguments = [x for x in schema.arguments if not x.is_out]
    by_position = [x for x in arguments if not x.kwarg_only]
    required = [x for x in by_position if not x.has_default_value()]
    if not rule.variadic and len(by_position) > rule.positional:
        yield f"{rule.key} takes {rule.positional} arguments by position, not {len(by_position)}"
    if not rule.open_ended:
        named = {x.name for x in arguments if x.kwarg_only or x.has_default_value()} - DROPPED - UNNAMEABLE
        for name in sorted(named - set(rule.parameters)):
            yield f"{rule.key} has no parameter {name}"
    needed = rule.positional - len(getattr(rule.function, "__defaults__", by_position) or ())
    if needed > len(required):
        yield f"{rule.key} requires {needed} arguments, not {len(required)}"


def operators(torch: Any) -> Iterator[tuple[str, Any]]:
    """Every overload of every aten operator that an exported program can hold."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if namespace != "aten" or any(word in name for word in PRIVATE):
            continue
        operator = getattr(getattr(torch.ops.aten, name), overload or "default")
        by_name = "name" in overload.lower()  # overloads for axes by name, which no exported program holds
        if not by_name and not any(argument.is_out for argument in operator._schema.arguments):
            yield f"aten.{name}.{overload or 'default'}", operator
