"""Published training runs priced at their own layouts: step times and memory beside those that were measured.

    python -m benchmarks.plan [mpt|torchtitan|megatron]

Needs torch. Models are built on the meta device at their published widths with few layers, exported and priced as
`graphflops plan` prices them, each at the mesh, micro-batch and recomputation that its row names. One factor for a whole
table is fitted on every second row, and judged on the others.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.decoders import Decoder, Model
from graphflops import analyze, capture
from graphflops.devices import complete, device
from graphflops.links import network_of
from graphflops.planning.blocks import Call, Recompute, kept_at
from graphflops.planning.layouts import Costs, Layout, Machine, Step
from graphflops.planning.prices import Prices, reading
from graphflops.planning.split import Folded, folded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TABLES = Path(__file__).parent / "measured" / "training"
_LAYERS = 3  # of the models that are built: the others cost the same
_GIB = 2**30


@cache
def program(decoder: Decoder, length: int) -> tuple[Folded, str]:
    """A decoder with all of its layers, and the symbol of its samples."""
    with torch.device("meta"):
        model = Model(replace(decoder, layers=_LAYERS)).to(torch.bfloat16)
        ids = torch.zeros(2, length, dtype=torch.int64)
    graph = capture(model, (ids,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    report = analyze(graph)
    return replace(folded(report), layers=decoder.layers), next(iter(report.symbols))


@cache
def read(
    decoder: Decoder,
    length: int,
    tensor: int,
    micro: int,
    context: int,
    name: str,
    execution: str,
    sequence: bool,
) -> tuple[Prices, list[Call]]:
    """What its parts cost, where each device has so many tokens of a sequence, and the calls of a layer."""
    found, batch = program(decoder, length)
    options: Any = {"context": context, "execution": execution, "sequence": sequence}
    one = reading(found, tensor, {batch: micro}, name, **options)
    return one.prices(), one.calls()


def step(
    decoder: Decoder, length: int, name: str, layout: Layout, batches: int, execution: str = "eager", ends: str = "",
    sequence: bool = True, copies: int = 0,
) -> Step:  # fmt: skip
    """One layout of a decoder. ends: how what is before and after its layers runs. copies: more bytes after the layers."""
    at = (decoder, length // layout.context, layout.tensor, layout.micro, layout.context, name)
    found, calls = read(*at, execution, sequence)
    first, layer, last = found.parts
    if ends:
        first, _, last = read(*at, ends, sequence)[0].parts
    found = replace(found, parts=(first, layer, replace(last, transient=last.transient + copies)))
    own = {"selective": selective, "attention": attention_again}
    if layout.recompute in own:
        way = own[layout.recompute](calls)
    else:
        way = next(one for one in found.recomputes if one.name == layout.recompute)
    profile = complete(device(name))
    machine = Machine(profile, network_of(profile))
    return Costs(layout, found, way, machine, decoder.layers, batches, sequence).step(runs=True)


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a table."""
    with open(TABLES / f"{name}.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mpt(length: int) -> dict[str, Decoder]:
    """The MPT models with positions for so many tokens."""
    found = {}
    for row in rows("mpt_models"):
        width, heads = int(row["d_model"]), int(row["n_heads"])
        found[row["model"]] = Decoder(
            int(row["n_layers"]), width, heads, heads, width // heads, int(row["vocab"]), int(row["expansion"]) * width,
            gated=False, bias=True, tied=True, positions=length, centred=True, kernel="flash",
        )  # fmt: skip
    return found


def mpt_runs() -> Iterator[tuple[str, str, float, float]]:
    """Group, name, predicted and published seconds of a step."""
    for row in rows("mpt_layouts"):
        if row["precision"] == "amp_fp8":
            continue
        length, gpu = int(row["seq_len"]), row["gpu"].partition("_")[0]
        sharding: Any = "full" if row["sharding"] == "FULL_SHARD" else "gradients"
        recompute = "full" if row["activation_checkpointing"] == "True" else "none"
        layout = Layout(
            int(row["gpus"]), micro=int(row["micro_batch"]), sharding=sharding, recompute=recompute
        )
        found = step(mpt(length)[row["model"]], length, gpu, layout, int(row["grad_accum"]))
        tokens = int(row["global_batch"]) * length
        yield (
            f"seconds of MPT on {gpu}",
            f"{row['model']} {length} x{row['gpus']} {row['gpu']} {row['sharding'][:5]} {recompute}",
            found.seconds,
            tokens / float(row["tokens_per_s"]),
        )


LLAMA = {
    "llama3.1-8b": Decoder(32, 4096, 32, 8, 128, 128_256, 14_336),
    "llama3.1-70b": Decoder(80, 8192, 64, 8, 128, 128_256, 28_672),
    "llama3.1-405b": Decoder(126, 16_384, 128, 8, 128, 128_256, 53_248),
}


def selective(calls: Sequence[Call]) -> Recompute:
    """The selective recomputation of torchtitan: attentions are kept, and every second product of a layer."""
    products = [call for call in calls if "linear" in call.name]
    kept = {
        call.name for call in [*products[::2], *calls] if call in products[::2] or "attention" in call.name
    }
    way = kept_at(calls, kept, "selective")
    own = sum(call.bytes or 0 for call in calls if call.name in kept or call.leaves)
    return replace(way, kept=own)


def torchtitan_runs() -> Iterator[tuple[str, str, float, float]]:
    """Group, name, predicted and published GiB, and seconds where products are bfloat16.

    The last stage keeps the scores of all micro-batches and joins them at the end (torch/distributed/pipelining/stage.py),
    when of interleaved stages, which keep most after their first round, little else is left.
    In 2024 only layers were compiled, and the loss over split scores made two more float32 copies of them
    (torch/distributed/tensor/parallel/loss.py). Stages of a pipeline keep their weights gathered and their gradients whole
    (torchtitan/models/llama/parallelize_llama.py), and run as many micro-batches as there are stages.
    """
    for row in rows("torchtitan"):
        data, tensor, pipeline, context = (int(row[name]) for name in ("fsdp", "tp", "pp", "cp"))
        decoder, length = LLAMA[row["model"]], int(row["seq_len"])
        local, is_early = int(row["local_batch"]), "2024" in row["table"]
        layout = Layout(
            data, tensor, pipeline, 1, context, local // pipeline, sharding="optimizer" if pipeline > 1 else "full",
            recompute="selective" if row["activation_checkpointing"] == "selective_op" else "full",
            virtual=2 if row["schedule"].startswith("Inter") else 1,
            schedule="interleaved" if row["schedule"].startswith("Inter") else "1f1b",
        )  # fmt: skip
        executions = ("compiled" if row["compile"] == "True" else "eager", "eager" if is_early else "")
        gpu = "h200" if row["gpu"] == "h200" else "h100"
        scores = decoder.vocabulary // tensor * length // context * layout.micro
        joined = 1 if layout.virtual > 1 else 2
        copies = 2 * 4 * scores * (tensor > 1 and is_early) + 2 * joined * scores * pipeline * (pipeline > 1)
        found = step(decoder, length, gpu, layout, pipeline, *executions, copies=copies)
        name = f"{row['model']} {layout} {row['schedule']} {row['seq_len']} {executions[0]}, float8 {row['float8']}"
        if row["memory_gib"]:
            yield "GiB of torchtitan", name, found.memory.total / _GIB, float(row["memory_gib"])
        if row["float8"] == "none":
            tokens = local * length / tensor / pipeline / context
            yield "seconds of torchtitan", name, found.seconds, tokens / float(row["tokens_per_s_per_gpu"])


def megatron_runs() -> Iterator[tuple[str, str, float, float]]:
    """Group, name, predicted and published seconds of a step."""
    for row in rows("megatron"):
        width, length, heads = int(row["hidden"]), int(row["seq_len"]), int(row["heads"])
        decoder = Decoder(
            int(row["blocks"]), width, heads, heads, int(row["head_size"]), 51_200, int(row["feedforward"]),
            gated=False, bias=True, tied=True, positions=length, centred=True, kernel="none",
        )  # fmt: skip
        data, tensor, pipeline = (int(row[name]) for name in ("dp", "tp", "pp"))
        micro = int(row["micro_batch"])
        way = {"selective": "attention"}.get(row["recompute"], row["recompute"])
        virtual = int(row["interleave"])
        layout = Layout(
            data, tensor, pipeline, micro=micro, sharding="none", recompute=way, virtual=virtual,
            schedule="interleaved" if virtual > 1 else "1f1b",
        )  # fmt: skip
        batches = int(row["batch"]) // data // micro
        found = step(
            decoder, length, "a100", layout, batches, "compiled", sequence=row["sequence_parallel"] == "True"
        )
        yield (
            "seconds of Megatron",
            f"{row['model']} {layout} {row['recompute']}",
            found.seconds,
            float(row["step_s"]),
        )


def attention_again(calls: Sequence[Call]) -> Recompute:
    """Megatron's selective recomputation: softmax, dropout and what follows up to the values' product."""
    kept = {
        call.name for call in calls if "linear" in call.name or "norm" in call.name or "gelu" in call.name
    }
    return kept_at(calls, kept, "attention")


def judged(name: str, runs: Sequence[tuple[str, float, float]]) -> None:
    """Print the errors of a table, as predicted, and for times with one factor of its even rows."""
    factor = median(published / predicted for _, predicted, published in runs[::2])
    chosen = [("as predicted", runs, 1.0)]
    if name.startswith("seconds"):
        fitted = f"x {factor:.3f} of every second row"
        chosen += [(f"{fitted}, the others", runs[1::2], factor), (f"{fitted}, all", runs, factor)]
    for what, judged_rows, by in chosen:
        errors = [abs(predicted * by / published - 1) for _, predicted, published in judged_rows]
        print(
            f"{name}, {what}: mean {fmean(errors):.1%}, median {median(errors):.1%}, "
            f"worst {max(errors):.1%} of {len(errors)}"
        )


def main() -> None:
    """Print each table, or those that are named."""
    groups: dict[str, list[tuple[str, float, float]]] = {}
    tables = {"mpt": mpt_runs, "torchtitan": torchtitan_runs, "megatron": megatron_runs}
    for group, name, predicted, published in chain.from_iterable(
        tables[name]() for name in sys.argv[1:] or tables
    ):
        groups.setdefault(group, []).append((name, predicted, published))
        print(f"{name:74} {predicted:9.3f} {published:9.3f} {predicted / published - 1:+7.1%}", flush=True)
    for group, runs in groups.items():
        judged(group, runs)


if __name__ == "__main__":
    main()
