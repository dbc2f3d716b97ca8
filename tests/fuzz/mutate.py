"""Changes of documents by their structure: JSON trees, archives, lines of text."""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    64,
    2**31 - 1,
    2**31,
    2**40,
    -(2**40),
    2**62,
    2**63,
    10**40,
    0.5,
    -0.0,
    1e308,
    True,
)
TEXTS = (
    *(
        "",
        "s0",
        "s27",
        "u0",
        "2*s0",
        "s0//2",
        "s0 - 4",
        "Mod(s0, 2)",
        "Max(1, s0)",
        "FloorDiv(16, s0)",
        "s0**9",
        "1/0",
    ),
    *(
        "torch.ops.aten.mm.default",
        "torch.ops.aten.cat.default",
        "torch.ops.higher_order.cond",
        "_operator.mul",
    ),
    *(
        "torch.ops.aten.sym_size.int",
        "torch.ops.aten.view.default",
        "torch.ops.aten.softmax.int",
        "math.floor",
    ),
    *(
        "\x1b[31mred\n",
        "a\u202eb",
        "\ud800",
        "<script>",
        "::error::x",
        "@everyone",
        "../../etc/passwd",
        "x" * 3000,
    ),
    *("__import__('os')", "(" * 300, "nan", "1e999", "2 GFLOP", "+2 %", "*", "**/*", "[", "9" * 400),
)
VALUES = (*NUMBERS, *TEXTS, None, [], {}, [[]], [1, 2, 3], {"value": 1, "formula": "s0"})


def tree(value: Any, chance: random.Random, times: int = 3) -> Any:
    """A JSON value with a few of its parts replaced, removed, repeated, exchanged, or nested into one another."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, times)):
        places = _places(value)
        if not places:
            return value
        holder, key = chance.choice(places)
        CHANGES[chance.randrange(len(CHANGES))](holder, key, chance, places)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < 50_000:
        holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, item in items:
            found.append((holder, key))
            if isinstance(item, (dict, list)):
                waiting.append(item)
    return found


def _replaced(holder: Any, key: Any, chance: random.Random, places: Any) -> None:
    old = holder[key]
    pool = NUMBERS if isinstance(old, (int, float)) else TEXTS if isinstance(old, str) else VALUES
    holder[key] = chance.choice(pool if chance.random() < 0.8 else VALUES)


def _removed(holder: Any, key: Any, chance: random.Random, places: Any) -> None:
    del holder[key]


def _repeated(holder: Any, key: Any, chance: random.Random, places: Any) -> None:
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(chance.choice((1, 1, 2, 50)))]
    else:
        holder[chance.choice(TEXTS)] = copy.deepcopy(holder[key])


def _exchanged(holder: Any, key: Any, chance: random.Random, places: Any) -> None:
    other, place = chance.choice(places)
    found = copy.deepcopy(other[place])
    if len(json.dumps(found, default=str)) < 20_000:
        holder[key] = found


def _alike(holder: Any, key: Any, chance: random.Random, places: Any) -> None:
    """The value of the same key elsewhere: a document that is well formed and contradicts itself."""
    same = [(other, place) for other, place in places if place == key and isinstance(key, str)]
    if same:
        other, place = chance.choice(same)
        holder[key] = copy.deepcopy(other[place])


CHANGES: tuple[Callable[..., None], ...] = (
    _replaced,
    _replaced,
    _removed,
    _repeated,
    _exchanged,
    _alike,
    _alike,
)


def dumped(value: Any) -> bytes:
    """A JSON value as text; numbers that are none are written as Python does."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def archive(data: bytes, chance: random.Random) -> bytes:
    """A zip archive with one of its JSON files changed, or entries removed, emptied, repeated or made long."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    names = [name for name in entries if name.endswith(".json")]
    weights = [20 if name.endswith("model.json") else 3 for name in names]
    if chance.random() < 0.9:
        name = chance.choices(names, weights)[0]
        entries[name] = dumped(tree(json.loads(entries[name]), chance))
    else:
        name = chance.choice([*entries])
        entries[name] = chance.choice(
            (b"", b"{}", b"[]", b"0", entries[name] * 2, entries[name][:-3], b"\0" * 100_000)
        )
    if chance.random() < 0.05:
        del entries[chance.choice([*entries])]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as new:
        for name, content in entries.items():
            new.writestr(name, content)
    return garbled(packed.getvalue(), chance) if chance.random() < 0.05 else packed.getvalue()


def garbled(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, left out or put in."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        out[at : at + chance.choice((0, 1, 1, 20))] = chance.randbytes(chance.choice((0, 1, 1, 5)))
    return bytes(out)


def lines(text: str, chance: random.Random) -> str:
    """Text with lines removed, repeated, exchanged, and words replaced."""
    rows = text.split("\n")
    for _ in range(chance.randint(1, 4)):
        at, other = chance.randrange(len(rows)), chance.randrange(len(rows))
        pick = chance.random()
        if pick < 0.2:
            rows.insert(at, rows[other])
        elif pick < 0.3 and len(rows) > 1:
            del rows[at]
        elif pick < 0.5:
            rows[at], rows[other] = rows[other], rows[at]
        elif pick < 0.9 and "=" in rows[at]:
            name = rows[at].partition("=")[0]
            rows[at] = f"{name}= {json.dumps(chance.choice(VALUES), default=str)}"
        else:
            rows[at] = chance.choice(TEXTS).replace("\ud800", "?")
    return "\n".join(rows)
