"""Choices of libraries among their kernels, as decision trees that were read from measurements: one JSON file a library.

A file serves all releases of one major version: `releases` says which, and the libraries that each brings. A limit that
came later says since which release.

Limits are the numbers of a library's own code, or read from measurements, by which it chooses, constants those that were
measured of its kernels; each has a unit and a source.

A tree is the name of a choice, or `[fact, limit, tree where the fact is at most the limit, tree where it is more]`. Facts
are numbers and truths of a call, by name. Each tree stands with how many calls it was read from, and with the share of
calls kept apart from these for which it names another choice than the library takes.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec  # which would compile annotations again that `__future__` leaves as text


class Choice(msgspec.Struct, frozen=True):
    """One choice of a library."""

    measured: int
    held_out_error: float
    tree: Any


class Limit(msgspec.Struct, frozen=True):
    """A number by which a library chooses. unit: what it counts. since: the first release that has it; "" where all do."""

    value: int
    unit: str
    source: str
    since: str = ""


class Constant(msgspec.Struct, frozen=True):
    """A number that was measured of a library's kernels. unit: what it counts."""

    value: float
    unit: str
    source: str


class Library(msgspec.Struct, frozen=True):
    """All choices, limits and constants of a library. measured: the release. releases: with each, its libraries."""

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
    """The choices of a library by the name of its file."""
    return msgspec.json.decode((Path(__file__).parent / f"{name}.json").read_bytes(), type=Library)


def limits(name: str, family: str, *words: str) -> tuple[int, ...]:
    """Limits of a library, by the name of its file, that of their family, and a word for each."""
    return tuple([library(name).limits[f"{family}.{word}"].value for word in words])


def constants(name: str, family: str, *words: str) -> tuple[float, ...]:
    """The same of constants."""
    return tuple([library(name).constants[f"{family}.{word}"].value for word in words])


def all_constants(name: str, family: str) -> dict[str, float]:
    """All constants of a family, by their words."""
    known = library(name).constants.items()
    return {key.rpartition(".")[2]: one.value for key, one in known if key.rpartition(".")[0] == family}


def has_limit(name: str, limit: str, release: str) -> bool:
    """Whether a release of a library has a limit."""
    order, since = [*library(name).releases], library(name).limits[limit].since
    return not since or order.index(release) >= order.index(since)


def chosen(tree: Any, facts: object) -> str:
    """The choice for a call. facts: an object with an attribute for each fact."""
    while not isinstance(tree, str):
        fact, limit, at_most, more = tree
        tree = at_most if getattr(facts, fact) <= limit else more
    return tree
