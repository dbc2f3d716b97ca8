"""The attributes that each version of an ONNX operator has, and their types.

`onnx_attributes.txt` is written by `python -m tests.generated`, from the installed onnx and onnxruntime.
A line names operators that have the same attributes, onnx's own with their versions, and below an empty line those that
onnxruntime adds; `axis=int!` is one that a call must give. A file may give an attribute that the operator's version does not
have, or of another type, or lack one: onnxruntime loads no such model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from graphflops.errors import shown
from graphflops.ops.onnx_versions import TABLE
from graphflops.ops.operator import operator

_DOMAINS = ("onnx.", "ai.onnx.", "com.")
# What an attribute may say, by its name or by the operator's too.
_CHOICES = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
    "direction": ("forward", "reverse", "bidirectional"),
    "BitShift.direction": ("LEFT", "RIGHT"),
    "approximate": ("none", "tanh"),
    "storage_order": (0, 1),
    "coordinate_transformation_mode": (
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
        *("tf_crop_and_resize", "tf_half_pixel_for_nn", "output_half_pixel"),
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "DepthToSpace.mode": ("DCR", "CRD"),
    "SpaceToDepth.mode": ("DCR", "CRD"),
    "TensorScatter.mode": ("linear", "circular"),
    "case_change_action": ("LOWER", "UPPER", "NONE"),
    **dict.fromkeys(("CumSum.exclusive", "CumSum.reverse", "CumProd.exclusive", "CumProd.reverse"), (0, 1)),
    **dict.fromkeys(("fmod", "center_point_box"), (0, 1)),
    **dict.fromkeys(("ReverseSequence.batch_axis", "ReverseSequence.time_axis"), (0, 1)),
    "layout": (0, 1),
    "qk_matmul_output_mode": (0, 1, 2, 3),
    "LpNormalization.p": (1, 2),
    "TfIdfVectorizer.mode": ("TF", "IDF", "TFIDF"),
    "LinearAttention.update_rule": ("linear", "gated", "delta", "gated_delta"),
    "Pad.mode": ("constant", "reflect", "edge", "wrap"),
    "RoiAlign.mode": ("avg", "max"),
    "padding_mode": ("zeros", "border", "reflection"),
    "ScatterElements.reduction": ("none", "add", "mul", "max", "min"),
    "ScatterND.reduction": ("none", "add", "mul", "max", "min"),
}
_IN_WORDS = {"int": "an integer", "float": "a number", "string": "a string", "ints": "a list of integers"}
_IN_PYTHON = {"int": int, "float": float, "string": str, "ints": tuple}


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
        choices = _CHOICES.get(f"{operator(op).word}.{name}", _CHOICES.get(name, ()))
        if choices and value not in choices:
            return f"{shown(name)} of {op} is one of {', '.join(map(str, choices))}, not {shown(repr(value), 60)}"
    return f"{op} is called without its attribute {min(wanting)}" if wanting else ""
