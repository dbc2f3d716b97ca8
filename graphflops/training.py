"""The options of a training step: what is trained, by which optimizer, at which precision, and what is kept in memory."""

from collections.abc import Collection, Sequence
from typing import Literal, get_args

from msgspec import structs

from graphflops.base.patterns import matches_module
from graphflops.base.record import Record
from graphflops.errors import ModelError, OptionError, require_choice, shown

Optimizer = Literal["sgd", "momentum", "adam", "adamw", "adafactor", "muon", "none"]
Implementation = Literal["foreach", "fused", "single"]
Precision = Literal["fp32", "bf16", "bf16-mixed", "fp16-mixed"]
Loss = Literal["sum", "mean", "cross-entropy", "given"]

OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)
IMPLEMENTATIONS: tuple[str, ...] = get_args(Implementation)
PRECISIONS: tuple[str, ...] = get_args(Precision)
LOSSES: tuple[str, ...] = get_args(Loss)
_IMPLEMENTED = {"adafactor": ("foreach", "single")}
_DEFAULTS: dict[str, Implementation] = {"adafactor": "single"}


class Training(Record, frozen=True):
    """How a program is trained. Patterns of modules are those of `matched`.

    optimizer: `none` leaves the update out; `muon` updates matrices, and AdamW what is left.
    implementation: `foreach` updates all parameters together, `fused` in one kernel, `single` one after another; None: as
        torch does by default.
    precision: element types: all float32, all bfloat16, or float32 parameters under autocast; None: as the program is.
    freeze: parameters that are not trained, by their own name or that of a module.
    lora_rank: rank of the trained adapters beside linear layers; 0 for none. lora_modules: which layers get one.
    accumulate: micro-steps of one optimizer step, whose gradients are added up.
    recompute: modules whose activations are computed again for the gradients instead of kept.
    grad_inputs: inputs that want a gradient, beside those that the program records with one.
    loss: what is differentiated: the sum or the mean of all results, the cross-entropy of the first one against given
        classes, or the results as they are, with gradients given from outside.
    """

    optimizer: Optimizer = "adamw"
    implementation: Implementation | None = None
    precision: Precision | None = None
    freeze: tuple[str, ...] = ()
    lora_rank: int = 0
    lora_modules: tuple[str, ...] = ("**",)
    accumulate: int = 1
    recompute: tuple[str, ...] = ()
    grad_inputs: tuple[str, ...] = ()
    loss: Loss = "sum"

    def __post_init__(self) -> None:
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.implementation is None:
            structs.force_setattr(self, "implementation", _DEFAULTS.get(self.optimizer, "foreach"))
        there = _IMPLEMENTED.get(self.optimizer, IMPLEMENTATIONS)
        require_choice("implementation", self.implementation, there)
        require_choice("loss", self.loss, LOSSES)
        if self.precision is not None:
            require_choice("precision", self.precision, PRECISIONS)
        for name, least in (("accumulate", 1), ("lora_rank", 0)):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**31:
                raise OptionError(f"{name} is an integer from {least} on, not {shown(str(number))}")
        for name in ("freeze", "lora_modules", "recompute", "grad_inputs"):
            given = getattr(self, name)
            names = (given,) if isinstance(given, str) else given  # one alone is as good as a tuple of one
            if not isinstance(names, (tuple, list)) or not all(isinstance(x, str) and x for x in names):
                raise OptionError(f"{name} holds names of the model, such as layers.*")
            structs.force_setattr(self, name, tuple(names))


def training_of(given: object) -> Training:
    """The options that `training=` stands for: True is a default step."""
    if isinstance(given, Training):
        return given
    if given is not True:
        raise OptionError(f"training is True, False or a graphflops.Training, not {shown(str(given))}")
    return Training()


def changed(given: bool | Training) -> list[str]:
    """The options that are not the default, as `precision=bf16-mixed`."""
    default = Training()
    own = default if isinstance(given, bool) else given
    found = []
    for name in Training.__dataclass_fields__:
        value = getattr(own, name)
        if value != getattr(default, name):
            found.append(f"{name}={','.join(value) if isinstance(value, tuple) else value}")
    return found


def matched(
    option: str, pattern: str, paths: Collection[str], known: Sequence[str], nothing: str
) -> set[str]:
    """The paths that a pattern matches, else those whose end it matches: `layers.*` needs no `model.` before it.

    Raises ModelError where it matches none. known: paths that this names; nothing: what the model has where there are none.
    """
    for tried in (pattern, f"**.{pattern}"):
        if hits := {path for path in paths if matches_module(tried, path)}:
            return hits
    raise ModelError(f"{option} {shown(pattern)} matches nothing; the model has {some(known) or nothing}")


def some(names: Sequence[str]) -> str:
    """A few of the names."""
    return ", ".join(map(shown, names[:3])) + (", ..." if len(names) > 3 else "")
