"""Along which axis the tensors of a graph lie: whether what a reduction adds up lies side by side in memory.

Inductor orders the axes of a result that it stores as most of what it reads in full has them, unless a library reads it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.inductor.joint_graph import JointGraph, Op


def oriented(stored: Sequence[Op], joint: JointGraph) -> list[Op]:
    """The operators with `is_inner` as inductor finds it; notes in the joint graph which of their results lie turned."""
    if not joint.turned and not any(op.outer for op in stored):
        return [*stored]
    by_library = {name for op in stored if not op.is_fusible for name in op.reads}
    found = []
    for op in stored:
        outer = op.outer.symmetric_difference(joint.turned.intersection(op.reads))
        if outer and op.is_fusible:
            full = [name for name in op.reads if joint.given_bytes(name) >= op.elements]
            turned = sum(name in outer for name in full)
            if op.kept:
                op = replace(op, is_inner=op.is_inner and 2 * turned < len(full))
            elif 2 * turned > len(full) and by_library.isdisjoint(op.outputs):
                joint.turned.update(op.outputs)
        found.append(op)
    return found
