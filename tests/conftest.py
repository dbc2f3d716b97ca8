"""Prepares Triton for its first import, verifies every graph that a test analyzes, and records which rules the tests run."""

import gc
import os
import sys
from pathlib import Path

import pytest

from graphflops import analysis
from graphflops.verify import verify
from tests import children
from tests.rules_run import RulesRun

if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not Path("/dev/nvidiactl").exists():
    # Triton makes its own functions for its interpreter or for a GPU when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ.pop("COLUMNS", None)  # tests give the width that they are about
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # tensors are small here, and threads that wait take other tests' time

_as_graph = analysis.as_graph


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RulesRun(), "rules_run")
    config.pluginmanager.register(children, "children")


def pytest_collection_finish() -> None:
    """Commands collect garbage after each model, which would look through all that the tests have imported.

    An export makes many objects that refer to one another: Python would look through them each time that 700 are added.
    """
    if "torch" in sys.modules:
        from tests.torch_tables import look_through_operators_once

        look_through_operators_once()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same for what the tests of a file have imported and keep."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def _verified(model, model_name=None):
    graph = _as_graph(model, model_name)
    verify(graph)
    return graph


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Not fixtures, which took a tenth of the time of a short test."""
    os.environ.pop("COLUMNS", None)
    analysis.as_graph = _verified if item.get_closest_marker("ill_formed") is None else _as_graph
