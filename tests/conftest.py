"""Triton is prepared for its first import by any test, and every graph that a test analyzes is verified."""

import os
from pathlib import Path

import pytest

from graphflops import analysis
from graphflops.verify import verify

if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not Path("/dev/nvidiactl").exists():
    # Triton makes its own functions for its interpreter or for a GPU when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

_as_graph = analysis.as_graph


def _verified(model, model_name=None):
    graph = _as_graph(model, model_name)
    verify(graph)
    return graph


@pytest.fixture(autouse=True)
def _verify_graphs(request, monkeypatch):
    if request.node.get_closest_marker("ill_formed") is None:
        monkeypatch.setattr(analysis, "as_graph", _verified)
