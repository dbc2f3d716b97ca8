"""Changes of recorded steps: fields of other values, and what one who wants a step to seem cheap does.

Each changes a step and says what it did; "" where there was nothing to change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from graphflops.execution.strides import row_major

Json = dict[str, Any]
_HUGE = (
    0,
    1,
    -1,
    2,
    2**40,
    2**63,
    2**70,
    0.5,
    float("nan"),
    None,
    True,
    "",
    [],
    {},
    {"v": 0},
    {"f": "nan"},
    {"o": "x"},
)
_TYPES = ("float32", "bfloat16", "int64", "bool", "float8_e4m3fn", "complex64", "uint8")


def _without(step: Json, place: int) -> None:
    """Takes a call out: moments after it are one earlier."""
    del step["calls"][place]
    for memory in step["storages"]:
        for end in (2, 3):
            memory[end] -= memory[end] > place or (memory[end] == place and end == 3)
        memory[3] = max(memory[2], memory[3])
        memory[2:4] = [min(moment, len(step["calls"]) - 1) for moment in memory[2:4]]


def _replaced(given: Any, old: int, new: Any) -> Any:
    if isinstance(given, list):
        return [_replaced(one, old, new) for one in given]
    if isinstance(given, dict):
        return new if given == {"v": old} else {name: _replaced(one, old, new) for name, one in given.items()}
    return given


def _values(given: Any) -> list[int]:
    if isinstance(given, list):
        return [value for one in given for value in _values(one)]
    if isinstance(given, dict):
        return [given["v"]] if "v" in given else [value for one in given.values() for value in _values(one)]
    return []


def drop_call(step: Json, chance: Random) -> str:
    place = chance.randrange(len(step["calls"]))
    call = step["calls"][place]
    _without(step, place)
    return f"without call {place}, {step['operators'][call[0]]}"


def bypass_call(step: Json, chance: Random) -> str:
    """Without a call, its readers get another value of the same type."""
    place = chance.randrange(len(step["calls"]))
    call = step["calls"][place]
    made = [value for value in call[3] if value is not None]
    known = [entry[0] for entry in step["inputs"]]
    known += [value for other in step["calls"][:place] for value in other[3] if value is not None]
    for value in made:
        alike = [one for one in known if step["values"][one][2] == step["values"][value][2]]
        own = [one for one in _values(call[1:3]) if one in alike]
        if not alike:
            return ""
        other = {"v": chance.choice(own or alike)}
        for later in step["calls"][place:]:
            later[1:3] = _replaced(later[1:3], value, other)
    _without(step, place)
    return f"without call {place}, {step['operators'][call[0]]}: others in the place of {made}"


def drop_result(step: Json, chance: Random) -> str:
    call = chance.choice([call for call in step["calls"] if call[3]])
    place = chance.randrange(len(call[3]))
    old = call[3][place]
    if chance.random() < 0.5:
        call[3][place] = None
    else:
        del call[3][place]
    return f"{step['operators'][call[0]]} without result {old}"


def free_earlier(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["storages"]))
    memory = step["storages"][number]
    memory[3] = chance.randint(memory[2], memory[3])
    return f"memory {number} until {memory[3]}"


def begin_later(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["storages"]))
    memory = step["storages"][number]
    memory[2] = chance.randint(memory[2], memory[3])
    return f"memory {number} from {memory[2]}"


def fewer_bytes(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["storages"]))
    memory = step["storages"][number]
    memory[4] = chance.choice((0, 1, memory[4] // 2, memory[4] - 1))
    return f"memory {number} of {memory[4]} bytes"


def kind(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["storages"]))
    memory = step["storages"][number]
    memory[1] = chance.choice(
        ("weight", "gradient", "value", "temporary", "optimizer", "buffer", "input", "host")
    )
    if memory[1] == "optimizer" and chance.random() < 0.5:
        memory[4] = 0
    return f"memory {number} is {memory[1]} of {memory[4]} bytes"


def host(step: Json, chance: Random) -> str:
    """Memory of a copy, or of all copies, is the host's."""
    made = [
        step["values"][call[3][0]][0]
        for call in step["calls"]
        if call[3] and call[3][0] is not None
        and any(word in step["operators"][call[0]] for word in ("copy", "clone", "empty", "zeros", "ones", "cat"))
    ]  # fmt: skip
    if not made:
        return ""
    some = made if chance.random() < 0.3 else [chance.choice(made)]
    for number in some:
        step["storages"][number][1] = "host"
    return f"memory {some[:5]} of the host"


def role(step: Json, chance: Random) -> str:
    entry = chance.choice(step["inputs"])
    entry[1] = chance.choice(("parameter", "buffer", "state", "user", "constant"))
    memory = step["storages"][step["values"][entry[0]][0]]
    memory[1] = {"parameter": "weight", "state": "optimizer", "user": "input"}.get(entry[1], "buffer")
    if memory[1] == "optimizer":
        memory[4] = chance.choice((0, memory[4]))
    return f"input {entry[2]} is a {entry[1]} of {memory[4]} bytes"


def size(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["values"]))
    value = step["values"][number]
    if not value[2]:
        return ""
    axis = chance.randrange(len(value[2]))
    value[2][axis] = chance.choice((0, 1, value[2][axis] // 2, value[2][axis] * 2))
    return f"value {number} has the sizes {value[2]}"


def sizes(step: Json, chance: Random) -> str:
    """One size smaller in all values from one on, with strides in order and memory that fits."""
    place = chance.randrange(len(step["values"]))
    found = [one for one in step["values"][place][2] if one > 1]
    if not found:
        return ""
    old = chance.choice(found)
    for value in step["values"][place:]:
        value[2] = [old // 2 if one == old else one for one in value[2]]
        value[3] = [*row_major(tuple(value[2]))]
    return f"{old} is {old // 2} from value {place} on"


def strides(step: Json, chance: Random) -> str:
    """Strides that overlap, with memory that they fit in."""
    number = chance.randrange(len(step["values"]))
    value = step["values"][number]
    if not value[2]:
        return ""
    value[3] = chance.choice(
        ([0] * len(value[2]), [1] * len(value[2]), [0, *value[3][1:]], [*value[3][:-1], 0])
    )
    if chance.random() < 0.7:
        step["storages"][value[0]][4] = 4 * (
            1 + sum((n - 1) * s for n, s in zip(value[2], value[3], strict=True))
        )
    return f"value {number} of {value[2]} has the strides {value[3]}"


def offset(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["values"]))
    step["values"][number][1] = chance.choice((0, 1, 2**20, 2**50, -1))
    return f"value {number} at {step['values'][number][1]}"


def dtype(step: Json, chance: Random) -> str:
    number = chance.randrange(len(step["values"]))
    value = step["values"][number]
    kinds = {value[4]: chance.choice(_TYPES)}
    chosen = step["values"][number:] if chance.random() < 0.4 else [value]
    for one in chosen:
        one[4] = kinds.get(one[4], one[4])
    if chance.random() < 0.3:
        for call in step["calls"]:
            call[1:3] = [_recast(one, kinds) for one in call[1:3]]
    return f"{kinds} in {len(chosen)} values from {number} on"


def _recast(given: Any, kinds: Json) -> Any:
    if isinstance(given, list):
        return [_recast(one, kinds) for one in given]
    if isinstance(given, dict):
        return {
            name: kinds.get(one, one) if name == "d" else _recast(one, kinds) for name, one in given.items()
        }
    return given


def alias(step: Json, chance: Random) -> str:
    """A result in the memory of an operand, or of another value, or in memory of its own."""
    place = chance.randrange(len(step["calls"]))
    call = step["calls"][place]
    made = [value for value in call[3] if value is not None]
    if not made:
        return ""
    value = step["values"][chance.choice(made)]
    given = [step["values"][one][0] for one in _values(call[1:3])]
    way, old = chance.random(), value[0]
    if way < 0.6 and given:
        new = chance.choice(given)
    elif way < 0.8:
        new = chance.randrange(len(step["storages"]))
    else:
        new = len(step["storages"])
        step["storages"].append(["", "temporary", place, place, step["storages"][old][4]])
    for one in step["values"] if chance.random() < 0.6 else [value]:
        if one[0] == old:
            one[0] = new
    if chance.random() < 0.7:
        step["storages"][new][2] = min(step["storages"][new][2], step["storages"][old][2])
        step["storages"][new][3] = max(step["storages"][new][3], step["storages"][old][3])
        step["storages"][old][2:] = [place, place, 0]
    return f"call {place}, {step['operators'][call[0]]}: result in memory {new}, not {old}"


def reuse(step: Json, chance: Random) -> str:
    """A result in memory that nothing uses any more."""
    place = chance.randrange(len(step["calls"]))
    made = [value for value in step["calls"][place][3] if value is not None]
    free = [n for n, one in enumerate(step["storages"]) if -1 < one[3] < place and one[4]]
    if not made or not free:
        return ""
    old, new = step["values"][made[0]][0], chance.choice(free)
    if step["storages"][old][2] < 0:
        return ""
    for value in step["values"]:
        value[0] = new if value[0] == old else value[0]
    step["storages"][new][3] = step["storages"][old][3]
    step["storages"][new][4] = max(step["storages"][new][4], step["storages"][old][4])
    step["storages"][old][2:] = [place, place, 0]
    return f"call {place}, {step['operators'][step['calls'][place][0]]}: result in old memory {new}"


def groups(step: Json, chance: Random) -> str:
    if not step["groups"]:
        return ""
    group = chance.choice(step["groups"])
    way = chance.randrange(5)
    if way == 0:
        group[2] = chance.choice(([step["rank"]], group[2][:-1], [*group[2], 99]))
    elif way == 1:
        group[1:] = ["", [step["rank"]]]
    elif way == 2:
        axis = chance.choice(step["axes"])
        axis[1] = chance.choice((1, 2, 0, -1, 2**30))
    elif way == 3:
        step["groups"].remove(group)
    else:
        other = [group[0], "", [step["rank"]]]
        step["groups"] = [other if one is group else one for one in step["groups"]]
        step["axes"] = chance.choice(([], [[name, 1] for name, _ in step["axes"]], step["axes"]))
    return f"groups {step['groups']}, axes {step['axes']}"


def one_device(step: Json, chance: Random) -> str:
    """A mesh of one device, all groups along it."""
    if not step["axes"]:
        return ""
    step["axes"], step["rank"] = [[name, 1] for name, _ in step["axes"]], 0
    step["groups"] = [[name, axis, [0]] for name, axis, _ in step["groups"]]
    return "all axes of one device"


def rank(step: Json, chance: Random) -> str:
    step["rank"] = chance.choice((0, 1, 3, -1, 2**40))
    return f"rank {step['rank']}"


def phase(step: Json, chance: Random) -> str:
    place = chance.randrange(len(step["calls"]))
    new = chance.choice(("forward", "backward", "optimizer", "none"))
    for call in step["calls"][place:] if chance.random() < 0.5 else [step["calls"][place]]:
        call[6] = new
    return f"{new} from call {place} on"


def counters(step: Json, chance: Random) -> str:
    """Streams, calls that Python dispatched, hooks."""
    field, new = chance.choice((7, 8, 9)), chance.choice((0, 1, -1, 2**40, 2**70))
    for call in step["calls"]:
        call += [0, 0][len(call) - 8 :] if len(call) < 10 else []
        call[field] = new
    return f"field {field} of all calls is {new}"


def collective(step: Json, chance: Random) -> str:
    places = [n for n, call in enumerate(step["calls"]) if "c10d" in step["operators"][call[0]]]
    if not places:
        return ""
    call = step["calls"][chance.choice(places)]
    old = step["operators"][call[0]]
    way = chance.randrange(4)
    if way == 0:
        others = (
            "_c10d_functional.wait_tensor.default",
            "c10d.barrier.default",
            "c10d.recv_.default",
            "c10d.broadcast_.default",
        )
        step["operators"].append(chance.choice((*others, "c10d.allreduce_.default", "aten.detach.default")))
        call[0] = len(step["operators"]) - 1
        return f"{old} is {step['operators'][-1]}"
    texts = [n for n, one in enumerate(call[1]) if isinstance(one, str)]
    if way == 1 and texts and step["groups"]:
        call[1][chance.choice(texts)] = chance.choice((chance.choice(step["groups"])[0], "sum", "avg", "0"))
        return f"{old}{call[1]}"
    if way == 2 and (numbers := [n for n, one in enumerate(call[1]) if type(one) is int]):
        call[1][chance.choice(numbers)] = chance.choice((0, 1, 2, -1))
        return f"{old}{call[1]}"
    given = _values(call[1])
    if not given:
        return ""
    known = [entry[0] for entry in step["inputs"]]
    known += [v for one in step["calls"][: step["calls"].index(call)] for v in one[3] if v is not None]
    old_value, new_value = chance.choice(given), chance.choice(known)
    call[1] = _replaced(call[1], old_value, {"v": new_value})
    return f"{old}: {new_value} in the place of {old_value}"


def operand(step: Json, chance: Random) -> str:
    """Operands swapped, left out, of another value, or no tensor at all."""
    place = chance.randrange(len(step["calls"]))
    call = step["calls"][place]
    what = f"call {place}, {step['operators'][call[0]]}"
    way = chance.randrange(5)
    if way == 0 and len(call[1]) > 1:
        chance.shuffle(call[1])
        return f"{what}: {call[1]}"
    if way == 1 and call[1]:
        call[1].pop(chance.randrange(len(call[1])))
        return f"{what}: {call[1]}"
    if not (given := _values(call[1:3])):
        return ""
    old = chance.choice(given)
    known = [entry[0] for entry in step["inputs"]]
    known += [value for other in step["calls"][:place] for value in other[3] if value is not None]
    new = chance.choice((None, {"o": "tensor of torch.float32"}, 1.0, [], {"v": chance.choice(known)}))
    call[1:3] = _replaced(call[1:3], old, new)
    return f"{what}: {new} in the place of value {old}"


def number(step: Json, chance: Random) -> str:
    """A number of an argument."""
    place = chance.randrange(len(step["calls"]))
    call = step["calls"][place]
    places: list[tuple[Any, Any]] = []
    pending: list[Any] = [call[1], call[2]]
    while pending:
        one = pending.pop()
        items = enumerate(one) if isinstance(one, list) else one.items()
        for key, what in items:
            if isinstance(what, (list, dict)) and "v" not in what:
                pending.append(what)
            elif not isinstance(what, dict):
                places.append((one, key))
    if not places:
        return ""
    where, key = chance.choice(places)
    where[key] = chance.choice(_HUGE)
    return f"call {place}, {step['operators'][call[0]]}: {call[1]} {call[2]}"[:200]


def operator(step: Json, chance: Random) -> str:
    """A call of another operator."""
    place = chance.randrange(len(step["calls"]))
    call = step["calls"][place]
    old = step["operators"][call[0]]
    others = (
        "aten.detach.default aten.view.default aten.alias.default aten.t.default aten.as_strided.default "
    )
    others += "aten.empty_like.default aten.add_.Tensor aten.relu_.default aten.mm.out aten.foo.default aten.to.dtype "
    others += "aten._local_scalar_dense.default aten.sym_size.int prims.view_of.default aten.mul.Tensor aten.clone.default"
    new = chance.choice(
        (*others.split(), *step["operators"], "higher_order.cond", "fsdp.chunk_cat.default", "_operator.add")
    )
    step["operators"].append(new)
    call[0] = len(step["operators"]) - 1
    if chance.random() < 0.4 and _values(call[1]):
        call[1], call[2] = [{"v": _values(call[1])[0]}], {}
    return f"call {place}, {old} is {new}"


def repeat(step: Json, chance: Random) -> str:
    """An entry of a list twice, or left out."""
    name = chance.choice(
        ("storages", "values", "inputs", "calls", "operators", "modules", "sources", "groups")
    )
    if not step[name]:
        return ""
    place = chance.randrange(len(step[name]))
    if chance.random() < 0.5:
        step[name].insert(place, copy.deepcopy(step[name][place]))
        return f"{name}: {place} twice"
    del step[name][place]
    return f"{name}: without {place}"


def inputs(step: Json, chance: Random) -> str:
    """An input of no elements, or spread from one."""
    value = step["values"][chance.choice(step["inputs"])[0]]
    value[3] = [0] * len(value[3])
    step["storages"][value[0]][4] = 4
    return f"an input of {value[2]} is one element"


def field(step: Json, chance: Random) -> str:
    """Any field is anything."""
    where: Any = step
    path = []
    for _ in range(8):
        if not isinstance(where, (list, dict)) or not where:
            break
        key = chance.choice([*(where if isinstance(where, dict) else range(len(where)))])
        path.append((where, key))
        where = where[key]
    where, key = path[-1] if chance.random() < 0.8 else chance.choice(path)
    where[key] = chance.choice(_HUGE)
    return f"{[key for _, key in path]} is {where[key]}"


# What one who wants a step to seem cheap does.


def _until_used(step: Json, number: int) -> None:
    """Memory that is let go after its last use."""
    memory = step["storages"][number]
    inside = {n for n, value in enumerate(step["values"]) if value[0] == number}
    uses = [
        n for n, call in enumerate(step["calls"]) if inside & {*_values(call[1:3]), *filter(None, call[3])}
    ]
    memory[3] = max([memory[2], *uses])


def _results(step: Json, wanted: Callable[[int, str, set[int], int], bool]) -> list[tuple[int, int]]:
    """Calls with a result, where place, operator, memory of the operands and of the result are as wanted."""
    return [
        (place, value)
        for place, call in enumerate(step["calls"])
        for value in call[3]
        if value is not None
        and wanted(
            place, step["operators"][call[0]], {step["values"][v][0] for v in _values(call[1:3])}, step["values"][value][0]
        )
    ]  # fmt: skip


def unread(step: Json, chance: Random) -> str:
    """A result that nothing reads is small, or is not listed."""
    read = {value for call in step["calls"] for value in _values(call[1:3])}
    found = [
        one for one in _results(step, lambda place, op, given, own: own not in given) if one[1] not in read
    ]
    if not found:
        return ""
    place, number = chance.choice(found)
    value = step["values"][number]
    if chance.random() < 0.5:
        calls = step["calls"][place]
        calls[3] = [None if one == number else one for one in calls[3]]
        del step["values"][number]
        for call in step["calls"]:
            call[1:3] = [_renumbered(one, number) for one in call[1:3]]
            call[3] = [one - (one > number) if one is not None else None for one in call[3]]
        for entry in step["inputs"]:
            entry[0] -= entry[0] > number
        step["storages"][value[0]][4] = 0
        return f"call {place}, {step['operators'][calls[0]]}: a result is left out"
    value[2:4] = [[1] * len(value[2]), [1] * len(value[2])]
    step["storages"][value[0]][4] = 8
    return f"call {place}, {step['operators'][step['calls'][place][0]]}: a result of one element"


def _renumbered(given: Any, old: int) -> Any:
    if isinstance(given, list):
        return [_renumbered(one, old) for one in given]
    if isinstance(given, dict):
        return {
            name: one - (one > old) if name == "v" else _renumbered(one, old) for name, one in given.items()
        }
    return given


def elsewhere(step: Json, chance: Random) -> str:
    """A view, or what is written in place, lies in other memory from then on, and the old memory is let go."""
    found = _results(step, lambda place, op, given, own: own in given and step["storages"][own][4] > 0)
    place, number = chance.choice(found)
    value = step["values"][number]
    old = value[0]
    if chance.random() < 0.5:
        new = len(step["storages"])
        step["storages"].append(["", "temporary", place, step["storages"][old][3], 0])
    else:
        new = chance.choice([n for n, one in enumerate(step["storages"]) if one[2] <= place <= one[3]])
        step["storages"][new][3] = max(step["storages"][new][3], step["storages"][old][3])
    moved = [one for n, one in enumerate(step["values"]) if one[0] == old and n >= number]
    for one in moved if chance.random() < 0.5 else [value]:
        one[0], one[1] = new, 0
        end = 8 * (1 + sum((n - 1) * s for n, s in zip(one[2], one[3], strict=True)))
        step["storages"][new][4] = max(step["storages"][new][4], end)
    _until_used(step, old)
    return f"call {place}, {step['operators'][step['calls'][place][0]]}: result in memory {new}, not {old}"


def into(step: Json, chance: Random) -> str:
    """What is new lies in memory that is there: of a weight, of another result."""
    place, number = chance.choice(_results(step, lambda place, op, given, own: own not in given))
    old = step["values"][number][0]
    there = [
        n
        for n, one in enumerate(step["storages"])
        if one[2] < place <= one[3] and one[4] >= step["storages"][old][4] and n != old
    ]
    if not there or step["storages"][old][2] < 0:
        return ""
    new = chance.choice(there)
    step["storages"][new][3] = max(step["storages"][new][3], step["storages"][old][3])
    for value in step["values"]:
        value[0] = new if value[0] == old else value[0]
    step["storages"][old][2:] = [place, place, 0]
    return f"call {place}, {step['operators'][step['calls'][place][0]]}: result in memory {new}, not {old}"


def overlapping(step: Json, chance: Random) -> str:
    """Elements of a new result share places, in memory that is as small."""
    found = _results(step, lambda place, op, given, own: own not in given)
    place, number = chance.choice(found)
    value = step["values"][number]
    if chance.random() < 0.5:
        value[3] = [1 for _ in value[2]]
    else:
        value[3] = [max(one // 2, 1) for one in value[3]]
    alone = [one for one in step["values"] if one[0] == value[0]]
    for one in alone:
        one[3] = value[3] if one[2] == value[2] else one[3]
    ends = [8 * (one[1] + 1 + sum((n - 1) * s for n, s in zip(one[2], one[3], strict=True))) for one in alone]
    step["storages"][value[0]][4] = min(step["storages"][value[0]][4], *ends, 2**40)
    return (
        f"call {place}, {step['operators'][step['calls'][place][0]]}: {value[2]} with the strides {value[3]}"
    )


def together(step: Json, chance: Random) -> str:
    """Two results of a call in one memory."""
    several = [
        call for call in step["calls"] if len({step["values"][v][0] for v in call[3] if v is not None}) > 1
    ]
    if not several:
        return ""
    call = chance.choice(several)
    one, other = chance.sample(sorted({step["values"][v][0] for v in call[3] if v is not None}), 2)
    small, large = sorted((one, other), key=lambda n: step["storages"][n][4])
    for value in step["values"]:
        value[0] = large if value[0] == small else value[0]
    step["storages"][large][3] = max(step["storages"][n][3] for n in (one, other))
    step["storages"][small][4] = 0
    return f"{step['operators'][call[0]]}: results in one memory"


def shorter_list(step: Json, chance: Random) -> str:
    """A list of values, or of numbers, without some of its entries."""
    lists: list[tuple[str, list[Any]]] = []
    for place, call in enumerate(step["calls"]):
        pending: list[Any] = [*call[1], *call[2].values()]
        while pending:
            one = pending.pop()
            if isinstance(one, list):
                lists.append((f"call {place}, {step['operators'][call[0]]}", one))
                pending += one
    lists = [
        one for one in lists if len(one[1]) > 1 and (isinstance(one[1][0], dict) or chance.random() < 0.3)
    ]
    if not lists:
        return ""
    what, chosen = chance.choice(lists)
    del chosen[chance.randrange(1, len(chosen)) :]
    return f"{what}: a list of {len(chosen)}"


def foreign(step: Json, chance: Random) -> str:
    """A product or an attention is an operator of another dialect that costs nothing."""
    heavy = [
        call
        for call in step["calls"]
        if any(word in step["operators"][call[0]] for word in ("mm", "attention", "all", "reduce"))
    ]
    if not heavy:
        return ""
    call = chance.choice(heavy)
    old = step["operators"][call[0]]
    names = "onnx.Identity.13 onnx.Reshape.13 prims.view_of.default prims.reshape.default higher_order.wrap math.sqrt "
    names += "_operator.getitem com.microsoft.Gelu.1 aten.new_empty.default aten.empty_like.default prims.empty.default "
    names += "aten.new_zeros.default aten.view.dtype aten._to_copy.default aten.lift_fresh.default inductor.foo.default"
    step["operators"].append(chance.choice(names.split()))
    call[0] = len(step["operators"]) - 1
    sizes = step["values"][call[3][0]][2] if call[3] and call[3][0] is not None else []
    first = [{"v": _values(call[1])[0]}] if _values(call[1]) else []
    call[1] = chance.choice((call[1], first, [*first, sizes], [sizes]))
    call[2] = chance.choice((call[2], {}))
    return f"{old} is {step['operators'][-1]}{call[1]}"[:200]


def laid(step: Json, chance: Random) -> str:
    """A view whose elements lie in order."""
    place, number = chance.choice(_results(step, lambda place, op, given, own: own in given))
    value = step["values"][number]
    stride, strides = 1, []
    for one in value[2][::-1]:
        strides.insert(0, stride)
        stride *= one
    if strides == value[3]:
        return ""
    value[3] = strides
    return f"call {place}, {step['operators'][step['calls'][place][0]]}: {value[2]} lies in order"


CHANGES: dict[str, Callable[[Json, Random], str]] = {
    one.__name__.replace("_", " "): one
    for one in (
        drop_call, bypass_call, drop_result, free_earlier, begin_later, fewer_bytes, kind, host, role, size, sizes,
        strides, offset, dtype, alias, reuse, groups, one_device, rank, phase, counters, collective, operand, number,
        operator, repeat, inputs, field, unread, elsewhere, into, overlapping, together, shorter_list, foreign, laid,
    )
}  # fmt: skip
