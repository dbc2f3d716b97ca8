"""What Python holds while modules run: predicted from an export, against the same modules run eagerly on the CPU."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import graphflops
from graphflops.execution.source_lines import code_lines, statements

WIDTH = 64


class LiveBytes(TorchDispatchMode):
    """The most bytes alive at once in tensors made while it is on, by counting references to each storage."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.tensors = {
            x.untyped_storage()._cdata: 1 for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)
        }
        self.live = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor)
        self.peak = max(self.peak, self.live)
        return result

    def hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self.tensors:
            self.live += nbytes
        self.tensors[key] = self.tensors.get(key, 0) + 1
        weakref.finalize(tensor, self.release, key, nbytes)

    def release(self, key: int, nbytes: int) -> None:
        self.tensors[key] -= 1
        if not self.tensors[key]:
            del self.tensors[key]
            self.live -= nbytes


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        x = torch.tanh(x)
        return self.down(x)


class Residual(nn.Module):
    """The old `x` lives until the line is done, and what `mlp` is given until `mlp` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mlp(self.norm(x))
        return x  # noqa: RET504 (as models are written)


class Stack(nn.Module):
    """A loop: its line is the same in each turn, what it assigns is not."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class NamedSteps(nn.Module):
    """Every step has a name of its own, so that nothing is free before the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x)
        second = self.b(first)
        third = self.c(second)
        return third * 2


class Joined(nn.Module):
    """A list holds what it was given until the function returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(3 * WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        y = torch.cat(found, -1)
        return self.last(y)


class Bottleneck(nn.Module):
    """A method that is no forward holds what it gives to a module, as the layers of a DenseNet do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def bottleneck(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([x, x], -1)
        return self.second(self.first(joined))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bottleneck(x)


class Unpacked(nn.Module):
    """Several names at once."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        x = scores @ v
        return self.out(x)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A function of several statements, as models compute attention: an export has no lines of it."""
    query = query.double()
    key = key.double()
    scores = query @ key.transpose(-1, -2)
    scores = scores / 2
    scores = torch.softmax(scores, dim=-1, dtype=torch.float64).to(value.dtype)
    return scores @ value, scores


class Attention(nn.Module):
    """The operands of a product in a function are variables of it; the probabilities are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(x).chunk(3, -1)
        output, weights = attention(q, k, v)
        return self.out(output), weights


class Block(nn.Module):
    """It returns a tuple, which a variable of the caller holds during the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, attn_weights = self.attention(x)
        output = output + self.mlp(x)
        return output, attn_weights


class Tuples(nn.Module):
    """`x = outputs[0]` leaves no call: that `x` holds another value shows when a block reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cos(x)
        for block in self.blocks:
            outputs = block(x)
            x = outputs[0]
        return torch.tanh(x)


class Shared(nn.Module):
    """One layer that runs again and again: its variables are gone when it begins anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Steps()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in (0, 0, 0):
            x = self.layers[index](x)
        return x


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.a(x)
        second = torch.tanh(first)
        return self.b(second)


class NoGrad(nn.Module):
    """What runs without gradients is one call of an export, which has no line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        embedded = torch.tanh(x)
        with torch.no_grad():
            positions = torch.sin(torch.zeros_like(embedded))
        hidden = embedded + positions
        hidden = self.out(hidden)
        return torch.tanh(hidden)


class Chain(nn.Module):
    """A statement of several lines: the variable that it begins with is taken to be the one that it assigns."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y = (
            y.reshape(8, 4, 4, WIDTH)
            .permute(0, 2, 1, 3)
            .reshape(8, 16, WIDTH)
        )  # fmt: skip
        hidden = torch.tanh(y)
        hidden = self.out(hidden)
        return torch.tanh(hidden)


def scan(x: torch.Tensor, decay: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A state that each turn of a loop replaces."""
    state = torch.zeros_like(x[:, 0])
    found = []
    for step in range(6):
        state = decay * state + x[:, step]
        found.append(state @ out)
    return torch.stack(found, 1)


class Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decay, self.out = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(WIDTH, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        return scan(x, self.decay, self.out)


class Numbered(nn.Module):
    """Layers of a function that are numbered, but are no list: each line of it is done before the next begins."""

    def __init__(self) -> None:
        super().__init__()
        self.up_1a, self.up_2a, self.down = nn.Linear(WIDTH, 256), nn.Linear(256, 128), nn.Linear(128, WIDTH)

    def run(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        x = self.up_1a(x)
        x = self.up_2a(x)
        return self.down(x), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.run(x)
        return torch.tanh(x)


@pytest.mark.parametrize(
    "module",
    [
        Attention(),
        Tuples(),
        Shared(),
        NoGrad(),
        Chain(),
        Scan(),
        Mlp(),
        Residual(),
        Stack(),
        NamedSteps(),
        Joined(),
        Bottleneck(),
        Unpacked(),
        Numbered(),
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH), nn.Tanh()),
        nn.Sequential(Stack(2), Joined(), nn.Tanh()),
    ],
    ids=[
        "attention",
        "tuples",
        "shared",
        "no grad",
        "chain",
        "scan",
        "mlp",
        "residual",
        "stack",
        "named steps",
        "joined",
        "bottleneck",
        "unpacked",
        "numbered",
        "sequential",
        "nested",
    ],
)
def test_the_peak_is_that_of_the_module_run_eagerly(module: nn.Module) -> None:
    x = torch.randn(8, 16, WIDTH)
    program = torch.export.export(module, (x,))
    report = graphflops.analyze(program, execution="eager")
    with torch.no_grad(), LiveBytes((x, dict(module.named_parameters()))) as ran:
        module(x)
    statistics = 2 * 8 * 16 * 4 if any(isinstance(part, nn.LayerNorm) for part in module.modules()) else 0
    assert report.execution == "eager"
    # The mean and the deviation of a LayerNorm are results of its kernel, which no program holds.
    assert ran.peak - statistics <= report.totals.peak_bytes - x.nbytes <= ran.peak


def test_eager_execution_holds_more_than_a_graph() -> None:
    x = torch.randn(8, 16, WIDTH)
    program = torch.export.export(Residual(), (x,))
    hidden = 8 * 16 * WIDTH * 4
    graph, eager = (
        graphflops.analyze(program, execution=way).totals.peak_bytes for way in ("graph", "eager")
    )
    assert graph == hidden * (1 + 2 * 4)  # x; before and after the activation
    assert eager == hidden * (1 + 1 + 2 * 4)  # and what the MLP was given


def test_a_call_stack_is_read_with_its_modules() -> None:
    python = (
        'File "/home/me/model.py", line 7, in forward\n    x = self.block(x)\n'
        '  File "/home/me/model.py", line 3, in forward\n    return self.fc(x)\n'
    )
    modules = "a,,model.Net;b,block,model.Block"
    assert [(line.number, line.text, line.module) for line in code_lines(python, modules)] == [
        (7, "x = self.block(x)", ""),
        (3, "return self.fc(x)", "block"),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = self.act(x)", ("x",)),
        ("q, k, v = qkv.unbind(0)", ("q", "k", "v")),
        ("x += self.mlp(x)", ("x",)),
        ("outputs: Output = self.model(", ("outputs",)),
        ("self.cache = f(key)", ("self.cache",)),
        ("output, *rest = f(x)", ("output", "rest")),
        ("return self.fc(x)", ()),
        ("if x.shape[0] == 1:", ()),
        ("self.fc(x, dim=1)", ()),
        ("for x in xs:", ()),
        ("returned = f(x)", ("returned",)),
        ("for block in blocks: x = block(x)", ("x",)),
    ],
)
def test_what_a_statement_assigns(text: str, names: tuple[str, ...]) -> None:
    assert statements(text)[0].targets == names
