"""Strings, n-grams and encoded images. Work on characters is not arithmetic and is not counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.cost import Estimate, data_dependent
from graphflops.dims import Dim, broadcast
from graphflops.rules.onnx.fused import Outputs, chosen
from graphflops.rules.registry import require, rule
from graphflops.rules.shapes import shown
from graphflops.tensor import BOOL, FLOAT32, INT64, UINT8, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "text"


@rule("onnx.StringConcat")
def string_concat(x: TensorType, y: TensorType) -> Estimate:
    """Concatenates pairs of strings."""
    return Estimate((x.like(broadcast(x.shape, y.shape)),), reads=(x, y))


@rule("onnx.StringSplit")
def string_split(x: TensorType, *, outputs: Outputs = ()) -> Estimate:
    """Splits each string into parts, padded to the largest number of parts, and returns the number of parts."""
    parts = x.like((*x.shape, data_dependent("string_split")))
    return Estimate(chosen(outputs, parts, x.like(dtype=INT64)), reads=(x,))


@rule("onnx.StringNormalizer")
def string_normalizer(x: TensorType, *, stopwords: Sequence[str] | None = None) -> Estimate:
    """Strings in another case, without stop words; the number of remaining strings is data-dependent."""
    require(x.rank in (1, 2), f"{shown(x.shape)} is not a list of strings")
    kept: Dim = data_dependent("strings") if stopwords else x.shape[-1]
    return Estimate((x.like((*x.shape[:-1], kept)),), reads=(x,))


@rule("onnx.RegexFullMatch")
def regex_full_match(x: TensorType) -> Estimate:
    """Whether each string matches a pattern."""
    return Estimate((x.like(dtype=BOOL),), reads=(x,))


@rule("onnx.TfIdfVectorizer")
def tf_idf_vectorizer(
    x: TensorType,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
) -> Estimate:
    """An addition for each n-gram of each length and number of skips; a weight for each entry where there are weights."""
    require(x.rank in (1, 2), f"{shown(x.shape)} is not a sequence of tokens")
    out = TensorType((*x.shape[:-1], max(ngram_indexes, default=-1) + 1), FLOAT32)
    lengths = max_gram_length - min_gram_length + 1
    # A single token skips nothing.
    spacings = lengths * (max_skip_count + 1) - (max_skip_count if min_gram_length == 1 else 0)
    return Estimate((out,), vector_flops=spacings * x.numel + (0 if mode == "TF" else out.numel), reads=(x,))


@rule("onnx.ImageDecoder")
def image_decoder(stream: TensorType, *, pixel_format: str = "RGB") -> Estimate:
    """An image of data-dependent size; decoding is not counted."""
    channels = 1 if pixel_format == "Grayscale" else 3
    shape = (data_dependent("image_height"), data_dependent("image_width"), channels)
    return Estimate((TensorType(shape, UINT8),), reads=(stream,))
