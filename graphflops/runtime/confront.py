"""Confronts what the analysis says of each call with what happens when it runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphflops.dims import Expr, evaluate
from graphflops.errors import ModelError, shown
from graphflops.runtime import flex_nodes
from graphflops.runtime.inputs import at_sizes
from graphflops.runtime.peer import Peer, gap
from graphflops.runtime.sizes import Sizes
from graphflops.runtime.tensors import numbers, random_weight
from graphflops.runtime.validation import Check, NodeResult
from graphflops.tensor import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.report import Report, Row
    from graphflops.runtime.execute import Execution, Step
    from graphflops.runtime.flex_nodes import KernelRun

_MASKED_BY_INPUT = "a mask that the program is given hides scores: which, only its contents tell"
_FLEX = "higher_order.flex_attention"
_BOUND = "an upper bound: which branch runs, only data tell"


@dataclass
class _Happened:
    """What was seen of one row in all its turns."""

    turns: int = 0
    counted: int = 0
    attention: int | None = None
    reason: str = ""
    checks: dict[Check, None] = field(default_factory=dict)
    kernels: list[KernelRun] = field(default_factory=list)
    nests: bool = False


class Places:
    """Finds the row of a step by its place in the report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.rows: dict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(report.rows):
            self.rows[row.node].append(place)

    def __call__(self, step: Step) -> int:
        """The place; in two branches there may be calls of one name. ModelError where there is none."""
        for place in self.rows.get(step.name, ()):
            row = self.report.rows[place]
            if row.op == step.node.op and all(name in step.node.outputs for name, _ in row.outputs):
                return place
        raise ModelError(f"{shown(step.name)}: the report has no such call")


class Confrontation:
    """Watches one execution, of whose sizes it learns those that only data tell: ask for the `results` after it ran.

    kernel: whether attention operators run through our own kernel as well, for it to count.
    """

    def __init__(self, execution: Execution, report: Report, peer: Peer, kernel: bool) -> None:
        self.execution = execution
        self.graph = execution.graph
        self.report = report
        self.sizes = Sizes(execution.sizes)
        self.peer = peer
        self.kernel = kernel
        self.place = Places(report)
        self.seen: dict[int, _Happened] = defaultdict(_Happened)
        self.depth_of_autocast = 0

    # While it runs

    def around(self, step: Step) -> Any:
        """Run a step and count; one that fails is stood in for by random numbers of the type that is derived."""
        place = self.place(step)
        happened = self.seen[place]
        happened.turns += 1
        happened.nests = happened.nests or step.nests
        before = len(self.kernels)
        autocast = step.node.op == "higher_order.wrap_with_autocast"
        self.depth_of_autocast += autocast
        try:
            returned, counted, ops = self.peer.run(step)
        except (torch.OutOfMemoryError, ModelError):
            raise
        except Exception as error:  # noqa: BLE001 whatever an operator raises
            text = shown(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", 300)
            happened.checks[Check("type", "not executed", "", "", f"it fails: {text}")] = None
            return self.stand_in(step, self.report.rows[place], error)
        finally:
            self.depth_of_autocast -= autocast
        happened.counted += counted
        happened.kernels += self.kernels[before:]
        spelled = self.peer.attention(step)
        if spelled is not None:
            happened.attention = (happened.attention or 0) + spelled
            if self.kernel:
                happened.kernels += _through_kernel(step)
        if not happened.reason:
            ours = evaluate(self.report.rows[place].cost.matrix_flops, self.sizes.known)
            happened.reason = gap(step, ours or 0, counted, ops)
        return returned

    @property
    def kernels(self) -> list[KernelRun]:
        """What our own kernels counted so far."""
        return self.execution.kernels.runs

    def after(self, step: Step, results: tuple[Any, ...]) -> None:
        """Compare the types of results with those derived."""
        place = self.place(step)
        derived = dict(self.report.rows[place].outputs)
        for name, value in zip(step.node.outputs, results, strict=True):
            if name is None:
                continue
            if isinstance(value, torch.Tensor):
                if isinstance(typed := derived.get(name), TensorType):
                    self.compare(place, name, typed, value)
            elif isinstance(value, int) and isinstance(known := self.graph.types.get(name), Expr):
                self.sizes.meet(known, value)

    def compare(self, place: int, name: str, typed: TensorType, value: torch.Tensor) -> None:
        """One result's type against ours; sizes that only data tell are learned."""
        if typed.mapped:
            return  # axes that operators do not see
        dtype = str(value.dtype).removeprefix("torch.")
        check = self.sizes.check(typed, dtype, value.shape)
        reason = ""
        if check.verdict == "different":
            if name not in self.graph.used:
                reason = f"{check.ours}, ran {check.measured}: a result that nobody uses"
            elif self.depth_of_autocast and list(value.shape) == [
                self.sizes.meet(size, -1) for size in typed.shape
            ]:
                reason = "autocasting chooses another type on this device"
        if reason:
            check = replace(check, verdict="explained", reason=reason)
        self.seen[place].checks.setdefault(check)

    def stand_in(self, step: Step, row: Row, error: Exception) -> Any:
        """Random results of the types derived; the error again where they are not known."""
        device = self.execution.weights.device
        derived = dict(row.outputs)
        made = []
        for name in step.node.outputs:
            typed = derived.get(name) if name is not None else None
            if name is not None and not isinstance(typed, TensorType):
                raise error
            try:
                made.append(None if typed is None else random_weight(_sized(typed, self.sizes.known), device))
            except (ModelError, RuntimeError):
                raise error from None
        return tuple(made)

    # Afterwards

    def sources(self) -> dict[str, str]:
        """Generated functions of the attention kernel, by the first call that ran them."""
        found: dict[str, str] = {}
        for place, happened in self.seen.items():
            for run in happened.kernels:
                found.setdefault(run.source, self.report.rows[place].node)
        return {node: source for source, node in found.items() if source}

    def results(self, seconds: dict[int, float]) -> Iterator[NodeResult]:
        """One result for each call of the report, in its order; seconds by place."""
        rows = self.report.rows
        for place, row in enumerate(rows):
            happened = self.seen.get(place, _Happened())
            if isinstance(row.times, Expr):
                self.sizes.meet(row.times, happened.turns)
        flexible = tuple([f"{row.node}/" for row in rows if row.op.startswith(_FLEX)])
        for place, row in enumerate(rows):
            if row.node.startswith(flexible or ("/",)):
                continue  # functions that run inside the attention, score by score
            happened = self.seen.get(place, _Happened())
            flops = evaluate(row.cost.matrix_flops, self.sizes.known)
            moved = evaluate(row.cost.read_bytes + row.cost.written_bytes, self.sizes.known)
            checks = [*happened.checks, *self.work(row, happened, flops)] if happened.turns else []
            tiles = sum(run.flops for run in happened.kernels) if row.op.startswith(_FLEX) else None
            yield NodeResult(
                row=place,
                node=row.node,
                op=row.op,
                module=row.module,
                checks=tuple(checks),
                turns=happened.turns,
                flops=flops,
                bytes=moved,
                matrix_dtype=row.matrix_dtype,
                seconds=seconds.get(place),
                tile_flops=tiles or None,
            )

    def work(self, row: Row, happened: _Happened, flops: int | None) -> Iterator[Check]:
        """The FLOPs of one call against those counted."""
        if row.state == "unknown":
            yield Check("flops", "explained", "unknown", str(happened.counted), "no rule prices it")
            return
        if any(check.verdict == "not executed" for check in happened.checks) or flops is None:
            return
        for run in happened.kernels:
            yield from _kernel_checks(
                row, run, evaluate(row.cost.masked_flops, self.sizes.known), flops, happened
            )
        if happened.nests:
            return  # its calls are compared one by one
        if happened.kernels and happened.attention is None:
            return  # our kernel ran, which FlopCounterMode does not see
        counted = happened.counted if happened.attention is None else happened.attention
        if flops == counted:
            yield Check("flops", "equal", str(flops), str(counted))
            return
        reason = happened.reason
        if row.times != happened.turns and evaluate(row.times, self.sizes.known) != happened.turns:
            reason = reason or _BOUND
        yield Check("flops", "explained" if reason else "different", str(flops), str(counted), reason)


def _sized(typed: TensorType, sizes: dict[str, int]) -> TensorType:
    found = at_sizes(typed, sizes)
    numbers(found)
    return found


def _kernel_checks(
    row: Row, run: KernelRun, masked: int | None, flops: int, happened: _Happened
) -> Iterator[Check]:
    """Tiles executed against tiles predicted, and scores seen against the analysis."""
    executed, predicted = (run.tiles, run.partial_tiles), run.predicted
    same = executed == predicted
    yield Check("tiles", "equal" if same else "different", _tiles(predicted), _tiles(executed))
    if masked is None:
        return
    each = happened.turns or 1
    ours, seen = (flops - masked) // each, run.visible * run.pair_flops
    if ours == seen:
        yield Check("visible", "equal", str(ours), str(seen))
    else:
        given = masked == 0 and seen < ours and happened.attention is not None
        yield Check(
            "visible",
            "explained" if given else "different",
            str(ours),
            str(seen),
            _MASKED_BY_INPUT if given else "",
        )


def _tiles(pair: tuple[int, int]) -> str:
    return f"{pair[0]} full, {pair[1]} partial"


def _through_kernel(step: Step) -> list[KernelRun]:
    """An attention operator through our own kernel, where it takes such operands; its result is thrown away."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
    q, k, v = (given.get(name) for name in names[:3])
    mask = given.get("attn_mask", given.get("attn_bias"))
    short = step.node.op.split(".")[1]
    if short != "scaled_dot_product_attention":  # the others take no mask at that place, or a bias
        return []
    if q is None or k is None or v is None or not flex_nodes.takes(q, k, v) or given.get("dropout_p"):
        return []
    from graphflops.runtime.flex import sdpa

    kernels = flex_nodes.Kernels()
    with _disable_current_modes():
        attention = sdpa(q, k, mask, bool(given.get("is_causal")))
        kernels.forward(attention, q, k, v, given.get("scale"))
    return kernels.runs
