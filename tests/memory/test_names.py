"""What variables and functions are called decides nothing: programs with other names take the same memory and time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import graphflops
from tests.memory import test_frames, test_frames_of_statements
from tests.memory.renaming import in_library, renamed

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphflops.report import Execution, Report

SAMPLES = Path(__file__).parents[2] / "samples"
WIDTH = 256


class Weighted(nn.Module):
    """Attention that returns its probabilities, or none where nobody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        probabilities = torch.softmax(q @ k.transpose(-1, -2), -1)
        out = probabilities @ v
        return self.out(out), probabilities


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.att, self.mlp = Weighted(), nn.Linear(WIDTH, WIDTH)


class Named(Base):
    def forward(s, x: Any) -> Any:
        out, attn_weights = s.att(x)  # noqa: RUF059 (as models are written)
        return torch.tanh(s.mlp(out) + x)


class Plain(Base):
    def forward(s, x: Any) -> Any:
        out, p2 = s.att(x)  # noqa: RUF059
        return torch.tanh(s.mlp(out) + x)


class Bracketed(Base):
    def forward(s, x: Any) -> Any:
        (out, p2) = s.att(x)  # noqa: RUF059
        return torch.tanh(s.mlp(out) + x)


class Ignored(Base):
    def forward(s, x: Any) -> Any:
        out, _ = s.att(x)
        return torch.tanh(s.mlp(out) + x)


class Helped(nn.Module):
    """A method makes a causal mask from sizes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q = self.q(x)[:, None]
        mask = self.create_mask(x.shape[1])
        return nn.functional.scaled_dot_product_attention(q, q, q, mask)

    def create_mask(self, length: int) -> Any:
        return torch.ones(length, length, dtype=torch.bool).tril()


class Triangle(Helped):
    """The same, called otherwise."""

    def forward(self, x: Any) -> Any:
        q = self.q(x)[:, None]
        mask = self.lower_triangle(x.shape[1])
        return nn.functional.scaled_dot_product_attention(q, q, q, mask)

    lower_triangle = Helped.create_mask


class Spelled(Base):
    """Methods that are called as operators are."""

    def softmax(self, x: Any) -> Any:
        probabilities = torch.softmax(x, -1)
        return probabilities * x - probabilities

    def mul(self, x: Any, y: Any) -> Any:
        gate = self.mlp(x)
        return self.mlp(gate * torch.sigmoid(gate)) * y

    def forward(self, x: Any) -> Any:
        # fmt: off
        x = self.softmax(self.mlp(x)); y = self.mul(x, self.mlp(x))  # noqa: E702
        # fmt: on
        return y.tanh()


def program(module: nn.Module, width: int = WIDTH, length: int = 64) -> Any:
    """An export of a module for a sequence."""
    return graphflops.capture(module.to("meta"), (torch.empty(2, length, width, device="meta"),))


def report(model: Any, execution: Execution = "eager") -> Report:
    """The report of a training step."""
    return graphflops.analyze(model, device="h200", execution=execution, training=True)


def figures(module: nn.Module) -> tuple[Any, ...]:
    """Memory and times of a module, and what is held at each moment."""
    found = report(program(module))
    return found.totals, found.memory, found.memory_use, found.step_time, found.diagnostics


@pytest.mark.parametrize("other", [Plain, Bracketed, Ignored])
def test_weights_of_attention_may_be_called_anything(other: type[nn.Module]) -> None:
    assert figures(other()) == figures(Named())


def test_a_helper_may_be_called_anything() -> None:
    assert figures(Triangle()) == figures(Helped())


def test_a_mask_is_priced_as_it_stands_unless_it_is_a_librarys() -> None:
    """Causal attention has a flag, of which transformers knows: 64 * 64 truth values are made by a user's line alone."""
    model = program(Helped())
    for found, is_held in ((model, True), (in_library(model, "mask("), False)):
        held = [
            held.bytes
            for held in report(renamed(found, "v")).memory_use[0].timeline.held
            if held.name == "tril"
        ]
        assert held == [64 * 64] * is_held


PROGRAMS: dict[str, Callable[[], Any]] = {
    "attention": lambda: program(test_frames.Attention(), 64),
    "tuples": lambda: program(test_frames.Tuples(), 64),
    "scan": lambda: program(test_frames.Scan(), 64),
    "bottleneck": lambda: program(test_frames.Bottleneck(), 64),
    "statements": lambda: program(test_frames_of_statements.OneLine(), 64),
    "loop": lambda: program(test_frames_of_statements.LoopOfOneLine(), 64),
    "list": lambda: program(test_frames_of_statements.GivenList(), 64),
    "mask": lambda: program(Helped()),
    "weights": lambda: program(Named()),
    "methods": lambda: program(Spelled()),
    "library": lambda: in_library(program(Helped()), "mask("),
    "sample": lambda: str(SAMPLES / "gqa_transformer.pt2"),
    "pieces": lambda: str(SAMPLES / "all_heads.pt2"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_variables_and_functions_may_have_any_names(name: str) -> None:
    """Also the names that once told masks, weights, lists of results and layers apart."""
    model = PROGRAMS[name]()
    expected = report(model)
    for word in ("v", "create_causal_mask", "attn_weights", "outputs", "layer_block", "softmax", "_"):
        assert (
            report(renamed(model, word, "create_mask", "bottleneck", "softmax", "mul")).to_json()
            == expected.to_json()
        ), word


@pytest.mark.parametrize("execution", ["graph", "compiled"])
@pytest.mark.parametrize("name", ["mask", "weights", "sample"])
def test_names_decide_in_no_execution(name: str, execution: Execution) -> None:
    model = PROGRAMS[name]()
    found = [
        report(each, execution).to_json() for each in (model, renamed(model, "create_mask", "create_mask"))
    ]
    assert found[0] == found[1]


class Converted(nn.Module):
    """A variable whose name is that of a type."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        as_float32 = self.mlp(x).to(x.dtype)
        return torch.tanh(as_float32)


def test_a_variable_named_for_a_type_has_the_type_that_it_is_given() -> None:
    model, training = program(Converted()), graphflops.Training(precision="bf16")
    found, other = (graphflops.analyze(each, training=training) for each in (model, renamed(model, "v")))
    assert found.to_json() == other.to_json()
    assert found.totals.peak_bytes < graphflops.analyze(model, training=True).totals.peak_bytes
