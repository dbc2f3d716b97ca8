"""Attention written as several calls, and keys and values that are copied for the heads that share them."""

from __future__ import annotations

from collections.abc import Iterator

from graphflops.attention.match import Spelled, spelled
from graphflops.attention.operator_kinds import copies, first_of, role_of, source_of
from graphflops.dims import Dim, total
from graphflops.onnx_audit.model import Model
from graphflops.onnx_audit.registry import Edit, Observation, check
from graphflops.rules.onnx.attention import attention
from graphflops.tensor import flat
from graphflops.view import Call

_SINCE = 23  # opset


@check("GF256", "unfused-attention", "note")
def unfused_attention(model: Model) -> Iterator[Observation]:
    """Attention written as two products with a softmax in between: the scores are written to memory and read again, which a
    fused operator (Attention of opset 23, or onnxruntime's) avoids. The bytes reported are those of the scores; from opset
    23 on, where --unsafe-fixes writes that operator, what it saves.

    Fix: export with opset 23 or later, or run onnxruntime's transformer optimizer: a fused operator keeps scores on chip.
    """
    assert model.report is not None
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
    assert model.report is not None
    calls = {call.name: call for call in model.view.calls}
    for use in model.report.attentions:
        call = calls[use.calls[0]]
        if use.repeated_bytes != 0:
            text = f"{use.kv_heads} heads of keys and values are copied to {use.heads}"
            seen = Observation(text, call, bytes=use.repeated_bytes)
            yield _shared(call, seen, model) if use.is_fused else seen


def _fused(group: Spelled, seen: Observation, model: Model, gone: set[int]) -> Observation:
    """The observation with the changes that make one call of an attention, and what that saves; without, where none do.

    gone: places of calls that other fixes leave out, to which these are added.
    """
    types, turned = model.view.types, group.first.operand(1)
    scale, masks = _scores(group, model)
    keys = model.view.makers.get(turned)
    others = (group.first.operand(0), group.second.operand(1), *masks)
    ranks = dict.fromkeys(others[:2], (4,)) | dict.fromkeys(masks, (2, 3, 4))
    read = [types[name] for name in others if name in types and types[name].rank in ranks[name]]
    if keys is None or keys.operator.name != "permute" or not scale or len(read) != len(others):
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
    """What scales the scores and the mask added to them; 0 where anything else lies between the products and the softmax."""
    scale, masks = 1.0, list[str]()
    for call in group.between:
        factor = 0.0 if masks else _factor(call, model)
        if factor:
            scale *= factor
        elif role_of(call) == "bias" and not masks:
            masks = [name for masking in group.masks for name in masking.others]
        elif call not in (group.first, group.softmax, group.second):
            return 0.0, masks
    return scale if len(masks) < 2 else 0.0, masks


def _factor(call: Call, model: Model) -> float:
    """By what a call multiplies all scores; 0 where it does something else, or that is not known."""
    typed = model.view.types.get(call.operands[-1])
    is_scale = role_of(call) == "scale" and call.operator.name in ("mul", "div")
    if typed is None or typed.numel != 1 or not is_scale:
        return 0.0
    number = next(flat((typed.value,)), None) or typed.uniform
    if not isinstance(number, (int, float)) or not number:
        return 0.0
    return number if call.operator.name == "mul" else 1 / number


def _shared(call: Call, seen: Observation, model: Model) -> Observation:
    """The observation with the change that lets an Attention read what its keys and values are copies of."""
    types, edits, gone = model.view.types, list[Edit](), set[int]()
    moved: Dim = 0
    stored = 0
    for name in call.operands[1:3]:
        many, _ = copies(name, model.view)
        chain = source_of(name, model.view)[1][len(many) - 1 :] if many else ()
        shapes = {first_of(each): types[first_of(each)].shape for each in chain if first_of(each) in types}
        fitting = [
            one for one, shape in shapes.items() if len(shape) == 4 and shape[2:] == types[name].shape[2:]
        ]
        if not fitting or model.view.only_user(name) is not call or len(call.operands) > 4:
            return seen
        edits.append(Edit("instead", name, fitting[0]))
        saved = model.freed(model.view.makers[name], fitting[:1], gone)
        moved = moved + saved.bytes + types[name].nbytes - types[fitting[0]].nbytes
        stored += saved.stored
    return seen._replace(bytes=moved, stored=stored, edits=tuple(edits), exact=False)
