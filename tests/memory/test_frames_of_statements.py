"""What Python holds by the form of its statements: predicted from an export, against the same modules run eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import graphflops
from graphflops.execution.source_lines import statements
from tests.memory.test_frames import WIDTH, LiveBytes

# ruff: noqa: E702, E701, RUF100 (several statements a line: what is tested)


class OneLine(nn.Module):
    """Statements of one line are done one after the other: `y` is held to the end, the first `x` is not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x); y = torch.relu(self.a(x)); x = self.b(x); z = torch.cat([y, x], -1); z = torch.cat([z, x], -1); return torch.tanh(self.c(z))  # noqa: E501
    # fmt: on


class LoopOfOneLine(nn.Module):
    """The variable of a loop holds its value until the turn is done."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(3))

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cos(x); h = x
        for layer in self.layers: h = torch.relu(layer(torch.cat([x, h, h], -1)))
        return torch.tanh(h)
    # fmt: on


class Residual(nn.Module):
    """A loop's next turn frees the variable's old value: here that of the first line, and that of each turn after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.wide = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        for block in self.wide:
            x = x + 0.2 * block(x)
        return x


class Sums(nn.Module):
    """One statement that calls two modules of a list: the old `x` lives until both are added."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        x = torch.sin(self.layers[0](x)) + torch.sin(self.layers[1](x)) + torch.sin(self.layers[2](x))
        return torch.tanh(x)


class Chains(nn.Module):
    """`key = (self.key(x).view(...)...)` over lines: no line names the variable, which holds the result to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query_layer = (
            self.query(x)
            .view(8, 16, 4, 16)
            .transpose(1, 2)
        )
        key_layer = (
            self.key(x)
            .view(8, 16, 4, 16)
            .transpose(1, 2)
        )
        scores = torch.sin(query_layer) @ torch.sin(key_layer).transpose(-1, -2)
        value = self.value(x)
        joined = torch.cat([value, value], -1)
        joined = torch.cat([joined, joined], -1)
        return torch.tanh(joined), scores
    # fmt: on


class Largest(nn.Module):
    """`max` makes positions too; who takes `.values` drops them with the statement."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        x = x.view(8, 4, 4, WIDTH)
        y = x.max(dim=2).values
        z = torch.cat([y] * 12, -1)
        return torch.tanh(z)


class Wrapped(nn.Module):
    """Arguments on lines of their own are no assignments."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def of(self, hidden: torch.Tensor, scale: float) -> torch.Tensor:
        return self.inner(hidden) * scale

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.of(
            hidden=self.norm(x), scale=2.0,
        )
        z = torch.cat([y] * 6, -1)
        return torch.tanh(z)
    # fmt: on


class Cache:
    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []

    def update(self, key: torch.Tensor) -> torch.Tensor:
        self.keys.append(torch.cat([torch.tensor([]), key], -2))
        return self.keys[-1]


class Cached(nn.Module):
    """Each layer's keys stay in a cache that begins empty, to the end of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = Cache()
        for layer in self.layers:
            x = layer(x)
            x = cache.update(x) * 2
        x = torch.cat([x, x], -1)
        return torch.tanh(x)


class Appending(nn.Module):
    """Appends its results to a list of its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, outputs: list[torch.Tensor]) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            outputs.append(x)
        return torch.cat(outputs, -1)


class GivenList(nn.Module):
    """The list lives until the function that made it returns, past the one that joins what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.last = Appending(), nn.Linear(4 * WIDTH, 4 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        outputs = [x]
        x = self.blocks(x, outputs)
        return self.last(x)


class Linears(nn.Module):
    """Modules for the functions below."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def wide(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.tanh(self.up(x)))
        return y + more[0] if more else y


class Operands(Linears):
    """Operands on lines of their own live until the statement that opens above them is done."""

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        y = self.wide(
            self.a(x),
            self.b(x),
        )
        return torch.tanh(torch.cat([y, y, y], -1))
    # fmt: on


class Summands(Linears):
    """Terms on lines of their own are one expression, whose value a variable holds until it is bound again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        out = (
            self.a(x)
            + self.b(x)
            + self.c(x)
        )  # fmt: skip
        out = torch.tanh(out)
        return self.wide(out)


class Rebound(Linears):
    """What a chain of methods makes is let go when its variable is bound again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = (
            self.up(x)
            .view(8, 4, 4, 4 * WIDTH)
            .permute(0, 2, 1, 3)
            .reshape(8, 16, 4 * WIDTH)
        )  # fmt: skip
        h = torch.tanh(h)
        h = self.down(h)
        h = self.up(h)
        return torch.sin(h)


class Bound(Linears):
    """A variable that a condition binds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (y := self.up(x)).shape[0] > 0:
            z = torch.tanh(y)
        z = self.down(z)
        return torch.cat([z] * 6, -1).tanh()


class Popped(Linears):
    """Statements that run nothing stand between the others of a line."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        # fmt: off
        for layer in self.layers[:2]:
            x = torch.relu(layer(x)); skips.append(x)
        # fmt: on
        for layer in self.layers[2:]:
            x = layer(x) + skips.pop()
            x = torch.relu(x)
        return self.wide(x)


class Several(Linears):
    """Targets inside of one another, and two variables at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = b = self.a(x)
        c, (d, e) = self.b(a), (self.c(b), self.layers[0](b))
        return torch.cat([c, d, e], -1).tanh()


class Weights(Linears):
    """The second result of an attention is held, whatever it is called."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = q @ k.transpose(-1, -2)
        scores = scores / 8
        p = scores.softmax(-1)
        return p @ v, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        out, p = self.attend(q, k, v)  # noqa: RUF059 (Python holds it)
        return self.wide(out)


def steps(x: torch.Tensor) -> torch.Tensor:
    """A variable of each turn is read twice, and replaced in the next."""
    state, found = torch.zeros_like(x[:, 0]), []
    for step in range(16):
        weight = torch.exp(x[:, step] - state)
        state = weight * state + weight * x[:, step]
        found.append(state.sum(-1))
    return torch.stack(found, 1)


class Steps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x)
        return steps(x)


def test_variables_of_a_loop_over_steps_are_replaced() -> None:
    x = torch.randn(8, 16, WIDTH)
    report = graphflops.analyze(torch.export.export(Steps(), (x,)), execution="eager")
    with torch.no_grad(), LiveBytes((x,)) as ran:
        Steps()(x)
    one = 8 * WIDTH * 4
    predicted = report.totals.peak_bytes - x.nbytes
    assert (
        ran.peak - one <= predicted <= ran.peak + 2 * 8 * one
    )  # eight of each operator, not all of 16 turns


class Modulated(nn.Module):
    """`1 + a` is a call where `a` is a tensor: the statement is done at its third sum."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)
        )

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for f, g in zip(self.scale, self.layers, strict=True): a = f(x); x = x + g(torch.sin(x) * (1 + a) + a)
        return torch.tanh(x)
    # fmt: on


class Heads(nn.Module):
    """One variable holds each view; the last ones keep the memory of all while those before are bound again."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(WIDTH, 3 * WIDTH)

    # fmt: off
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(8, 16, 4, -1) for t in self.joint(x).chunk(3, -1)); q, k = torch.relu(q) + 1, torch.relu(k) + 1; q = q * v; k = torch.cat([k, q, k, q], -1); return torch.tanh(k)  # noqa: E501
    # fmt: on


@pytest.mark.parametrize(
    "module",
    [
        OneLine(),
        LoopOfOneLine(),
        Residual(),
        Sums(),
        Chains(),
        Largest(),
        Wrapped(),
        Cached(),
        GivenList(),
        Operands(),
        Summands(),
        Rebound(),
        Bound(),
        Popped(),
        Several(),
        Weights(),
        Modulated(),
        Heads(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_the_peak_is_that_of_the_module_run_eagerly(module: nn.Module) -> None:
    x = torch.randn(8, 16, WIDTH)
    report = graphflops.analyze(torch.export.export(module, (x,)), execution="eager")
    with torch.no_grad(), LiveBytes((x, dict(module.named_parameters()))) as ran:
        module(x)
    assert report.totals.peak_bytes - x.nbytes == ran.peak


@pytest.mark.parametrize(
    "module", [Summands(), Operands(), Weights()], ids=lambda module: type(module).__name__
)
def test_a_strict_export_says_the_same(module: nn.Module) -> None:
    """Its stacks have a line of torch's own, and none of the modules that torch brings."""
    x = torch.randn(8, 16, WIDTH)
    peaks = [
        graphflops.analyze(
            torch.export.export(module, (x,), strict=strict), execution="eager"
        ).totals.peak_bytes
        for strict in (True, False)
    ]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("x = self.act(x)", [("act",)]),
        ("a = f(x); b = a @ a.mT; c = b", [("",), ("matmul",)]),
        ("for b in self.b: x = x + b(x) * 0.1", [("add",)]),
        ("u = s.r[4](x, e); return s.o(u)", [("r.4",), ("o",)]),
        ("x += self.mlp(x)", [("add",)]),
        ("(" * 300 + "; a = f(x)", [()]),
    ],
)
def test_the_statements_of_a_line(text: str, ends: list[tuple[str, ...]]) -> None:
    assert [statement.runs_last for statement in statements(text)] == ends


@pytest.mark.parametrize(
    "text",
    [
        "hidden=self.norm(x), scale=2.0",
        "hidden=self.norm(x),",
        "self.norm(x)",
        ".transpose(1, 2)",
        "+ self.norm(x)",
        "self.norm(x))",
        '"full": self.norm(x),',
        "for x in self.parts(x):",
        "(" * 300 + "x",
    ],
)
def test_a_line_from_the_middle_of_a_statement_says_nothing(text: str) -> None:
    (found,) = statements(text)
    assert found.is_piece
    assert found.targets == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = self.block(", ("x",)),
        ("x, w = self.block(x,", ("x", "w")),
        ("(x, w) = self.block(x, [", ("x", "w")),
        ("x = self.first(x) + \\", ("x",)),
        ("x = (", ("x",)),
        ("x = (self.first(x) +", ("x",)),
        ("elif self.fast: x = self.block(", ("x",)),
        ("return self.block(", ()),
        ("if self.block(x).sum() > 0:", ()),
        ("with self.block(x) as y:", ()),
    ],
)
def test_a_line_that_opens_a_statement_binds_what_it_says(text: str, names: tuple[str, ...]) -> None:
    (found,) = statements(text)
    assert not found.is_piece
    assert found.targets == names


@pytest.mark.parametrize(
    ("text", "times", "variables"),
    [
        ("x = x + g * f(y * (1 + a) + b)", 2, ("a",)),
        ("x = x + layers[i + 1](x)", 1, ("i",)),
        ("y = f(x.float() * z.double()).to(x.dtype)", 3, ()),
        ("q, k, v = (t.view(2, 8) for t in f(x))", 3, ()),
    ],
)
def test_how_often_a_line_spells_what_it_runs_last(text: str, times: int, variables: tuple[str, ...]) -> None:
    (statement,) = statements(text)
    assert (statement.times, statement.or_numbers) == (times, variables)


def test_a_module_of_its_own_is_no_operator_of_its_name() -> None:
    assert statements("y = x.split(2)", "s")[0].role("aten.split.Tensor")[0]
    assert not statements("y = s.split(x)", "s")[0].role("aten.split.Tensor")[0]


def test_variables_read_as_tensors_are_no_tuples() -> None:
    assert statements("y = x + f(z, w[0], u[:, 0]) * v.sin()")[0].names == {"f", "x", "z", "u", "v"}


@pytest.mark.parametrize(
    ("text", "names"),
    [("return f(x), w, y", ("w", "y")), ("return f(x)", ()), ("w = f(x)", None)],
)
def test_a_return_tells_what_is_returned_beside_a_result(text: str, names: tuple[str, ...] | None) -> None:
    assert statements(text)[0].returns == names


def test_what_no_line_tells_is_said() -> None:
    """The keys of `Chains` are bound on a line that runs nothing."""
    x = torch.randn(8, 16, WIDTH)
    program = torch.export.export(Chains(), (x,))
    report = graphflops.analyze(program, execution="eager")
    (note,) = [found.message for found in report.diagnostics if found.code == "GF125"]
    assert note.startswith(
        "2 results, 65.54 kB together, taken to live until the function that makes them returns"
    )
    assert 2 * 8 * 16 * WIDTH * 4 == 65_536
