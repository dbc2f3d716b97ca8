"""What `--fix` mended, for a terminal: the fixes, their proof, and what they save."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graphflops.base.units import memory, number
from graphflops.render import formats
from graphflops.render.brief import counted
from graphflops.render.table import Page
from graphflops.render.text import count_of, safe

if TYPE_CHECKING:
    from graphflops.onnx_fix.fix import Fixed, Saving
    from graphflops.report.findings import ModelFindings

_UNDONE = 8  # findings whose fix was left out that are listed


def fixes(found: Fixed, written: str, *, verbose: bool = False, width: int = 120, color: bool = False) -> str:
    """The fixes, their proof, the comparison of the two files (all of it if `verbose`), and where the new one is."""
    page = Page(width, color)
    head = f"{count_of(len(found.fixed), 'finding')} fixed" if found.fixed else "nothing fixed"
    page.line((safe(found.path), "bold"), f"  {head}")
    kinds = Counter((finding.code, finding.name, finding.applicability) for finding in found.fixed)
    for (code, name, how), times in sorted(kinds.items()):
        page.line(f"  {how}  {code} {name}{f'  x{times:,}' if times > 1 else ''}")
    for finding, why in found.undone[:_UNDONE]:
        place = safe(finding.module or finding.node, 80)
        page.line((f"  undone  {finding.code} {place}: {safe(why, 400)}", "yellow"))
    if len(found.undone) > _UNDONE:
        page.line((f"  undone  {len(found.undone) - _UNDONE:,} more", "yellow"))
    if found.comparison is not None:
        page.line(f"  {_proof(found)}")
        page.line(f"  promised {_words(found.promised)}; saved {_words(found.saved)}")
        page.line()
        screen = {"width": width, "color": color}
        text = formats.render(found.comparison, "table", verbose=verbose or None, **screen)
        page.lines += str(text).splitlines()
    unsafe = sum(finding.applicability == "unsafe" for finding in found.after.findings)
    more = f", {unsafe:,} of them for --unsafe-fixes" if unsafe else ""
    where = f"written: {safe(written)}; " if written else ""
    page.line(f"{where}left: {counted(found.after.findings)}{more}")
    return page.text()


def _proof(found: Fixed) -> str:
    if not found.runs:
        return f"NOT PROVEN: {safe(found.unproven, 400)}"
    sizes = dict.fromkeys(", ".join(f"{k}={v}" for k, v in run.dims.items()) for run in found.runs)
    at = "; ".join(filter(None, map(safe, sizes)))
    most = f"differ by at most {found.difference:.1g} of their largest number"
    how = most if found.difference else "are equal bit for bit"
    return f"proven: in {len(found.runs)} runs of onnxruntime the results {how}{f' ({at})' if at else ''}"


def _words(saving: Saving) -> str:
    flops, moved, stored = saving
    more = " more" if stored < 0 else ""
    parts = (
        f"{number(flops)} FLOPs" if flops else "",
        f"{memory(moved)} moved in a run" if moved else "",
        f"{memory(abs(stored))}{more} of weights" if stored else "",
    )
    return ", ".join(filter(None, parts)) or "nothing"


def offered(model: ModelFindings) -> str:
    """`graphflops audit model.onnx --fix` mends 3 findings, 2 more with --unsafe-fixes; "" for nothing to mend."""
    kinds = [finding.applicability for finding in model.findings]
    if not any(kinds):
        return ""
    unsafe = f", {kinds.count('unsafe'):,} more with --unsafe-fixes" if "unsafe" in kinds else ""
    command = f"`graphflops audit {safe(model.model)} --fix`"
    return f"{command} mends {count_of(kinds.count('safe'), 'finding')}{unsafe}"
