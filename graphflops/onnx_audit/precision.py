"""Calls computed in a wider type than intended, quantization without effect, several calls where one would do.

Also attention: written as several calls, or with keys and values copied for the heads that share them.
"""

from collections import Counter
from collections.abc import Iterator

from graphflops.attention.match import Spelled, copies, role_of, source_of, spelled
from graphflops.dims import Dim, total
from graphflops.errors import shown
from graphflops.onnx_audit.registry import Edit, Model, Observation, check
from graphflops.rules.onnx.attention import attention
from graphflops.tensor import flat
from graphflops.view import Call, axis_along, first_of


@check("GF254", "unfolded-batch-norm", "note")
def unfolded_batch_norm(model: Model) -> Iterator[Observation]:
    """A BatchNormalization with stored statistics that is the only user of a convolution: its scale and shift can be folded
    into the convolution's weights.

    Fix: export in evaluation mode, or fold the statistics into the weights.
    """
    for call in model.calls("batch_norm"):
        maker = model.view.makers.get(call.value("x"))
        if call.argument("training") or maker is None or maker.value("weight") not in model.view.stored:
            continue
        op = maker.operator  # of images, channels first, and without an activation on the result
        if op.kind != "convolution" or not op.has("images") or op.has("activation"):
            continue
        are_stored = all(name in model.view.stored for name in call.operands[1:])
        if model.view.only_user(maker.result) is call and are_stored:
            text = f"{shown(call.name)} can be folded into {shown(maker.name)}"
            edits = (Edit("folded", call.result),)
            flops, moved, stored = model.freed(call, [maker.result])
            if not maker.value("bias"):  # it gets one
                added = model.view.types[call.value("bias")].nbytes
                moved, stored = moved - added, stored - model.at(added)
            yield Observation(text, call, flops, moved, edits=edits, exact=False, stored=stored)


@check("GF101", "unknown-operator", "warning", kind="cost")
def cost_unknown(model: Model) -> Iterator[Observation]:
    """No rule gives the operator's cost, so every total is a lower bound.

    Fix: register a rule for the operator (`--rules FILE.py`), or export without it.
    """
    for op, times in model.report.coverage.unknown_ops.items():
        call = next(call for call in model.view.calls if call.node.op == op and call.row.state == "unknown")
        what = f"1 call of {shown(op)} is" if times == 1 else f"{times:,} calls of {shown(op)} are"
        yield Observation(f"{what} not counted in any total", call, None, None)


_HALVES = frozenset({"float16", "bfloat16"})
_MOST_STEPS = 3  # calls between a cast and the product that uses it


@check("GF251", "float32-island", "warning")
def float32_island(model: Model) -> Iterator[Observation]:
    """A matrix product or convolution in float32 on values that were cast up from half precision, in a model whose other
    products are in half precision: it runs at a fraction of their speed. Norms and softmax in float32 are correct as they
    are, and not reported.

    Fix: cast after the product, not before it; only norms, softmax and sums need float32.
    """
    work: Counter[str] = Counter()
    for call in model.view.calls:
        work[call.row.matrix_dtype] += model.at(call.cost.matrix_flops)
    if sum(work[name] for name in _HALVES) <= work["float32"]:
        return
    for call in model.view.calls:
        operands = call.operands if call.row.matrix_dtype == "float32" else ()
        if any(_was_half(name, model, _MOST_STEPS) for name in operands if name):
            flops = call.cost.matrix_flops
            text = f"{shown(call.name)} ({shown(call.operator.word)}) runs in float32 on values that were half precision"
            yield Observation(text, call, flops, call.bytes, model.graded(flops, call.bytes))


@check("GF252", "double-precision", "warning")
def double_precision(model: Model) -> Iterator[Observation]:
    """Arithmetic in float64 in a model without float64 parameters: usually caused by a constant of the wrong type.

    Fix: make the constant or the input float32: one float64 operand makes every later result float64.
    """
    if model.report.parameter_dtypes.get("float64"):
        return
    for call in model.view.calls:
        result = model.typed(call.result)
        is_wide = result is not None and result.dtype.name == "float64"
        if is_wide and call.cost and call.operator.kind != "cast":
            text = f"{shown(call.name)} ({shown(call.operator.word)}) computes {result}"
            yield Observation(text, call, call.flops, call.bytes, model.graded(call.flops, call.bytes))


@check("GF253", "idle-quantization", "warning")
def idle_quantization(model: Model) -> Iterator[Observation]:
    """A DequantizeLinear whose only user quantizes the result again, with the same scale and zero point.

    Fix: remove the two calls: the quantized values do not change.
    """
    for first, second in model.pairs("dequantize", "quantize"):
        same = [_known(first, name, model) == _known(second, name, model) for name in ("scale", "zero_point")]
        if all(same) and first.argument("axis") == second.argument("axis"):
            text = f"{shown(first.name)} and {shown(second.name)} undo each other"
            before, after = (model.typed(name) for name in (first.value("x"), second.result))
            alike = before is not None and after is not None and before.dtype is after.dtype
            edits = [Edit("instead", second.result, first.value("x"))] if alike else []
            yield model.saving(text, second, model.freed(second, [first.value("x")]), *edits)


def _known(call: Call, argument: str, model: Model) -> object:
    """The number of a scale or zero point; its name if the number is unknown."""
    name = call.value(argument)
    typed = model.typed(name)
    return typed.value if typed is not None and typed.value is not None else name


def _was_half(name: str, model: Model, steps: int) -> bool:
    """True if at most `steps` calls that keep the precision lie between a cast from half precision and the value."""
    maker = model.view.makers.get(name)
    if maker is None or not steps:
        return False
    op = maker.operator
    if op.kind == "cast":
        source, result = model.typed(maker.value("x")), model.typed(name)
        widened = result is not None and result.dtype.name == "float32"
        return widened and source is not None and source.dtype.name in _HALVES
    passes = op.has("arithmetic") or op.kind in ("view", "identity")
    return passes and any(_was_half(operand, model, steps - 1) for operand in maker.operands if operand)


_SINCE = 23  # opset


@check("GF256", "unfused-attention", "note")
def unfused_attention(model: Model) -> Iterator[Observation]:
    """Attention written as two products with a softmax in between: the scores are written to memory and read again, which a
    fused operator (Attention of opset 23, or onnxruntime's) avoids. The bytes reported are those of the scores; from opset
    23 on, where --unsafe-fixes writes that operator, what it saves.

    Fix: export with opset 23 or later, or run onnxruntime's transformer optimizer: a fused operator keeps scores on chip.
    """
    groups, gone = {group.first.name: group for group in spelled(model.view)}, set[int]()
    for use in model.report.attentions:
        if not use.is_fused:
            group = groups[use.calls[0]]
            text = f"{use.heads} heads of width {use.width} over {use.queries} x {use.keys}, in {len(use.calls)} calls"
            seen = Observation(text, group.first, bytes=use.score_bytes)
            yield _fused(group, seen, model, gone) if model.opsets.get("", 0) >= _SINCE else seen


@check("GF257", "expanded-keys", "note")
def expanded_keys(model: Model) -> Iterator[Observation]:
    """Keys and values shared by several query heads are copied for each of these heads before the products. The bytes
    reported are those of the copies. --unsafe-fixes leaves them out where Attention of opset 23 reads them.

    Fix: use an operator with grouped heads: Attention of opset 23 with kv_num_heads, or GroupQueryAttention.
    """
    calls = {call.name: call for call in model.view.calls}
    for use in model.report.attentions:
        call = calls[use.calls[0]]
        if use.repeated_bytes != 0:
            text = f"{use.kv_heads} heads of keys and values are copied to {use.heads}"
            seen = Observation(text, call, bytes=use.repeated_bytes)
            yield _shared(call, seen, model) if use.is_fused else seen


def _fused(group: Spelled, seen: Observation, model: Model, gone: set[int]) -> Observation:
    """The observation with the changes that make one call of an attention and what that saves; unchanged if none can."""
    types, turned = model.view.types, group.first.operand(1)
    scale, masks = _scores(group, model)
    keys = model.view.makers.get(turned)
    others = (group.first.operand(0), group.second.operand(1), *masks)
    ranks = dict.fromkeys(others[:2], (4,)) | dict.fromkeys(masks, (2, 3, 4))
    read = [types[name] for name in others if name in types and types[name].rank in ranks[name]]
    is_turned = axis_along(group.softmax, model.view) != -1  # probabilities of keys by queries
    if is_turned or keys is None or keys.operator.name != "permute" or not scale or len(read) != len(others):
        return seen
    order: tuple[int, ...] = keys.argument("order") or ()
    names, edits = [others[0], first_of(keys), *others[1:]], []
    straight = (*order[:2], *order[:1:-1])
    if straight != (0, 1, 2, 3):
        if len(order) != 4 or model.view.only_user(turned) is not group.first:
            return seen
        names[1] = turned
        edits = [Edit("operand", turned, first_of(keys), straight), Edit("undeclared", turned)]
    shape = types[turned].shape
    new = attention(read[0], types[turned].like((*shape[:2], *shape[:1:-1])), *read[1:])
    edits.append(Edit("attention", group.second.result, operands=tuple(names), scale=scale))
    saved = model.freed(group.second, names, gone)
    moved = total(types[name].nbytes for name in (*names, group.second.result))
    return seen._replace(
        flops=saved.flops - new.matrix_flops - new.vector_flops,
        bytes=saved.bytes - moved,
        stored=saved.stored,
        edits=tuple(edits),
        exact=False,
    )


def _scores(group: Spelled, model: Model) -> tuple[float, list[str]]:
    """The scale of the scores and the masks added to them; the scale is 0 if calls before the softmax do more."""
    scale, masks = 1.0, list[str]()
    for call in group.between:
        role, typed, number = role_of(call), model.typed(call.operands[-1]), None
        if typed is not None and typed.numel == 1:
            number = next(flat((typed.value,)), None) or typed.uniform
        is_scale = role == "scale" and not masks and call.operator.name in ("mul", "div")
        if is_scale and isinstance(number, (int, float)) and number:
            scale *= number if call.operator.name == "mul" else 1 / number
        elif role == "bias" and not masks:
            masks = [name for masking in group.masks for name in masking.others]
        elif call not in (group.first, group.softmax, group.second):
            return 0.0, masks
    return scale if len(masks) < 2 else 0.0, masks


def _shared(call: Call, seen: Observation, model: Model) -> Observation:
    """The observation with the change that lets an Attention read the keys and values before they are copied."""
    types, edits, gone = model.view.types, list[Edit](), set[int]()
    moved: Dim = 0
    stored = 0
    for name in call.operands[1:3]:
        many, _ = copies(name, model.view)
        chain = source_of(name, model.view)[1][len(many) - 1 :] if many else ()
        shapes = {first_of(each): types[first_of(each)].shape for each in chain if first_of(each) in types}
        last = types[name].shape[2:]
        fitting = [one for one, shape in shapes.items() if len(shape) == 4 and shape[2:] == last]
        if not fitting or model.view.only_user(name) is not call or len(call.operands) > 4:
            return seen
        edits.append(Edit("instead", name, fitting[0]))
        saved = model.freed(model.view.makers[name], fitting[:1], gone)
        moved = moved + saved.bytes + types[name].nbytes - types[fitting[0]].nbytes
        stored += saved.stored
    return seen._replace(bytes=moved, stored=stored, edits=tuple(edits), exact=False)
