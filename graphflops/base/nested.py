"""Nested tuples, such as the arguments of a call and the contents of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """What is in them, and in tuples and lists in them, in order."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from flat(value)
        else:
            yield value


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value, or each in nested tuples, changed."""
    return tuple([mapped(item, change) for item in value]) if isinstance(value, tuple) else change(value)
