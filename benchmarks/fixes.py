"""`graphflops audit --fix` on real exports: what is fixed, whether results stay, promised and saved, and onnxruntime's time.

    python benchmarks/fixes.py make FOLDER    export the models that are not there yet
    python benchmarks/fixes.py run FOLDER     fix each, and time both files in onnxruntime

Making needs torch, torchvision, timm, transformers and onnxscript; running needs graphflops[fix]. Weights are random. SEEN
were looked at while the fixes were written, UNSEEN were not. `q` marks files of onnxruntime's quantizer.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

SEEN = ("tv:resnet18", "tv:mobilenet_v2", "timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224",
        "timm:convnext_atto", "timm:regnety_002", "hf:Bert")  # fmt: skip
UNSEEN = (
    "tv:alexnet", "tv:squeezenet1_1", "tv:shufflenet_v2_x0_5", "tv:mnasnet0_5", "tv:efficientnet_b0",
    "timm:mixer_s32_224", "timm:resmlp_12_224", "timm:poolformer_s12", "timm:mobilevit_xxs", "timm:ghostnet_100",
    "timm:levit_128s", "timm:xcit_nano_12_p16_224", "timm:pvt_v2_b0", "timm:lcnet_050", "timm:repvgg_a0",
    "timm:edgenext_xx_small", "timm:hardcorenas_a", "timm:mobilenetv3_small_050", "timm:coat_lite_tiny", "timm:dla34",
    "hf:DistilBert", "hf:Roberta", "hf:Electra", "hf:OPT", "hf:Qwen2", "hf:GPTNeoX", "hf:MPNet",
)  # fmt: skip
HF = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100,
      "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "ffn_dim": 128, "word_embed_proj_dim": 64,
      "num_key_value_heads": 2, "embedding_size": 64, "max_position_embeddings": 64}  # fmt: skip
TIMED = 1.5  # seconds for each pair of files


def built(name: str) -> tuple[Any, Any, dict[int, str]]:
    """The model, its input, and the axes that are open."""
    import torch

    torch.manual_seed(0)
    kind, _, name = name.partition(":")
    if kind == "hf":
        import transformers

        config = getattr(transformers, f"{name}Config")(**HF)
        config._attn_implementation = "eager"

        class First(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = getattr(transformers, f"{name}Model")(config)

            def forward(self, ids: Any) -> Any:
                return (
                    self.model(input_ids=ids, use_cache=False)[0]
                    if takes_cache
                    else self.model(input_ids=ids)[0]
                )

        takes_cache = hasattr(config, "use_cache") and name in ("OPT", "Qwen2", "GPTNeoX")
        return First().eval(), torch.randint(3, 90, (1, 16)), {0: "batch", 1: "sequence"}
    image = torch.randn(1, 3, 64, 64)
    if kind == "tv":
        import torchvision

        return torchvision.models.get_model(name, weights=None).eval(), image, {0: "batch"}
    import timm

    sized = (
        {}
        if not any(
            part in name for part in ("vit_tiny", "swin", "mixer", "resmlp", "xcit", "levit", "pvt", "coat")
        )
        else {"img_size": 64}
    )
    with contextlib.suppress(TypeError):
        return timm.create_model(name, **sized).eval(), image, {0: "batch"}
    return timm.create_model(name).eval(), torch.randn(1, 3, 224, 224), {0: "batch"}


def make(folder: Path) -> None:
    import torch
    from onnxruntime.quantization import quantize_dynamic

    for kind in ("script", "q", "dynamo"):
        for place, name in enumerate(reversed((*SEEN, *UNSEEN))):
            stem = folder / name.replace(":", "_")
            path = stem.with_name(f"{stem.name}.{kind}.onnx")
            if path.exists() or (kind == "q" and place % 3):
                continue
            begun = time.monotonic()
            try:
                if kind == "q":
                    quantize_dynamic(stem.with_name(f"{stem.name}.script.onnx"), path)
                else:
                    model, given, axes = built(name)
                    dynamic = {"dynamic_shapes": (dict.fromkeys(axes, torch.export.Dim.DYNAMIC),)}
                    if kind == "script":
                        dynamic = {"dynamic_axes": {"x": axes}, "input_names": ["x"], "opset_version": 17}
                    with contextlib.redirect_stdout(io.StringIO()):
                        torch.onnx.export(
                            model, (given,), path, dynamo=kind == "dynamo", external_data=False, **dynamic
                        )
                print(f"{path.name}: {time.monotonic() - begun:.0f} s", flush=True)
            except Exception as error:  # noqa: BLE001 not every model can be exported by every exporter
                path.unlink(missing_ok=True)
                print(f"{path.name}: {type(error).__name__} {' '.join(str(error).split())[:100]}", flush=True)


def seconds(old: str, new: str, dims: dict[str, int]) -> tuple[float, float]:
    """Processor time of the shortest run of each file, in turns, on one thread: other programs disturb it the least."""
    import onnxruntime

    from graphflops.exporters import onnx
    from graphflops.onnx_fix.sessions import Run, _inputs

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    sessions = [
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in (old, new)
    ]
    feed = _inputs(onnx.read(old), Run(dims, 0))
    best = [float("inf")] * 2
    end, turns = time.monotonic() + TIMED, 0
    while time.monotonic() < end or turns < 6:
        for place in ((0, 1), (1, 0))[turns % 2]:
            begun = time.thread_time()
            sessions[place].run(None, feed)
            best[place] = min(best[place], time.thread_time() - begun)
        turns += 1
    return best[0], best[1]


def told(counts: Counter[str]) -> str:
    return " ".join(f"{code}x{times}" for code, times in sorted(counts.items())) or "-"


def run(folder: Path, options: list[str]) -> None:
    from graphflops.errors import GraphflopsError
    from graphflops.onnx_audit.audit import checks
    from graphflops.onnx_fix.fix import fixed

    unseen = {name.replace(":", "_") for name in UNSEEN}
    total: Counter[str] = Counter()
    ratios = []
    print("promised/saved: bytes moved, bytes stored, FLOPs. time: of a processor, after/before")
    print("file | fixed | safe ones left | new | results | promised/saved | time")
    for path in sorted(folder.glob("*.onnx")):
        with tempfile.TemporaryDirectory() as place:
            try:
                found = fixed(str(path), place, codes=set(checks()), kept=list, unsafe="--unsafe" in options)
            except GraphflopsError as error:
                print(f"{path.name} | {error}", flush=True)
                total["not fixed"] += 1
                continue
            done, before, after = (
                Counter(f.code for f in part)
                for part in (found.fixed, found.before.findings, found.after.findings)
            )
            left = Counter(f.code for f in found.after.findings if f.applicability == "safe")
            pairs = zip(
                found.promised[1:] + found.promised[:1], found.saved[1:] + found.saved[:1], strict=True
            )
            shares = " ".join("-" if a == b == 0 else f"{a / b:.4f}" if b else f"{a}/0" for a, b in pairs)
            off = [abs(a - b) > 0.01 * abs(b) for a, b in zip(found.promised, found.saved, strict=True)]
            total["savings off by over 1 %"] += any(off)
            ratio = None
            if done:
                old, new = seconds(str(path), found.file, dict(found.runs[0].dims))
                ratio = new / old
                ratios.append(ratio)
            total["files"] += 1
            total["unseen architectures" if path.name.split(".")[0] in unseen else "seen"] += 1
            total["with fixes"] += bool(done)
            total["findings fixed"] += sum(done.values())
            total["safe fixes left"] += sum(left.values())
            total["files with a new finding"] += bool(after - before)
            total["fixes undone"] += len(found.undone)
            results = "same bits" if not found.difference else f"{found.difference:.1g}"
            columns = (path.name, told(done), told(left), told(after - before), results if done else "-", shares,
                       "-" if ratio is None else f"{ratio:.3f}")  # fmt: skip
            print(" | ".join(columns), flush=True)
    print(dict(total))
    if ratios:
        ratios.sort()
        print(f"processor time after/before: median {ratios[len(ratios) // 2]:.3f}, largest {ratios[-1]:.3f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.makedirs(sys.argv[2], exist_ok=True)
    make(Path(sys.argv[2])) if sys.argv[1] == "make" else run(Path(sys.argv[2]), sys.argv[3:])
