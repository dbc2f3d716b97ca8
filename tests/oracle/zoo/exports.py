"""Models to export as ONNX: architectures of transformers, and programs whose sizes ONNX computes in the graph itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.oracle.zoo.case import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDES = ({"n": 2, "h": 32, "w": 48}, {"n": 1, "h": 64, "w": 32}, {"n": 3, "h": 40, "w": 56})
LARGER = ({"n": 2, "h": 64, "w": 96}, {"n": 1, "h": 128, "w": 64}, {"n": 3, "h": 96, "w": 160})
STEPS = ({"n": 2, "t": 7}, {"n": 3, "t": 12}, {"n": 1, "t": 20})
BLOCKS = ({"n": 2, "t": 13}, {"n": 3, "t": 24}, {"n": 1, "t": 33})
WAVES = ({"n": 2, "t": 400}, {"n": 3, "t": 810}, {"n": 1, "t": 1235})
NO_COUNT = "torch has no formula for recurrences that a CPU runs as one call, and counts 0"

# Of the tables in language.py.
DECODERS = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "falcon", "gpt2", "gpt_neox", "opt",
    "bloom", "mixtral", "qwen2_moe", "deepseek_v3", "mamba",
)  # fmt: skip
ENCODERS = (
    "bert", "roberta", "distilbert", "electra", "albert", "deberta-v2", "modernbert", "squeezebert", "fnet",
)  # fmt: skip
PAIRS = ("t5", "bart", "marian", "longt5")
PICTURES = (
    "vit", "swin", "swinv2", "convnext", "segformer", "dinov2", "efficientnet", "mobilenet_v1", "mobilevit",
    "levit", "resnet", "dpt", "hiera", "yolos",
)  # fmt: skip
OTHERS = (
    "wav2vec2", "whisper", "clip", "siglip", "blip", "detr", "conditional_detr", "deformable_detr",
)  # fmt: skip
DECODING = ("llama", "gemma3_text", "gpt2")
ANY_SIZE = (
    "swin", "segformer", "convnext", "mobilenet_v1", "efficientnet", "resnet", "mobilevit",
)  # fmt: skip

# By the first word of a model's name: what onnxruntime's optimizer is told that it is, if not "bert".
KINDS = {
    **dict.fromkeys(("gpt2", "opt", "bloom", "falcon"), "gpt2"),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "mixtral"), "qwen3"),
    **dict.fromkeys(("t5", "longt5"), "t5"),
    **dict.fromkeys(("bart", "marian", "whisper"), "bart"),
    **dict.fromkeys(("vit", "dinov2"), "vit"),
    **dict.fromkeys(("clip", "siglip"), "clip"),
    "phi": "phi",
    "gpt": "gpt_neox",
    "swin": "swin",
    "unet": "unet",
}


class Flat(nn.Module):
    """A model from tensors by place to tensors by place: what both exporters and their files know of."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        super().__init__()
        leaves, self.form = pytree.tree_flatten(inputs)
        self.model = model
        self.given = inputs if isinstance(inputs, dict) else None
        self.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = list(self.others)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        given = pytree.tree_unflatten(leaves, self.form)
        results = self.model(**given) if isinstance(given, dict) else self.model(*given)
        return tuple(leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor))


def flat(case: Case) -> Case:
    """The case of the same model with its inputs by place, and with memory."""

    def by_place(**sizes: int) -> tuple[torch.Tensor, ...]:
        leaves = pytree.tree_leaves(case.inputs(**sizes))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def build() -> nn.Module:
        model = case.build()  # which may tell pytree of classes that the inputs hold
        return Flat(model, case.inputs(**case.sizes[0]))

    return replace(case, build=build, inputs=by_place, meta=False)


def kind_of(case: Case) -> str:
    """What onnxruntime's optimizer is told that the model is."""
    name = case.name.rpartition("/")[2]
    return KINDS.get(name.partition("_")[0], "bert")


def cases() -> Iterator[Case]:
    """All of them."""
    yield from of_transformers()
    yield from programs()


def of_transformers() -> Iterator[Case]:
    """Architectures of the table `language`, and some more whose pictures vary in height and width too."""
    from tests.oracle.zoo import language as zoo

    chosen = (
        (zoo.DECODERS, zoo.GROUPED, "AutoModelForCausalLM", DECODERS),
        (zoo.ENCODERS, zoo.SMALL, "AutoModelForMaskedLM", ENCODERS),
        (zoo.PAIRS, zoo.PAIRED, "AutoModelForSeq2SeqLM", PAIRS),
    )
    for table, base, head, kinds in chosen:
        for kind in kinds:
            yield masked(zoo.text(kind, head, {**base, **table[kind]}, paired=table is zoo.PAIRS))
    for (kind, head), changes in zoo.PICTURES.items():
        if kind in PICTURES:
            full = head if "For" in head else f"AutoModelFor{head}" if head else "AutoModel"
            yield zoo.picture(kind, full, {**zoo.PICTURE, **changes})
    for case in (*zoo.sounds(), *zoo.pairs_with_pictures()):
        if case.name.partition("/")[2] in OTHERS:
            yield masked(case) if case.name.endswith("whisper") else case
    for kind in DECODING:
        yield zoo.decoding(kind, {**zoo.GROUPED, **zoo.DECODERS[kind]})
    yield from seeing(zoo)
    yield from of_any_size(zoo)


def seeing(zoo: Any) -> Iterator[Case]:
    """Decoders that read pictures among the tokens."""
    image, tokens = 95, 16

    def inputs(n: int, t: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 90, (n, t + tokens))
        ids[:, 1 : 1 + tokens] = image
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.rand(n, 3, 32, 32),
        }

    vision = {**zoo.PICTURE, "model_type": "clip_vision_model", "projection_dim": 32}
    for kind in ("llava", "vipllava"):
        options = {
            "text_config": {**zoo.GROUPED, "model_type": "llama"},
            "vision_config": vision,
            "image_token_id": image,
            "image_token_index": image,
            "image_seq_length": tokens,
            "vision_feature_layer": -2,
            "vision_feature_layers": [-1, -2],
        }
        yield Case(
            f"transformers/{kind}",
            lambda kind=kind, options=options: zoo.made(kind, "AutoModelForImageTextToText", options),
            inputs,
            zoo.TEXTS,
        )


def of_any_size(zoo: Any) -> Iterator[Case]:
    """Models of pictures whose height and width are open too."""
    for (kind, head), changes in zoo.PICTURES.items():
        if kind in ANY_SIZE:
            full = f"AutoModelFor{head}"
            case = zoo.picture(kind, full, {**zoo.PICTURE, **changes})
            yield replace(
                case,
                name=f"{case.name}_any_size",
                inputs=lambda n, h, w: {"pixel_values": torch.rand(n, 3, h, w)},
                sizes=LARGER,
            )


def masked(case: Case) -> Case:
    """The case with a mask of the tokens that count, as files for use have one."""

    def inputs(**sizes: int) -> dict[str, torch.Tensor]:
        given = case.inputs(**sizes)
        if "input_features" in given:
            return {**given, "decoder_attention_mask": torch.ones_like(given["decoder_input_ids"])}
        return {**given, "attention_mask": torch.ones_like(given["input_ids"])}

    return replace(case, inputs=inputs)


def programs() -> Iterator[Case]:
    """Programs of plain torch whose sizes follow from several of an input's, or from data."""
    pictures = lambda n, h, w: (torch.rand(n, 3, h, w),)  # noqa: E731
    sequences = lambda n, t: (torch.rand(n, t, 16),)  # noqa: E731
    yield Case("programs/unet", SkipUNet, pictures, SIDES)
    yield Case("programs/padded_same", PaddedSame, pictures, SIDES)
    yield Case("programs/windows", Windows, pictures, SIDES)
    yield Case("programs/pooled_pyramid", Pyramid, pictures, SIDES)
    yield Case("programs/patches_resampled", Patches, pictures, SIDES)
    yield Case("programs/detector", Detector, pictures, SIDES)
    yield Case(
        "programs/lstm_and_gru",
        Recurrent,
        sequences,
        STEPS,
        expected=lambda n, t: 2 * n * t * (2 * 4 * 12 * (16 + 12) + 3 * 10 * (24 + 10) + 10 * 5),
        because=NO_COUNT,
    )
    yield Case("programs/speech", Speech, lambda n, t: (torch.rand(n, 1, t),), WAVES)
    yield Case("programs/local_attention", LocalAttention, sequences, BLOCKS)
    yield Case("programs/relative_attention", RelativeAttention, sequences, STEPS)
    yield Case(
        "programs/einsum", Einsums, lambda n, t: (torch.rand(n, t, 16), torch.rand(n, t + 3, 16)), STEPS
    )
    yield Case("programs/selected", Selected, lambda n, t: (torch.rand(n, t, 16) - 0.3,), STEPS)


class SkipUNet(nn.Module):
    """Down and up with sizes that need not divide: what comes up is resized to the skip, with attention in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.ModuleList([nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)])
        self.norm = nn.GroupNorm(4, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up = nn.ModuleList([nn.Conv2d(32 + 16, 16, 3, padding=1), nn.Conv2d(16 + 8, 8, 3, padding=1)])
        self.last = nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = F.silu(down(x))
        n, c, h, w = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (part.reshape(n, h * w, 4, 8).transpose(1, 2) for part in self.qkv(tokens).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        x = x + self.out(mixed).transpose(1, 2).reshape(n, c, h, w)
        for up in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[2:], mode="nearest")
            x = F.silu(up(torch.cat([x, skip], 1)))
        return self.last(x)


class PaddedSame(nn.Module):
    """Convolutions padded by what their size and stride leave over, more behind than before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 5, 2, groups=8), nn.Conv2d(8, 16, 1)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            pads: list[int] = []
            for size, kernel, stride in zip(x.shape[:1:-1], layer.kernel_size, layer.stride, strict=True):
                over = size % stride
                pad = max(kernel - (over if over else stride), 0)
                pads += [pad // 2, pad - pad // 2]
            x = F.relu(layer(F.pad(x, pads)))
        return F.avg_pool2d(x, 3, 2, padding=1, ceil_mode=True)


class Windows(nn.Module):
    """Attention in windows of a picture that is padded to whole ones, shifted, and cut again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, 4)
        self.norm = nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.merge = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(x).permute(0, 2, 3, 1))
        n, h, w, c = x.shape
        side = 4
        y = F.pad(x, (0, 0, 0, (side - w % side) % side, 0, (side - h % side) % side))
        y = torch.roll(y, (-2, -2), (1, 2))
        _, high, wide, _ = y.shape
        y = (
            y.view(n, high // side, side, wide // side, side, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, side * side, c)
        )
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = (
            y.view(n, high // side, wide // side, side, side, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(n, high, wide, c)
        )
        x = x + torch.roll(y, (2, 2), (1, 2))[:, :h, :w]
        x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        return self.merge(x).flatten(1, 2).mean(1)


class Pyramid(nn.Module):
    """Features of several strides, each resized to the finest, and means over bins."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 8), (8, 8), (8, 8))])
        self.sides = nn.ModuleList([nn.Conv2d(8, 4, 1) for _ in range(3)])
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for layer, side in zip(self.layers, self.sides, strict=True):
            x = F.gelu(layer(x))
            found.append(side(x))
        h, w = found[0].shape[-2:]
        whole = torch.cat([F.interpolate(y, (h, w), mode="bilinear", align_corners=False) for y in found], 1)
        half = F.interpolate(whole, scale_factor=0.5, mode="bilinear")
        return (
            self.head(whole.permute(0, 2, 3, 1)),
            half.amax((2, 3)),
            F.adaptive_avg_pool2d(whole, 1).flatten(1),
        )


class Patches(nn.Module):
    """A transformer of patches whose table of positions is resized to the picture's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 8, 8)
        self.first = nn.Parameter(torch.rand(1, 1, 16))
        self.positions = nn.Parameter(torch.rand(1, 16, 4, 4))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 3 * 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        n, _, h, w = x.shape
        x = x + F.interpolate(self.positions, size=(h, w), mode="bicubic", align_corners=False)
        x = torch.cat([self.first.expand(n, -1, -1), x.flatten(2).transpose(1, 2)], 1)
        x = self.head(self.layer(x)[:, 1:])
        return F.pixel_shuffle(x.transpose(1, 2).reshape(n, -1, h, w), 8)


class Detector(nn.Module):
    """Boxes on a grid: scores above a bar, the best of them, and features gathered where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 16, 3, 4, 1)
        self.scores, self.boxes = nn.Conv2d(16, 3, 1), nn.Conv2d(16, 4, 1)
        self.refine = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.relu(self.features(x))
        n, _, h, w = y.shape
        scores = self.scores(y).flatten(2).transpose(1, 2).sigmoid()
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centers = torch.stack([xs, ys, xs, ys], -1).reshape(1, h * w, 4) * 4.0
        boxes = self.boxes(y).permute(0, 2, 3, 1).reshape(n, h * w, 4) + centers
        best, places = scores.amax(-1).topk(8, 1)
        chosen = boxes.gather(1, places.unsqueeze(-1).expand(-1, -1, 4))
        tokens = y.flatten(2).transpose(1, 2).gather(1, places.unsqueeze(-1).expand(-1, -1, 16))
        kept = torch.nonzero(scores[0] > 0.5)
        return chosen + self.refine(tokens), best, kept, boxes[0][kept[:, 0]]


class Recurrent(nn.Module):
    """Both ways, then one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(24, 10, batch_first=True)
        self.head = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0])


class Speech(nn.Module):
    """Convolutions of several strides over a wave, then positions by convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(1, 8, 10, 5), nn.Conv1d(8, 8, 3, 2), nn.Conv1d(8, 16, 2, 2)])
        self.positions = nn.Conv1d(16, 16, 8, padding=4, groups=4)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        x = x + self.positions(x)[..., :-1]
        return self.layer(x.transpose(1, 2))


class LocalAttention(nn.Module):
    """Attention in blocks of a padded sequence, each block with those beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        size = 4
        q, k, v = self.qkv(F.pad(x, (0, 0, 0, -t % size))).chunk(3, -1)
        q = q.view(n, -1, size, c)
        k, v = (F.pad(y, (0, 0, size, size)).unfold(1, 3 * size, size).transpose(-1, -2) for y in (k, v))
        scores = torch.einsum("nbqc,nbkc->nbqk", q, k) / 4
        return torch.einsum("nbqk,nbkc->nbqc", scores.softmax(-1), v).reshape(n, -1, c)[:, :t]


class RelativeAttention(nn.Module):
    """Scores by distance, gathered or shifted into place."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.far = nn.Linear(16, 48), nn.Embedding(65, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        steps = torch.arange(t, device=x.device)
        table = self.far((steps[None] - steps[:, None]).clamp(-32, 32) + 32)
        by_place = torch.einsum("nhqd,qkd->nhqk", q, table)
        shifted = q @ self.far(torch.arange(1 - t, t).clamp(-32, 32) + 32).t()  # 2t - 1 distances
        shifted = F.pad(shifted, (0, 1)).flatten(2)
        shifted = F.pad(shifted, (0, t - 1)).view(n, 4, t + 1, 2 * t - 1)[:, :, :t, t - 1 :]
        scores = (q @ k.transpose(-1, -2) + by_place + shifted).softmax(-1)
        return (scores @ v).transpose(1, 2).flatten(2)


class Einsums(nn.Module):
    """Products spelled in letters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.rand(16, 4, 8)), nn.Parameter(torch.rand(4, 16, 8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = torch.einsum("ntc,chd->nhtd", x, self.a)
        k = torch.einsum("nsc,hcd->nshd", y, self.b)
        scores = torch.einsum("nhtd,nshd->nhts", q, k)
        outer = torch.einsum("ntc,nsc->ts", x, y)
        return (
            torch.tensordot(scores, y, dims=([0, 3], [0, 1])),
            outer,
            torch.baddbmm(scores[:, 0], x, y.transpose(1, 2)),
        )


class Selected(nn.Module):
    """What is chosen by a mask goes through a layer, and back to its place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.flatten(0, 1)
        mask = rows.sum(-1) > 3
        some = self.layer(rows[mask])
        return some, rows.masked_scatter(mask.unsqueeze(-1), some).view_as(x), torch.unique(x.round())
