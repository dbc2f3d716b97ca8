"""Models of transformers by name. benchmarks/capture.py holds some seventy architectures; here are a few of each kind."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

import graphflops
from graphflops.capturing.name import parsed
from graphflops.capturing.run import captured
from tests.test_cli import failed, misused, ok

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from graphflops.exporters import live  # noqa: E402 - it imports torch

LLAMA = {
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
T5 = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 500}


def name(config: str, sizes: dict[str, Any], choices: str = "") -> str:
    pairs = ", ".join(f"{key}={value!r}" for key, value in sizes.items())
    return f"hf:{config}({pairs})" + (f"@{choices}" if choices else "")


def report(model: str, *options: str) -> Any:
    return json.loads(ok("analyze", model, "--format", "json", *options))


def test_both_phases_in_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "lm.pt2")
    given = (
        "--phase",
        "both",
        "--length",
        "24",
        "--context",
        "40",
        "--dynamic",
        "context",
        "--dynamic",
        "batch",
    )
    assert ok("capture", name("LlamaConfig", LLAMA), *given, "-o", path) == ""
    prefill, decode = (report(path, "--model", phase) for phase in ("prefill", "decode"))
    mine = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)).num_parameters()
    assert prefill["totals"]["parameters"] == decode["totals"]["parameters"] == mine
    caches = [size for size in decode["inputs"] if size["name"].startswith("cache_")]
    assert len(caches) == 4
    # Two tokens of a batch of 2: products with each matrix, 2 FLOPs for each of its numbers, and attention over 41 tokens.
    matrices = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128) + 64 * 500
    attention = 2 * 2 * 4 * 16 * 41
    assert decode["totals"]["matrix_flops"]["value"] == 2 * 2 * (matrices + attention)
    longer = report(path, "--model", "decode", "--dim", "cache_layers_0_keys[2]=100")
    more = longer["totals"]["matrix_flops"]["value"] - decode["totals"]["matrix_flops"]["value"]
    assert more == 2 * 2 * 2 * 2 * 4 * 16 * 60


def cache_bytes(model: str) -> int:
    """Bytes of the inputs that are a cache's, but for the numbers of tokens that layers count."""
    from graphflops.capturing.name import parsed
    from graphflops.capturing.run import captured

    parts = parsed(model)
    assert parts is not None
    graph = captured(parts)["model"].graph()
    names = [
        entry.name
        for entry in graph.inputs
        if entry.name.startswith("cache_") and "cumulative" not in entry.name
    ]
    return sum(graph.types[name].nbytes for name in names)


@pytest.mark.parametrize(
    "config, sizes, numbers",
    [
        # 40 tokens, or the last 15 of a window of 16; keys and values of 2 heads of 16 in 2 layers
        ("LlamaConfig", LLAMA, 2 * 2 * 2 * 16 * 40),
        ("MistralConfig", {**LLAMA, "sliding_window": 16}, 2 * 2 * 2 * 16 * 15),
        # a latent of 16 and a rotated key of 8, which all heads share; layer 1 has no experts
        (
            "DeepseekV2Config",
            {**LLAMA, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8}
            | {"qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 2},
            2 * (16 + 8) * 40,
        ),
        # of 128 channels: the last 4 inputs of a convolution and a state of 8
        (
            "MambaConfig",
            {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 500, "state_size": 8},
            2 * 128 * 12,
        ),
        # keys and values of 4 heads of 16 for 40 tokens, and for the 24 of the encoder
        ("T5Config", T5, 2 * 2 * 4 * 16 * (40 + 24)),
    ],
)
def test_caches(config: str, sizes: dict[str, Any], numbers: int) -> None:
    assert cache_bytes(name(config, sizes, "phase=decode,context=40,length=24")) == 4 * numbers


def test_what_a_request_to_an_encoder_and_decoder_keeps() -> None:
    """Keys and values of 4 heads of 16 numbers in 2 layers: for each token, and for the 24 of the encoder."""
    from graphflops.capturing.name import parsed
    from graphflops.capturing.run import captured
    from graphflops.fitting.cells import kv_cache

    parts = parsed(name("T5Config", T5, "phase=decode,context=40,length=24,dynamic=batch+context"))
    assert parts is not None
    cache = kv_cache(graphflops.analyze(captured(parts)["model"].graph()))
    assert cache is not None
    assert (cache.token_bytes, cache.request_bytes) == (2 * 2 * 4 * 16 * 4, 2 * 2 * 4 * 16 * 24 * 4)


def test_a_static_cache_has_room_for_the_context() -> None:
    assert (
        cache_bytes(name("LlamaConfig", LLAMA, "phase=decode,context=40,cache=static"))
        == 4 * 2 * 2 * 2 * 16 * 40
    )


def test_an_encoder_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"vocab_size": 500, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    path.write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"], **sizes}))
    mine = transformers.BertModel(transformers.BertConfig(**sizes)).num_parameters()
    for model in (f"hf:{path}", f"hf:{tmp_path}@dynamic=batch+length"):
        assert report(model)["totals"]["parameters"] == mine
    assert "no cache" in misused("analyze", f"hf:{path}@phase=decode")


def test_training_has_no_cache() -> None:
    model = report(name("LlamaConfig", LLAMA, "length=8"), "--training")
    assert len(model["outputs"]) == 1


@pytest.mark.parametrize(
    "given, says",
    [
        ({"model_type": "llama", "auto_map": {"AutoConfig": "own.Config"}}, "never runs"),
        ({"model_type": "llama", "trust_remote_code": True}, "never runs"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000"),
        ({"model_type": "swin", "depths": [2, 10**9]}, "at most 10,000 can be built"),
        ({"model_type": "no_such"}, "no model_type no_such"),
        ({"hidden_size": 64}, "states no model_type"),
        ({"model_type": "llama", **LLAMA, "hidden_size": 65}, "change"),
        ([1, 2], "no JSON configuration"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, given: object, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(given))
    assert says in failed("analyze", f"hf:{path}")


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ("Qwen3NextConfig(num_hidden_layers=2)", "none of its layers is attention"),  # only the fourth is
        ("Zamba2Config(num_hidden_layers=2)", "state layer_types for these layers"),  # it has 54 by default
        ("NemotronConfig(num_hidden_layers=2)", "leaves a size open, or an input"),  # the number of key heads
        ("InformerConfig()", "state that in the configuration"),  # how far it predicts
        (
            "ColPaliConfig()",
            "name one of ColPaliForRetrieval",
        ),  # no class of transformers' that chooses takes it
        ("BarkConfig()", "BarkModel takes input: name another class"),  # it is three models
    ],
)
def test_what_a_configuration_lacks_is_said(config: str, advice: str, tmp_path: Path) -> None:
    assert advice in failed("capture", f"hf:{config}", "--output", str(tmp_path / "m.pt2"))


def test_names_that_are_not_there() -> None:
    assert "reads no network" in failed("analyze", "hf:meta-llama/Llama-3.1-8B")
    assert "LlamaConfig" in failed("analyze", "hf:LlamaConfi(num_hidden_layers=2)")
    assert "choose one phase" in misused("analyze", "hf:LlamaConfig(num_hidden_layers=2)@phase=both")


def test_the_type_of_stored_weights(tmp_path: Path) -> None:
    from tests.capturing.test_weights import safetensors

    path = safetensors(
        tmp_path / "w.safetensors", {"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}
    )
    model = report(name("LlamaConfig", LLAMA, f"length=8,weights={path}"))
    assert model["totals"]["parameter_bytes"] == 2 * model["totals"]["parameters"]


def test_weights_that_cannot_be_read_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"no header")
    assert "no header of weights" in failed("analyze", f"hf:NoConfig()@weights={tmp_path / 'w.safetensors'}")


def test_no_connection_is_opened() -> None:
    from graphflops.capturing.run import offline
    from graphflops.errors import ModelError

    with offline(), pytest.raises(ModelError, match="no network"):
        socket.create_connection(("127.0.0.1", 9))
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", 9), timeout=1)


def test_products_in_float8() -> None:
    """A byte for each number of the layers' matrices; embeddings, logits and norms stay, and so do the products' FLOPs."""
    whole, small = (
        report(name("LlamaConfig", LLAMA, f"length=8,dtype=bfloat16,phase=prefill{more}"))["totals"]
        for more in ("", ",quantize=fp8")
    )
    matrices = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
    assert whole["parameter_bytes"] - small["parameter_bytes"] == matrices
    assert whole["parameters"] == small["parameters"]
    assert whole["matrix_flops"] == small["matrix_flops"]
    odd = LLAMA | {
        "hidden_size": 24,
        "intermediate_size": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    }
    assert "leave out --quantize" in misused("analyze", name("LlamaConfig", odd, "quantize=fp8"))


def test_experts_in_float32_leave_a_record() -> None:
    """While exporting, transformers multiplies by an operator of its own; torch's refuses float32 without data."""
    sizes = {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}
    found = report(name("MixtralConfig", sizes, "phase=prefill,length=8"), "--execution", "eager")
    assert "GF129" in {entry["code"] for entry in found["diagnostics"]}


def test_what_a_model_was_given_is_said(tmp_path: Path) -> None:
    """A codec takes sound of so many channels, which no configuration calls an input."""
    said = failed("capture", "hf:EncodecConfig()", "--output", str(tmp_path / "m.pt2"))
    assert "input_values [1, 16000]" in said
    assert "(modeling_encodec.py:" in said
    assert "it takes other inputs: write a factory" in said


def test_a_decoder_with_open_axes_is_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch cannot show for all sizes how repeated heads lie; that becomes a check, where an export was refused."""
    exports = []
    export = live.capture
    monkeypatch.setattr(live, "capture", lambda *given, **more: exports.append(1) or export(*given, **more))
    open_axes = parsed(name("LlamaConfig", LLAMA, "phase=decode,context=64,dynamic=batch+context"))
    assert open_axes is not None
    graph = captured(open_axes)["model"].graph()
    assert len(exports) == 1
    assert [entry.minimum for entry in graph.symbols.values()] == [2, 2]
