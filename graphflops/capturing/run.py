"""Captures a model of a library: name -> programs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import re
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from graphflops.capturing.name import LIBRARIES
from graphflops.capturing.offline import offline
from graphflops.errors import GraphflopsError, ModelError, innermost, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from graphflops.capturing.example import Example
    from graphflops.capturing.name import Name
    from graphflops.exporters.eager_record import Record
    from graphflops.graph import Graph

_FACTORY = "write a factory of the model and of inputs that it takes, PKG.MOD:FACTORY"
# What to do about an error, by what its type and message have; of an export, what the model was given is said too.
_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"operator torchvision::",
        "torch and torchvision are built for different devices: install both from one index",
    ),
    (
        r"ImportError|ModuleNotFoundError|requires? the .* library",
        "install what it names, or choose another model",
    ),
    (
        r"Constraints violated|specializ|Constraint|Not all values of",
        "an open axis is fixed by the model: take it out of --dynamic, or choose a larger size for it",
    ),
    (
        r"DataDependent|data.dependent|on meta tensors|aten::nonzero|_local_scalar_dense|Dynamic[A-Za-z]+Exception"
        r"|Cannot copy out of meta|Unbacked|expected to have data",
        "the model asks for numbers in its data, which an export does not have: capture a part of it by a factory, "
        "PKG.MOD:FACTORY, such as its decoder alone",
    ),
    (
        r"can only be called on Attention layers",
        "none of its layers is attention, whose cache says how long it is: choose more layers",
    ),
    (
        r"must be equal to the number of `layer_types`",
        "state layer_types for these layers, or leave out their number",
    ),
    (
        r"missing \d+ required|You (have to|must|need to|cannot) specify|(have|has|needs?) to be (passed|provided|given)"
        r"|(not enough|too many) values to unpack|(cannot be|not-|not) `?None|[Ee]ither `",
        f"it takes other inputs: {_FACTORY}",
    ),
    (
        r"config needs? to be|(needs? to|has to|have to|must) be (specified|set|defined)",
        "state that in the configuration: hf:CLASS(NAME=VALUE), or give the config.json of a trained model",
    ),
    (
        r"NoneType|Config' object has no attribute|not set|not a valid dtype",
        "the configuration leaves a size open, or an input is missing: state the size, give the config.json of a trained "
        f"model, or {_FACTORY}",
    ),
    (
        r"same device|DeviceMismatch",
        "the model makes tensors on the CPU, wherever it is itself: build it there in a factory, PKG.MOD:FACTORY",
    ),
    (
        r"size|shape|divisible|dimension|reduction dim|must (match|equal|be|index|contain)|within|broadcast"
        r"|out of range|doesn't match",
        "sizes do not go together: change --length, --image-size or the configuration, whose parts (text_config, "
        "vision_config) have sizes of their own",
    ),
)


class Captured(NamedTuple):
    """A program that torch exported. record: of an eager run of its module, where that runs without data."""

    program: Any
    record: Record | None

    def graph(self) -> Graph:
        """What is analyzed."""
        from graphflops.exporters.eager_record import with_record
        from graphflops.exporters.live import from_exported_program

        return with_record(from_exported_program(self.program), self.record)


def captured(name: Name, *, joint: bool = False, training: bool = False) -> dict[str, Captured]:
    """The programs of a model that a library has, by phase; one without phases is called `model`.

    Builds it on the meta device, without weights, from code of installed packages alone. joint: forward and backward in one.
    Raises ModelError, in one line, for what cannot be built or exported.
    """
    with offline(), silence():
        found = exports(name, joint=joint, training=training)
        return {phase: export() for phase, export in found.items()}


def exports(name: Name, *, joint: bool, training: bool) -> dict[str, Callable[[], Captured]]:
    """What exports each phase of a model. Raises ModelError for one that cannot be built."""
    if importlib.util.find_spec("torch") is None:
        raise ModelError(f"{name}: needs torch: pip install 'graphflops[capture]'")
    from graphflops.exporters import live

    examples = _said(name, "cannot be built", lambda: _examples(name, training=training or joint))
    found: dict[str, Callable[[], Captured]] = {}
    for phase, example in examples.items():
        problem = f"torch cannot export it ({phase}{_given(example)})"
        found[phase] = partial(_said, name, problem, _export(example, live.capture, joint=joint))
    return found


def _export(example: Example, capture: Callable[..., Any], *, joint: bool) -> Callable[[], Any]:
    """What exports an example. Conditions on strides hold for all sizes where torch cannot show it: they become checks."""

    def exported() -> Captured:
        from graphflops.capturing.eager import recorded

        shapes = example.dynamic_shapes()
        opened = shapes is not None
        with (
            example.ready() as module,
            _for_torch(module),
            _without_cache() if opened else contextlib.nullcontext(),
        ):
            export = partial(capture, module, (), example.inputs, joint=joint, runtime_asserts=opened)
            try:
                program = export(shapes)
            except Exception as error:
                if shapes is None or "Constraints violated" not in str(error):
                    raise
                program = export(_bounded(str(error), shapes))
            record = None if joint else recorded(module, ((), example.inputs), program)
            return Captured(program, record)

    return exported


def _without_cache() -> contextlib.AbstractContextManager[None]:
    """Lets torch compute each result of open sizes: its cache builds each once more to keep it, which takes longer."""
    import torch._dynamo.config

    found: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(
        fake_tensor_cache_enabled=False
    )
    return found


@contextlib.contextmanager
def _for_torch(module: Any) -> Iterator[None]:
    """Within it, a library's code runs as without an export where all it asks is whether there is one.

    It has calls for runtimes without an operator of torch's then, as substitution row by row for `solve_triangular`.
    """
    asked, asks_more = "is_torchdynamo_exporting", "is_torchdynamo_compiling"
    homes = {type(one).__module__ for one in module.modules()}
    with contextlib.ExitStack() as stack:
        for home in [sys.modules[name] for name in homes if name in sys.modules]:
            if hasattr(home, asked) and not hasattr(home, asks_more):
                stack.enter_context(mock.patch.object(home, asked, return_value=False))
        yield


def _bounded(said: str, shapes: Any) -> Any:
    """Open axes within the bounds that torch suggests; as they are where it suggests to fix one, which is refused then."""
    from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes as refined

    fixes = re.findall(r"^ *\w+ = .+$", said.partition("Suggested fixes:")[2], re.MULTILINE)
    if not fixes or any(re.fullmatch(r" *\w+ = \d+ *", fix) for fix in fixes):
        return shapes
    return refined("\n".join(["Suggested fixes:", *fixes]), shapes)


def _examples(name: Name, *, training: bool) -> Mapping[str, Example]:
    if name.library == "hf":
        from graphflops.capturing import transformers_models

        return transformers_models.examples(name, training=training)
    from graphflops.capturing import images

    return {"model": images.from_timm(name) if name.library == "timm" else images.from_torchvision(name)}


def _given(example: Example) -> str:
    """What a model is given: `, input_ids [1, 128]`; tensors of caches are many."""
    return "".join([f", {kind} {[*x.shape]}" for kind, x in example.inputs.items() if hasattr(x, "shape")])


def _said(name: Name, problem: str, function: Callable[[], Any]) -> Any:
    """What a function returns; an error of the library or of torch becomes one line that says what to change."""
    try:
        return function()
    except GraphflopsError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        line = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
        said = shown(f"{type(error).__name__}: {line}", 300)
        text = f"{type(error).__name__}: {error}"
        advice = next((advice for words, advice in _ADVICE if re.search(words, text)), "")
        advice = advice or f"{_FACTORY}, or try another version of {LIBRARIES[name.library]}"
        said = f"{said.rstrip('.')} ({innermost(error.__traceback__, LIBRARIES[name.library])})"
        raise ModelError(f"{name}: {problem}: {said}: {advice}") from error


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing that libraries log, warn or print reaches the user: what they say is raised too, and told in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(before)
