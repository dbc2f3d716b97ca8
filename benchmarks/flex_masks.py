"""How long it takes to count what the masks of flexible attention let through, and how much memory.

    python -m benchmarks.flex_masks

Each mask is counted in a process of its own, blocks of 128 x 128, one head. Time is the
processor's for the whole analysis, imports apart; memory is the peak of the process, with Python and numpy.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from graphflops.analysis import analyze
from graphflops.graph import Graph, Input, Node, Output, Ref, Stored
from graphflops.tensor import BOOL, FLOAT32, INT32, INT64, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 128
Calls = list[tuple[str, tuple[Any, ...], Any]]  # operator, operands, element type of the result
b, h, q, k, held = map(Ref, ("b", "h", "q", "k", "held"))


def function(places: Sequence[Ref], calls: Calls, *tensors: tuple[Ref, TensorType]) -> Graph:
    """A function of scalars; call number n is called `vn`, the last is the result."""
    types = {place.name: TensorType((), INT32) for place in places}
    types |= {name.name: typed for name, typed in tensors}
    types |= {f"v{place}": TensorType((), dtype) for place, (_, _, dtype) in enumerate(calls)}
    nodes = [
        Node(f"v{n}", f"aten.{op}", tuple(given), outputs=(f"v{n}",))
        for n, (op, given, _) in enumerate(calls)
    ]
    inputs = [Input(name.name, "user") for name in (*places, *(name for name, _ in tensors))]
    result = Ref(nodes[-1].name) if nodes else places[0]
    return Graph(tuple(nodes), types, tuple(inputs), (Output(result),))


def program(length: int, calls: Calls, contents: Any = None) -> Graph:
    """One attention of one head under a mask, which may capture one tensor."""
    shaped = TensorType((1, 1, length, 64), FLOAT32)
    types: dict[str, Any] = dict.fromkeys(("query", "key", "value", "out"), shaped)
    inputs = [Input(name, "user") for name in ("query", "key", "value")]
    tensors = []
    if contents is not None:
        tensors.append((held, TensorType(contents.shape, INT64)))
        types["table"] = tensors[0][1]
        inputs.append(Input("table", "constant"))
    mask = function((b, h, q, k), calls, *tensors)
    score = function((Ref("score"), b, h, q, k), [])
    blocks = (length, length, *[None] * 10, BLOCK, BLOCK, mask)
    captured = (Ref("table"),) if tensors else ()
    arguments = (*map(Ref, ("query", "key", "value")), score, blocks, 0.125, (), (), captured)
    node = Node("attention", "higher_order.flex_attention", arguments, outputs=("out", None, None))

    def stored(name: str) -> Stored:
        strides = tuple(x // contents.itemsize for x in contents.strides)
        return Stored(INT64, contents.shape, strides, 0, memoryview(contents).cast("B"))

    return Graph((node,), types, tuple(inputs), (Output(Ref("out")),), contents=stored)


def documents(length: int, longest: int) -> Any:
    """The document of each place, of lengths drawn at random."""
    lengths = np.random.default_rng(0).integers(1, longest, 8 * length // longest)
    return np.repeat(np.arange(len(lengths)), lengths)[:length].astype(np.int64)


CAUSAL: Calls = [("ge.Tensor", (q, k), BOOL)]
DOCUMENT: Calls = [
    ("index.Tensor", (held, (q,)), INT64),
    ("index.Tensor", (held, (k,)), INT64),
    ("eq.Tensor", (Ref("v0"), Ref("v1")), BOOL),
]
CAUSAL_DOCUMENT: Calls = [
    *DOCUMENT,
    ("ge.Tensor", (q, k), BOOL),
    ("bitwise_and.Tensor", (Ref("v2"), Ref("v3")), BOOL),
]
WINDOW: Calls = [
    *CAUSAL,
    ("sub.Tensor", (q, k), INT32),
    ("lt.Scalar", (Ref("v1"), 4096), BOOL),
    ("bitwise_and.Tensor", (Ref("v0"), Ref("v2")), BOOL),
]


def neighbours(side: int, reach: int) -> Calls:
    """Neighbours in a square of that side."""
    calls: Calls = []
    for axis, op in enumerate(("floor_divide.default", "remainder.Scalar")):
        first = axis * 5
        calls += [
            (op, (q, side), INT32),
            ("clamp.default", (Ref(f"v{first}"), reach, side - 1 - reach), INT32),
            (op, (k, side), INT32),
            ("sub.Tensor", (Ref(f"v{first + 1}"), Ref(f"v{first + 2}")), INT32),
            ("abs.default", (Ref(f"v{first + 3}"),), INT32),
        ]
    calls += [("le.Scalar", (Ref("v4"), reach), BOOL), ("le.Scalar", (Ref("v9"), reach), BOOL)]
    return [*calls, ("bitwise_and.Tensor", (Ref("v10"), Ref("v11")), BOOL)]


CASES: dict[str, Callable[[], Graph]] = {
    "causal, 1,048,576": lambda: program(2**20, CAUSAL),
    "causal window of 4,096, 1,048,576": lambda: program(2**20, WINDOW),
    "causal in documents, 32,768": lambda: program(2**15, CAUSAL_DOCUMENT, documents(2**15, 2048)),
    "documents, 32,768": lambda: program(2**15, DOCUMENT, documents(2**15, 2048)),
    "causal in documents, 1,048,576": lambda: program(2**20, CAUSAL_DOCUMENT, documents(2**20, 2**14)),
    "neighbours in a square, 16,384": lambda: program(2**14, neighbours(128, 6)),
}


def main() -> None:
    if len(sys.argv) > 1:
        graph = CASES[sys.argv[1]]()
        analyze(program(BLOCK, DOCUMENT, documents(BLOCK, 9)))  # what is imported is
        start = time.process_time()
        (use,) = analyze(graph).attentions
        seconds = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        pairs = (use.flops - use.masked_flops) // 256
        print(
            f"{sys.argv[1]:36}{pairs:>19,}{use.partial_blocks:>10,}{use.full_blocks:>12,}{seconds:>9.3f}{peak:>7,}"
        )
        return
    print(f"{'mask, length':36}{'visible pairs':>19}{'partial':>10}{'full blocks':>12}{'CPU s':>9}{'MiB':>7}")
    for name in CASES:
        subprocess.run([sys.executable, "-m", "benchmarks.flex_masks", name], check=True)


if __name__ == "__main__":
    main()
