"""Writes graphflops/ops/arguments.txt anew: `python -m tests.oracle.operator_arguments`, with torch and torchvision.

The argument names of the operators that a rule prices, as the installed torch declares them, beside those of other releases.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections import defaultdict
from itertools import islice
from typing import Any

import torch

from graphflops.ops import table
from graphflops.ops.operator import ARGUMENTS, orders

_LIBRARIES = (
    "torch.ao.quantization.fx._decomposed",
    "torch._prims",
    "torch._inductor.inductor_prims",
    "torch._higher_order_ops",
    "torch.nn.attention.varlen",
    "torch.distributed.fsdp",
    "torchvision",
)


def declared() -> dict[str, tuple[str, ...]]:
    """The argument names of each operator of the installed libraries that a rule prices."""
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        base = schema.name.replace("::", ".")
        spelling = f"{base}.{schema.overload_name or 'default'}"
        if not table.RULES.keys().isdisjoint((spelling, base, base.removesuffix("_"))) and schema.arguments:
            found[spelling] = tuple(
                f"{argument.name}{'?' if argument.has_default_value() else '!'}{kind(schema.name, argument)}"
                for argument in schema.arguments
            )
    return found


_KINDS = {
    "Tensor": "T", "int": "i", "float": "f", "number": "n", "bool": "b", "str": "s", "List[int]": "I",
    "List[Tensor]": "L", "List[Optional[Tensor]]": "L",
}  # fmt: skip


def kind(operator: str, argument: Any) -> str:
    """The letter of what an argument may be; "" for what is rare."""
    spelled = str(argument.type)
    found = _KINDS.get(
        spelled.removeprefix("Optional[").removesuffix("]" * spelled.startswith("Optional[")), ""
    )
    namespace, _, name = operator.partition("::")
    if found == "T" and (namespace == "prims" or torch._C._should_allow_numbers_as_tensors(name)):
        return "t"
    return "J" if found == "I" and argument.N else found


def name_of(entry: str) -> str:
    """The name of an argument."""
    return re.split("[!?]", entry)[0]


def in_order(some: tuple[str, ...], every: tuple[str, ...]) -> bool:
    """Whether names stand among others in the same order, whatever has a default."""
    rest = iter(map(name_of, every))
    return all(name_of(entry) in rest for entry in some)


def missing() -> dict[str, tuple[str, ...]]:
    """The argument names of the installed libraries that the table lacks, by operator."""
    found = declared().items()
    return {one: names for one, names in found if not any(in_order(names, order) for order in orders(one))}


def with_installed(table: dict[str, set[tuple[str, ...]]]) -> dict[str, set[tuple[str, ...]]]:
    """The table with the names of the installed release: in the place of those that are fewer, beside others.

    An argument with a default in one release has one in the table. What it may be is what the installed release says.
    """
    found = dict(table)
    for spelling, names in declared().items():
        known = table.get(spelling, set())
        if not any(in_order(names, other) for other in known):
            found[spelling] = {names, *(other for other in known if not in_order(other, names))}
        installed = {name_of(entry): entry for entry in names}
        found[spelling] = {
            tuple(newer(x, installed.get(name_of(x), x)) for x in each) for each in found[spelling]
        }
    return found


def newer(entry: str, installed: str) -> str:
    """An entry of the table as the installed release has it."""
    return installed.replace("!", "?") if "?" in entry else installed


def read() -> dict[str, set[tuple[str, ...]]]:
    """The table as it is."""
    found = defaultdict(set)
    for line in ARGUMENTS.read_text(encoding="utf-8").splitlines():
        names, _, spellings = line.partition(":")
        for spelling in spellings.split():
            found[spelling if spelling.count(".") > 1 else f"aten.{spelling}"].add(tuple(names.split()))
    return dict(found)


def text(table: dict[str, set[tuple[str, ...]]]) -> str:
    """The table: names, then the operators that have them, in lines of no more than 16 operators, each between blanks."""
    groups = defaultdict(list)
    for spelling, known in sorted(table.items()):
        for names in sorted(known):
            groups[names].append(spelling.removeprefix("aten."))
    lines = []
    for names, spellings in groups.items():
        rest = iter(spellings)
        while part := list(islice(rest, 16)):
            lines.append(f"{' '.join(names)}: {' '.join(part)} \n")
    return "".join(lines)


if __name__ == "__main__":
    ARGUMENTS.write_text(text(with_installed(read())), encoding="utf-8")
