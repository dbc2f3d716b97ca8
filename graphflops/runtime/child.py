"""The process that is run under Nsight Compute: `python -m graphflops.runtime.child JSON`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch

from graphflops.runtime.confront import Confrontation
from graphflops.runtime.counters import range_name
from graphflops.runtime.execute import Execution
from graphflops.runtime.peer import Peer
from graphflops.runtime.sizes import Sizes
from graphflops.runtime.validate import prepared

if TYPE_CHECKING:
    from graphflops.runtime.execute import Step


def main(spec: str) -> None:
    """Run a program twice: to compile and tune what there is to, then each call in a range."""
    options = json.loads(spec)
    run = prepared(options.pop("model"), **options)
    sizes = run.sizes
    execution = Execution(run.graph, run.weights, sizes, run.trusted)
    run.once(execution)
    watch = Confrontation(run.graph, run.report, Sizes(sizes), Peer(), kernel=False)

    def around(step: Step) -> Any:
        if step.nests and not step.node.op.startswith("higher_order.flex_attention"):
            return step()
        torch.cuda.nvtx.range_push(range_name(watch.place(step)))
        try:
            return step()
        finally:
            torch.cuda.nvtx.range_pop()

    execution.around = around
    run.once(execution)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
