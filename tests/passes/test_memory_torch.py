"""Peak memory against what torch's own profiler sees allocated on the CPU while the module runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import price, t

torch = pytest.importorskip("torch")

STEPS, BATCH, FEATURES, HIDDEN = 50, 8, 16, 32


def allocated(module: Any, *args: Any) -> int:
    """The most bytes that were allocated at once, arguments and weights apart."""
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        module(*args)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            module(*args)
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def derived(op: str, *arguments: Any) -> int:
    """Results and workspace of a call by its rule."""
    estimate = price(op, *arguments)
    return sum(value.nbytes for value in estimate.out) + estimate.workspace


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_a_recurrent_layer_holds_the_gates_of_all_steps(kind: str, layers: int, directions: int) -> None:
    build = getattr(torch.nn, kind.partition("_")[0].upper())
    module = build(FEATURES, HIDDEN, layers, bidirectional=directions == 2).eval()
    state = t(layers * directions, BATCH, HIDDEN)
    weights = tuple(t(*weight.shape) for weight in module.parameters())
    ours = derived(
        f"aten.{kind}.input",
        t(STEPS, BATCH, FEATURES),
        (state, state) if kind == "lstm" else state,
        *(weights, True, layers, 0.0, False, directions == 2, False),
    )
    assert ours == pytest.approx(allocated(module, torch.zeros(STEPS, BATCH, FEATURES)), rel=0.05)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["alpha_dropout", "feature_dropout", "feature_alpha_dropout"])
def test_dropout_holds_what_it_draws(name: str) -> None:
    sizes = (4, 16, 32, 32)
    function = getattr(torch.ops.aten, name)
    theirs = allocated(lambda x: function(x, 0.5, True), torch.zeros(sizes))
    assert derived(f"aten.{name}.default", t(*sizes), 0.5, True) == pytest.approx(theirs, rel=0.05)
