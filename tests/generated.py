"""The files that are written from the code, and from the installed onnx and onnxruntime.

`python -m tests.generated` writes all of them anew, `python -m tests.generated index.txt` one.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from graphflops.ops import table
from graphflops.ops.onnx_operands import ATTRIBUTES, OPERANDS
from graphflops.ops.operator import spellings
from graphflops.ops.table import Home
from graphflops.render.diff import json as comparison
from graphflops.report import as_json as report_json
from graphflops.rules import registry
from graphflops.statements import statement

_FEW = 4  # operators from which on a namespace gets a line of its own
_WIDTH = 124


def index_of_rules() -> str:
    """The module that registers each rule, and the kinds that rules state."""
    listed = spellings()
    rules = {
        rule.key: Home(rule.home, "" if rule.key in listed else rule.kind)
        for rule in registry.known()
        if rule.home.startswith("graphflops.rules.")
    }
    backwards = {key: Home(rule.home) for key, rule in registry._backwards.items()}
    return f"{packed(rules)}\n{packed(backwards)}"


def packed(homes: Mapping[str, Home]) -> str:
    """The text for the home of each operator; `table.unpacked` reads it."""
    sections: dict[Home, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    shared: dict[tuple[Home, str], int] = defaultdict(int)
    for key, home in homes.items():
        shared[home, key.rpartition(".")[0]] += 1
    for key, home in sorted(homes.items()):
        space, _, name = key.rpartition(".")
        if shared[home, space] < _FEW:
            space, _, name = key.partition(".")
        sections[home][space].append(name)
    lines: list[str] = []
    for home in sorted(sections):
        lines.append(" ".join(home).rstrip())
        for space, names in sorted(sections[home].items()):
            indent = f" {space}: "
            lines += textwrap.wrap(
                " ".join(names),
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
    return "\n".join(lines) + "\n"


# Tables of ONNX operators: those of onnx in all versions, and those that onnxruntime adds.


def schemas() -> Iterator[list[tuple[str, Any]]]:
    """The schemas of either library with the operators that they are of; one that both have is onnx's."""
    from onnx import defs
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    seen: set[str] = set()
    for schemas in (defs.get_all_schemas_with_history(), get_all_operator_schema()):
        named = [(_spelled(schema), schema) for schema in schemas]
        yield [(op, schema) for op, schema in named if op not in seen]
        seen.update(op for op, _ in named)


def _spelled(schema: Any) -> str:
    op = f"{schema.domain or 'onnx'}.{schema.name}"
    return op if schema.domain.startswith("com.") else f"{op}.{schema.since_version}"


def _lines(entries: Iterable[tuple[str, str]]) -> str:
    """A line for the operators that share an entry; the first of an operator counts."""
    spelled: dict[str, list[str]] = defaultdict(list)
    for op, entry in dict(reversed([*entries])).items():
        spelled[entry].append(op)
    lines = sorted((" ".join(sorted(operators)), entry) for entry, operators in spelled.items())
    return "".join(f"{operators}: {entry}\n" for operators, entry in lines)


def onnx_attributes() -> str:
    """The attributes of each operator and their types; those that onnxruntime adds below an empty line."""
    return "\n".join(_lines((op, _attributes(schema)) for op, schema in of) for of in schemas())


def _attributes(schema: Any) -> str:
    given = schema.attributes.values()
    types = ((each, str(each.type).rpartition(".")[2].lower()) for each in given)
    return " ".join(sorted(f"{each.name}={kind}{'!' * each.required}" for each, kind in types))


def operands() -> str:
    """The operands of each operator that has any: type parameters, kinds of element types, and which may be left out."""
    every = ((op, " ".join(_operands(schema))) for of in schemas() for op, schema in of)
    return _lines((op, operands) for op, operands in every if operands)


def _operands(schema: Any) -> list[str]:
    allowed = {each.type_param_str: _letters(each.allowed_type_strs) for each in schema.type_constraints}
    found = []
    for each in schema.inputs:
        name = getattr(each, "type_str", None) or each.typeStr
        optional, repeated = (str(each.option).endswith(kind) for kind in ("Optional", "Variadic"))
        free = repeated and not getattr(each, "is_homogeneous", getattr(each, "isHomogeneous", True))
        kinds = "" if free else allowed.get(name, _letters([name]))
        found.append((name, kinds, repeated and not free, "?" * (optional or repeated)))
    times = Counter(name for name, *_ in found)
    return [
        f"{name if name in allowed and kinds and (times[name] > 1 or repeated) else ''}={kinds}{optional}"
        for name, kinds, repeated, optional in found
    ]


_LETTERS = {"double": "f", "bfloat": "f", "uint": "i"}


def _letters(types: Collection[str]) -> str:
    """The kinds of a set of types as ONNX spells them, `tensor(float16)`; "" where some are no tensors."""
    if [*types] == ["tensor(int64)"]:
        return "l"
    found = set()
    for spelled in types:
        if not spelled.startswith("tensor("):
            return ""
        word = spelled[len("tensor(") : -1]
        found.add("f" if word.startswith("float") else _LETTERS.get(word.rstrip("0123456789"), word[0]))
    return "".join(sorted(found))


# JSON Schemas of `graphflops analyze`, `diff` and `statement` with `--format json`: the type, the title, and the number.
_DOCUMENTS: dict[str, tuple[Callable[[], Any], str, int]] = {
    "report": (lambda: report_json._document().whole, "graphflops report", report_json.SCHEMA),
    "diff": (lambda: comparison._document()[0], "graphflops comparison", comparison.SCHEMA),
    "statement": (lambda: statement.Statement, "graphflops compute statement", statement.SCHEMA),
}


def json_schema(name: str) -> str:
    """The JSON Schema of a document, made from the type that writes it."""
    kind, title, number = _DOCUMENTS[name]
    made: dict[str, Any] = msgspec.json.schema(kind())
    for defined in made["$defs"].values():
        if "description" in defined:  # the docstring, indented or not, as the release of Python keeps it
            defined["description"] = cleandoc(defined["description"])
    about = f"schema {number}, described in docs/{name}.md"
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "description": about}
    return msgspec.json.format(msgspec.json.encode({**head, **made}), indent=2).decode() + "\n"


DOCS = Path(__file__).parents[1] / "docs"
SCHEMAS = {f"{name}.schema.json": partial(json_schema, name) for name in _DOCUMENTS}
FILES: Mapping[Path, Callable[[], str]] = {
    table.INDEX: index_of_rules,
    ATTRIBUTES: onnx_attributes,
    OPERANDS: operands,
    **{DOCS / name: made for name, made in SCHEMAS.items()},
}


if __name__ == "__main__":
    table.RULES.clear()  # the old index may be out of date and must not stop a rule from moving to another module
    table.BACKWARDS.clear()
    for path, made in FILES.items():
        if path.name in sys.argv[1:] or not sys.argv[1:]:
            path.write_text(made(), encoding="utf-8")
