"""Attentions found in exported real models against attentions that ran.

    python -m tests.oracle.attentions [--all] [--only WORD,WORD] [--forms NAME,NAME] [--verbose]

Each model runs once in eager mode, and whatever its attention modules call is written down: scaled_dot_product_attention, or a
softmax along the last axis of scores, with its sizes and the pairs of a query and a key that the mask of that run lets through,
counted one by one. As many, of the same sizes, must be found in the exported program, in the same read back from its file, in
the decomposed one, and in the ONNX files that both exporters of torch make; and at other sizes than those it was exported at. No more pairs may be
said to be hidden than were; fewer are counted apart, for a mask that the caller passes in may hide anything.

The architectures of NAMED unless `--all` or `--only` says otherwise. Prints a line for each, and one for all; exits 1 if
there is a failure.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from graphflops.analysis import analyze, as_graph
from graphflops.dims import Expr, evaluate
from graphflops.tensor import TensorType
from tests.oracle.models import example, exported, quiet
from tests.oracle.zoo import language

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphflops.dims import Dim
    from graphflops.graph import Graph
    from tests.oracle.zoo.case import Case

FORMS = ("exported", "saved", "decomposed", "onnx", "traced")
NAMED = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neo", "gpt_neox"),
    *("gptj", "opt", "bloom", "falcon", "mpt", "cohere", "olmo2", "mixtral", "deepseek_v3", "gpt_oss"),
    *("bert", "roberta", "deberta-v2", "electra", "albert", "distilbert", "modernbert", "xlnet", "convbert"),
    *("t5", "bart", "pegasus", "whisper", "vit", "swin", "clip", "dinov2", "wav2vec2", "llama_decoding"),
    *("llama_eager", "gemma2_eager", "gpt2_eager", "falcon_eager", "bert_eager", "bart_eager"),
)
# Whose softmax is over weights that a layer makes: there are no keys.
NO_KEYS = ("DeformableDetrMultiscaleDeformableAttention",)
SINKS = ("gpt_oss",)  # whose softmax goes over one column more than there are keys

_FUSED = {torch.nn.functional.scaled_dot_product_attention}
_SOFTMAX = {torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax}
_HIDING = -1000  # scores of small random models are nowhere near


class Seen(NamedTuple):
    """One attention: how often it is computed (batch times heads), its sizes, and the pairs visible in all of it."""

    problems: int
    queries: int
    keys: int
    visible: int

    @property
    def kind(self) -> str:
        """`self` where there are as many keys as queries."""
        masked = self.visible < self.problems * self.queries * self.keys
        return f"{'self' if self.queries == self.keys else 'cross'}{', masked' if masked else ''}"

    def is_rows_of(self, other: Seen) -> bool:
        """Whether it may be the other, with queries of several heads as rows of one product."""
        rows = self.problems * self.queries == other.problems * other.queries
        return rows and self.keys == other.keys and other.problems % self.problems == 0

    def in_heads(self, other: Seen) -> Seen:
        """The same with the other's heads."""
        return self._replace(problems=other.problems, queries=other.queries)


class Watch(torch.overrides.TorchFunctionMode):
    """Writes down what the attention modules of a model call. sink: whether scores have a column that is no key."""

    def __init__(self, module: torch.nn.Module, sink: bool) -> None:
        super().__init__()
        self.sink = sink
        self.seen: list[Seen] = []
        self.stack: list[str] = []
        self.handles = []
        for part in module.modules():
            name = type(part).__name__
            self.handles.append(part.register_forward_pre_hook(lambda *_, name=name: self.stack.append(name)))
            self.handles.append(part.register_forward_hook(lambda *_: self.stack.pop() and None))

    @property
    def inside(self) -> str:
        """The innermost module that does more than a softmax."""
        return next((name for name in reversed(self.stack) if name != "Softmax"), "")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FUSED:
            with torch._C.DisableTorchFunction():
                self.seen.append(_of_operator(*args, **kwargs))
        elif func is torch.nn.functional.multi_head_attention_forward:
            with torch._C.DisableTorchFunction():
                self.seen.append(_of_module(*args, **kwargs))
        elif func in _SOFTMAX and "att" in self.inside.lower() and self.inside not in NO_KEYS:
            with torch._C.DisableTorchFunction():
                self.seen += _of_softmax(args[0], args[1] if len(args) > 1 else kwargs.get("dim"), self.sink)
        return func(*args, **kwargs)


def _of_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> Seen:
    shape = (*query.shape[:-1], key.shape[-2])
    shown = torch.ones(shape, dtype=torch.bool)
    if is_causal:
        shown = shown.tril()
    if attn_mask is not None:
        shown = shown & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > _HIDING)
    return Seen(math.prod(shape[:-2]), shape[-2], shape[-1], int(shown.sum()))


def _of_module(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    *others: Any,
    attn_mask: torch.Tensor | None = None,
    **more: Any,
) -> Seen:
    """That of torch.nn, whose operands are sequence first."""
    shape = (query.shape[1] * num_heads, query.shape[0], key.shape[0])
    shown = torch.ones(shape, dtype=torch.bool)
    if attn_mask is not None:
        shown = shown & (~attn_mask if attn_mask.dtype == torch.bool else attn_mask > _HIDING)
    return Seen(*shape, int(shown.sum()))


def _of_softmax(scores: torch.Tensor, axis: int, sink: bool) -> Iterator[Seen]:
    """The attention whose scores these are; none where it goes along another axis: ConvBert's kernels, Luna's packing."""
    if axis % scores.dim() == scores.dim() - 1:
        scores = scores[..., :-1] if sink else scores
        *batch, queries, keys = scores.shape
        yield Seen(math.prod(batch), queries, keys, int((scores > _HIDING).sum()))


def ran(module: torch.nn.Module, case: Case, index: int) -> list[Seen]:
    """The attentions of one run of the model, at the sizes by their index."""
    torch.manual_seed(0)
    args, kwargs = example(case, case.sizes[index])
    watch = Watch(module, case.name.rpartition("/")[2] in SINKS)
    with watch, torch.no_grad():
        module(*args, **kwargs)
    for handle in watch.handles:
        handle.remove()
    return watch.seen


def found(model: Any, dims: dict[str, int]) -> list[Seen]:
    """The attentions of a program, at these sizes."""
    report = analyze(model, dims=dims)
    seen: list[Seen] = []
    for use in report.attentions:
        times, queries, keys, masked, width = (
            evaluate(size, report.values)
            for size in (
                use.batch * use.heads * use.times,
                use.queries,
                use.keys,
                use.masked_flops,
                use.width + use.value_width,
            )
        )
        assert None not in (times, queries, keys, masked, width), f"a size of {use.calls} is open"
        seen.append(Seen(times, queries, keys, times * queries * keys - masked // (2 * width)))
    return seen


@dataclass
class Verdict:
    """What is wrong with one form at one choice of sizes, and how many masks hide as much as they did, or less."""

    problems: list[str] = field(default_factory=list)
    followed: int = 0
    unfollowed: int = 0


def compare(real: list[Seen], ours: list[Seen]) -> Verdict:
    """Attentions found with attentions that ran, whatever their order.

    Queries of several heads that share keys may be the rows of one product.
    """
    verdict = Verdict()
    ours = [next((seen.in_heads(one) for one in real if seen.is_rows_of(one)), seen) for seen in ours]
    wanted, got = (Counter(seen[:3] for seen in side) for side in (real, ours))
    for sizes, count in sorted((wanted - got).items()):
        verdict.problems.append(f"{count} not found: {_words(sizes)}")
    for sizes, count in sorted((got - wanted).items()):
        verdict.problems.append(f"{count} did not run: {_words(sizes)}")
    if verdict.problems:
        return verdict
    for one, other in zip(sorted(real), sorted(ours), strict=True):
        if other.visible < one.visible:
            verdict.problems.append(
                f"{_words(one[:3])}: {other.visible} pairs said visible, {one.visible} were"
            )
        elif one.visible < one.problems * one.queries * one.keys:
            verdict.followed += one.visible == other.visible
            verdict.unfollowed += one.visible != other.visible
    return verdict


def _words(sizes: tuple[int, ...]) -> str:
    return "{} times {} queries by {} keys".format(*sizes)


@dataclass
class Line:
    """What is found about one model: attentions by kind, verdicts by form, and the forms that there are not."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        kinds = "; ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items())) or "none"
        cells = []
        for form, verdicts in self.verdicts.items():
            unfollowed = max(verdict.unfollowed for verdict in verdicts)
            right = f"equal at {len(verdicts)}" + (f", {unfollowed} masks not followed" if unfollowed else "")
            cells.append(f"{form} {'WRONG' if any(v.problems for v in verdicts) else right}")
        return f"{self.name}: {kinds} | {'; '.join(cells)}"


def judged(case: Case, forms: tuple[str, ...]) -> Line:
    """One model in each form, at the sizes exported and, where they are open, at others.

    What torch cannot decompose or export where sizes are open is taken as it stands.
    """
    line = Line(case.name)
    torch.manual_seed(0)
    module = case.build().eval().requires_grad_(False)
    reals = cache(lambda index: ran(module, case, index))
    line.kinds.update(seen.kind for seen in reals(0))
    program = cache(lambda opened: exported(case, module, dynamic=opened))
    with tempfile.TemporaryDirectory() as folder:
        for form in forms:
            for opened in (True, False) if len(case.sizes) > 1 else (False,):
                given = _with_mask(case) if form == "traced" else case
                try:
                    model = made(form, given, module, program(opened), os.path.join(folder, form))
                except Exception as error:
                    line.missing[f"{form}, {'open' if opened else 'fixed'} sizes"] = _line(error)
                    continue
                for index in (0, 1) if opened and not is_fixed(program(opened), case) else (0,):
                    line.verdicts.setdefault(form, []).append(verdict_on(model, given, index, reals(index)))
                break
    return line


def _with_mask(case: Case) -> Case:
    """A model of text is given a mask of ones too: without one it looks for several texts in a row, which no trace can hold."""
    from tests.oracle.zoo.exports import masked

    of_text = {"input_ids", "decoder_input_ids"} & set(example(case, case.sizes[0])[1])
    return masked(case) if of_text and "decoding" not in case.name and "clip" not in case.name else case


def verdict_on(model: Any, case: Case, index: int, real: list[Seen]) -> Verdict:
    """What is found in a model at the sizes by their index."""
    graph = as_graph(model)
    shapes, leaves = inputs_of(graph), tensors_of(case, index)
    if len(shapes) != len(leaves):
        return Verdict([f"{len(shapes)} inputs for {len(leaves)} tensors"])
    dims = {
        f"{name}[{axis}]": leaf.shape[axis]
        for (name, shape), leaf in zip(shapes.items(), leaves, strict=True)
        for axis, size in enumerate(shape)
        if isinstance(size, Expr)
    }
    return compare(real, found(graph, dims))


def is_fixed(program: torch.export.ExportedProgram, case: Case) -> bool:
    """Whether exporting made a number of one of the sizes that are others at the second sizes of the case."""
    shapes = inputs_of(as_graph(program)).values()
    return any(
        isinstance(size, int) and size != other
        for shape, leaf in zip(shapes, tensors_of(case, 1), strict=True)
        for size, other in zip(shape, leaf.shape, strict=True)
    )


def inputs_of(graph: Graph) -> dict[str, tuple[Dim, ...]]:
    """Shapes of the inputs that are tensors, by name."""
    types = {entry.name: graph.types.get(entry.name) for entry in graph.inputs if entry.role == "user"}
    return {name: typed.shape for name, typed in types.items() if isinstance(typed, TensorType)}


def tensors_of(case: Case, index: int) -> list[torch.Tensor]:
    """The inputs at the sizes by their index."""
    leaves = pytree.tree_leaves(example(case, case.sizes[index]))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@contextmanager
def silent() -> Iterator[None]:
    """Keep what is not Python from printing: the older exporter prints whole graphs that it does not know."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def made(
    form: str, case: Case, module: torch.nn.Module, program: torch.export.ExportedProgram, path: str
) -> Any:
    """The program in a form: itself, or the path of a file of it."""
    if form == "exported":
        return program
    if form in ("onnx", "traced"):
        import onnx

        from tests.oracle import onnx_forms
        from tests.oracle.onnx_exports import Subject, run
        from tests.oracle.zoo.exports import Flat, flat

        if form == "onnx":
            model = onnx_forms.dynamo(program, program.graph_signature.user_inputs)
        else:
            subject = Subject(flat(case), module, None)
            by_place = Flat(module, case.inputs(**case.sizes[0])).eval()
            with silent():
                model = onnx_forms.torchscript(by_place, subject.inputs[0], subject.names, subject.axes)
        onnx.save(model, path + ".onnx")
        if form == "traced":  # which may have made a file that cannot run
            (result,) = run(path + ".onnx", [subject.arrays(0)])
            if isinstance(result, Exception):
                raise result
        return path + ".onnx"
    torch.export.save(program.run_decompositions() if form == "decomposed" else program, path + ".pt2")
    return path + ".pt2"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every architecture of the table `language`")
    parser.add_argument(
        "--only", default="", help="comma-separated words, one of which a model's name must hold"
    )
    parser.add_argument("--forms", default=",".join(FORMS), help="comma-separated forms of the program")
    parser.add_argument("--verbose", action="store_true", help="say why a form cannot be made")
    options = parser.parse_args(arguments)
    quiet()
    words = options.only.split(",")
    count: Counter[str] = Counter()
    for case in language.cases():
        name = case.name.partition("/")[2]
        chosen = any(word in name for word in words) if options.only else options.all or name in NAMED
        if case.meta or not chosen:
            continue
        try:
            line = judged(case, tuple(options.forms.split(",")))
        except Exception as error:
            count["not run or exported"] += 1
            print(f"{case.name}: {_line(error)}", flush=True)
            continue
        count["models"] += 1
        count["attentions"] += sum(line.kinds.values())
        for form, verdicts in line.verdicts.items():
            for verdict in verdicts:
                count["other" if verdict.problems else "equal"] += 1
                count["followed"] += verdict.followed
                count["unfollowed"] += verdict.unfollowed
                for problem in verdict.problems[:4]:
                    print(f"{case.name} [{form}] {problem}", flush=True)
        count["forms missing"] += len(options.forms.split(",")) - len(line.verdicts)
        print(line, flush=True)
        for form, why in line.missing.items() if options.verbose else ():
            print(f"{case.name} [{form}] not made: {why}", flush=True)
    print(
        f"attentions of torch {torch.__version__.partition('+')[0]}: {count['models']} models, {count['attentions']} "
        f"attentions; {count['equal']} comparisons equal, {count['other']} other; of masks {count['followed']} followed, "
        f"{count['unfollowed']} not; {count['forms missing']} forms not made, {count['not run or exported']} models not run "
        f"or exported"
    )
    return 1 if count["other"] or not count["models"] else 0


if __name__ == "__main__":
    sys.exit(main())
