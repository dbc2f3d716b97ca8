"""Fixes an ONNX file as its audit says, and proves the fixed file before it is written.

Each round audits the file and applies the fixes found, since one fix may enable the next. Then onnxruntime runs the original
and the fixed file: safe fixes must keep every result bit for bit, unsafe ones within a tolerance. If they do not, halves of
the fixes are tried again, until those that fail are known and left out.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from graphflops.analysis import analyze
from graphflops.base.limits import next_analysis
from graphflops.base.record import Record, field, replace
from graphflops.comparison.models import compare
from graphflops.comparison.result import Comparison
from graphflops.dims import Dim, evaluate
from graphflops.errors import FileError, GraphflopsError, RunError, shown
from graphflops.exporters import onnx
from graphflops.onnx_audit.audit import Audit, Fix, audit, checks
from graphflops.onnx_fix.sessions import Run, Steps
from graphflops.passes.bind import OTHER
from graphflops.report import Execution, Report
from graphflops.report.findings import Finding

Saving = tuple[int, ...]  # FLOPs and bytes of a run, and bytes of stored tensors
Key = tuple[str, str]  # of a fix: its code, and the first value that it changes

_ROUNDS = 12
_TRIALS = 40  # most files that are run to find the fixes that fail
# A later stage starts when earlier ones find nothing more. Sizes are stored after unused calls are removed, constants after
# repeated ones; the last stage replaces values by others.
_STAGES = {"GF249": 1, "GF242": 2, "GF248": 3, "GF250": 3, "GF254": 3}


class Fixed(Record, frozen=True):
    """An ONNX file with the fixes that hold."""

    path: str
    file: str  # its temporary place; `path` where no fix holds
    fixed: tuple[Finding, ...]  # the findings whose fixes hold
    undone: tuple[tuple[Finding, str], ...]  # those whose fixes were dropped, with reasons
    before: Audit
    after: Audit
    comparison: Comparison | None = None  # None if no fix holds
    runs: tuple[Run, ...] = ()  # of onnxruntime; () if it cannot run the file, as `unproven` explains
    unproven: str = ""
    difference: float = 0.0  # of any result, as a share of its largest number; 0 for equal bits
    # Sizes that the user gave; the audits leave them open, since fixes must hold at all sizes.
    given: Mapping[str, int] = field(default_factory=dict)

    @property
    def promised(self) -> Saving:
        """What the findings said that their fixes save."""
        return self._at_sizes([(found.flops or 0, found.bytes or 0, found.stored) for found in self.fixed])

    @property
    def saved(self) -> Saving:
        """What the fixes save: the difference between the reports of the two files."""
        old, new = (found.report for found in (self.before, self.after))
        assert old is not None
        assert new is not None
        return tuple([a - b for a, b in zip(self._whole(old), self._whole(new), strict=True)])

    def _whole(self, report: Report) -> Saving:
        cost, stored = report.total(), report.parameter_bytes + report.buffer_bytes
        return self._at_sizes([(cost.flops, cost.moved_bytes, stored)])

    def _at_sizes(self, quantities: Iterable[tuple[Dim, Dim, Dim]]) -> Saving:
        """The sums of FLOPs, bytes moved and bytes stored, at the sizes of the audit."""
        assert self.before.report is not None
        values = {**self.before.report.values, **self.given}

        def number(quantity: Dim) -> int:  # at an assumed size where it depends on data
            names = () if isinstance(quantity, int) else quantity.symbols
            return evaluate(quantity, {name: values.get(name, OTHER) for name in names}) or 0

        return tuple([sum(map(number, column)) for column in zip((0, 0, 0), *quantities, strict=True)])


def fixed(
    path: str,
    folder: str,
    *,
    codes: Collection[str],
    kept: Callable[[Iterable[Finding]], Iterable[Finding]],
    unsafe: bool = False,
    unproven: bool = False,
    seconds: float = 600.0,
    on: tuple[str, Execution | None] | None = None,
    **sizes: Any,
) -> Fixed:
    """Fix the ONNX file at `path` in a temporary folder.

    codes: of the checks whose findings are fixed, if `kept` keeps them. unsafe: also fixes after which results differ within
    a tolerance. unproven: go on where onnxruntime cannot run the file. seconds: limit of each step in a child process.
    on: a device, and how it runs the program, for the comparison of times. sizes: as for `graphflops.audit`.
    Raises FileError for a file that has errors, RunError if it cannot be run.
    """
    names = sizes.get("names")
    before = audit(path, names=names)
    _refuse(before)
    start = _Trial(path, {}, before)
    work = _Work(before, start, folder, codes, kept, names, Steps(path, seconds))
    infos = analyze(onnx.read(path), fused=False, **sizes).symbols
    given = {name: info.value or 0 for name, info in infos.items() if info.given_by == "user"}
    if not work.chosen(before, unsafe, ()):
        return Fixed(path, path, (), (), before, before)
    reason = work.plan(given, unproven)
    for with_unsafe in (False, True)[: 1 + unsafe]:
        work.extend(with_unsafe)
    best, done = work.best, tuple(work.best.applied.values())
    comparison = None
    if done:
        device, execution = on or (None, None)
        comparison = compare(path, best.file, device=device, execution=execution, **sizes)
        origin = replace(comparison.new.origin, path=f"{path}, fixed")
        comparison = replace(comparison, new=replace(comparison.new, origin=origin))
    results = (tuple(work.runs), reason, work.difference, given)
    return Fixed(path, best.file, done, tuple(work.undone), before, best.audit, comparison, *results)


class _Trial(NamedTuple):
    """A file with some fixes: which were applied, and what an audit finds in it then."""

    file: str
    applied: Mapping[Key, Finding]
    audit: Audit


class _Work(Struct):
    """Finds the most fixes that hold. best: the file with them. undone: the fixes that do not, and why."""

    before: Audit
    best: _Trial
    folder: str
    codes: Collection[str]
    kept: Callable[[Iterable[Finding]], Iterable[Finding]]
    names: Mapping[str, str] | None
    steps: Steps
    runs: list[Run] = field(default_factory=list)
    undone: list[tuple[Finding, str]] = field(default_factory=list)
    denied: set[Key] = field(default_factory=set)
    difference: float = 0.0
    files: int = 0
    trials: int = 0

    def chosen(self, found: Audit, unsafe: bool, denied: Collection[Key]) -> list[Fix]:
        """The fixes of the earliest stage that has any, without those that are denied."""
        kept = {id(finding) for finding in self.kept(found.findings)}
        wanted = [
            fix
            for fix in found.fixes
            if fix.edits and fix.finding.code in self.codes and id(fix.finding) in kept
            if (unsafe or fix.finding.applicability == "safe") and _key(fix) not in denied
        ]
        stages = [_STAGES.get(fix.finding.code, 0) for fix in wanted]
        return [fix for fix, stage in zip(wanted, stages, strict=True) if stage == min(stages)]

    def plan(self, sizes: dict[str, int], unproven: bool) -> str:
        """Find the runs that prove a fix. Returns why there are none if `unproven` allows that; else raises RunError."""
        try:
            self.runs = self.steps.asked("plan", self.before.path, self.steps.folder, sizes)
        except RunError as error:
            if unproven:
                return str(error)
            advice = "without proof nothing is written: give sizes at which it runs with --dim, or --unproven"
            raise RunError(f"{error}: {advice}") from None
        return ""

    def extend(self, unsafe: bool) -> None:
        """Add all fixes that hold, among the safe ones or among all; those that fail are found by bisection."""
        trial, problem = self._tried(unsafe, self.denied)
        if not problem:
            self.best = trial
            return
        known = {_key(fix): fix.finding for fix in self.chosen(self.before, unsafe, self.denied)}
        every = {**known, **trial.applied}
        new = {key: found for key, found in every.items() if key not in self.best.applied}
        good, pending = set[Key](), _halves(list(new))
        while pending:
            part = pending.pop(0)
            if self.trials < _TRIALS:
                trial, problem = self._tried(unsafe, self.denied | (new.keys() - good - set(part)))
            if not problem:
                good, self.best = good | set(part), trial
            elif len(part) > 1 and self.trials < _TRIALS:
                pending[:0] = _halves(part)
            else:
                self.undone += [(new[key], problem) for key in part]
                self.denied |= set(part)

    def _tried(self, unsafe: bool, denied: Collection[Key]) -> tuple[_Trial, str]:
        """The file with all fixes except those denied, and why it does not hold, "" if it does."""
        self.trials += 1
        path, folder, left_out = self.before.path, self.steps.folder, set(denied)
        trial = applied = _Trial(path, {}, self.before)
        try:
            for _ in range(_ROUNDS):  # until none is left
                chosen = self.chosen(applied.audit, unsafe, left_out)
                if not chosen:
                    break
                self.files += 1
                target = os.path.join(self.folder, f"{self.files}.onnx")
                edits = [fix.edits for fix in chosen]
                places = self.steps.asked("apply", applied.file, target, folder, edits)
                done = {_key(chosen[place]): chosen[place].finding for place in places}
                left_out |= {_key(fix) for fix in chosen} - done.keys()
                if done:
                    next_analysis()
                    found = audit(target, names=self.names, beside=path)
                    applied = _Trial(target, {**applied.applied, **done}, found)
            trial = applied
            problem = _lost(self.before, trial)
            if not problem and self.runs and trial.applied:
                asked = path, trial.file, folder, self.runs, not unsafe
                problem, self.difference = self.steps.asked("compare", *asked)
        except GraphflopsError as error:
            problem = str(error).removeprefix(f"{shown(path)}: ")
        return trial, problem


def _refuse(before: Audit) -> None:
    """Raises FileError for a file that is not fixed: one with errors, or one that cannot be written again completely."""
    problem = next((f"{f.code} {f.message}" for f in before.findings if f.severity == "error"), "")
    with open(before.path, "rb") as file:
        is_binary = onnx.form_of(file.read(512)) == "binary"
    proto, _ = onnx.opened(before.path)
    if problem:
        problem += ": first correct what the audit calls an error"
    elif not is_binary:
        problem = "is text: store the model as binary"
    elif proto.training_info or proto.graph.sparse_initializer:
        problem = "has sparse tensors or training graphs, which are not written again"
    if problem:
        raise FileError(f"{shown(before.path)}: {problem}")


def _lost(before: Audit, trial: _Trial) -> str:
    """What a fixed file lost, or what is newly wrong with it; "" for nothing."""
    new = _interface(trial.file)
    for what, value in _interface(before.path).items():
        if new[what] != value:
            return f"its {what} would change"
    if trial.audit.report is None:
        return "the fixed file is no valid program"
    codes = Counter(finding.code for finding in trial.audit.findings)
    codes.subtract(finding.code for finding in before.findings)
    # New findings about costs are allowed: the unfixed file may have hidden them.
    worse = sorted(code for code, more in codes.items() if more > 0 and checks()[code].kind == "correctness")
    return f"{', '.join(worse)} would be found" if worse else ""


def _interface(path: str) -> dict[str, Any]:
    """What a fixed file must have in common with the original."""
    proto, _ = onnx.opened(path)
    stored = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in stored]
    return {
        "inputs": [value.SerializeToString(deterministic=True) for value in inputs],
        "outputs": [value.name for value in proto.graph.output],
        "opsets": {entry.domain: entry.version for entry in proto.opset_import},
        "metadata": {entry.key: entry.value for entry in proto.metadata_props},
        "IR version": proto.ir_version,
    }


def _key(fix: Fix) -> Key:
    return fix.finding.code, fix.edits[0].value


def _halves(keys: list[Key]) -> list[list[Key]]:
    half = (len(keys) + 1) // 2
    return [part for part in (keys[:half], keys[half:]) if part]
