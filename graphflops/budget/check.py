"""Checks a report against its limits: one finding for each that is broken or cannot be checked."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from graphflops.base.patterns import is_within, matches_module, matches_op
from graphflops.base.units import in_parentheses, measured, percent, starred
from graphflops.budget.baseline import Before, Culprit, culprits
from graphflops.budget.limits import Budget
from graphflops.budget.measure import TOP, UNITS, Figure, Limit, Measures
from graphflops.dims import Dim, Expr
from graphflops.open_sizes import of_report
from graphflops.render.summary import located
from graphflops.render.text import count_of, formula, listed, occurrences, safe, shortened
from graphflops.report import HELD
from graphflops.report.contradictions import contradicted, contradictions
from graphflops.report.findings import Finding, LimitResult, RuleInfo
from graphflops.report.size_names import alike, collapsed, pattern_of

# Code, name, severity unless it is an error, what is found, and below it what to do.
_RULES = """
GF301 over-limit: A limit is exceeded.
    reduce it where the message says, or raise the limit in the budget.
GF302 grown: More has been added since the baseline than the budget allows.
    reduce it where the message says, or accept it with graphflops check --update.
GF303 cost-unknown: A limit cannot be checked, because the cost of some calls is unknown.
    price the operators with --rules FILE.py, or name them under unknown in the budget.
GF304 size-open: A limit cannot be checked, because a size has no value.
    state the size under dims in the budget.
GF305 coverage-low: The cost of more calls is unknown than the budget allows.
    price the operators with --rules FILE.py, or name them under unknown in the budget.
GF306 no-baseline: A relative limit has nothing to compare with.
    measure it with graphflops check --update.
GF307 forbidden-operator: An operator is called that the budget forbids.
    replace the call, or allow the operator.
GF308 module-missing: A limit is for modules that the model does not have.
    correct the pattern: * matches one part between dots, ** any number of parts.
GF309 sizes-differ: The baseline was measured at other sizes.
    state the sizes under dims in the budget, or measure again with graphflops check --update.
GF310 not-analyzed: The model cannot be analyzed.
    export or copy the file again: the message says what is wrong with it.
GF311 not-limited note: No limit of the budget is for this model.
    add a [[budget]] whose models match it.
GF312 sizes-assumed warning: The baseline is measured at assumed sizes, because the file has no example of them.
    state the sizes under dims in the budget.
GF313 contradiction: No limit can be decided, because the file contradicts itself.
    export the model again, and check the model itself where it is a saved report.
"""


def _rules() -> Iterator[tuple[str, RuleInfo]]:
    lines = iter(_RULES.strip().splitlines())
    for line, advice in zip(lines, lines, strict=True):
        head, _, summary = line.partition(": ")
        code, name, *severity = head.split()
        yield code, RuleInfo(name, summary, advice.strip(), *severity)  # type: ignore[arg-type]


RULES: Mapping[str, RuleInfo] = dict(_rules())
_SHOWN = 3  # culprits named


def finding(
    code: str, message: str, *, node: str = "", op: str = "", module: str = "", source: str = ""
) -> Finding:
    """A finding of that code."""
    rule = RULES[code]
    return Finding(code, rule.name, rule.severity, message, rule.help.rstrip("."), node, op, module, source)


def compared(
    measures: Measures, budget: Budget, before: Before | None = None
) -> tuple[list[Finding], list[LimitResult]]:
    """One finding for each limit that is broken or cannot be checked, and all results. before: at the same sizes."""
    check = _Check(measures, budget, before)
    return list(check.findings()), check.results


def assumptions(measures: Measures) -> list[Finding]:
    """A warning if a new baseline is measured at assumed sizes."""
    assumed = measures.report.assumed
    return [finding("GF312", f"measured{_at(assumed, assumed)}")] if assumed else []


class _Scope(NamedTuple):
    """The whole model or one module; a module may represent others that differ only in the number in their path."""

    path: str = ""
    label: str = ""
    others: str = ""

    def inside(self) -> str:
        """` of blocks.*.fc (each of 4)`."""
        return f" of {safe(self.label, 80)}{self.others}" if self.path else ""


class _Check:
    def __init__(self, measures: Measures, budget: Budget, before: Before | None) -> None:
        self.measures, self.budget, self.before = measures, budget, before
        self.results: list[LimitResult] = []

    def findings(self) -> Iterator[Finding]:
        if problem := contradicted(self.measures.report):
            yield finding("GF313", problem, node=contradictions(self.measures.report)[0].node)
        if self.budget.relative:
            # Findings if nothing was measured before, or at other sizes; relative limits are then skipped.
            now = self.measures.sizes
            if self.before is None:
                yield finding("GF306", f"nothing was measured before{_at(now)}")
            elif now != self.before.sizes:
                then = _at(self.before.sizes) or " at fixed sizes"
                yield finding("GF309", f"the baseline was measured{then}, this is{_at(now) or ' fixed'}")
                self.before = None
        for pattern, limits in self.budget.limits:
            paths = [path for path in self.measures.modules if matches_module(pattern, path)]
            for scope in self.folded(paths, limits) if pattern else [_Scope()]:
                yield from self.scope(scope, limits)
            if pattern and not paths:
                there = listed(dict.fromkeys(safe(starred(path), 60) for path in self.measures.modules), 8)
                yield finding("GF308", f"no module matches {safe(pattern)}; the model has {there or 'none'}")
        yield from self.coverage()
        yield from self.forbidden()

    def folded(self, paths: Iterable[str], limits: tuple[Limit, ...]) -> Iterator[_Scope]:
        """The modules; those whose paths differ only in numbers and whose limited figures are equal are one."""
        equal: dict[tuple[object, ...], list[str]] = {}
        for path in paths:
            figures = [self.measures.module(path, limit.quantity) for limit in limits]
            then = [self.then(path, limit) for limit in limits]
            key = (starred(path), *figures, *then, *self.measures.unknown(path).items())
            equal.setdefault(key, []).append(path)
        for members in equal.values():
            some = len(members) > 1
            label = starred(members[0]) if some else members[0]
            yield _Scope(members[0], label, f" (each of {len(members):,})" if some else "")

    def scope(self, scope: _Scope, limits: tuple[Limit, ...]) -> Iterator[Finding]:
        path = scope.path
        unknown = self.intolerable(path)
        untold: list[str] = []
        for limit in limits:
            if limit.relative and self.before is None:
                continue
            quantity = limit.quantity
            if not path and not self.measures.has(quantity):
                yield finding("GF301", f"{quantity} is not kept: {self.unserved()}")
                continue
            value = self.measures.module(path, quantity) if path else self.measures.total(quantity)
            now, then = self.measures.figure(value), self.then(path, limit)
            verdict: Literal["within", "over", "unknown"] = "within"
            if then is None:
                verdict, what = "unknown", f"{quantity}{scope.inside()} was not measured before"
                yield finding("GF306", what, module=scope.label)
            elif isinstance(now, str) or isinstance(then, str):
                if now != then:
                    verdict = "unknown"
                    yield self.open(scope, quantity, value)
            elif limit.is_broken(now, then):
                verdict = "over"
                yield self.broken(scope, limit, now, then)
            elif unknown and quantity not in HELD:
                verdict = "unknown"
                untold.append(quantity)
            known = now if isinstance(now, int) else None
            most = limit.allowed(then) if isinstance(then, int) else None
            module, unit = f"{scope.label}{scope.others}", UNITS[quantity]
            self.results.append(LimitResult(quantity, module, unit, known, most, verdict, limit.is_least))
        if untold:
            calls = count_of(sum(unknown.values()), "call")
            what = f"{', '.join(untold)}{scope.inside()} cannot be checked: the cost of {calls} is unknown: "
            place = self.first_call(path, unknown)
            yield finding("GF303", what + occurrences(unknown), module=scope.label, **place)

    def unserved(self) -> str:
        """Why a quantity of the step that is served has no value."""
        cell = self.measures.cell
        if cell is None or cell.step is not None:
            return "the file has no program of a prefill: graphflops capture --phase both"
        return f"{cell.batch:,} requests of {cell.context:,} tokens do not fit, {cell.most or 0:,} do"

    def then(self, path: str, limit: Limit) -> Figure | None:
        """The value that a relative limit compares with; None if it was not measured, 0 for an absolute limit."""
        if not limit.relative or self.before is None:
            return 0
        figures: Any = self.before.modules.get(path, {}) if path else self.before.totals
        found: Figure | None = figures.get(limit.quantity)
        return found

    def intolerable(self, path: str) -> dict[str, int]:
        """The calls of unknown cost that the budget does not name."""
        allowed = self.budget.unknown
        unknown = self.measures.unknown(path).items()
        return {op: n for op, n in unknown if not any(matches_op(pattern, op) for pattern in allowed)}

    def open(self, scope: _Scope, quantity: str, value: Dim) -> Finding:
        """A quantity that has no value, here or in the baseline."""
        names = value.symbols if isinstance(value, Expr) else ()
        unset = [name for name in sorted(names) if name not in self.measures.report.values]
        if not unset:
            what = f"{quantity}{scope.inside()} is a formula in the baseline and a number here"
            return finding("GF309", what, module=scope.label)
        stated = of_report(self.measures.report).stated
        axes = collapsed(stated[name].name if name in stated else name for name in unset)
        what = f"{quantity}{scope.inside()} depends on {listed((safe(axis, 60) for axis in axes), 8)}"
        text = shortened(formula(value, self.measures.report.names), 120)
        return finding("GF304", f"{what}, left open: {text}", module=scope.label)

    def broken(self, scope: _Scope, limit: Limit, now: int, then: int) -> Finding:
        """A broken limit: by how much, and which calls contribute most."""
        quantity, most, report = limit.quantity, limit.allowed(then), self.measures.report
        unit, counts = UNITS[quantity], (now, now - then, abs(now - most))
        is_, grown, over = (measured(quantity, count, unit) for count in counts)
        what = f"{quantity}{scope.inside()} is {is_}{'' if quantity in HELD else self.sizes()}: "
        if limit.relative:
            grown += in_parentheses(now - then, then)
            what += f"{grown} more than before, where {safe(limit.text, 60)} is allowed"
        else:
            side = "below the least" if limit.is_least else "over the limit"
            whole = measured(quantity, most, UNITS[quantity])
            what += f"{over}{in_parentheses(abs(now - most), most)} {side} of {whole}"
        code, place = ("GF302" if limit.relative else "GF301"), {"module": scope.label}
        is_recorded = report.origin.format == "recorded" and not limit.relative
        if is_recorded and quantity in ("peak_bytes", "max_device_bytes"):
            rank = 0 if report.mesh is None else report.mesh.rank
            what = f"{quantity}: needs {is_} of {measured(quantity, most, UNITS[quantity])} on rank {rank}, "
            what += f"at {located(report, report.memory_use[-1].peak_node)}"
        elif quantity == "peak_bytes":
            node = (report.step() or report.totals).peak_node
            row = next((row for row in report.rows if row.node == node), None)
            if row is not None:
                what += f"; reached at {safe(node, 80)}"
                place = {"module": row.module, "node": node, "op": row.op, "source": row.source}
        grown_by = self.before if limit.relative and not scope.path else None
        found = culprits(self.measures, scope.path, quantity, grown_by)
        if found:
            named = listed((_culprit(culprit, quantity) for culprit in found), _SHOWN)
            what += f"; {'grown' if grown_by else 'most'} in {named}"
            place["source"] = next((culprit.source for culprit in found if culprit.source), "")
        return finding(code, what, **place)

    def coverage(self) -> Iterator[Finding]:
        """A finding if too few calls have a known cost; calls that the budget allows to be unknown count as known."""
        if (least := self.budget.coverage) is None:
            return
        nodes, unknown = self.measures.report.coverage.nodes, self.intolerable("")
        known = nodes - sum(unknown.values())
        share = 100 * known // nodes if nodes else 100
        is_low = known < least * nodes
        of = LimitResult("coverage", "", "%", share, int(100 * least), "over" if is_low else "within")
        self.results.append(of)
        if is_low:
            what = f"the cost of {known:,} of {count_of(nodes, 'call')} is known, {percent(known, nodes)} %, where "
            what += f"{float(100 * least):g} % are asked for; unknown: {occurrences(unknown)}"
            yield finding("GF305", what, **self.first_call("", unknown))

    def forbidden(self) -> Iterator[Finding]:
        for op in self.budget.forbid:
            calls = sum(line.group.calls for line in self.measures.lines_in() if matches_op(op, line.op))
            verdict: Literal["within", "over"] = "over" if calls else "within"
            self.results.append(LimitResult(f"calls of {safe(op, 80)}", "", "", calls, 0, verdict))
        for line in self.measures.lines_in() if self.budget.forbid else ():
            pattern = next((pattern for pattern in self.budget.forbid if matches_op(pattern, line.op)), None)
            if pattern is not None:
                where, times = safe(line.module or TOP, 80), count_of(line.group.calls, "time")
                what = f"{safe(line.op, 80)} is called {times} in {where}; {safe(pattern, 80)} is forbidden"
                yield finding("GF307", what, op=line.op, module=line.module, source=line.source)

    def first_call(self, path: str, ops: Mapping[str, int]) -> dict[str, str]:
        rows = (row for row in self.measures.report.rows if row.op in ops and is_within(row.module, path))
        row = next(rows, None)
        return {} if row is None else {"node": row.node, "op": row.op, "source": row.source}

    def sizes(self) -> str:
        """` at ids[1]=4096`: the sizes given, of the export, and assumed."""
        report = self.measures.report
        if self.measures.cell is not None:
            return f" {self.budget.sizes}"
        # And those that the budget states and the program does not leave open.
        known = {place for name, info in report.symbols.items() for place in (name, info.label, *info.where)}
        places, dims = of_report(report).places, self.budget.sizes.dims
        fixed = {name: value for name, value in dims if known.isdisjoint((name, *places(name)))}
        return _at({**report.sizes, **fixed}, report.assumed)


def _at(sizes: Mapping[str, int], assumed: Collection[str] = ()) -> str:
    """` at ids[0]=1 (assumed), ids[1]=64`."""
    groups = alike(sizes, lambda name: (sizes[name], name in assumed))
    said = {pattern_of(names): f"{sizes[names[0]]}{' (assumed)' * (names[0] in assumed)}" for names in groups}
    stated = listed((f"{safe(name, 40)}={size}" for name, size in said.items()), 6)
    return f" at {stated}" if stated else ""


def _culprit(culprit: Culprit, quantity: str) -> str:
    calls = f" (x{culprit.calls:,})" if culprit.calls > 1 else ""
    op = f" {safe(culprit.op, 60)}" if culprit.op else ""
    place = f" at {safe(culprit.source, 60)}" if culprit.source else ""
    return f"{safe(culprit.name, 80)}{op}{calls} {measured(quantity, culprit.amount, UNITS[quantity])}{place}"
