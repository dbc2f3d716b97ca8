"""The table of rules against torch's own list of operators: what a new torch brings shows here by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from graphflops.ops.operator import means, orders
from graphflops.rules.registry import Rule, find

# Operators of one backend, of the tests of torch, of nested tensors or of named axes, which an exported program cannot hold.
PRIVATE = (
    "rename",
    "align_",
    "refine_names",
    "mkldnn",
    "miopen",
    "_mps",
    "vulkan",
    "nnpack",
    "_cufft",
    "_cslt",
    "_test",
    "nested",
    "foobar",
)
# What runs while a program is traced and is not part of it: questions about tensors and types, and what reads contents.
ASKED_WHILE_TRACING = {
    *("cudnn_is_acceptable", "get_device", "_has_same_storage_numel", "_has_compatible_shallow_copy_type"),
    *("can_cast", "promote_types", "result_type", "sparse_dim", "dense_dim"),
    *("_choose_qparams_per_tensor", "choose_qparams_optimized", "_saturate_weight_to_fp16", "_rowwise_prune"),
    *("fbgemm_linear_quantize_weight", "fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix"),
    *("fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation", "_reshape_from_tensor"),
    *("_wrapped_linear_prepack", "_wrapped_quantized_linear_prepacked", "shallow_copy_data_"),
}
# What a program may hold but nobody can tell the work of: derivatives that run along with operators, without being calls.
UNTOLD = {"_unpack_dual", "_backward", "get_gradients", "_add_batch_dim", "_remove_batch_dim"}
# Sparse tensors: checks of their contents, sizes that contents tell, and copies of parts that are views.
OF_SPARSE_CONTENTS = (
    *("_validate_sparse", "_coalesced", "sparse_resize", "as_sparse", "copy_sparse", "tensor_with_dims"),
    *("indices_copy", "values_copy", "_sparse_broadcast_to_copy"),
)
# Keywords that say where and how a result is stored; they are taken away before a rule is called.
DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "out"})
# Parameters that a rule cannot name: words of Python.
UNNAMEABLE = frozenset({"from"})


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_every_core_pointwise_and_reduction_operator_has_a_rule(torch: Any) -> None:
    wanted = [
        getattr(torch.Tag, name) for name in ("core", "pointwise", "reduction") if hasattr(torch.Tag, name)
    ]
    missing = [
        name
        for name, operator in operators(torch)
        if any(tag in operator.tags for tag in wanted) and find(name) is None
    ]
    assert not missing, "\n".join(missing)


def test_every_operator_that_can_be_traced_has_a_rule(torch: Any) -> None:
    """One with a kernel for tensors without contents, written for them or composed of such."""
    from torch._decomp import decomposition_table, meta_table

    kernels = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = []
    for name, operator in operators(torch):
        _, base, overload = name.split(".")
        qualified = f"aten::{base}" + ("" if overload == "default" else f".{overload}")
        traced = (
            operator in meta_table
            or operator in decomposition_table
            or any(has(qualified, k) for k in kernels)
        )
        known = base in ASKED_WHILE_TRACING | UNTOLD or any(w in base for w in OF_SPARSE_CONTENTS)
        compressed = overload in ("comp_plain_value", "crow_col_value", "ccol_row_value")  # without a size
        if traced and not known and not compressed and find(name) is None and find(f"sparse.{name}") is None:
            missing.append(name)
    assert not missing, "\n".join(missing)


def test_rules_take_the_arguments_of_every_overload_they_serve(torch: Any) -> None:
    import torch.ao.quantization.fx._decomposed
    import torch.nn.attention.varlen  # both register operators

    clashes: dict[str, list[str]] = defaultdict(list)
    for name, operator in operators(torch, "aten", "prims", "torch_attn", "quantized_decomposed"):
        rule = find(name)
        if rule is not None:
            for complaint in complaints(rule, name, operator._schema):
                clashes[complaint].append(name)
    assert not clashes, "\n".join(f"{complaint}: {names}" for complaint, names in clashes.items())


def complaints(rule: Rule, name: str, schema: Any) -> Iterator[str]:
    """What the schema allows in a call and the rule would refuse, and what the rule asks for and no call can give."""
    taken, arguments = rule.signature, [x for x in schema.arguments if not x.is_out]
    by_position = [x for x in arguments if not x.kwarg_only]
    required = [x for x in arguments if not x.has_default_value()]
    if not orders(name):
        if not taken.is_variadic and len(by_position) > len(taken.positional):
            yield f"{rule.key} takes {len(taken.positional)} arguments by position, not {len(by_position)}"
        if not taken.is_open:
            named = {x.name for x in arguments if x.kwarg_only or x.has_default_value()}
            for missing in sorted(named - DROPPED - UNNAMEABLE - set(taken.names)):
                yield f"{rule.key} has no parameter {missing}"
    needed = sum(parameter not in taken.optional for parameter in taken.positional)
    if needed > len(required):
        yield f"{rule.key} requires {needed} arguments, not {len(required)}"
    for keyword in taken.keywords:
        if keyword not in taken.optional and not any(means(keyword, x.name) for x in arguments):
            yield f"{rule.key} requires {keyword}, which no argument means"


def operators(torch: Any, *namespaces: str) -> Iterator[tuple[str, Any]]:
    """Every overload of every operator, of aten where no namespaces are named, that an exported program can hold."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if namespace not in (namespaces or ("aten",)) or any(word in name for word in PRIVATE):
            continue
        operator = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        by_name = "name" in overload.lower()  # overloads for axes by name, which no exported program holds
        if not by_name and not any(argument.is_out for argument in operator._schema.arguments):
            yield f"{namespace}.{name}.{overload or 'default'}", operator
