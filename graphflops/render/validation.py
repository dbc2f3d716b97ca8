"""A validation for a terminal, a review, and programs, and as a page."""

from collections.abc import Iterator
from typing import Any

import msgspec

from graphflops.base.units import memory, number, seconds
from graphflops.errors import OptionError
from graphflops.render.document import Document
from graphflops.render.text import Entry, Listing, TextTable, count_of, listed, operator_name, safe
from graphflops.report.size_names import together
from graphflops.runtime.validation import SCHEMA, NodeResult, Validation
from graphflops.version import __version__

_TOP = 20  # calls that a table shows


def document(found: Validation, *, top: int | None = None, show_kernel: bool = False) -> Document:
    """The results, the slowest calls, what differs. top: calls of each. show_kernel: what our attention kernel ran."""
    timed = sorted((n for n in found.nodes if n.seconds), key=lambda n: -(n.seconds or 0))[: top or _TOP]
    heads = (*_TIMED[:4], "predicted", *_TIMED[4:]) if found.profile else _TIMED
    longest = TextTable(heads, [Entry(_timed(node, found)) for node in timed], names=3)
    lists = [
        (f"{node.verdict}  {safe(node.node)}  {safe(node.op)}", [safe(node.reason, 600)])
        for node in unusual(found)[: top or _TOP]
    ]
    for name, source in found.kernels.items() if show_kernel else ():
        lists.append((safe(name), [safe(line) for line in source.splitlines()]))
    names = ("node", "op", "module", "verdict", "turns", "flops", "bytes", "seconds")
    return Document(
        [longest] if timed else [],
        headline=f"{safe(found.path or 'program in memory')} on {safe(found.device)}: {conclusion(found)}",
        exact=lambda: Listing(names, [[getattr(node, name) for name in names] for node in found.nodes]),
        data=lambda: _data(found),
        style="bold" if found.holds else "red",
        lists=lists,
        facts=facts(found),
    )


_TIMED = ("call", "operator", "verdict", "time", "FLOPs", "FLOP/s", "of peak", "bytes/s", "of peak")


def facts(found: Validation) -> Iterator[tuple[str, str]]:
    """Labelled lines about the whole run."""
    yield "calls", ", ".join(f"{count:,} {verdict}" for verdict, count in found.verdicts.items() if count)
    checks = [check for node in found.nodes for check in node.checks]
    for what, label in _WHAT.items():
        if compared := [check.verdict == "equal" for check in checks if check.what == what]:
            yield label, f"{sum(compared):,} of {len(compared):,} equal"
    if found.stated:
        sizes = together(found.stated).items()
        yield "sizes", listed((f"{safe(name, 40)} = {size:,}" for name, size in sizes), 12)
    if found.peak_bytes is not None and found.predicted_peak_bytes:
        peak, predicted = found.peak_bytes, found.predicted_peak_bytes
        ratio = f"({peak / predicted:.3f} x)"
        yield "peak memory", f"{memory(peak)} requested, {memory(predicted)} predicted {ratio}"
    both = ((node.bytes, node.counted_bytes) for node in found.nodes)
    moved = [(ours, counted) for ours, counted in both if ours and counted is not None]
    if moved:
        ours, counted = sum(a for a, _ in moved), sum(b for _, b in moved)
        yield "bytes", f"{memory(ours)} computed, {memory(counted)} measured in memory, the rest in the cache"
    yield from _times(found)
    if found.predicted is not None and found.predicted.communication:
        sent, exposed = seconds(found.predicted.communication), seconds(found.predicted.exposed)
        yield "collectives", f"{sent} predicted, {exposed} of it exposed"
    for one in found.ranks:
        parts = [f"{count_of(one.different, 'call')} differ"]
        if one.peak_bytes is not None:
            parts.append(f"{memory(one.peak_bytes)} requested")
        if one.seconds is not None:
            parts.append(f"{seconds(one.seconds)} a step")
        if one.communication is not None and one.exposed is not None:
            parts.append(f"collectives {seconds(one.communication)}, {seconds(one.exposed)} of it exposed")
        yield f"rank {one.rank}", ", ".join(parts)
    if found.ceilings is not None:
        rates = [f"{number(int(rate))}FLOP/s {safe(name)}" for name, rate in found.ceilings.flops.items()]
        rates.append(f"{memory(int(found.ceilings.bandwidth))}/s copied")
        yield "device", ", ".join(rates) + ", measured"


def _times(found: Validation) -> Iterator[tuple[str, str]]:
    if found.seconds is None:
        return
    text = f"{seconds(found.seconds)} a run"
    if found.predicted is not None and found.predicted.seconds:
        low, high = seconds(found.predicted.low), seconds(found.predicted.high)
        text += f", {seconds(found.predicted.seconds)} predicted ({low} to {high}) for {safe(found.profile)}"
    yield "time", text
    if found.times is not None:
        one = found.times
        yield (
            "call times",
            f"{one.covered:,} of {one.calls:,} in their predicted 90 % interval, error {one.median_error:.0%} (median), "
            f"{one.mean_error:.0%} (mean)",
        )


_WHAT = {
    "type": "types",
    "flops": "FLOPs",
    "sent": "bytes sent",
    "tiles": "tiles",
    "visible": "visible",
    "hardware": "hardware",
}


def unusual(found: Validation) -> list[NodeResult]:
    """The calls whose checks are not all equal, the most severe first; branches that did not run are left out."""
    order = ("different", "not executed", "explained")
    return sorted(
        (node for node in found.nodes if node.verdict in order and node.checks),
        key=lambda node: order.index(node.verdict),
    )


def conclusion(found: Validation) -> str:
    """One sentence."""
    if found.holds:
        return "every count holds"
    different = found.verdicts["different"]
    failed = sum(any(c.verdict == "not executed" for c in node.checks) for node in found.nodes)
    parts = [count_of(different, "call") + " differ without a known reason" if different else ""]
    parts.append(count_of(failed, "call") + " could not run" if failed else "")
    return ", ".join(part for part in parts if part)


def brief(found: Validation) -> str:
    """The conclusion in one line, after the file."""
    return f"{safe(found.path, 80)}: {conclusion(found)}"


def _timed(node: NodeResult, found: Validation) -> list[str]:
    time = node.seconds or 0.0
    rate = node.flops / time if node.flops and time else 0.0
    moved = node.bytes / time if node.bytes and time else 0.0
    peak = found.ceilings.flops.get(node.matrix_dtype, 0.0) if found.ceilings is not None else 0.0
    copied = found.ceilings.bandwidth if found.ceilings is not None else 0.0
    took = node.predicted.seconds if node.predicted else 0
    predicted = [seconds(took) if took else ""] if found.profile else []
    return [
        safe(node.node, 60),
        operator_name(node.op),
        node.verdict,
        seconds(time),
        *predicted,
        number(node.flops) if node.flops else "",
        f"{number(int(rate))}" if rate else "",
        f"{100 * rate / peak:.0f} %" if rate and peak else "",
        f"{memory(int(moved))}/s" if moved else "",
        f"{100 * moved / copied:.0f} %" if moved and copied else "",
    ]


def _data(found: Validation) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": {"name": "graphflops", "version": __version__},
        "holds": found.holds,
        "verdicts": found.verdicts,
        "times": None if found.times is None else msgspec.to_builtins(found.times),
        **msgspec.to_builtins(found),
    }
    for node, written in zip(found.nodes, whole["nodes"], strict=True):
        written["verdict"], written["reason"] = node.verdict, node.reason
        written["predicted"] = None if node.predicted is None else node.predicted._asdict()
    return whole


def html(found: Validation) -> str:
    """A validation as a page: the picture of its program, marked where calls differ."""
    from graphflops.analysis import analyze
    from graphflops.render.picture.nest import validated
    from graphflops.render.picture.svg import page

    if not found.path:
        raise OptionError("a page of a validation needs the program as a file: this one was in memory")
    report = analyze(found.path, dims=dict(found.sizes))
    return page(validated(report, found), types=report.modules, said=[conclusion(found)])
