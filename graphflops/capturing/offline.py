"""Keeps libraries from the network while they build a model: their code may run, nothing may be fetched."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphflops.errors import ModelError

_CALLS = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"})
_SETTINGS = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_state = {"hooked": False, "offline": False}


def _refuse(event: str, _: tuple[Any, ...]) -> None:
    if _state["offline"] and event in _CALLS:
        raise ModelError("the model wants to fetch something: capture reads no network; take that option out")


@contextmanager
def offline() -> Iterator[None]:
    """While it is entered, this process opens no connection: one that is tried raises ModelError."""
    os.environ.update(_SETTINGS)  # before the libraries are imported, which read them then
    if not _state["hooked"]:
        sys.addaudithook(_refuse)  # which Python never takes away again
        _state["hooked"] = True
    before, _state["offline"] = _state["offline"], True
    try:
        yield
    finally:
        _state["offline"] = before
