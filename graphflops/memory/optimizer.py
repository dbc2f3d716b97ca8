"""Memory of an optimizer: the state that it keeps, and what its step allocates on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.passes.program import PricedProgram

Sizes = tuple[tuple[str, "Dim"], ...]  # by name of the parameter
# Tensors of a parameter's size that each optimizer of torch.optim keeps, and that its foreach step makes on the way.
_STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adafactor": 0, "muon": 1}
_TEMPORARIES = {"adam": 1, "adamw": 1}


def optimizer_memory(program: PricedProgram) -> tuple[Sizes, Sizes]:
    """State and temporary tensors of the optimizer of a training program."""
    step = program.training
    assert step is not None
    trained = [(name, value) for name, value in program.typed_inputs("parameter") if value.requires_grad]
    state = [(name, value.nbytes) for name, value in trained for _ in range(_STATES[step.optimizer])]
    made = [
        (name, value.nbytes) for name, value in trained for _ in range(_TEMPORARIES.get(step.optimizer, 0))
    ]
    if step.implementation == "fused":
        made = []
    elif step.implementation == "single":
        made = sorted(made, key=lambda entry: entry[1] if isinstance(entry[1], int) else 0)[-1:]
    return tuple(state), tuple(made)
