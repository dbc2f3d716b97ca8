"""The stages of a training run, as users write them."""

from __future__ import annotations

import msgspec

from graphflops.budget.amounts import amount
from graphflops.errors import OptionError, shown
from graphflops.loading import Model

TRAINED = ("pre-training", "fine-tuning", "adapters")  # the others run forward alone
COUNTED = (*TRAINED, "teacher", "generation")  # what thresholds are compared with
KINDS = (*COUNTED, "evaluation", "inference")


class Stage(msgspec.Struct, frozen=True):
    """A stage: its kind, or the kind and a label, `pre-training/long`; tokens that it takes in, or generates.

    length: of a sequence; None for that of the stage before, at first that of the program. model: where it runs another
    program. Raises OptionError for a kind that does not exist, and for no tokens.
    """

    name: str
    tokens: int
    length: int | None = None
    model: Model | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.name.endswith("/"):
            raise OptionError(f"'{shown(self.name)}' is not KIND or KIND/LABEL; kinds are {', '.join(KINDS)}")
        if self.tokens < 1 or (self.length is not None and not 0 < self.length < 2**48):
            raise OptionError(f"{shown(self.name)}: tokens and length are integers from 1 on")

    @property
    def kind(self) -> str:
        """What it does."""
        return self.name.partition("/")[0]


def tokens(text: str | float) -> int:
    """A number of tokens: `15T`, `800B`, `4M`. Text needs a unit, for nobody trains on 15. Raises OptionError."""
    if not isinstance(text, str):
        return int(text) if 1 <= text < 1e30 else tokens(f"{text}")
    number = text.removesuffix("tokens").strip()
    try:
        found = amount(number, "") if number != text.strip() or number[-1:].isalpha() else 0
    except ValueError:
        found = 0
    if found < 1:
        what = "has no unit" if number[-1:].isdecimal() else "is no number of tokens"
        raise OptionError(f"'{shown(text)}' {what}: write 15T, 800B, 4M or '2048 tokens'")
    return found


def stage(given: str | Stage) -> Stage:
    """A stage as it is written: `KIND[/LABEL]:TOKENS[:LENGTH[:MODEL]]`. Raises OptionError."""
    if isinstance(given, Stage):
        return given
    name, count, length, model, *_ = [*given.split(":", 3), "", "", ""]
    if not count or not (length == "" or (length.isascii() and length.isdecimal() and len(length) < 16)):
        raise OptionError(
            f"'{shown(given)}' is not KIND:TOKENS[:LENGTH[:MODEL]], such as fine-tuning:2B:4096"
        )
    return Stage(name, tokens(count), int(length) if length else None, model or None)
