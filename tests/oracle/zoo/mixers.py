"""What mixes tokens other than attention: state spaces, linear attention, convolutions of any length, recurrences with gates.

In plain torch, each in the forms that it is written in: over pairs, in chunks, as a scan. What transformers has of them is in
the table `language`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.oracle.zoo.case import Case
from tests.oracle.zoo.torch_nn import SEQUENCES, Function, features

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SCAN = "FlopCounterMode does not look into scan"


def cases() -> Iterator[Case]:
    """All of them."""
    yield from state_spaces()
    yield from linear_attention()
    yield from convolutions()
    yield from recurrences()


def state_spaces() -> Iterator[Case]:
    """A selective state space: 16 channels with 4 states each."""
    parts = lambda: {"into": nn.Linear(16, 16 + 4 + 4), "out": nn.Linear(16, 16)}  # noqa: E731
    layers = lambda n, t: 2 * n * t * (16 * 24 + 16 * 16)  # noqa: E731

    def coefficients(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decay and input of each state, (n, t, 16, 4), and what reads them out, (n, t, 4)."""
        step, b, c = self.into(x).split([16, 4, 4], -1)
        step = F.softplus(step)
        decay = torch.exp(-step[..., None] * torch.arange(1, 5))
        return decay, step[..., None] * b[..., None, :] * x[..., None], c

    def scanned(self: Any, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.scan import scan

        def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
            decay, given, c = at
            state = decay * state + given
            return state, torch.einsum("ncs,ns->nc", state, c)

        parts = [part.transpose(0, 1) for part in coefficients(self, x)]
        return self.out(scan(step, x.new_zeros(x.shape[0], 16, 4), tuple(parts))[1].transpose(0, 1))

    yield Case(
        "mixers/selective_scan",
        lambda: Function(scanned, **parts()),
        features,
        SEQUENCES,
        expected=lambda n, t: layers(n, t) + 2 * n * t * 16 * 4,
        because=_SCAN,
    )

    def associative(self: Any, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.associative_scan import associative_scan

        def joined(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return a[0] * b[0], b[0] * a[1] + b[1]

        decay, given, c = coefficients(self, x)
        _, states = associative_scan(joined, (decay, given), 1, combine_mode="generic")
        return self.out(torch.einsum("ntcs,nts->ntc", states, c))

    yield Case("mixers/associative_scan", lambda: Function(associative, **parts()), features, SEQUENCES)

    def in_turn(self: Any, x: torch.Tensor) -> torch.Tensor:
        decay, given, c = coefficients(self, x)
        state = x.new_zeros(x.shape[0], 16, 4)
        read = []
        for at in range(x.shape[1]):
            state = decay[:, at] * state + given[:, at]
            read.append((state @ c[:, at, :, None])[..., 0])
        return self.out(torch.stack(read, 1))

    one_length = ({"n": 2, "t": 7}, {"n": 3, "t": 7})
    yield Case("mixers/unrolled_scan", lambda: Function(in_turn, **parts()), features, one_length)

    def in_chunks(self: Any, x: torch.Tensor) -> torch.Tensor:
        """One decay for all channels, as Mamba-2: pairs within a chunk of 4, states from chunk to chunk."""
        t = x.shape[1]
        step, b, c = self.into(F.pad(x, (0, 0, 0, -t % 4))).split([16, 4, 4], -1)
        x = F.pad(x, (0, 0, 0, -t % 4)).unflatten(1, (-1, 4))
        log, b, c = (part.unflatten(1, (-1, 4)) for part in (-F.softplus(step[..., 0]), b, c))
        sums = log.cumsum(-1)
        within = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
        y = torch.einsum("nkis,nkjs,nkij,nkjc->nkic", c, b, within, x)
        states = torch.einsum("nkjs,nkj,nkjc->nksc", b, (sums[..., -1:] - sums).exp(), x)
        total = F.pad(sums[..., -1], (1, 0)).cumsum(-1)
        across = (total[..., :, None] - total[..., None, :]).tril().exp().tril()[..., :-1, 1:]
        before = torch.einsum("nkj,njsc->nksc", across, states)
        y = y + torch.einsum("nkis,nki,nksc->nkic", c, sums.exp(), before)
        return self.out(y.flatten(1, 2)[:, :t])

    yield Case("mixers/chunked_scan", lambda: Function(in_chunks, **parts()), features, SEQUENCES[1:])


def linear_attention() -> Iterator[Case]:
    """Products in another order than attention's: four heads of width 4."""
    parts = lambda: {"qkv": nn.Linear(16, 48), "gate": nn.Linear(16, 4)}  # noqa: E731

    def projected(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

    def kernel(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = projected(self, x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(-2)[..., None])

    yield Case("mixers/kernel_attention", lambda: Function(kernel, **parts()), features, SEQUENCES)

    def cumulative(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = projected(self, x)
        states = (F.relu(k)[..., None] * v[..., None, :]).cumsum(-3)
        return torch.einsum("nhtk,nhtkv->nhtv", F.relu(q), states)

    yield Case("mixers/causal_kernel_attention", lambda: Function(cumulative, **parts()), features, SEQUENCES)

    def retention(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = projected(self, x)
        places = torch.arange(x.shape[1])
        far = (places[:, None] - places).clamp(min=0)
        decay = (0.9 ** torch.arange(1, 5))[:, None, None] ** far
        return ((q @ k.transpose(-1, -2)) * decay.tril()) @ v

    yield Case("mixers/retention", lambda: Function(retention, **parts()), features, SEQUENCES)

    def delta(self: Any, x: torch.Tensor) -> torch.Tensor:
        """The gated delta rule, place by place."""
        from torch._higher_order_ops.scan import scan

        def step(state: torch.Tensor, at: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
            q, k, v, gate = at
            state = state * gate[..., None, None]
            wrong = v - (k[..., None, :] @ state)[..., 0, :]
            state = state + k[..., :, None] * wrong[..., None, :]
            return state, (q[..., None, :] @ state)[..., 0, :]

        parts = [part.permute(2, 0, 1, 3) for part in projected(self, x)]
        gate = self.gate(x).sigmoid().transpose(0, 1)
        return scan(step, x.new_zeros(x.shape[0], 4, 4, 4), (*parts, gate))[1]

    yield Case(
        "mixers/gated_delta",
        lambda: Function(delta, **parts()),
        features,
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * (16 * 48 + 16 * 4) + 2 * (2 * n * t * 4 * 4 * 4),
        because=_SCAN,
    )

    def memory(self: Any, x: torch.Tensor) -> torch.Tensor:
        """The matrix memory of xLSTM over pairs, with exponential gates."""
        q, k, v = projected(self, x)
        log = F.logsigmoid(self.gate(x)).transpose(1, 2).cumsum(-1)
        far = (log[..., :, None] - log[..., None, :]).masked_fill(
            torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf")
        )
        weights = (q @ k.transpose(-1, -2)) * (far - far.amax(-1, keepdim=True)).exp()
        return (weights / weights.sum(-1, keepdim=True).abs().clamp(min=1)) @ v

    yield Case("mixers/matrix_memory", lambda: Function(memory, **parts()), features, SEQUENCES)


def convolutions() -> Iterator[Case]:
    """Short ones, and ones as long as the sequence by way of its spectrum."""

    def hyena(self: Any, x: torch.Tensor) -> torch.Tensor:
        t = x.shape[1]
        a, b, v = self.into(x).chunk(3, -1)
        filters = self.filter(torch.arange(t)[:, None] / 64.0).tanh()
        spectrum = torch.fft.rfft(filters, n=2 * t, dim=0)
        long = torch.fft.irfft(torch.fft.rfft(a * v, n=2 * t, dim=1) * spectrum, n=2 * t, dim=1)[:, :t]
        return self.out(b * long)

    yield Case(
        "mixers/hyena",
        lambda: Function(hyena, into=nn.Linear(16, 48), filter=nn.Linear(1, 16), out=nn.Linear(16, 16)),
        features,
        SEQUENCES,
    )

    def short(self: Any, x: torch.Tensor) -> torch.Tensor:
        b, c, x = self.into(x).chunk(3, -1)
        mixed = self.depthwise((b * x).transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.out(c * mixed)

    yield Case(
        "mixers/short_convolution",
        lambda: Function(
            short,
            into=nn.Linear(16, 48),
            depthwise=nn.Conv1d(16, 16, 3, groups=16, padding=2),
            out=nn.Linear(16, 16),
        ),
        features,
        SEQUENCES,
    )

    def kernel(self: Any, x: torch.Tensor) -> torch.Tensor:
        """A state space that does not depend on its input, as the long convolution it is."""
        t = x.shape[1]
        powers = torch.exp(-self.decay.exp()[..., None] * torch.arange(t))
        filters = torch.einsum("cs,cst->ct", self.read, powers)
        spectrum = torch.fft.rfft(filters, n=2 * t) * torch.fft.rfft(x.transpose(1, 2), n=2 * t)
        return self.out(torch.fft.irfft(spectrum, n=2 * t)[..., :t].transpose(1, 2))

    def diagonal() -> nn.Module:
        made = Function(kernel, out=nn.Linear(16, 16))
        made.decay, made.read = nn.Parameter(torch.rand(16, 4)), nn.Parameter(torch.rand(16, 4))
        return made

    yield Case("mixers/diagonal_state_space", diagonal, features, SEQUENCES)


def recurrences() -> Iterator[Case]:
    """A state that gates let go of."""
    parts: Callable[[], dict[str, nn.Module]] = lambda: {  # noqa: E731
        "gates": nn.Linear(16, 64), "again": nn.Linear(16, 64, bias=False),
    }  # fmt: skip

    def griffin(self: Any, x: torch.Tensor) -> torch.Tensor:
        """A real-gated linear recurrent unit, each channel by itself."""
        from torch._higher_order_ops.associative_scan import associative_scan

        kept, given, side, _ = self.gates(x).chunk(4, -1)
        decay = torch.exp(-8 * F.softplus(kept) * torch.sigmoid(side))
        scaled = (1 - decay**2).clamp(min=1e-6).sqrt() * given.sigmoid() * x

        def joined(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return a[0] * b[0], b[0] * a[1] + b[1]

        return associative_scan(joined, (decay, scaled), 1, combine_mode="generic")[1]

    yield Case(
        "mixers/gated_linear_recurrence",
        lambda: Function(griffin, gates=nn.Linear(16, 64)),
        features,
        SEQUENCES,
    )

    def scalar_memory(self: Any, x: torch.Tensor) -> torch.Tensor:
        """The scalar memory of xLSTM: exponential gates, held in range by their largest so far."""
        from torch._higher_order_ops.scan import scan

        def step(
            held: tuple[torch.Tensor, ...], x: torch.Tensor
        ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
            cell, norm, most, hidden = held
            value, into, kept, out = (x + self.again(hidden)).chunk(4, -1)
            top = torch.maximum(kept + most, into)
            into, kept = torch.exp(into - top), torch.exp(kept + most - top)
            cell, norm = kept * cell + into * value.tanh(), kept * norm + into
            hidden = out.sigmoid() * cell / norm.clamp(min=1e-6)
            return (cell, norm, top, hidden), hidden * 1.0

        zeros = tuple(x.new_zeros(x.shape[0], 16) for _ in range(4))
        return scan(step, zeros, self.gates(x).transpose(0, 1))[1]

    yield Case(
        "mixers/scalar_memory",
        lambda: Function(scalar_memory, **parts()),
        features,
        SEQUENCES,
        expected=lambda n, t: 2 * n * t * 2 * 16 * 64,
        because=_SCAN,
    )
