"""onnxruntime's operators on tokens and text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, prod
from graphflops.rules.onnx.fused import Outputs, chosen
from graphflops.rules.registry import require, rule
from graphflops.tensor import STRING

if TYPE_CHECKING:
    from graphflops.tensor import TensorType

KIND = "text"


@rule("com.microsoft.Tokenizer")
def tokenizer(x: TensorType, *, mark: int, mincharnum: int, pad_value: str) -> Estimate:
    """Tokens of every string, padded to the longest; work on characters is not counted."""
    return Estimate((x.like((*x.shape, data_dependent("tokens")), STRING),), reads=(x,))


@rule("com.microsoft.NGramRepeatBlock")
def ngram_repeat_block(ids: TensorType, scores: TensorType, *, ngram_size: int) -> Estimate:
    """Compares the last tokens with every run of earlier tokens and overwrites scores that would repeat one."""
    compared = ids.numel * (ngram_size - 1)
    return Estimate((scores.like(),), vector_flops=compared, reads=(ids, scores))


@rule("com.microsoft.BifurcationDetector")
def bifurcation_detector(
    source: TensorType,
    current: TensorType,
    previous: TensorType,
    predicted: TensorType | None = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> Estimate:
    """Compares predicted tokens with the source, and the last n-grams with every position of it."""
    merged = current.shape[0] if predicted is None else data_dependent("tokens")
    compared: Dim = 0 if predicted is None else predicted.numel
    ordered = 0 < min_ngram_size <= max_ngram_size
    require(ordered, f"there are no n-grams of {min_ngram_size} to {max_ngram_size} tokens")
    lengths = (min_ngram_size + max_ngram_size) * (max_ngram_size - min_ngram_size + 1) // 2
    compared += lengths * source.numel
    out = (current.like((merged,)), current.like(()))
    return Estimate(out, vector_flops=compared, reads=(source, current, previous, predicted))


@rule("com.microsoft.NGramHashMapping")
def ngram_hash_mapping(
    ids: TensorType,
    multipliers: TensorType,
    vocabularies: TensorType,
    past_ids: TensorType | None = None,
    head_offsets: TensorType | None = None,
    eos_token_id: TensorType | None = None,
    segment_ids: TensorType | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    outputs: Outputs = (True,),
) -> Estimate:
    """Per n-gram a product and an exclusive or for each token; per n-gram and head a remainder and an offset."""
    heads = (max_ngram_size - 1) * n_head_per_ngram
    out = ids.like((*ids.shape, heads))
    mixed = (
        2 * max_ngram_size - 1
    ) * ids.numel  # each longer n-gram takes one more token than the one before
    vector = mixed + (1 + (head_offsets is not None)) * out.numel
    present = ids.like((ids.shape[0], max_ngram_size - 1))
    reads = (ids, multipliers, vocabularies, past_ids, head_offsets, eos_token_id, segment_ids)
    return Estimate(chosen(outputs, out, present), vector_flops=vector, reads=reads)


@rule("com.microsoft.WordConvEmbedding", product=("chars", "weight"))
def word_conv_embedding(
    chars: TensorType, weight: TensorType, bias: TensorType, table: TensorType, *, conv_window_size: int = 0
) -> Estimate:
    """Embeds characters (..., words, characters), convolves along each word, takes the maximum of each filter."""
    require(weight.rank == 4, f"a weight of {weight} is not (filters, 1, window, features)")
    filters, window, width = weight.shape[0], conv_window_size or weight.shape[2], table.shape[1]
    places = prod(chars.shape[:-1]) * (chars.shape[-1] - window + 1)
    out = table.like((*chars.shape[:-1], filters))
    rows = table.like((*chars.shape, width))
    return Estimate(
        (out,),
        matrix_flops=2 * places * filters * window * width,
        vector_flops=2 * places * filters,
        transcendentals=places * filters,
        reads=(chars, weight, bias, rows),
        matrix_dtype=table.dtype,
    )
