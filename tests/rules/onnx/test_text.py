import pytest

from graphflops.dims import symbol
from graphflops.tensor import BOOL, INT64, STRING, UINT8
from tests.support import price, shapes, t

N = symbol("n")


def words(*shape):
    """A tensor of strings."""
    return t(*shape, dtype=STRING)


def test_strings_keep_their_shape():
    assert price("onnx.StringConcat.20", words("n", 1), words(3)).out == (words("n", 3),)
    assert price("onnx.RegexFullMatch.20", words("n"), pattern="a+").out == (t("n", dtype=BOOL),)
    assert price("onnx.StringNormalizer.10", words(1, "n"), case_change_action="LOWER").out == (
        words(1, "n"),
    )


def test_what_is_left_out_only_data_tells():
    (out,) = price("onnx.StringNormalizer.10", words(1, "n"), stopwords=("a",)).out
    assert (out.shape[0], str(out.shape[1])) == (1, "Symbol('strings?')")


def test_string_split():
    parts, counts = price("onnx.StringSplit.20", words("n", 2), delimiter=",").out
    assert parts.shape[:2] == counts.shape == (N, 2)
    assert (parts.dtype, counts.dtype, parts.rank) == (STRING, INT64, 3)


@pytest.mark.parametrize(
    "mode, grams, skips, flops",
    [
        ("TF", (2, 2), 0, 12),  # pairs of neighbours
        ("TF", (2, 2), 3, 4 * 12),
        ("TF", (1, 2), 3, (1 + 4) * 12),  # a single token skips nothing
        ("TFIDF", (2, 2), 0, 12 + 7),
    ],
)
def test_tf_idf(mode, grams, skips, flops):
    attributes = {"ngram_counts": (0, 4), "ngram_indexes": (0, 6, 3), "pool_int64s": (1, 2, 3)}
    estimate = price(
        "onnx.TfIdfVectorizer.9",
        t(12, dtype="int64"),
        mode=mode,
        min_gram_length=grams[0],
        max_gram_length=grams[1],
        max_skip_count=skips,
        **attributes,
    )
    assert (shapes(estimate), estimate.vector_flops) == ([(7,)], flops)


@pytest.mark.parametrize("pixels, channels", [("RGB", 3), ("BGR", 3), ("Grayscale", 1)])
def test_image_decoder(pixels, channels):
    (out,) = price("onnx.ImageDecoder.20", t("n", dtype=UINT8), pixel_format=pixels).out
    assert (out.dtype, out.rank, out.shape[2]) == (UINT8, 3, channels)
    assert out.shape[0] != out.shape[1]
