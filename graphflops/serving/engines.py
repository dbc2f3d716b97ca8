"""What engines that serve decoders take beside the program: memory, blocks of the cache, work in each step.

The figures are data, `engines.json`, each with its source and the release that it holds for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from graphflops.errors import require_choice


class Engine(msgspec.Struct, frozen=True):
    """An engine. None: what it does not have, or what nobody measured.

    memory_fraction: part of the memory that it takes.
    fraction_of: whether that is a part of the device, with the warm-up's peak in it; of the device, for weights and caches
        alone; or of what weights and the peak leave, for caches alone.
    block_tokens: tokens that a cache grows by.
    sequences: requests that its warm-up samples for; bytes_per_logit: what that takes for each of them and each entry of the
    vocabulary. prefill_tokens: tokens of its largest step. libraries_bytes: what CUDA and its libraries take.
    step_seconds: its own work in each step. request_seconds: that for each request in it. prefills_first: whether a step
        waits until no prompt does; else steps and prefills go through the layers together. sum_seconds, sum_link_share:
        latency of its own sums over devices, and the part of a link's bandwidth that they reach. sources: by field.
    """

    memory_fraction: float | None
    fraction_of: Literal["device", "weights and caches", "free"] | None
    block_tokens: int
    sequences: int | None
    bytes_per_logit: float | None
    prefill_tokens: int | None
    libraries_bytes: int | None
    step_seconds: float | None
    sum_seconds: float | None
    sum_link_share: float | None
    sources: Mapping[str, str]
    request_seconds: float | None = None
    prefills_first: bool | None = None
    name: str = ""

    @property
    def is_paged(self) -> bool:
        """Whether its caches grow in place, block by block."""
        return self.memory_fraction is not None

    def assumptions(self, has_prefill: bool) -> Iterator[str]:
        """What is assumed of it. has_prefill: whether the largest step's program is known."""
        if self.memory_fraction is None:
            return
        yield f"{self.name}: caches grow in place, in blocks of {self.block_tokens} tokens"
        yield "its kernels: fused as torch.compile does, in a CUDA graph; attention reads a key once, and no mask"
        yield f"{self.name} takes {100 * self.memory_fraction:.0f} %: {self.sources['memory_fraction']}"
        if self.step_seconds is None:
            yield f"what {self.name} itself does in each step is not known, and not counted"
        if not has_prefill and self.prefill_tokens is not None:
            yield f"what the largest prefill of {self.name} allocates is not known, and not counted: --prefill"


@cache
def engines() -> dict[str, Engine]:
    """All engines by name."""
    text = Path(__file__).with_name("engines.json").read_bytes()
    found = msgspec.json.decode(text, type=dict[str, Engine])
    return {name: msgspec.structs.replace(one, name=name) for name, one in found.items()}


def engine_named(name: str) -> Engine:
    """The engine of a name; OptionError for another name."""
    require_choice("engine", name, tuple(engines()))
    return engines()[name]
