"""Programs of random calls: every operator that has a rule, with operands of every kind, sense or not."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

from graphflops.ops import operator, table
from tests.exporters.build import call, meta, program, tensor
from tests.fuzz.values import NUMBERS, TEXTS

_SIZES = (0, 1, 1, 2, 2, 3, 4, 4, 7, 8, 8, 16, 64, 1000, 2**20, 2**31, 2**40, 2**62)
_SYMBOLS = ("s0", "s1", "2*s0", "s0 - 4", "s0//2", "Mod(s0, 3)", "Max(s0, s1)", "u0", "s0*s1", "s0**3")
_SMALL = (-3, -2, -1, -1, 0, 0, 1, 1, 1, 2, 2, 3, 4, 8, 2**31, 2**62, -(2**63))
_INTEGERS = ("dim", "axis", "start", "end", "step", "index", "num", "groups", "size", "k", "n", "offset")
_LISTS = ("size", "shape", "stride", "padding", "dilation", "kernel", "dims", "repeats", "pad", "shifts")
_FLAGS = ("keep", "is_", "use_", "ceil", "largest", "sorted", "train", "bias_", "causal", "include", "return")
_DIALECTS = ("aten.", "prims.", "_operator.", "math.", "builtins.", "torch.", "higher_order.", "quantized")
_DTYPES = (7, 7, 7, 6, 5, 12, 13, 10, 1, 2, 29, 99)


@lru_cache(maxsize=1)
def operators() -> list[str]:
    """Names of all operators that have a rule, ONNX's left out."""
    return [key for key in table.RULES if not key.startswith(("onnx.", "com.microsoft", "ai.onnx"))]


def random_program(chance: random.Random) -> bytes:
    """The JSON of a program of one to eight calls, each on inputs or on earlier results."""
    values = {name: _type(chance) for name in ("x", "w", "b")}
    known, nodes = [*values], []
    for place in range(chance.choice((1, 1, 2, 3, 8))):
        outs = [f"y{place}_{i}" for i in range(chance.choice((1, 1, 1, 2, 3)))]
        key = chance.choice(operators())
        target = ("" if key.startswith(("_operator", "math", "builtins")) else "torch.ops.") + key
        listed = [_argument(name, known, chance) for name in _names(key, chance)]
        made: list[Any] = [tensor(name) for name in outs]
        if chance.random() < 0.1:
            made = [{"as_tensors": [{"name": name} for name in outs]}]
        nodes.append(call(target + chance.choice(("", ".default", ".default")), *listed, out=made))
        values.update({name: _type(chance) for name in outs})
        known += outs
    return json.dumps(
        program(
            nodes,
            values,
            [{"user_input": {"arg": tensor(name)}} for name in ("x", "w", "b")],
            [{"user_output": {"arg": tensor(known[-1])}}],
            range_constraints={
                "s0": {"min_val": chance.choice((0, 1, 2)), "max_val": chance.choice((8, None))}
            },
        )
    ).encode()


def _names(key: str, chance: random.Random) -> list[str]:
    """Argument names of an operator; now and then one more or less."""
    names = [name.lstrip("*") for name in operator(key).parameters] or ["self", "other", "dim"]
    if chance.random() < 0.1:
        names = [*names, chance.choice(("dim", "size", "alpha"))]
    return names[: len(names) if chance.random() < 0.6 else chance.randint(0, len(names))]


def _argument(name: str, known: list[str], chance: random.Random) -> Any:
    """A value that suits a name, or any."""
    found = _any(known, chance) if chance.random() < 0.15 else _suiting(name, known, chance)
    return (name, found) if chance.random() < 0.2 else found


def _suiting(name: str, known: list[str], chance: random.Random) -> Any:
    if name in ("tensors", "xs", "indices"):
        return {"as_tensors": [{"name": chance.choice(known)} for _ in range(chance.randint(0, 4))]}
    if any(word in name for word in _LISTS) and chance.random() < 0.7:
        return _list(chance)
    if any(word in name for word in _INTEGERS):
        return {"as_int": chance.choice(_SMALL)}
    if any(word in name for word in _FLAGS):
        return {"as_bool": chance.random() < 0.5}
    return tensor(chance.choice(known))


def _list(chance: random.Random) -> Any:
    if chance.random() < 0.3:
        items = [chance.choice(_SYMBOLS) if chance.random() < 0.5 else 2 for _ in range(chance.randint(0, 5))]
        return {"as_sym_ints": [{"as_int": i} if isinstance(i, int) else {"as_name": i} for i in items]}
    pool = _SMALL if chance.random() < 0.5 else (1, 2, 3)
    return {"as_ints": chance.choices(pool, k=chance.randint(0, 6))}


def _any(known: list[str], chance: random.Random) -> Any:
    number = chance.choice([n for n in NUMBERS if isinstance(n, int) and abs(n) < 2**63])
    return chance.choice(
        (
            tensor(chance.choice(known)),
            {"as_int": int(number)},
            {"as_float": chance.choice((0.0, 1.5, -1e308, "Infinity", "NaN"))},
            {"as_bool": True},
            {"as_none": True},
            {"as_string": chance.choice(TEXTS[:-1]).replace("\ud800", "?")},
            {"as_scalar_type": chance.choice(_DTYPES)},
            _list(chance),
            {"as_floats": [0.5, 2.0]},
            {"as_bools": [True, False]},
            {"as_strings": ["a", "sum"]},
            {"as_optional_tensors": [{"as_none": True}, tensor(chance.choice(known))]},
        )
    )


def _type(chance: random.Random) -> dict[str, Any]:
    rank = chance.choice((0, 1, 2, 2, 3, 4, 4, 5))
    if chance.random() < 0.6:
        sizes: list[int | str] = [chance.choice((1, 2, 4, 8)) for _ in range(rank)]
    else:
        sizes = [
            chance.choice(_SIZES) if chance.random() < 0.7 else chance.choice(_SYMBOLS) for _ in range(rank)
        ]
    return meta(*sizes, dtype=chance.choice(_DTYPES))
