"""A statement on several lines holds what the same one on a single line does, and what the module holds when it runs."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from torch import nn

import graphflops
from graphflops.execution.source_lines import closes, statements
from tests.memory.test_frames import WIDTH, LiveBytes


class Attention(nn.Module):
    """Attention that returns its weights too."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.query(x) @ x.transpose(1, 2)
        weights = scores.softmax(-1)
        return self.out(weights @ x), weights


class Mlp(nn.Module):
    """Two products with a wide value between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)) * scale[..., :1])


class Layer(nn.Module):
    """Attention and an MLP; what the attention returned is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm, self.mlp = Attention(), nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
        y, weights = self.attention(self.norm(x))
        x = x + y
        x = x + self.mlp(x, scale)
        return x, weights


class Model(nn.Module):
    """Layers that a function of the given text runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.blocks = nn.ModuleList(Mlp() for _ in range(3))
        self.gate = nn.Linear(WIDTH, WIDTH)
        body = "".join(f"    {line}\n" for line in text.strip().splitlines())
        source, name = f"def forward(self, x, scale):\n{body}", f"/spelling/{abs(hash(text))}.py"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        made: dict[str, Any] = {"torch": torch}
        exec(compile(source, name, "exec"), made)
        self.__class__ = type("Model", (Model,), {"forward": made["forward"]})


# The statement on one line, and the same on several.
SPELLINGS = {
    "a tuple with weights": (
        """
for block in self.layers:
    outputs = block(x, scale)
    x = outputs[0]
return x.tanh()
""",
        """
for block in self.layers:
    outputs = block(
        x,
        scale,
    )
    x = outputs[0]
return x.tanh()
""",
        """
for block in self.layers:
    outputs = block(
        x=x, scale=scale
    )
    x = outputs[0]
return x.tanh()
""",
    ),
    "a tuple whose elements are computed with": (
        """
for block in self.layers:
    outputs = block(x, scale)
    x = outputs[0].exp()
    y = self.gate(x) * outputs[0]
return y.tanh()
""",
        """
for block in self.layers:
    outputs = block(
        x,
        scale,
    )
    x = outputs[0].exp()
    y = self.gate(
        x
    ) * outputs[
        0
    ]
return y.tanh()
""",
    ),
    "a sum that goes on behind the operands": (
        """
for block in self.blocks:
    x = x + block(x, scale) * self.gate(x).sigmoid()
return x.tanh()
""",
        """
for block in self.blocks:
    x = x + block(
        x,
        scale,
    ) * self.gate(x).sigmoid()
return x.tanh()
""",
    ),
    "elements of a dictionary": (
        """
found = {}
for i, block in enumerate(self.blocks):
    found[i] = block(x, scale)
    x = found[i] + x
return x.tanh()
""",
        """
found = {}
for i, block in enumerate(self.blocks):
    found[
        i
    ] = block(
        x,
        scale,
    )
    x = found[i] + x
return x.tanh()
""",
    ),
    "computed operands": (
        """
for block in self.blocks:
    outputs = block(self.gate(x), scale.exp())
    x = outputs + x
return x.tanh()
""",
        """
for block in self.blocks:
    outputs = block(
        self.gate(x),
        scale.exp(),
    )
    x = outputs + x
return x.tanh()
""",
    ),
    "a value that has two names before a loop": (
        """
first = self.gate(x)
y = first
for block in self.blocks:
    y = block(y, scale)
return y.tanh()
""",
        """
first = self.gate(x)
y = first
for block in self.blocks:
    y = block(
        y,
        scale,
    )
return y.tanh()
""",
    ),
    "a variable that is bound again": (
        """
for block in self.blocks:
    x = block(x, scale)
return x.tanh()
""",
        """
for block in self.blocks:
    x = block(
        x,
        scale,
    )
return x.tanh()
""",
    ),
}


@pytest.mark.parametrize("texts", SPELLINGS.values(), ids=SPELLINGS)
def test_lines_decide_nothing(texts: tuple[str, ...]) -> None:
    given = torch.randn(2, 4 * WIDTH, WIDTH), torch.randn(2, 4 * WIDTH, WIDTH)
    peaks = []
    for text in texts:
        model = Model(text)
        report = graphflops.analyze(torch.export.export(model, given), execution="eager")
        peaks.append(report.totals.peak_bytes - sum(x.nbytes for x in given))
        with torch.no_grad(), LiveBytes((given, dict(model.named_parameters()))) as ran:
            model(*given)
        assert peaks[-1] == pytest.approx(ran.peak, rel=0.001)  # but for the statistics of norms
    assert set(peaks) == {peaks[0]}


def test_targets_on_lines_above_are_several_or_an_element() -> None:
    several, element = statements(") = block(x, m)")[0], statements("] = block(")[0]
    assert (several.targets, several.given) == (("#0", "#1"), ("x", "m"))
    assert (element.targets, element.given) == (("#0[]",), ("",))
    assert statements("found[i] = block(x)")[0].targets == ("found[]",)
    assert statements("found[0] = block(x)")[0].targets == ("found[0]",)


def test_the_end_of_operands_is_no_statement_of_its_own() -> None:
    assert closes(") * self.gate(x)")
    assert not closes(") = block(x)")
    assert not closes("); x = f(x)")
    assert not closes("self.norm(x))")
