"""Honest `.pt2` files of which forged ones are made: members by name, and the matrix FLOPs that torch runs.

Programs of one function differ in size alone, so that the JSON of a small one, or its weights, fit into a large one.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.exporters.zips import Part, packed, parts_of

ROWS, WIDTH = 4, 8  # of the input of every program
ROOT = "archive/"
PROGRAM = ROOT + "models/model.json"
WEIGHTS = ROOT + "data/weights/"
CONSTANTS = ROOT + "data/constants/"
WEIGHTS_CONFIG = WEIGHTS + "model_weights_config.json"
CONSTANTS_CONFIG = CONSTANTS + "model_constants_config.json"


class Chain(torch.nn.Module):
    """The same product many times over: 2 * 4 * 8 * 8 FLOPs each."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x @ self.weight
        return x


class Layers(torch.nn.Module):
    """8 -> n -> n -> 8 features: 2 * 4 * (8 * n + n * n + n * 8) FLOPs."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, features, bias=False)
        self.second = torch.nn.Linear(features, features, bias=False)
        self.third = torch.nn.Linear(features, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.relu(self.second(self.first(x))))


class Constants(torch.nn.Module):
    """As `Layers`, with weights that are constants of the program and a buffer that is no part of the state."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = torch.ones(features, WIDTH)
        self.second = torch.ones(features, features)
        self.register_buffer("third", torch.ones(WIDTH, features), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.linear(x, self.first)
        return functional.linear(functional.linear(x, self.second), self.third)


class Counted(torch.nn.Module):
    """One product of as many copies of the input as a stored number tells."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.register_buffer("times", torch.tensor(times))
        self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        times = self.times.item()
        torch._check(times >= 1)
        torch._check(times <= 1000)
        return x.repeat(times, 1) @ self.weight


class Branches(torch.nn.Module):
    """Five branches, each of which runs a product, the last so many of them."""

    COUNT = 5

    def __init__(self, times: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in range(self.COUNT):
            times = self.times if place == self.COUNT - 1 else 1
            x = torch.cond(x.sum() > 0, partial(self.products, times), torch.cos, (x,))
        return x

    def products(self, times: int, x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = x @ self.weight
        return x.clone()


@lru_cache
def members(module: Callable[[int], torch.nn.Module], size: int) -> dict[str, bytes]:
    """The members of the file that torch saves of a module of this size."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module(size).eval(), (torch.ones(ROWS, WIDTH),))
        torch.export.save(program, file)
    return {part.name: part.data for part in parts_of(file.getvalue())}


def archive(files: dict[str, bytes]) -> bytes:
    """The members as an archive."""
    return packed([Part(name, data) for name, data in files.items()])


def opened(files: dict[str, bytes], name: str = PROGRAM) -> Any:
    """The JSON of a member."""
    return json.loads(files[name])


def with_json(files: dict[str, bytes], content: Any, name: str = PROGRAM) -> dict[str, bytes]:
    """The members with one of them written anew."""
    return {**files, name: json.dumps(content).encode()}


def flops_run(data: bytes) -> int:
    """The matrix FLOPs that torch runs, by its own count, of a file that it loads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(io.BytesIO(data)).module().requires_grad_(False)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.ones(ROWS, WIDTH))
    return int(counter.get_total_flops())
