"""A process group of torch.distributed that only pretends, in which programs of several devices are exported."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def first_of(devices: int) -> Iterator[tuple[Any, Any]]:
    """torch and its functional collectives, on the first of so many devices; the test is skipped where torch has none."""
    torch = pytest.importorskip("torch")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not torch.distributed.is_available():
        pytest.skip("this torch knows no other devices")
    import torch.distributed._functional_collectives as exchange

    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=devices)
    try:
        yield torch, exchange
    finally:
        torch.distributed.destroy_process_group()
