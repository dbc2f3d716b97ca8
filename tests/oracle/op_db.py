"""Every operator sample that torch tests itself with, exported, analyzed, and compared with torch.

    python tests/oracle/op_db.py [--most SAMPLES_PER_OPERATOR] [--only NAME,NAME] [--decompose] [--shard I/N]

For each sample of `torch.testing._internal.common_methods_invocations.op_db` that `torch.export` can export: no node may be
unknown, every derived type must equal the recorded one, and matrix FLOPs must equal FlopCounterMode's on the meta device
(else under `sdpa_kernel(MATH)`). Where torch's counter is known to be wrong or to count by another convention, the operator
is in DEVIATIONS with the reason. Prints each failure and one summary line; exits 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import warnings
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import graphflops

if TYPE_CHECKING:
    from collections.abc import Iterator

# Samples ask twice which of torch's own tests wants them, and read the source of all that runs to find none.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

SECONDS_PER_SAMPLE = 30
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
# By name, why torch's count is not ours. It must then be 0, except for the names in PARTLY, where it is a part of ours.
DEVIATIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "mv",
            "addmv",
            "dot",
            "vdot",
            "linalg.vecdot",
            "inner",
            "matmul",
            "__rmatmul__",
            "tensordot",
            "linalg.multi_dot",
        ),
        "no formula for mv and dot",
    ),
    **dict.fromkeys(("addbmm", "addr", "nn.functional.bilinear"), "no formula for it"),
    **dict.fromkeys(("torch._scaled_mm_v2", "torch._scaled_mm"), "no formula for it"),
    **dict.fromkeys(
        ("cdist", "nn.functional.pdist", "cov", "corrcoef"), "no formula for it; ours is a matrix product"
    ),
    **dict.fromkeys(
        ("linalg.pinv", "pinverse", "matrix_exp", "linalg.matrix_exp", "linalg.matrix_sqrth", "linalg.polar"),
        "no formula for it; the products inside are below the level that is counted",
    ),
    **dict.fromkeys(
        ("nn.functional.linear_cross_entropy", "sparse.mm.reduce", "sparse.sampled_addmm", "sparse.mm"),
        "no formula for it; the products inside are below the level that is counted",
    ),
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "no formula for it",
}
PARTLY = frozenset({"linalg.pinv"})
# By name, why the decomposed program's count is not that of the operator.
DECOMPOSED = dict.fromkeys(("matmul", "__rmatmul__"), "decomposed a product with one column into mul and sum")
# By name, why a recorded type is not ours.
WRONG_IN_TORCH = {
    "unique_consecutive": "the fake kernel records results of the wrong rank where `dim` is given"
}
if TORCH < (2, 13):
    WRONG_IN_TORCH |= dict.fromkeys(
        ("unique", "bincount"), "the fake kernel of this torch records another element type"
    )


class Program(torch.nn.Module):
    """One call of an operator: tensors are inputs, everything else is baked in."""

    def __init__(self, operator: Any, leaves: list[Any], spec: Any) -> None:
        super().__init__()
        self.operator, self.leaves, self.spec = operator, leaves, spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.operator(*args, **kwargs)
        return tuple(result) if isinstance(result, tuple) else result


class OutOfTimeError(Exception):
    """A sample took longer than SECONDS_PER_SAMPLE."""


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--most", type=int, default=10**6, help="samples per operator, spread over all of them"
    )
    parser.add_argument("--only", default="", help="comma-separated names of operators")
    parser.add_argument(
        "--decompose", action="store_true", help="analyze the program after run_decompositions()"
    )
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth operator from the Ith")
    options = parser.parse_args(arguments)
    torch._logging.set_logs(all=logging.CRITICAL)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    shard, shards = map(int, options.shard.split("/"))
    only = set(options.only.split(",")) if options.only else None
    count: Counter[str] = Counter()
    deviating: Counter[str] = Counter()
    for operator in op_db[shard::shards]:
        if only is not None and operator.name not in only:
            continue
        count["operators"] += 1
        for index, leaves, spec in samples(operator, options.most):
            verdict = judge(operator, leaves, spec, options.decompose)
            kind = verdict.partition(":")[0]
            count[kind] += 1
            if kind == "deviates":
                deviating[operator.name] += 1
            elif kind == "wrong":
                print(
                    f"{operator.name}{operator.variant_test_name and '.' + operator.variant_test_name}#{index} {verdict}"
                )
    for name, times in sorted(deviating.items()):
        print(
            f"deviates by name: {name} ({times} samples): { {**WRONG_IN_TORCH, **DEVIATIONS, **(DECOMPOSED if options.decompose else {})}[name] }"
        )
    print(
        f"op_db of torch {torch.__version__.partition('+')[0]}: {count['operators']} operators, "
        f"{count['equal'] + count['deviates'] + count['uncounted'] + count['wrong']} exported samples analyzed: "
        f"{count['equal']} equal, {count['deviates']} deviate by name, {count['uncounted']} that torch cannot count, "
        f"{count['wrong']} wrong; {count['not exportable']} not exportable"
    )
    return 1 if count["wrong"] else 0


def samples(operator: Any, most: int) -> Iterator[tuple[int, list[Any], Any]]:
    """(index, flat arguments, structure) of up to `most` samples, spread evenly."""
    supported = operator.supported_dtypes("cpu")
    preferred = [torch.float32, torch.complex64, torch.int64, torch.bool, torch.float64]
    dtype = next((dtype for dtype in [*preferred, *supported] if dtype in supported), torch.float32)
    try:
        made = operator.sample_inputs("cpu", dtype, requires_grad=False)
        every = list(islice(made, 1 if most == 1 else None))  # torch takes long to make all
    except Exception:  # operators of other devices refuse to make samples here
        return
    step = max(1.0, len(every) / most)
    for index in sorted({int(i * step) for i in range(min(most, len(every)))}):
        sample = every[index]
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        yield index, leaves, spec


def judge(operator: Any, leaves: list[Any], spec: Any, decompose: bool) -> str:
    """`equal`, `deviates`, `uncounted`, `not exportable`, or `wrong: why`."""
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    signal.signal(signal.SIGALRM, _out_of_time)
    # again and again, for what is raised while Python collects garbage is lost
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_SAMPLE, 5)
    try:
        program = torch.export.export(Program(operator.op, leaves, spec), tensors, strict=False)
        if decompose:
            program = program.run_decompositions()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "not exportable"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    report = graphflops.analyze(program)
    if report.coverage.unknown:
        return f"wrong: unknown {dict(report.coverage.unknown_ops)} {[d.message for d in report.diagnostics][:1]}"
    found = [diagnostic for diagnostic in report.diagnostics if diagnostic.code != "GF108"]
    if found and operator.name in WRONG_IN_TORCH:
        return "deviates"
    if found:
        return f"wrong: {found[0].name} at {found[0].node}: {found[0].message}"
    expected = counted(operator, leaves, spec)
    ours = report.value(report.total().matrix_flops)
    if expected is None:
        return "uncounted"
    if ours == expected:
        return "equal"
    if decompose and operator.name in DECOMPOSED and ours == 0:
        return "deviates"
    if operator.name in DEVIATIONS and (expected == 0 or operator.name in PARTLY):
        return "deviates"
    return f"wrong: matrix FLOPs {report.total().matrix_flops}, torch counts {expected} for {[row.op for row in report.rows]}"


def counted(operator: Any, leaves: list[Any], spec: Any) -> int | None:
    """FlopCounterMode's count on the meta device, else on the CPU with attention as two products; None if neither runs."""
    on_meta = [leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    for values in (on_meta, leaves):
        args, kwargs = pytree.tree_unflatten(values, spec)
        try:
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                operator.op(*args, **kwargs)
        except Exception:
            continue
        return counter.get_total_flops()
    return None


def _out_of_time(*_: object) -> None:
    raise OutOfTimeError


if __name__ == "__main__":
    sys.exit(main())
