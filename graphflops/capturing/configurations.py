"""Configurations of transformers, their models, and the element types of stored weights, of which only headers are read."""

import math
import os
import re
import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

import msgspec
import torch
from torch import nn

from graphflops.base import files
from graphflops.capturing.name import Name, library, unknown
from graphflops.errors import FileError, ModelError, OptionError, first_line, shown

_LARGEST = 2**22  # bytes of a configuration
_REMOTE = ("auto_map", "trust_remote_code")  # keys by which a configuration asks for code of its own
# Parts of keys that choose kernels, which transformers may then fetch.
_KERNELS = ("attn_implementation", "experts_implementation", "use_kernels")
_BUILT = re.compile(r"(layers?|blocks|depths?|experts)$")  # keys for the number of modules to build
_MOST_BUILT = 10_000
# Mappings from a configuration to a model, the likeliest first: for an encoder, a masked language model before a causal one.
_MAPPINGS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "CTC", "IMAGE_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION",
    "DEPTH_ESTIMATION",
)  # fmt: skip


def model_of(name: Name) -> Any:
    """A model of transformers on the meta device, in evaluation mode. Raises FileError, OptionError or ModelError."""
    weights = name.choices.weights
    said = name.choices.dtype or (weights and computed_in(stored(weights)))
    transformers = library(name)
    path = os.path.join(name.target, "config.json") if os.path.isdir(name.target) else name.target
    if os.path.exists(path) or os.path.isdir(name.target):
        config, given = _from_file(transformers, path, name.sizes)
        names = given.get("architectures")
        first = names[0] if isinstance(names, list) and names else None
        is_name = isinstance(first, str) and first.isidentifier()
        model_class: Any = getattr(transformers, first, None) if is_name else None  # type: ignore[arg-type]
        if not isinstance(model_class, type) or not issubclass(model_class, transformers.PreTrainedModel):
            model_class = _likeliest_class(transformers, config, name)
    elif "/" in name.target or "." in name.target:
        text = (
            f"{shown(name.target)}: no such file, and capture reads no network: save the model's config.json"
        )
        raise FileError(text)
    else:
        model_class, config = _from_class(transformers, name)
    dtype = getattr(torch, said) if said else getattr(config, "dtype", None) or torch.get_default_dtype()
    for part in parts(config):
        part.dtype = dtype
    with torch.device("meta"):
        if hasattr(model_class, "_from_config"):
            model = model_class._from_config(config, dtype=dtype).eval()
        else:
            model = model_class(config).to(dtype).eval()
        # Weights of linear layers become float8, except in the layer that makes logits, as in published checkpoints.
        if name.choices.quantize is not None and not to_float8(model, [model.get_output_embeddings()]):
            text = f"{name}: has no linear layers whose sizes are multiples of 16: leave out --quantize"
            raise OptionError(text)
    return model


def parts(config: Any) -> tuple[Any, ...]:
    """A configuration and those inside it, that of the text first."""
    inner = [part for part in vars(config).values() if hasattr(part, "model_type") and part is not config]
    inner.sort(key=lambda part: part is not getattr(config, "text_config", None))
    return (config, *(deeper for part in inner for deeper in parts(part)))


def _from_file(transformers: Any, path: str, sizes: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The configuration in a JSON file, with some sizes changed, and what the file holds."""
    place = shown(path)
    data = files.content(path, "configuration", _LARGEST)
    try:
        given = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = f"{place}: is no JSON configuration of transformers: give a model's config.json"
        raise FileError(text) from None
    _refuse_remote(given, place)
    given = {**_without_kernels(given), **sizes}
    _refuse_many(given, place)
    kind = given.get("model_type")
    classes = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if not isinstance(kind, str):
        raise FileError(f"{place}: states no model_type: give a model's config.json")
    if kind not in classes:
        lacks = f"transformers {transformers.__version__} has no model_type {shown(kind)}"
        raise ModelError(f"{place}: {lacks}: install one that has it")
    return classes[kind].from_dict(given), given


def _refuse_remote(given: Mapping[str, Any], place: str) -> None:
    for key in _REMOTE:
        if given.get(key):
            raise ModelError(
                f"{place}: asks for code from the network ({key}), which capture never runs: take {key} out, if "
                "transformers has the model_type itself"
            )


def _refuse_many(given: Mapping[str, Any], place: str) -> None:
    for key, value in given.items():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _refuse_many(part, place)
            elif isinstance(part, int) and part > _MOST_BUILT and _BUILT.search(str(key)):
                text = f"{place}: {shown(str(key))} is {part:,}: at most {_MOST_BUILT:,} can be built"
                raise ModelError(text)


def _without_kernels(given: Any) -> Any:
    """A configuration and those inside it, without keys that choose or fetch kernels, quantizers and weights."""
    if isinstance(given, list):
        return [_without_kernels(part) for part in given]
    if not isinstance(given, dict):
        return given
    dropped = ("quantization_config", "use_pretrained_backbone", "use_timm_backbone")
    kept = [key for key in given if not any(word in str(key) for word in _KERNELS) and key not in dropped]
    return {key: _without_kernels(given[key]) for key in kept}


def _from_class(transformers: Any, name: Name) -> tuple[Any, Any]:
    """The model's class and a configuration with the name's sizes. The name may be that of either class."""
    found: Any = getattr(transformers, name.target, None)
    configs, models = transformers.PretrainedConfig, transformers.PreTrainedModel
    is_class = isinstance(found, type)
    if not is_class or not issubclass(found, (configs, models)):
        names = [other for other in dir(transformers) if other.endswith(("Config", "LM", "Model"))]
        raise unknown(name, names)
    _refuse_remote(name.sizes, str(name))
    config_class = found if issubclass(found, configs) else found.config_class
    if config_class is None or not getattr(config_class, "model_type", ""):
        raise ModelError(f"{name}: describes no model by itself: name a class of one architecture")
    try:
        config = config_class(**_without_kernels(dict(name.sizes)))
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name}: {first_line(error)}") from None
    return (found if issubclass(found, models) else _likeliest_class(transformers, config, name)), config


def _likeliest_class(transformers: Any, config: Any, name: Name) -> Any:
    """The model class for a configuration, by transformers' own mappings: one with a head if there is one."""
    auto = transformers.models.auto.modeling_auto
    for kind in (*_MAPPINGS, None):
        mapping = getattr(auto, f"MODEL_FOR_{kind}_MAPPING" if kind else "MODEL_MAPPING", {})
        if kind == "SEQ_TO_SEQ_CAUSAL_LM" and not getattr(config, "is_encoder_decoder", False):
            continue
        if type(config) in mapping:
            found = mapping[type(config)]
            first = found[0] if isinstance(found, (list, tuple)) else found
            if isinstance(config, first.config_class or object):  # else it is for a part, such as the text
                return first
    kind = type(config).__name__.removesuffix("Config")
    named = [name for name in dir(transformers) if name.startswith(kind)]
    own = [other for other in named if "For" in other or other == f"{kind}Model"]
    advice = f"one of {', '.join(own[:4])}" if own else "a class of a model"
    text = f"{name}: transformers has no model for any use of {type(config).__name__}: name {advice}, as hf:CLASS(SIZE=N)"
    raise ModelError(text)


_FLOAT8 = torch.float8_e4m3fn
_OF_FLOAT8 = 16  # torch._scaled_mm wants rows and columns of a weight in multiples of it


class Float8Linear(nn.Module):  # type: ignore[misc]
    """An `nn.Linear` with a float8 weight and static scales: [..., in_features] -> [..., out_features] of the same type."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.to(_FLOAT8), requires_grad=False)
        self.bias = linear.bias
        for name in ("scale", "operand_scale"):
            self.register_buffer(name, torch.ones((), dtype=torch.float32, device=linear.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limit = torch.finfo(_FLOAT8).max
        rounded = (x / self.operand_scale.to(x.dtype)).clamp(-limit, limit).to(_FLOAT8)
        result = torch._scaled_mm(
            rounded.flatten(0, -2),
            self.weight.t(),
            scale_a=self.operand_scale,
            scale_b=self.scale,
            bias=self.bias,
            out_dtype=x.dtype,
        )
        return result.unflatten(0, x.shape[:-1])


def to_float8(model: nn.Module, whole: Collection[nn.Module | None]) -> int:
    """Give the linear layers of a model float8 weights, except those in `whole`; return how many were changed."""
    changed = 0
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if type(child) is not nn.Linear or child in whole:
                continue
            if child.in_features % _OF_FLOAT8 == 0 == child.out_features % _OF_FLOAT8:
                setattr(module, name, Float8Linear(child))
                changed += 1
    return changed


# Stored weights.

_LONGEST_HEADER = 2**27  # bytes of a header; that of the largest published checkpoint has 15 MB
_SAFETENSORS_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "U16": 16, "U32": 32, "U64": 64,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "C64": 64,
}  # fmt: skip
# ggml's types by number: name, elements of a block, bytes of a block (ggml.c, type_traits, as of 2025-10).
_GGML = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
_GGUF_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)  # bytes of a value by type; 8 is text, 9 an array
_TEXT, _ARRAY = 8, 9
_COMPUTED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def computed_in(stored: Mapping[str, int]) -> str:
    """The type of parameters of a model that is loaded from a file: the type with the most bytes in it.

    Integers, float8 and blocks become the 16-bit type of tensors beside them, else bfloat16, as transformers does it.
    """
    most = max(stored, key=stored.__getitem__, default="F32")
    half = {name: size for name, size in stored.items() if name in ("F16", "BF16")}
    return _COMPUTED.get(most) or _COMPUTED[max(half, key=half.__getitem__, default="BF16")]


def stored(path: str) -> Mapping[str, int]:
    """Bytes of stored tensors by the format's name of their type, from a file's header. Raises FileError for other files."""
    place = shown(path)
    try:
        with files.opened(path) as file:
            head = file.read(8)
            return _gguf(file) if head[:4] == b"GGUF" else _safetensors(file, head)
    except OSError as error:
        raise FileError(f"{place}: {error.strerror}") from None
    except (struct.error, ValueError, LookupError, OverflowError, RecursionError) as error:
        said, advice = shown(str(error), 100), "give a .safetensors or .gguf file"
        raise FileError(f"{place}: no header of weights that can be read ({said}): {advice}") from None


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _safetensors(file: IO[bytes], head: bytes) -> Counter[str]:
    (length,) = struct.unpack("<Q", head)
    entries = msgspec.json.decode(_exactly(file, length), type=dict[str, msgspec.Raw])
    entries.pop("__metadata__", None)
    found: Counter[str] = Counter()
    for raw in entries.values():
        tensor = msgspec.json.decode(raw, type=_Tensor)
        size = _elements(tensor.shape) * _SAFETENSORS_BITS[tensor.dtype] // 8
        begin, end = tensor.data_offsets
        if end - begin != size:
            raise ValueError(f"a tensor of {size:,} bytes in {end - begin:,}")
        found[tensor.dtype] += size
    return found


def _gguf(file: IO[bytes]) -> Counter[str]:
    tensors, keys = _numbers(file, "QQ")
    for _ in range(keys):
        _text(file)
        _skip(file, *_numbers(file, "I"))
    found: Counter[str] = Counter()
    for _ in range(tensors):
        _text(file)
        (rank,) = _numbers(file, "I")
        if rank > 8:
            raise ValueError(f"a tensor of {rank} axes")
        shape = _numbers(file, "Q" * rank)
        kind, _ = _numbers(file, "IQ")
        name, block, size = _GGML[kind]
        found[name] += -(-_elements(shape) // block) * size
    return found


def _skip(file: IO[bytes], kind: int) -> None:
    if kind == _TEXT:
        _text(file)
    elif kind == _ARRAY:
        inner, count = _numbers(file, "IQ")
        if inner in (_TEXT, _ARRAY):
            for _ in range(count):
                _skip(file, inner)
        else:
            file.seek(_GGUF_SIZES[inner] * count, 1)
    else:
        file.seek(_GGUF_SIZES[kind], 1)


def _text(file: IO[bytes]) -> None:
    (length,) = _numbers(file, "Q")
    _exactly(file, length)


def _numbers(file: IO[bytes], form: str) -> tuple[int, ...]:
    form = f"<{form}"
    return struct.unpack(form, _exactly(file, struct.calcsize(form)))


def _exactly(file: IO[bytes], length: int) -> bytes:
    if file.tell() + length > _LONGEST_HEADER:
        raise ValueError(f"it is longer than {_LONGEST_HEADER:,} bytes")
    data = file.read(length)
    if len(data) != length:
        raise ValueError("it ends early")
    return data


def _elements(shape: Sequence[int]) -> int:
    if any(size < 0 or size > 2**48 for size in shape):
        raise ValueError("a tensor of impossible sizes")
    return math.prod(shape)
