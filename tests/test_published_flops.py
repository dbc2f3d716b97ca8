"""FLOPs that training frameworks publish, from our counts of the models that they publish them for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.decoders import Decoder, report_of
from benchmarks.mfu import analyzed, reproduced
from benchmarks.published import EXACT, GPT2, GPT_OSS_20B, TERAFLOPS, UTILISATION, Flops, Rate

PUBLISHED = (*EXACT, *UTILISATION, *TERAFLOPS)
# What is published of one model at one length is one test, for the model is exported once for it.
MODELS = {
    f"{one.model} {one.length}": [
        like for like in PUBLISHED if (like.decoder, like.length) == (one.decoder, one.length)
    ]
    for one in PUBLISHED
}


@pytest.mark.parametrize("published", MODELS.values(), ids=MODELS)
def test_published_figures(published: list[Flops | Rate]) -> None:
    for one in published:
        if isinstance(one, Flops):
            assert reproduced(one) == one.flops, one.convention
        else:  # both the throughput and the figure are rounded, some figures down: within one of the last digit
            assert abs(reproduced(one) - one.figure) < 10**-one.digits, one.figure


def test_parameters() -> None:
    assert analyzed(GPT2, 1024)[0] == 124_337_664  # nanoGPT's transformer_sizing.ipynb
    assert round(analyzed(GPT_OSS_20B, 4096)[0] / 1e9, 2) == 20.91  # its model card


def test_a_window_shows_what_its_pairs_are() -> None:
    """Of 2,048 keys a causal window of 512 shows 448.1: 512 * 513 / 2 pairs of the first queries, then 512 a query."""
    layers = Decoder(2, 64, 4, 2, 16, 256, mlp=128, window=512)  # the first of the two has the window
    found = report_of(layers, 2048).per("ids[1]")
    seen = 2 * 2 * 64 * (512 * 513 / 2 + (2048 - 512) * 512 + 2048 * 2049 / 2) / 2048
    assert found.forward.visible == 2 * found.active_parameters + seen


def test_shared_keys_leave_the_attention_as_it_is() -> None:
    wide, narrow = (
        report_of(Decoder(1, 64, 4, kv_heads, 16, 256, mlp=128), 128).per("ids[1]") for kv_heads in (4, 2)
    )
    assert wide.forward.active - 2 * wide.active_parameters == 4 * 128 * 64
    assert narrow.forward.active - 2 * narrow.active_parameters == 4 * 128 * 64
