"""Operators between conversions from and to few bits, each priced as the one call that runtimes make of it.

A file in QDQ form spells a convolution of integers as DequantizeLinear, Conv, Relu, QuantizeLinear. Fused, it reads and
writes the quantized type, and nothing in between is stored. The following are fused:

* products whose factors are all dequantized: they multiply integers, and quantize their results if that follows;
* products and gathers of which only the weights are dequantized: they read few bits and compute in floating point;
* any other operator whose results are all quantized, and whose float operands are dequantized, weights or single numbers;
* products of integers whose sums other calls scale to floating point (MatMulInteger, Cast, Mul).

Elementwise calls between an operator and the conversion of its result are parts of it too. A layout of a dequantized value
becomes a layout of the quantized value. A conversion that something else reads stays, with a price of its own.
"""

from graphflops.base.record import replace
from graphflops.base.units import memory
from graphflops.cost import Cost
from graphflops.dims import Dim, evaluate
from graphflops.open_sizes import of_described
from graphflops.passes.memory import memory_use
from graphflops.passes.price_call import is_free, matrix_dtype
from graphflops.passes.program import PricedCall, PricedProgram
from graphflops.passes.quantized_islands import Island, Islands
from graphflops.report import Named, Row
from graphflops.report.size_names import in_prose
from graphflops.tensor import TensorType


def fuse(found: Islands, rows: list[Row]) -> int:
    """Fuses what runtimes fuse, in place; returns how many calls became parts of others.

    Layouts of quantized values get quantized types. rows: of the graph whose islands these are.
    """
    calls, values = found.calls, found.values
    instead: dict[str, str] = {}  # by value that is no longer stored, the value that is stored instead
    gone = {*found.folded, *(place for place, island in found.island_of.items() if place != island.place)}
    for place in filter(found.dequantizes, range(len(calls))):
        names = found.outputs(place)
        if all(map(found.is_taken, names)):  # only read in their quantized form
            gone.add(place)
            instead.update((name, found.twins[name].name) for name in names)
    ends = {(island.place, *island.absorbed)[-1]: island for island in found.island_of.values()}
    kept = []  # the remaining calls, each after its operands are made
    for place, call in enumerate(calls):
        if place in ends:
            if ends[place].is_layout:
                values.update((name, found.twins[name].type) for name in found.outputs(place))
            instead.update((name, made[0]) for name, made in ends[place].results.items())
            kept.append(_fused(found, ends[place], rows))
        elif place not in gone and place not in found.island_of:
            # A call that reads sizes takes them from the stored value.
            kept.append(call.renamed(instead) if call.node.operator.reads_sizes else call)
    for row in [calls[place].row for place in gone]:
        rows[row] = rows[row]._replace(state="free", cost=Cost(), matrix_dtype="")
    parts, calls[:] = len(calls) - len(kept), kept
    return parts


def _fused(found: Islands, island: Island, rows: list[Row]) -> PricedCall:
    """An island as one call; its row is changed in `rows`."""
    call, estimate = found.calls[island.place], island.estimate
    parts = [found.calls[place] for place in (*island.absorbed, *island.quantizers)]
    inside = {name for part in (call, *parts) for name in part.node.outputs}
    beside = [name for part in parts for name in part.uses if name not in inside]
    taken = () if island.is_layout else island.taken
    scales = [name for name in taken for name in found.twins[name].by.uses[1:]]
    further = [name for name in dict.fromkeys((*beside, *scales)) if name not in found.stored]
    twins = {name: found.twins[name].name for name in island.taken}
    outputs = tuple([x for output in call.node.outputs for x in island.results.get(output or "", (output,))])
    fused = call.renamed(twins)
    uses = (*fused.uses, *[twins.get(name, name) for name in further if name not in call.uses])
    row = rows[call.row]
    made = [x for x in outputs if x and isinstance(found.values.get(x), TensorType)]
    rows[call.row] = row._replace(
        state="free" if is_free(estimate) else "counted",
        cost=estimate.cost,
        inputs=tuple([Named(x, found.type_of(x)) for x in (twins.get(name, name) for name, _ in row.inputs)]),
        outputs=tuple([Named(name, found.type_of(name)) for name in made]),
        matrix_dtype=matrix_dtype(estimate),
    )
    return replace(fused, node=replace(fused.node, outputs=outputs), uses=uses, estimate=estimate, form=None)


def say_unfused(program: PricedProgram, separate: PricedProgram) -> None:
    """Note what the program costs if each call runs by itself. separate: the program priced in this way."""
    names, values = of_described(program.symbols, program.passed).names, program.values

    def told(quantity: Dim) -> str:
        value = evaluate(quantity, values)
        return memory(value) if value is not None else f"{in_prose(str(quantity), names)} B"

    more, calls = separate.coverage.counted, program.coverage.counted
    moved, peak = told(separate.main.cost.moved_bytes), told(memory_use(separate).forward.bytes)
    text = (
        f"{more - calls:,} calls that convert or scale quantized values, or lie between such calls, are parts of those that"
        f" runtimes fuse them with; if each runs by itself, {moved} are read and written and the peak is {peak}"
    )
    program.notes.say("GF126", "", text)
