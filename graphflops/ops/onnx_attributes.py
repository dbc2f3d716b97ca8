"""The attributes that each version of an ONNX operator has, and their types.

`onnx_attributes.txt` is written by `python -m tests.generated`, from the installed onnx and onnxruntime.
A line names operators that have the same attributes: onnx's own with their versions and, after an empty line, those that
onnxruntime adds. `axis=int!` is required. A file may give an attribute that the operator's version does not have, or of
another type, or lack a required one: onnxruntime does not load such a model. The versions at which each operator changed
come from this file too, so that `onnx.defs` need not be imported.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphflops.errors import shown
from graphflops.ops.operator import operator

TABLE = Path(__file__).with_name("onnx_attributes.txt")
NEWEST_IR = 14
NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1, "com.microsoft": 1}


@lru_cache(maxsize=1)
def versions() -> Mapping[str, tuple[int, ...]]:
    """The versions of each operator of ONNX's own domains, the oldest first."""
    found: dict[str, list[int]] = {}
    for line in TABLE.read_text(encoding="utf-8").partition("\n\n")[0].splitlines():
        for spelling in line.partition(":")[0].split():
            name, _, version = spelling.rpartition(".")
            if version.isdecimal():  # onnxruntime's own have none
                found.setdefault(name.removeprefix("onnx."), []).append(int(version))
    return {name: tuple(sorted(each)) for name, each in found.items()}


_DOMAINS = ("onnx.", "ai.onnx.", "com.")
_IN_WORDS = {"int": "an integer", "float": "a number", "string": "a string", "ints": "a list of integers"}
_IN_PYTHON = {"int": int, "float": float, "string": str, "ints": tuple}


def onnx_spelling(domain: str, word: str, opset: int) -> str:
    """The spelling of an ONNX operator with the version in force at an opset: `onnx.Softmax.13`.

    domain: "" for ONNX's own. An operator that no table lists has version 1; in another domain, the opset's version.
    """
    known = versions().get(f"{domain}.{word}" if domain else word, (opset if domain else 1,))
    return f"{domain or 'onnx'}.{word}.{known[max(bisect_right(known, opset) - 1, 0)]}"


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        operators, _, attributes = line.partition(": ")
        types = dict(entry.split("=") for entry in attributes.split())
        for op in operators.split():
            found[op] = types
            if not op.startswith("com."):  # with a version
                base = op.rpartition(".")[0]
                found[base] = found.get(base, {}) | types
    return found


@lru_cache(maxsize=1)
def _choices() -> Mapping[str, tuple[str | int, ...]]:
    """The values that an attribute may have, by its name alone or with the operator's: the lines of `onnx_choices.txt`."""
    found = {}
    text = TABLE.with_name("onnx_choices.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    for names, _, choices in (line.partition(": ") for line in text.splitlines()[1:]):
        said = tuple(int(each) if each.isdecimal() else each.strip('"') for each in choices.split())
        found.update(dict.fromkeys(names.split(), said))
    return found


def attributes(op: str) -> Mapping[str, str] | None:
    """The types of an operator's attributes by name, of all versions where none is named; None for an unknown operator."""
    if not op.startswith(_DOMAINS):
        return None
    return _table().get(op, _table().get(operator(op).base))


def fault(op: str, given: Iterable[tuple[str, Any]]) -> str:
    """What is wrong with the attributes of a call; "" if nothing is."""
    known = attributes(op)
    if known is None:
        return ""
    wanting = {name for name, kind in known.items() if kind.endswith("!")}
    for name, value in given:
        kind = known.get(name, "").rstrip("!")
        if not kind:
            return f"{op} has no attribute {shown(name)}"
        wanting.discard(name)
        if not isinstance(value, _IN_PYTHON.get(kind, object)):
            return f"{shown(name)} of {op} must be {_IN_WORDS[kind]}, not {shown(repr(value), 60)}"
        choices = _choices().get(f"{operator(op).word}.{name}", _choices().get(name, ()))
        if choices and value not in choices:
            return f"{shown(name)} of {op} is one of {', '.join(map(str, choices))}, not {shown(repr(value), 60)}"
    return f"{op} is called without its attribute {min(wanting)}" if wanting else ""
