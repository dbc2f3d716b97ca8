"""Changes of JSON documents by their structure."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.fuzz.values import NUMBERS, TEXTS, VALUES

Path = tuple[Any, ...]
_MANY = 3_000  # repetitions of one part, where quadratic work shows
_LARGEST = 500_000  # bytes of a changed document: inputs stay below a megabyte
_DEPTHS = (2, 20, 60, 150, 400, 5_000)
_DEEPEST = 400  # levels that Python's own writer of JSON follows


class Document:
    """A JSON text and the paths of its parts, found once: a change then costs one decoding."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.paths: list[Path] = []
        self.by_key: dict[str, list[Path]] = defaultdict(list)
        waiting: list[tuple[Path, Any]] = [((), json.loads(text))]
        while waiting:
            path, holder = waiting.pop()
            items = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key, item in items:
                here = (*path, key)
                self.paths.append(here)
                if isinstance(key, str):
                    self.by_key[key].append(here)
                if isinstance(item, (dict, list)):
                    waiting.append((here, item))

    def changed(self, chance: random.Random, times: int = 3) -> bytes:
        """The text with a few parts replaced, removed, repeated, exchanged, or nested into one another."""
        value = json.loads(self.text)
        for _ in range(chance.randint(1, times) if self.paths else 0):
            path = self._path(chance)
            holder = _at(value, path[:-1])
            if _has(holder, path[-1]):
                chance.choice(_CHANGES)(self, value, holder, path, chance)
        try:
            return dumped(value)
        except RecursionError:
            return self.text

    def _path(self, chance: random.Random) -> Path:
        """A part; as often any part as one by its key, so that rare fields are changed too."""
        if chance.random() < 0.5 and self.by_key:
            return chance.choice(self.by_key[chance.choice([*self.by_key])])
        return chance.choice(self.paths)


def dumped(value: Any) -> bytes:
    """A JSON value as text; numbers that are none are written as Python does."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _at(value: Any, path: Path) -> Any:
    """The part at a path, None where an earlier change removed it."""
    for key in path:
        if not _has(value, key):
            return None
        value = value[key]
    return value


def _has(holder: Any, key: Any) -> bool:
    if isinstance(holder, dict):
        return key in holder
    return isinstance(holder, list) and isinstance(key, int) and key < len(holder)


def _size(value: Any) -> int:
    return len(json.dumps(value))


def _replace(document: Document, value: Any, holder: Any, path: Path, chance: random.Random) -> None:
    old = holder[path[-1]]
    pool = NUMBERS if isinstance(old, (int, float)) else TEXTS if isinstance(old, str) else VALUES
    holder[path[-1]] = chance.choice(pool if chance.random() < 0.8 else VALUES)


def _remove(document: Document, value: Any, holder: Any, path: Path, chance: random.Random) -> None:
    del holder[path[-1]]


def _repeat(document: Document, value: Any, holder: Any, path: Path, chance: random.Random) -> None:
    item = holder[path[-1]]
    times = min(chance.choice((1, 1, 2, 50, _MANY)), _LARGEST // _size(item))
    if isinstance(holder, list):
        holder[path[-1] : path[-1]] = [copy.deepcopy(item) for _ in range(times)]
    else:
        holder.update({f"{chance.choice(TEXTS)[:40]}{i or ''}": copy.deepcopy(item) for i in range(times)})


def _exchange(document: Document, value: Any, holder: Any, path: Path, chance: random.Random) -> None:
    found = _at(value, document._path(chance))
    if found is not None and _size(found) < 20_000:
        holder[path[-1]] = copy.deepcopy(found)


def _take_alike(document: Document, value: Any, holder: Any, path: Path, chance: random.Random) -> None:
    """The value of the same key elsewhere: a document that is well formed and contradicts itself."""
    if isinstance(path[-1], str):
        found = _at(value, chance.choice(document.by_key[path[-1]]))
        if found is not None and _size(found) < 20_000:
            holder[path[-1]] = copy.deepcopy(found)


def _nest(document: Document, value: Any, holder: Any, path: Path, chance: random.Random) -> None:
    """A list, or an object by its first key, in itself many times over; parentheses in place of a text."""
    item, depth = holder[path[-1]], chance.choice(_DEPTHS)
    if not isinstance(item, (dict, list)) or not item:
        holder[path[-1]] = "(" * depth + ")" * depth
        return
    for _ in range(min(depth, _DEEPEST, _LARGEST // _size(item))):
        outer = copy.copy(item)
        outer[next(iter(outer)) if isinstance(outer, dict) else 0] = item
        item = outer
    holder[path[-1]] = item


_CHANGES: tuple[Callable[..., None], ...] = (
    *(_replace, _replace, _replace, _remove, _repeat, _exchange, _take_alike, _take_alike, _take_alike),
    _nest,
)
