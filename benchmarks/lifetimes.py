"""Peaks of files with recorded lifetimes, beside what an eager run of the library's own code really allocates.

Each model of `capture.py`, and some more, is captured without weights; then the same module runs on the CPU with random
ones, and a dispatch mode adds up the storages that its calls make while something refers to them. Compared are values alone:
what kernels of a GPU take beside operands and results, and statistics of norms, are no values of the program. A constant
that a call brings from Python is counted with the buffers. Needs `pip install 'graphflops[capture]'`.

    python -m benchmarks.lifetimes [WORD ...] > benchmarks/results/lifetimes.txt

WORD: only names that hold it.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.capture import BART, GROUPED, names
from graphflops import analyze
from graphflops.capturing.name import parsed
from graphflops.capturing.run import Captured, _examples, captured, offline, save, silence
from graphflops.errors import GraphflopsError

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_LINEAR = (
    f"{GROUPED}, head_dim=16, layer_types=['linear_attention', 'full_attention'], linear_num_key_heads=2, "
    "linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16"
)
_PEGASUS = BART.replace("vocab_size=500", "vocab_size=500, block_size=16, num_global_tokens=8")
_GEMMA = f"{GROUPED}, head_dim=16, global_head_dim=16, sliding_window=16"
# Beside those of `capture.py`: what an export spells otherwise than eager execution runs it.
OTHERS = tuple(
    f"hf:{config}({sizes})@phase=both,length=24,context=40"
    for config, sizes in {
        "Qwen3_5TextConfig": _LINEAR,
        "PegasusXConfig": _PEGASUS,
        "Gemma4UnifiedTextConfig": f"{_GEMMA}, layer_types=['sliding_attention', 'full_attention']",
    }.items()
)


class Allocations(TorchDispatchMode):
    """Adds up the bytes of the storages that calls make, but for those of `before`, while something refers to them."""

    def __init__(self, before: list[torch.Tensor]) -> None:
        super().__init__()
        self.before = [tensor.untyped_storage() for tensor in before]
        self.known = {id(storage) for storage in self.before}
        self.sizes: dict[int, int] = {}
        self.peak, self.is_inside = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if not self.is_inside and func is not torch.ops.aten.lift_fresh.default:
            has_statistics = "_norm" in str(func)
            self.take(tree_leaves(results)[: 1 if has_statistics else None])
        return results

    def take(self, results: list[Any]) -> None:
        """Count what a call has made."""
        for tensor in results:
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and id(storage) not in self.known:
                self.known.add(id(storage))
                self.sizes[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self.let_go, id(storage))
        self.peak = max(self.peak, sum(self.sizes.values()))

    def let_go(self, key: int) -> None:
        """Nothing refers to a storage any more."""
        self.known.discard(key)
        self.sizes.pop(key, None)


class Attentions(TorchFunctionMode):
    """An attention is one call."""

    def __init__(self, run: Allocations) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not _ATTENTION:
            return func(*args, **(kwargs or {}))
        self.run.is_inside = True
        result = func(*args, **(kwargs or {}))
        self.run.is_inside = False
        self.run.take([result])
        return result


def allocated(example: Any) -> int:
    """The peak of an eager run on the CPU, with random weights."""
    module = example.module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.normal_(0, 0.02) if tensor.is_floating_point() else tensor.data.zero_()
    inputs = tree_map_only(torch.Tensor, lambda x: torch.zeros(x.shape, dtype=x.dtype), dict(example.inputs))
    before = [*module.parameters(), *module.buffers(), *tree_leaves(inputs)]
    with example.ready() as ready, torch.no_grad(), Allocations(before) as run, Attentions(run):
        result = ready(**inputs)
    del result
    return run.peak


def predicted(program: Captured) -> tuple[int, bool]:
    """The peak of values alone, and whether they live as recorded."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.pt2"))
        save({"model": program}, path)
        report = analyze(path, execution="eager", device="h200")
    alive = [0] * len(report.memory.rows)
    for held in report.memory.held:
        if held.kind == "value":
            for moment in range(held.first, min(held.last + 1, len(alive))):
                alive[moment] += report.value(held.bytes) or 0
    return max(alive), "GF129" in {entry.code for entry in report.diagnostics}


def main() -> None:
    """Print a line for each program, and how many are equal."""
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, Python {platform.python_version()}; bytes of values at the peak")
    words, equal, errors = sys.argv[1:], 0, []
    others = [name for name in OTHERS if not words or any(word.lower() in name.lower() for word in words)]
    for text in (*names(words), *others):
        name = parsed(text)
        assert name is not None
        try:
            programs = captured(name)
            with offline(), silence():
                examples = _examples(name, training=False)
        except GraphflopsError:
            continue
        for phase, program in programs.items():
            try:
                with silence():
                    measured = allocated(examples[phase])
            except Exception as error:  # noqa: BLE001 - the library's own model does not run: the line says so
                print(f"{name.target:<30} {phase:<8} the library's own model fails: {type(error).__name__}")
                continue
            found, is_recorded = predicted(program)
            errors.append(abs(found / measured - 1))
            equal += found == measured
            how = "recorded" if is_recorded else "by lines"
            print(
                f"{name.target:<30} {phase:<8} {how} {measured:>12,} {found:>12,} {found / measured:8.4f}",
                flush=True,
            )
    print(f"{equal} of {len(errors)} equal to the byte, worst {100 * max(errors):.2f} %")


if __name__ == "__main__":
    main()
