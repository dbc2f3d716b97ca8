"""Calls that an export records differently from what eager execution runs: masks, repeated heads, slices, collectives.

- transformers builds a mask only if padding hides something, which an export cannot know, so an export always builds it.
  Such calls are found by the library's line that makes them, and by what they compute: a mask made from sizes alone, which
  hides nothing or what `is_causal` hides. If an eager run was recorded, its record lists them.
- With a mask, transformers repeats shared heads (`key[:, :, None].expand(...).reshape(...)`); without, `enable_gqa=True`.
- `x[:, 0]` does not slice the first axis; an export records a slice if the size of that axis is open.
- `dist.all_reduce(x)` writes into `x`; an export records a functional collective, a wait, and a copy into the tensor.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphflops.attention import AttentionUse
from graphflops.base.record import replace
from graphflops.cost import Value
from graphflops.execution.source_lines import code_lines, has_fact, statements
from graphflops.execution.strides import Values
from graphflops.graph import EagerRun, Node, Ref, tensor_type
from graphflops.passes.price_call import price_call
from graphflops.passes.program import Backward, PricedCall
from graphflops.rules.registry import find
from graphflops.tensor import TensorType, mapped

Calls = Sequence[PricedCall]
_COMBINES = frozenset({"add", "where"})
_INDEXES = frozenset({"slice", "select", "unsqueeze"})  # what `x[:, 0, None]` calls
_SDPA = "scaled_dot_product_attention"


def as_run(
    calls: Calls, attentions: Iterable[AttentionUse], values: Values, eager: EagerRun | None = None
) -> tuple[Calls, Values]:
    """The calls that eager execution makes, without masks that it does not build, and the types of their values."""
    made, nothing = _masks(calls, eager)
    if not made:
        return calls, values
    uses = {name: use for use in attentions for name in use.calls}
    instead: dict[str, str] = {}  # by result of a call that is left out: the value that replaces it
    kept, unmasked = [], []
    for call in calls:
        mask, use = "", uses.get(call.node.name)
        if call.node.operator.name == _SDPA and isinstance(ref := call.node.arguments().get("mask"), Ref):
            mask = ref.name
        is_flag = _is_flag(use) and (eager is None or bool(_hides(call, eager)))
        if mask in made and (mask in nothing or is_flag):
            call = _with(call, values, {"mask": None, "is_causal": mask not in nothing})
            unmasked.append(call.node.name)
        elif call.node.operator.name in _COMBINES and not nothing.isdisjoint(call.uses):
            out, others = call.node.outputs[0], [name for name in call.uses if name not in nothing]
            is_left_out = eager is None or out in eager.left_out
            if others and is_left_out and (use is None or use.masked_flops == 0):  # it adds a mask of nothing
                instead[out or ""] = instead.get(others[0], others[0])
                continue
        kept.append(call.renamed(instead))
    return with_shared_heads(_used(kept, made), unmasked, values)


def _hides(call: PricedCall, eager: EagerRun) -> str:
    """What an attention hides if the eager run made no mask for it; "" if it made one, and for other calls."""
    return eager.attentions.get(call.node.outputs[0] or "", "") if call.node.outputs else ""


def _masks(calls: Calls, eager: EagerRun | None) -> tuple[set[str], set[str]]:
    """Masks that an eager run does not build, and those of them that hide nothing, with their views.

    Both are values made from sizes alone. Without the record of a run, they come from lines that build masks.
    """
    no_data: set[str] = set()
    made: set[str] = set()
    nothing: set[str] = set()
    for call in calls:
        if call.node.operator.kind == "size" or no_data.issuperset(call.uses):
            outputs = [name for name in call.node.outputs if name is not None]
            no_data.update(outputs)
            if eager is not None:
                continue
            lines = code_lines(call.node.python_stack, call.node.module_stack)
            for fact, told in (("export-only mask", made), ("mask of nothing", nothing)):
                is_told = any(has_fact(fact, line.file, line.text) for line in lines)
                if is_told or not told.isdisjoint(call.uses):
                    told.update(outputs)
    if eager is not None:
        made = no_data & eager.left_out
        nothing = made - {name for call in calls if _hides(call, eager) == "causal" for name in call.uses}
    return made, nothing


def _is_flag(use: AttentionUse | None) -> bool:
    """Whether a mask hides nothing, or hides what `is_causal` hides for equal numbers of queries and keys."""
    if use is None or use.mask not in ("none", "structure", "constant"):
        return False
    causal = use.queries == use.keys and 2 * use.queries * use.masked_flops == use.flops * (use.queries - 1)
    return causal or use.masked_flops == 0


def placed(gradient: Backward | None, places: Sequence[int]) -> Backward | None:
    """The gradient of a call whose operands moved. places: the new places of the first operands; the others are gone."""
    if gradient is None:
        return None
    kept = range(len(places))
    gradients = tuple([(places[place], is_fresh) for place, is_fresh in gradient.gradients if place in kept])
    operands = frozenset([places[place] for place in gradient.operands if place in kept])
    return replace(gradient, gradients=gradients, operands=operands)


def _used(calls: Calls, made: set[str]) -> list[PricedCall]:
    """The calls without those that only make masks that nothing reads any more."""
    read: set[str] = set()
    kept = []
    for call in reversed(calls):
        outputs = set(call.node.outputs)
        if outputs <= made and outputs.isdisjoint(read):
            continue
        read.update(call.uses)
        kept.append(call)
    return kept[::-1]


def without_whole_slices(calls: Calls, values: Values, returned: Sequence[str]) -> Calls:
    """The calls without slices that keep everything. Returned slices stay, and so does `x[:, :]`, which is one view."""
    indexes = [call for call in calls if call.node.operator.name in _INDEXES]
    if not any(_is_whole_slice(call, values) for call in indexes):
        return calls
    indexed = {(call.uses[0], call.node.python_stack) for call in indexes}
    made: dict[str | None, str] = {}  # by result of an indexing call: its lines of code
    instead: dict[str, str] = {}
    kept = []
    for call in calls:
        call = call.renamed(instead)
        result, lines = (*call.node.outputs, None)[0], call.node.python_stack
        is_inner = (result, lines) in indexed or made.get(call.uses[0] if call.uses else None) == lines
        if is_inner and result not in returned and _is_whole_slice(call, values):
            instead[str(result)] = call.uses[0]
            continue
        kept.append(call)
        if call.node.operator.name in _INDEXES:
            made[result] = lines
    return kept if instead else calls


def _is_whole_slice(call: PricedCall, values: Values) -> bool:
    if call.node.operator.name != "slice" or not call.estimate.alias:
        return False
    x, out = tensor_type(call.uses[0], values), tensor_type(call.node.outputs[0], values)
    return x is not None and out is not None and x.shape == out.shape


_REPEAT = ("reshape", "expand", "unsqueeze")  # the calls that repeat heads, last to first
_OPERANDS = ("key", "value")


def with_shared_heads(calls: Calls, unmasked: Iterable[str], values: Values) -> tuple[Calls, Values]:
    """The calls and types of values, without the repeated heads of attentions that lost a mask which only an export has."""
    makers = {name: call for call in calls for name in call.node.outputs if name is not None}
    names = frozenset(unmasked)
    instead: dict[str, PricedCall | None] = {}  # by result of a call that goes: what replaces it
    types: dict[str, Value] = {}
    found = []
    for call in calls:
        if call.node.name in names:
            owns = [_before_repeat(call, name, makers, values) for name in call.uses[1:3]]
            known = [own for own in owns if own is not None]
            if len(known) == len(_OPERANDS):
                shared: dict[str, Any] = {"enable_gqa": True}
                for key, name, (own, cast) in zip(_OPERANDS, call.uses[1:3], known, strict=True):
                    instead[name], shared[key] = None, Ref(own)
                    if cast is not None:  # it now converts the operand before its heads are repeated
                        converted = _repriced(cast, cast.node.renamed({cast.uses[0]: own}), values)
                        types[name], shared[key] = converted.estimate.out[0], Ref(name)
                        instead.update({cast.uses[0]: None, name: converted})
                call = _with(call, {**values, **types}, shared)
        found.append(call)
    if not instead:
        return calls, values
    kept = [instead.get(call.node.outputs[0] or "", call) if call.node.outputs else call for call in found]
    return [call for call in kept if call is not None], {**values, **types} if types else values


def _with(call: PricedCall, values: Values, changed: Mapping[str, Any]) -> PricedCall:
    given = {**call.node.arguments(), **changed}
    return _repriced(call, replace(call.node, args=(), kwargs=tuple(given.items())), values)


def _repriced(call: PricedCall, node: Node, values: Values) -> PricedCall:
    """The call with another node, priced again for that node's operands."""
    rule = find(node.op)
    assert rule is not None
    args, kwargs = mapped((node.args, node.kwargs), lambda x: values[x.name] if isinstance(x, Ref) else x)
    priced = price_call(rule, node.op, args, kwargs, training=call.gradient is not None)
    return PricedCall(node, node.reads(), priced.estimate, priced.gradient, call.row)


def _before_repeat(
    call: PricedCall, name: str, makers: Mapping[str, PricedCall], values: Values
) -> tuple[str, PricedCall | None] | None:
    """The operand before the attention's line repeated its heads, and the call that casts it afterwards."""
    maker = makers.get(name)
    cast = maker if maker is not None and maker.node.operator.kind == "cast" else None
    if cast is not None:
        name = cast.uses[0]
    for operator in _REPEAT:
        maker = makers.get(name)
        if maker is None or maker.node.operator.name != operator or not maker.uses:
            return None
        if maker.node.python_stack != call.node.python_stack:
            return None
        name = maker.uses[0]
    return (name, cast) if isinstance(values.get(name), TensorType) else None


_IN_PLACE = {"all_reduce": "all_reduce_", "broadcast": "broadcast_"}


def in_place(calls: Calls) -> Calls:
    """The calls with one in-place collective for each functional collective, wait and copy."""
    found = _found(calls)
    gone = {name for wait, copied, _ in found.values() for name in (wait, copied)}
    kept = []
    for call in calls:
        if call.node.name in found:  # it writes to the tensor that the copy writes to
            copy, word = found[call.node.name][2], _IN_PLACE.get(call.node.operator.name)
            op = call.node.op if word is None else f"_c10d_functional.{word}.default"
            node = replace(call.node, op=op, outputs=copy.node.outputs)
            if word is None:  # the tensor that it writes is its first operand
                gradient = placed(call.gradient, range(1, len(call.uses) + 1))
                call = replace(call, uses=(copy.uses[0], *call.uses), gradient=gradient)
            call = replace(call, node=node, estimate=replace(call.estimate, alias=True), form=None)
        if call.node.name not in gone:
            kept.append(call)
    return kept


def _found(calls: Calls) -> dict[str, tuple[str, str, PricedCall]]:
    """By name of a collective: the names of its wait and of its copy, and the copy, which alone reads the result."""
    readers = Counter(name for call in calls for name in call.uses)
    maker = {call.node.outputs[0]: call for call in calls if len(call.node.outputs) == 1}
    found = {}
    for call in calls:
        if call.node.operator.name != "copy" or not call.in_place or len(call.uses) != 2:
            continue
        wait = maker.get(call.uses[1])
        if wait is None or wait.node.operator.name != "wait_tensor":
            continue
        start = maker.get(wait.uses[0])
        if start is None or start.node.operator.kind != "collective" or start.node.operator.mutates:
            continue
        is_read_once = readers[call.uses[1]] == readers[wait.uses[0]] == 1
        is_over_operand = start.node.operator.name in _IN_PLACE
        is_own = start.uses[:1] == call.uses[:1] if is_over_operand else call.uses[0] not in start.uses
        lines = code_lines(call.node.python_stack, call.node.module_stack)
        is_spelled = lines and any("copy_" in one.called for one in statements(lines[-1].text))  # by the user
        if is_read_once and is_own and not is_spelled:
            found[start.node.name] = wait.node.name, call.node.name, call
    return found
