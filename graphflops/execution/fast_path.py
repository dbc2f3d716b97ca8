"""Modules that run as one operator, which replaces their calls.

Outside of training, `nn.TransformerEncoderLayer` and the self-attention of `nn.MultiheadAttention` (batch first, no dropout)
call one operator each; an export records the ordinary path. Sizes were measured on an H200, PyTorch 2.11.
"""

from collections.abc import Container, Sequence
from itertools import groupby

from graphflops.base.record import Record, replace
from graphflops.cost import Estimate
from graphflops.dims import Dim, at_least, dim_max, prod, total
from graphflops.execution.strides import Values
from graphflops.passes.program import PricedCall
from graphflops.tensor import TensorType

Names = Container[str]
LAYER, _ATTENTION = "transformer.TransformerEncoderLayer", "activation.MultiheadAttention"
_FUSED = "fused."  # the prefix of such a module's operator, before the module's kind
_PROJECTED = 3  # query, key and value
_EVEN = 8  # a width of heads is a multiple of this (transformers/attention.cpp of ATen)


def with_fast_paths(
    calls: Sequence[PricedCall], values: Values, given: Names, returned: Names, kinds: Sequence[str] = ()
) -> Sequence[PricedCall]:
    """The calls, with one call for each module that runs as one operator; the same object if there is no such module.

    given: weights and buffers. returned: results of the graph. kinds: kinds of modules; by default all.
    """
    kinds = kinds or (LAYER, _ATTENTION)
    stacks = ";".join({call.node.module_stack for call in calls})
    if not any(kind in stacks for kind in kinds):
        return calls
    readers = {name: place for place, call in enumerate(calls) for name in call.uses}  # the last call
    found: list[PricedCall] = []
    for (kind, _), run in groupby(enumerate(calls), lambda entry: _module(entry[1].node.module_stack, kinds)):
        places = [place for place, _ in run]
        inside = [calls[place] for place in places]
        module = _Module(kind, inside, values, given)
        # The operator does not compute sizes: only tensors are its results.
        made = [name for call in inside for name in call.node.outputs if name is not None]
        tensors = [name for name in made if isinstance(values.get(name), TensorType)]
        results = [name for name in tensors if name in returned or readers.get(name, -1) > places[-1]]
        if kind and module.is_fast and results:
            inside = [module.call([*dict.fromkeys((*results, *module.returned_weights))])]
        found += inside
    return found


def _module(module_stack: str, kinds: Sequence[str]) -> tuple[str, str]:
    """The kind and path of the outermost module of a call that is of one of these kinds; two empty strings if none is."""
    found = ((kind, entry) for entry in module_stack.split(";") for kind in kinds if entry.endswith(kind))
    return next(found, ("", ""))


def is_module(call: PricedCall) -> bool:
    """Whether a call stands for a module."""
    return call.node.op.startswith(_FUSED)


def calls_of_module(module: PricedCall, calls: Sequence[PricedCall]) -> Sequence[PricedCall]:
    """The recorded calls that the call of a module replaces."""
    kinds = (module.node.op.removeprefix(_FUSED),)
    runs = [[*run] for _, run in groupby(calls, lambda call: _module(call.node.module_stack, kinds))]
    return next((run for run in runs if any(call.node.name == module.node.name for call in run)), ())


def projections(call: PricedCall, values: Values) -> Sequence[Dim]:
    """Bytes of the projections and of the attended values, which a module that is one operator makes before its result."""
    if not is_module(call):
        return ()
    out = values[call.node.outputs[0] or ""]
    assert isinstance(out, TensorType)
    own = out.like().nbytes
    made = (_PROJECTED * own, own)
    return made if at_least(call.estimate.workspace, total(made)) else ()


class _Module(Record, frozen=True):
    kind: str
    calls: Sequence[PricedCall]
    values: Values
    given: Names

    @property
    def operands(self) -> list[str]:
        """Tensors from outside the module, without weights."""
        made = {name for call in self.calls for name in call.node.outputs}
        read = dict.fromkeys(name for call in self.calls for name in call.tensors(self.values))
        return [name for name in read if name not in made and name not in self.given]

    @property
    def is_fast(self) -> bool:
        """Whether one batch-first sequence attends to itself and nothing is dropped."""
        attention = next((call.node for call in self.calls if _ATTENTION in call.node.module_stack), None)
        if attention is None or attention.operator.name not in ("transpose", "permute"):
            return False  # the ordinary path moves the batch to the second axis if it was first
        drops = any(call.node.operator.kind == "dropout" and True in call.node.args for call in self.calls)
        sequences = sum(x.rank == 3 and x.dtype.is_floating for x in map(self.typed, self.operands))
        return not drops and sequences == 1 and self.score_bytes is not None

    def typed(self, name: str | None) -> TensorType:
        value = self.values[name or ""]
        assert isinstance(value, TensorType)
        return value

    @property
    def score_bytes(self) -> Dim | None:
        for call in self.calls:
            if call.node.operator.kind == "softmax":
                return self.typed(call.node.outputs[0]).nbytes
            if call.node.operator.kind == "attention":
                query, key = (self.typed(name) for name in call.tensors(self.values)[:2])
                return prod(query.shape[:-1]) * key.shape[-2] * (query.dtype.bits // 8)
        return None

    @property
    def has_even_heads(self) -> bool:
        """Whether heads have a width that fused attention takes; others are copied and multiplied."""
        queries = (call.uses[0] for call in self.calls if call.node.operator.kind == "attention")
        widths = (self.typed(name).shape[-1] for name in queries)
        return not any(isinstance(width, int) and width % _EVEN for width in widths)

    @property
    def returned_weights(self) -> Sequence[str]:
        """The probabilities' mean over the heads, which an attention returns beside its result."""
        if self.kind != _ATTENTION:
            return ()
        probabilities: set[str | None] = set()
        for call in self.calls:
            is_read = not probabilities.isdisjoint(call.uses)
            if call.node.operator.name == "mean" and is_read:
                return [name for name in call.node.outputs if name is not None]
            if call.node.operator.kind == "softmax" or (is_read and call.node.operator.kind == "view"):
                probabilities.update(call.node.outputs)
        return ()

    def attention_bytes(self, x: Dim) -> Dim:
        """Peak bytes of the attention, with its result; x: bytes of the sequence."""
        scores = self.score_bytes or 0
        is_masked = len(self.operands) > 1
        has_weights = any(call.node.operator.kind == "softmax" for call in self.calls)
        if not is_masked and not has_weights:
            copied = dim_max(2 * _PROJECTED * x, _PROJECTED * x + 2 * scores)
            return (_PROJECTED + 2) * x if self.has_even_heads else copied
        masked = _PROJECTED * x + 2 * scores if is_masked else 0
        return dim_max((_PROJECTED + 2) * x + scores, masked)

    def peak(self, x: Dim) -> Dim:
        """Peak bytes of the operator, with its result; x: bytes of the sequence."""
        attention = self.attention_bytes(x)
        if self.kind == _ATTENTION:
            return attention
        products = (call.node for call in self.calls if call.node.operator.kind == "product")
        first = (node.outputs[0] for node in products if node.module.endswith("linear1"))
        hidden = next((self.typed(name).nbytes for name in first), 0)
        is_norm_first = self.calls[0].node.operator.kind == "normalisation"
        return dim_max(attention, x + hidden + x) + (x if is_norm_first else 0)

    def call(self, results: Sequence[str]) -> PricedCall:
        """One call that replaces all; its place and stack are those of the call in the module's own forward."""
        out = tuple(self.typed(name) for name in results)
        x = out[0].like().nbytes
        first = min(self.calls, key=lambda call: call.node.python_stack.count("File "))
        node = replace(first.node, op=f"{_FUSED}{self.kind}", args=(), kwargs=(), outputs=tuple(results))
        workspace = dim_max(0, self.peak(x) - total(value.like().nbytes for value in out))
        estimate, uses = Estimate(out, workspace=workspace), tuple(self.operands)
        return replace(first, node=node, uses=uses, estimate=estimate, gradient=None, form=None)
