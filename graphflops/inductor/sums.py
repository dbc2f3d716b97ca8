"""What products add: a tensor that is added to the product, or a bias.

They add nothing if all readers of the sum are elementwise: the readers' kernels then add it. Source: `addmm` and
`unfuse_bias_add_to_pointwise` in torch/_inductor/fx_passes/post_grad.py.
"""

from collections.abc import Container, Sequence

from msgspec.structs import replace

from graphflops.inductor.lowering import JointGraph, Loop, Op, users_of


def with_sums(ops: Sequence[Op], outputs: Container[str], joint: JointGraph) -> list[Op]:
    """The operators of a graph with sums fused into products, from the last on. outputs: tensors that outlive the graph."""
    users, maker = users_of(ops), {name: op for op in ops for name in op.outputs}
    found: list[Op] = []
    for op in reversed(ops):
        (out, *_), own = op.outputs, [op]
        if maker[out] is not op:  # already part of a sum
            continue
        is_inlined = out not in outputs and all(map(_is_elementwise, users.get(out, ())))
        if op.role == "product and bias" and is_inlined:
            inner, bias = joint.without_bias(out), op.reads[-1]
            joint.sizes[inner] = joint.sizes[out]
            product = replace(op, outputs=(inner,), reads=op.reads[:-1], role="")
            own = [Loop((out,), (inner, bias), op.elements, op.row, op.node), product]
        elif op.role == "sum" and not is_inlined and len(op.reads) == 2:
            for name, other in ((op.reads[1], op.reads[0]), op.reads):
                is_alone = name in maker and len(users[name]) == 1 and name not in outputs
                if is_alone and maker[name].role == "product" and joint.bytes(name) == joint.bytes(out):
                    reads = (*maker[name].reads, other)
                    own = [replace(maker[name], outputs=(out,), reads=reads, role="product and sum")]
                    users[other] = [own[0] if user is op else user for user in users[other]]
                    maker[name] = own[0]
                    break
        found += own
    return found[::-1]


def _is_elementwise(op: Op) -> bool:
    return type(op) is Loop and op.role not in ("placing", "join", "adding") and not op.is_alone
