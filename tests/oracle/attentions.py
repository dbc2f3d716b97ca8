"""Attentions found in exported real models against attentions that ran.

Each model runs once in eager mode, and whatever its attention modules call is counted: scaled_dot_product_attention, or a
softmax over scores. As many must be found in the exported program, and in the decomposed one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import torch

from graphflops.analysis import analyze
from tests.oracle.models import example, exported, quiet
from tests.oracle.zoo import language
from tests.oracle.zoo.case import Case

_FUSED = {torch.nn.functional.scaled_dot_product_attention}
_SOFTMAX = {torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax}


class Ran(torch.overrides.TorchFunctionMode):
    """Counts what the attention modules of a model call."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.stack: list[str] = []
        self.handles = []
        for part in module.modules():
            name = type(part).__name__
            self.handles.append(part.register_forward_pre_hook(lambda *_, name=name: self.stack.append(name)))
            self.handles.append(part.register_forward_hook(lambda *_: self.stack.pop() and None))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FUSED:
            self.count["fused"] += 1
            with torch._C.DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        inside = next((name for name in reversed(self.stack) if "att" in name.lower()), "")
        if func in _SOFTMAX and inside:
            self.count["softmax"] += 1
            with torch._C.DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def ran(module: torch.nn.Module, case: Case) -> int:
    """How many attentions one run of the model has."""
    args, kwargs = example(case, case.sizes[0])
    mode = Ran(module)
    with mode, torch.no_grad():
        module(*args, **kwargs)
    for handle in mode.handles:
        handle.remove()
    return sum(mode.count.values())


def found(case: Case) -> tuple[int, dict[str, int]]:
    """Attentions that ran, and those found by form of the program."""
    module = case.build().eval()
    wanted = ran(module, case)
    program = exported(case, module, dynamic=len(case.sizes) > 1)
    forms = {"exported": program, "decomposed": program.run_decompositions()}
    return wanted, {form: len(analyze(program).attentions) for form, program in forms.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="comma-separated words, one of which a model's name must hold"
    )
    options = parser.parse_args(arguments)
    quiet()
    words = options.only.split(",")
    count: Counter[str] = Counter()
    for case in language.cases():
        if case.meta or not any(word in case.name for word in words):
            continue
        try:
            wanted, forms = found(case)
        except Exception as error:
            count["not run or exported"] += 1
            print(
                f"{case.name}: {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}", flush=True
            )
            continue
        for form, number in forms.items():
            count["equal" if number == wanted else "other"] += 1
            count["attentions"] += number
            if number != wanted:
                print(f"{case.name} [{form}]: {number} found, {wanted} ran", flush=True)
        count["models"] += 1
    print(
        f"attentions of torch {torch.__version__.partition('+')[0]}: {count['models']} models, {count['attentions']} found; "
        f"{count['equal']} programs equal, {count['other']} other, {count['not run or exported']} models not run or exported"
    )
    return 1 if count["other"] else 0


if __name__ == "__main__":
    sys.exit(main())
