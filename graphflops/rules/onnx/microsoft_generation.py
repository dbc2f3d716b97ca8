"""onnxruntime's text generation loops: a decoder that runs once per token, a data-dependent number of times.

The nested graphs are priced at the types that they declare for their inputs, whose sizes are symbols of their own (the
cached rows, for example). Choosing a token is a log-softmax over the vocabulary and a comparison per score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphflops.cost import Estimate, Region, RegionRun, Value, data_dependent
from graphflops.rules.onnx.entries import size
from graphflops.rules.onnx.fused import Outputs, chosen
from graphflops.rules.registry import rule
from graphflops.rules.softmax import LOG_SOFTMAX
from graphflops.tensor import FLOAT32, INT32, TensorType

if TYPE_CHECKING:
    from graphflops.dims import Dim


@dataclass(frozen=True, slots=True)
class Search:
    """One generation: the number of sequences, of decoder runs, and of words in the vocabulary."""

    rows: Dim
    steps: Dim
    words: Dim
    regions: tuple[tuple[RegionRun, Dim], ...]

    def estimate(self, out: tuple[TensorType | None, ...], *operands: TensorType | None) -> Estimate:
        """The graphs inside, and a choice per sequence and step."""
        scores = self.rows * self.steps * self.words
        work = (LOG_SOFTMAX + 1) * scores
        return Estimate(out, 0, work, scores, reads=operands, regions=self.regions)


def generated(
    rows: Dim, words: int, decoder: Region, encoder: Region | None, init_decoder: Region | None
) -> Search:
    """The encoder once, the first decoder (if any) once, the decoder for every other token."""
    steps = data_dependent("generated_tokens")
    turn = decoder(*decoder.declared)
    once = [(given(*given.declared), 1) for given in (encoder, init_decoder) if given is not None]
    turns = steps - (init_decoder is not None)
    vocabulary: Dim = words if words > 0 else vocabulary_of(turn.out[0])
    return Search(rows, steps, vocabulary, (*once, (turn, turns)))


def vocabulary_of(logits: Value) -> Dim:
    """The vocabulary size of a decoder's scores."""
    return (
        logits.shape[-1] if isinstance(logits, TensorType) and logits.rank else data_dependent("vocabulary")
    )


def said(given: TensorType | None, what: str, otherwise: Dim | None = None) -> Dim:
    """A number in an operand; a symbol if its contents are unknown."""
    if given is None and otherwise is not None:
        return otherwise
    found = size(given)
    return data_dependent(what) if found is None else found


@rule("com.microsoft.GreedySearch", "com.microsoft.Sampling")
def greedy_search(
    ids: TensorType,
    max_length: TensorType,
    min_length: TensorType | None = None,
    repetition_penalty: TensorType | None = None,
    vocab_mask: TensorType | None = None,
    prefix_vocab_mask: TensorType | None = None,
    attention_mask: TensorType | None = None,
    presence_mask: TensorType | None = None,
    seed: TensorType | None = None,
    *,
    decoder: Region,
    encoder: Region | None = None,
    init_decoder: Region | None = None,
    vocab_size: int = -1,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Generates one sequence per input sequence."""
    batch = ids.shape[0]
    search = generated(batch, vocab_size, decoder, encoder, init_decoder)
    sequences = ids.like((batch, said(max_length, "max_length")), INT32)
    filtered = ids.like((batch, search.words), FLOAT32)
    masks = (vocab_mask, prefix_vocab_mask, attention_mask, presence_mask)
    return search.estimate(chosen(outputs, sequences, filtered), ids, *masks)


@rule("com.microsoft.BeamSearch", "com.microsoft.WhisperBeamSearch")
def beam_search(
    ids: TensorType,
    max_length: TensorType,
    min_length: TensorType | None = None,
    num_beams: TensorType | None = None,
    num_return_sequences: TensorType | None = None,
    length_penalty: TensorType | None = None,
    repetition_penalty: TensorType | None = None,
    vocab_mask: TensorType | None = None,
    prefix_vocab_mask: TensorType | None = None,
    attention_mask: TensorType | None = None,
    decoder_input_ids: TensorType | None = None,
    logits_processor: TensorType | None = None,
    cross_qk_layer_head: TensorType | None = None,
    extra_decoding_ids: TensorType | None = None,
    temperature: TensorType | None = None,
    *,
    decoder: Region,
    encoder: Region | None = None,
    init_decoder: Region | None = None,
    vocab_size: int = -1,
    outputs: Outputs = (True,),
    **others: object,
) -> Estimate:
    """Follows several sequences per input sequence and returns the best."""
    batch, beams = ids.shape[0], said(num_beams, "num_beams")
    returned = said(num_return_sequences, "num_return_sequences")
    search = generated(batch * beams, vocab_size, decoder, encoder, init_decoder)
    longest, dtype = said(max_length, "max_length"), length_penalty.dtype if length_penalty else FLOAT32
    prompt = (decoder_input_ids or ids).shape[-1] if decoder_input_ids or encoder is None else 1
    results = (
        ids.like((batch, returned, longest), INT32),
        ids.like((batch, returned), dtype),
        ids.like((longest - prompt, batch, beams, search.words), dtype),
    )
    stacked = ids.like((batch, returned, *(data_dependent(f"cross_qk_{axis}") for axis in "hqk")), FLOAT32)
    masks = (vocab_mask, prefix_vocab_mask, attention_mask, decoder_input_ids, extra_decoding_ids)
    return search.estimate(chosen(outputs, *results, stacked, ids.like((batch,), dtype)), ids, *masks)
