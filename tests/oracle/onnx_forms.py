"""The forms in which a module reaches an ONNX file: two exporters, and what onnxruntime and transformers make of their files."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime
import torch

from tests.oracle.models import OutOfTimeError
from tests.torch_tables import onnx_export

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np

Arrays = dict[str, "np.ndarray"]


@dataclass(frozen=True)
class Form:
    """One model in one form: `model`, or why there is none. `family` is what the summary counts it under."""

    family: str
    model: onnx.ModelProto | Exception


def dynamo(program: torch.export.ExportedProgram, names: Sequence[str]) -> onnx.ModelProto:
    """By the exporter that starts from an exported program."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        made = onnx_export(program, dynamo=True, input_names=list(names), verbose=False)
    assert made is not None
    model: onnx.ModelProto = made.model_proto
    return model


def torchscript(
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    names: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
) -> onnx.ModelProto:
    """By the exporter that starts from a trace."""
    file = io.BytesIO()
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            inputs,
            file,
            dynamo=False,
            input_names=list(names),
            dynamic_axes={name: dict(open_) for name, open_ in axes.items()},
            opset_version=18,
        )
    return onnx.load_from_string(file.getvalue())


@dataclass(frozen=True)
class Source:
    """What tools start from: an exported file, a folder to work in, inputs to calibrate with, the kind of the model.

    model, given: the module itself and its inputs by name, for tools that export by themselves; None where it has no names.
    """

    path: str
    folder: str
    samples: Arrays
    kind: str
    model: Any = None
    given: Mapping[str, Any] | None = None


def made_of(source: Source, families: Sequence[str]) -> Iterator[Form]:
    """The fused and quantised forms of an exported file."""
    for family in families:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            try:
                made: onnx.ModelProto | Exception = MAKERS[family](source)
            except OutOfTimeError:
                raise
            except Exception as error:
                made = error
        yield Form(family, made)


def fused(source: Source) -> onnx.ModelProto:
    """By onnxruntime's fusions for a kind of transformer."""
    from onnxruntime.transformers import optimizer

    made = optimizer.optimize_model(source.path, model_type=source.kind, num_heads=0, hidden_size=0)
    model: onnx.ModelProto = made.model
    return model


def dumped(source: Source, level: str = "EXTENDED") -> onnx.ModelProto:
    """As a session of onnxruntime rewrites it before it runs."""
    out = os.path.join(source.folder, f"dumped_{level}.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = out
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    onnxruntime.InferenceSession(source.path, options, providers=["CPUExecutionProvider"])
    return onnx.load(out)


def quantised_dynamically(source: Source) -> onnx.ModelProto:
    """Weights as 8-bit integers, activations while it runs."""
    from onnxruntime.quantization import quantize_dynamic

    out = os.path.join(source.folder, "dynamic.onnx")
    quantize_dynamic(source.path, out)
    return onnx.load(out)


def quantised(source: Source, form: str) -> onnx.ModelProto:
    """Weights and activations by calibration."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter([source.samples])

        def get_next(self) -> Arrays | None:
            return next(self.left, None)

    out = os.path.join(source.folder, f"{form}.onnx")
    quantize_static(source.path, out, Reader(), quant_format=QuantFormat[form])
    return onnx.load(out)


def in_blocks(source: Source) -> onnx.ModelProto:
    """Weights of products as blocks of 4-bit integers."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source.path), bits=4, block_size=16)
    quantizer.process()
    model: onnx.ModelProto = quantizer.model.model
    return model


def of_transformers(source: Source, fusions: str) -> onnx.ModelProto:
    """By the exporter of transformers, fused for a provider of onnxruntime."""
    import onnx_ir
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    if source.given is None:
        raise ValueError("it is no model of transformers")
    config = OnnxConfig(dynamic=True, ort_fusions=fusions)
    made = OnnxExporter().export(source.model, dict(source.given), config=config).program
    model: onnx.ModelProto = onnx_ir.serde.serialize_model(made)
    renamed = dict(zip([entry.name for entry in model.graph.input], source.samples, strict=True))
    for entry in model.graph.input:
        entry.name = renamed[entry.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    return model


MAKERS: dict[str, Callable[[Source], onnx.ModelProto]] = {
    "ort optimizer": fused,
    "ort level 2": dumped,
    "ort level 99": partial(dumped, level="ALL"),  # with the layouts of this machine's kernels
    "dynamic int8": quantised_dynamically,
    "static QDQ": partial(quantised, form="QDQ"),
    "static QOperator": partial(quantised, form="QOperator"),
    "MatMulNBits": in_blocks,
    "transformers cpu": partial(of_transformers, fusions="cpu"),
    "transformers cuda": partial(of_transformers, fusions="cuda"),
}
