"""Compares the analysis of each call with its execution: types, FLOPs (as torch counts them), tiles, unmasked scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from traceback import walk_tb
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from graphflops.attention.conditions import HIDING
from graphflops.dims import Expr, evaluate
from graphflops.errors import ModelError, said_by, shown
from graphflops.ops import operator
from graphflops.report import Report, Row
from graphflops.runtime import flex_nodes
from graphflops.runtime.execute import Execution, Step, TooManyTurnsError, random_weight
from graphflops.runtime.flex_nodes import KernelRun
from graphflops.runtime.input_plans import at_sizes
from graphflops.runtime.validation import CheckResult, NodeResult, RunSizes, Verdict
from graphflops.tensor import TensorType, flat, grouped

_MASKED_BY_INPUT = "a mask among the inputs hides scores: their number depends on the data"
_NOT_RUN = ""  # stands for our value in the check of a call that failed
_BOUND = "an upper bound: the branch that runs depends on the data"
_COMPLEX = "torch counts a complex multiply-add as a real one; it takes eight operations"
_GROUPS = "torch counts the gradient of a grouped convolution's weight as if there were one group"


@dataclass
class _Measured:
    """Measurements of one row, over all its executions."""

    turns: int = 0
    counted: int = 0
    attention: int | None = None
    reason: str = ""
    checks: dict[CheckResult, None] = field(default_factory=dict)
    kernels: list[KernelRun] = field(default_factory=list)
    nests: bool = False


def row_finder(report: Report) -> Callable[[Step], int]:
    """A function that returns the index of a step's row in the report, or raises ModelError if there is none."""
    rows = grouped((row.node, place) for place, row in enumerate(report.rows))

    def place_of(step: Step) -> int:
        # Compare operator and outputs too, because nodes of two branches may have the same name.
        for place in rows.get(step.name, ()):
            row = report.rows[place]
            if row.op == step.node.op and all(name in step.node.outputs for name, _ in row.outputs):
                return place
        raise ModelError(f"{shown(step.name)}: the report has no row for this call")

    return place_of


@dataclass
class RunComparison:
    """Compares one execution with its report. kernel: whether attention also runs through our kernel, which counts tiles."""

    execution: Execution
    report: Report
    reference: FlopCounterReference
    kernel: bool
    depth_of_autocast: int = 0

    def __post_init__(self) -> None:
        self.graph, self.sizes = self.execution.graph, RunSizes(self.execution.sizes)
        self.row_of = row_finder(self.report)
        self.seen: dict[int, _Measured] = defaultdict(_Measured)

    # During the execution

    def around(self, step: Step) -> Any:
        """Run a step and count its FLOPs. If it fails, random numbers of the derived types replace its results."""
        place = self.row_of(step)
        measured = self.seen[place]
        measured.turns += 1
        measured.nests = measured.nests or step.nests
        kernels = self.execution.kernels.runs
        before = len(kernels)
        autocast = step.node.operator.name == "wrap_with_autocast"
        self.depth_of_autocast += autocast
        try:
            returned, counted, ops = self.reference.run(step)
        except (torch.OutOfMemoryError, ModelError, TooManyTurnsError):
            raise
        except Exception as error:  # noqa: BLE001 an operator may raise anything
            lacks = self.execution.lacks(error)
            verdict: Verdict = "explained" if lacks else "not executed"
            text = "this device has no kernel for it" if lacks else f"it fails: {said_by(error)}"
            measured.checks[CheckResult("type", verdict, _NOT_RUN, "", text)] = None
            return self.stand_in(step, self.report.rows[place], error)
        finally:
            self.depth_of_autocast -= autocast
        measured.counted += counted
        measured.kernels += kernels[before:]
        spelled = self.reference.attention(step)
        if spelled is not None:
            measured.attention = (measured.attention or 0) + spelled
            if self.kernel:
                measured.kernels += _through_kernel(step)
        if not measured.reason:
            ours = evaluate(self.report.rows[place].cost.matrix_flops, self.sizes.known)
            measured.reason = gap(step, ours or 0, counted, ops)
        return returned

    def after(self, step: Step, results: tuple[Any, ...]) -> None:
        """Compare the types of a step's results with the derived types."""
        place = self.row_of(step)
        derived = dict(self.report.rows[place].outputs)
        for name, value in zip(step.node.outputs, results, strict=True):
            if name is None:
                continue
            typed, known = derived.get(name), self.graph.types.get(name)
            if isinstance(value, torch.Tensor) and isinstance(typed, TensorType):
                self.compare(place, name, typed, value)
            elif isinstance(value, int) and isinstance(known, Expr):
                self.sizes.meet(known, value)

    def compare(self, place: int, name: str, typed: TensorType, value: torch.Tensor) -> None:
        """Compare one result's type with the derived one, and record its data-dependent sizes."""
        if typed.mapped:
            return  # inside vmap, a tensor does not show its mapped axes
        check = self.sizes.check(typed, str(value.dtype).removeprefix("torch."), value.shape)
        reason = ""
        if check.verdict == "different":
            if name not in self.graph.used:
                reason = f"{check.ours}, ran {check.measured}: an unused result"
            elif self.depth_of_autocast and list(value.shape) == [
                self.sizes.meet(size, -1) for size in typed.shape
            ]:
                reason = "autocasting chooses another type on this device"
        if reason:
            check = replace(check, verdict="explained", reason=reason)
        self.seen[place].checks.setdefault(check)

    def stand_in(self, step: Step, row: Row, error: Exception) -> Any:
        """Random results of the derived types; raises the error again if a type is unknown."""
        derived, device = dict(row.outputs), self.execution.weights.device
        made: list[torch.Tensor | None] = []
        for name in step.node.outputs:
            typed = derived.get(name or "")
            if name is not None and not isinstance(typed, TensorType):
                raise error
            try:
                made.append(typed and random_weight(at_sizes(typed, self.sizes.known), device))
            except (ModelError, RuntimeError):
                raise error from None
        return tuple(made)

    # After the execution

    def sources(self) -> dict[str, str]:
        """Source of the functions generated for our attention kernel, by the first call that ran them."""
        found: dict[str, str] = {}
        for place, measured in self.seen.items():
            for run in measured.kernels:
                found.setdefault(run.source, self.report.rows[place].node)
        return {node: source for source, node in found.items() if source}

    def results(self, seconds: dict[int, float]) -> Iterator[NodeResult]:
        """One result for each call of the report, in its order. seconds: by index of the row."""
        rows = self.report.rows
        for place, row in enumerate(rows):
            if isinstance(row.times, Expr):
                self.sizes.meet(row.times, self.seen[place].turns)
        flexible = tuple([f"{row.node}/" for row in rows if operator(row.op).has_score_function])
        for place, row in enumerate(rows):
            if row.node.startswith(flexible or ("/",)):
                continue  # a call of a score or mask function, which the attention's kernel runs
            measured = self.seen[place]
            flops = evaluate(row.cost.matrix_flops, self.sizes.known)
            moved = evaluate(row.cost.moved_bytes, self.sizes.known)
            checks = [*measured.checks, *self.work(row, measured, flops)] if measured.turns else []
            if (sent := self.execution.sent.get(row.node)) is not None:
                ours = evaluate(row.cost.link_bytes, self.sizes.known)
                verdict: Verdict = "equal" if ours == sent else "different"
                checks.append(CheckResult("sent", verdict, str(ours), str(sent)))
            flexible_flops = sum(run.flops for run in measured.kernels)
            tiles = flexible_flops if operator(row.op).has_score_function else None
            yield NodeResult(
                *(place, row.node, row.op, row.module, tuple(checks), measured.turns),
                *(flops, moved, row.matrix_dtype),
                seconds=seconds.get(place),
                tile_flops=tiles or None,
                predicted=row.time if place in seconds else None,
            )

    def work(self, row: Row, measured: _Measured, flops: int | None) -> Iterator[CheckResult]:
        """Compare the FLOPs of one call with the counted ones."""
        if row.state == "unknown":
            reason = "no rule gives its cost"
            yield CheckResult("flops", "explained", "unknown", str(measured.counted), reason)
            return
        if any(check.ours == _NOT_RUN for check in measured.checks) or flops is None:
            return
        masked, each = evaluate(row.cost.masked_flops, self.sizes.known), measured.turns or 1
        # executed against predicted tiles, and unmasked scores against the analysis
        for run in measured.kernels:
            tiles = [f"{x.full_tiles} full, {x.partial_tiles} partial" for x in (run.predicted, run.executed)]
            yield CheckResult("tiles", "equal" if tiles[0] == tiles[1] else "different", *tiles)
            if masked is not None:
                visible, ran = (flops - masked) // each, (run.executed.visible or 0) * run.pair_flops
                given = masked == 0 and ran < visible and measured.attention is not None
                verdict: Verdict = "equal" if visible == ran else "explained" if given else "different"
                reason = _MASKED_BY_INPUT if verdict == "explained" else ""
                yield CheckResult("visible", verdict, str(visible), str(ran), reason)
        if measured.nests:
            return  # its nested calls are compared one by one
        if measured.kernels and measured.attention is None:
            return  # FlopCounterMode does not count our kernel
        counted = measured.counted if measured.attention is None else measured.attention
        if flops == counted:
            yield CheckResult("flops", "equal", str(flops), str(counted))
            return
        reason = measured.reason
        if row.times != measured.turns and evaluate(row.times, self.sizes.known) != measured.turns:
            reason = reason or _BOUND
        yield CheckResult("flops", "explained" if reason else "different", str(flops), str(counted), reason)


def _through_kernel(step: Step) -> list[KernelRun]:
    """Also run an attention operator with our own kernel, if that takes its operands. The result is dropped."""
    op = step.node.operator
    if op.word != "scaled_dot_product_attention":  # the fused variants of torch may take other masks
        return []
    given = op.arguments(step.args, tuple(step.kwargs.items()))
    q, k, v = given.get("query"), given.get("key"), given.get("value")
    if q is None or k is None or v is None or not flex_nodes.takes(q, k, v) or given.get("dropout_p"):
        return []
    from graphflops.runtime.flex import sdpa

    kernels = flex_nodes.Kernels()
    with _disable_current_modes():
        mask = given.get("mask")
        if mask is not None and mask.is_floating_point():
            # A bias may hide scores with a finite number, as T5's does; its other numbers change no count.
            mask = mask > HIDING
        attention = sdpa(q, k, mask, bool(given.get("is_causal")))
        kernels.forward(attention, q, k, v, given.get("scale"))
    return kernels.runs


# Torch's own count


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Records the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def without_compiler(mode: type[TorchDispatchMode]) -> None:
    """Keep a mode from importing torch's compiler just to be left out of compilation: a third of a short validation."""
    if called := getattr(mode.__torch_dispatch__, "__wrapped__", None):
        setattr(called, "__dynamo_disable", called)


without_compiler(Dispatched)
without_compiler(getattr(flop_counter, "_FlopCounterMode", FlopCounterMode))


class FlopCounterReference:
    """A context manager with FlopCounterMode around a whole run. Each step, also a nested one, runs by `run`."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.seen = Dispatched()
        self._attributed = 0
        self._known: dict[Any, int | None] = {}

    def __enter__(self) -> FlopCounterReference:
        self.seen.__enter__()  # entered before the counter, which decomposes composite operators
        self.counter.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.counter.__exit__(*error)
        self.seen.__exit__(*error)

    def run(self, step: Step) -> tuple[Any, int, list[Any] | None]:
        """Run a step. Returns its result, the FLOPs counted in it alone, and its operators, None if the counter failed."""
        before, attributed, ran = self.counter.get_total_flops(), self._attributed, len(self.seen.ops)
        try:
            returned = step()
        except Exception as error:
            *_, (raised_in, _) = walk_tb(error.__traceback__)
            if raised_in.f_code.co_filename != flop_counter.__file__:
                raise
            with _disable_current_modes():  # the formula of the counter failed, not the operator
                return step(), 0, None
        inside = self._attributed - attributed
        own = self.counter.get_total_flops() - before - inside
        self._attributed += own
        ops = self.seen.ops[ran:]
        if not step.nests:
            del self.seen.ops[ran:]
        return returned, own, ops

    def attention(self, step: Step) -> int | None:
        """FLOPs of an attention's products, which the counter counts on some devices only; None for other operators."""
        op = step.node.operator
        if op.name != "scaled_dot_product_attention":
            return None
        given = op.arguments(step.args, tuple(step.kwargs.items()))
        q, k, v = given["query"], given["key"], given["value"]
        key = (q.shape, k.shape, v.shape)
        if key not in self._known:
            meta = [torch.empty_like(x, device="meta") for x in (q, k, v)]
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                torch.nn.functional.scaled_dot_product_attention(*meta, enable_gqa=q.shape[-3] != k.shape[-3])
            self._known[key] = counter.get_total_flops()
        return self._known[key]


def gap(step: Step, ours: int, counted: int, ops: list[Any] | None) -> str:
    """The known error of FlopCounterMode that explains a difference between its count and ours; "" if there is none."""
    if ops is None:
        return "FlopCounterMode fails on it"
    if counted == 0 and not any(getattr(op, "_overloadpacket", op) in flop_registry for op in ops):
        names = sorted({str(getattr(op, "_overloadpacket", op)) for op in ops} or {step.node.op})
        return f"FlopCounterMode has no formula for {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    given = flat((*step.args, *step.kwargs.values()))
    if ours == 4 * counted and any(isinstance(x, torch.Tensor) and x.is_complex() for x in given):
        return _COMPLEX
    op = step.node.operator
    if op.name == "convolution_backward":
        named = op.arguments(step.args, tuple(step.kwargs.items()))
        wants_input, wants_weight, _ = named["output_mask"]
        each = ours // max(wants_input + wants_weight, 1)
        if counted == each * (wants_input + named["groups"] * wants_weight):
            return _GROUPS
    return ""
