"""What one line of a table says about a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Sizes = dict[str, int]


@dataclass(frozen=True)
class Case:
    """One model.

    build: makes the module. inputs: example inputs at given sizes, a tuple or a mapping of keywords.
    sizes: what it is exported at, then other sizes that it must hold at; axes that differ between them are dynamic.
    unknown: operators that no rule can know. expected: matrix FLOPs at given sizes where torch counts wrong, with `because`.
    meta: build and count without memory. placed: whether decomposing keeps the module of every call. turns: values of symbols that only data can tell (numbers of turns of loops).
    """

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[..., Any]
    sizes: tuple[Sizes, ...] = ({},)
    unknown: frozenset[str] = frozenset()
    expected: Callable[..., int] | None = None
    because: str = ""
    meta: bool = False
    placed: bool = True
    turns: Mapping[str, int] = field(default_factory=dict)
