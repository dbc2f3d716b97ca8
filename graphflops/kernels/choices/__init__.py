"""How libraries choose among their kernels, as decision trees fitted to measurements: one JSON file for each library.

A file serves all releases of one major version: `releases` lists them with the libraries that each requires. Limits are
numbers by which a library chooses, from its code or from measurements; constants are measured on its kernels.

A tree is the name of a choice, or `[fact, limit, tree if the fact is at most the limit, tree if it is more]`. Facts are
numbers and truth values of a call, by name.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec  # annotations are real here: `__future__` would make msgspec compile them from text


class Choice(msgspec.Struct, frozen=True):
    """One choice of a library. measured: calls behind its tree. held_out_error: the share of others that it misses."""

    measured: int
    held_out_error: float
    tree: Any


class Limit(msgspec.Struct, frozen=True):
    """A number by which a library chooses. unit: what it counts. since: the first release that has it; "" for all."""

    value: int
    unit: str
    source: str
    since: str = ""


class Constant(msgspec.Struct, frozen=True):
    """A number measured on a library's kernels. unit: what it counts."""

    value: float
    unit: str
    source: str


class Library(msgspec.Struct, frozen=True):
    """The choices, limits and constants of a library. measured: its release. releases: libraries required by each."""

    library: str
    measured: str
    device: str
    source: str
    choices: dict[str, Choice] = {}
    limits: dict[str, Limit] = {}
    constants: dict[str, Constant] = {}
    releases: dict[str, dict[str, int]] = {}


@cache
def library(name: str) -> Library:
    """A library's choices, by the name of its file."""
    return msgspec.json.decode((Path(__file__).parent / f"{name}.json").read_bytes(), type=Library)


def limits(name: str, family: str, words: str) -> tuple[int, ...]:
    """Limits of a library: its file's name, the name of their family, and one word for each, as text."""
    return tuple([library(name).limits[f"{family}.{word}"].value for word in words.split()])


def constants(name: str, family: str, words: str) -> tuple[float, ...]:
    """The same for constants."""
    return tuple([library(name).constants[f"{family}.{word}"].value for word in words.split()])


def all_constants(name: str, family: str) -> dict[str, float]:
    """All constants of a family, by word."""
    known = library(name).constants.items()
    return {key.rpartition(".")[2]: one.value for key, one in known if key.rpartition(".")[0] == family}


def has_limit(name: str, limit: str, release: str) -> bool:
    """Whether a release of a library has a limit."""
    order, since = [*library(name).releases], library(name).limits[limit].since
    return not since or order.index(release) >= order.index(since)


def chosen(tree: Any, facts: object) -> str:
    """The choice for a call. facts: an object with one attribute per fact."""
    while not isinstance(tree, str):
        fact, limit, at_most, more = tree
        tree = at_most if getattr(facts, fact) <= limit else more
    return tree
