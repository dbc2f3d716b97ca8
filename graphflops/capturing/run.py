"""Captures a model of a library, off the network: name -> programs, one for each phase, stored by name in one `.pt2`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import multiprocessing
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from graphflops.capturing.name import LIBRARIES, Example, Name, from_timm, from_torchvision
from graphflops.errors import GraphflopsError, ModelError, innermost, said_by

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from graphflops.graph import EagerRun, Graph

_FACTORY = "write a factory of the model and of inputs that it takes, PKG.MOD:FACTORY"
_ADVICE = Path(__file__).with_name("advice.txt")  # on errors


class Captured(NamedTuple):
    """A program that torch exported. record: of an eager run of its module; None if the module needs data to run."""

    program: Any
    record: EagerRun | None

    def graph(self) -> Graph:
        from graphflops.exporters.live import from_exported_program
        from graphflops.exporters.pt2 import with_record

        return with_record(from_exported_program(self.program), self.record)


def captured(name: Name, *, joint: bool = False, training: bool = False) -> dict[str, Captured]:
    """The programs of a library's model by phase; `model` stands for that of a model without phases.

    The model is built on the meta device, by code of installed packages alone. joint: programs of forward and backward.
    Raises ModelError, in one line, for what cannot be built or exported.
    """
    with offline(), silence():
        found = exports(name, joint=joint, training=training)
        return {phase: export() for phase, export in found.items()}


def exports(name: Name, *, joint: bool, training: bool) -> dict[str, Callable[[], Captured]]:
    """By phase of a model, the function that exports it. Raises ModelError for a model that cannot be built."""
    if importlib.util.find_spec("torch") is None:
        raise ModelError(f"{name}: needs torch: pip install 'graphflops[capture]'")
    examples = _said(name, "cannot be built", lambda: _examples(name, training=training or joint))
    found: dict[str, Callable[[], Captured]] = {}
    for phase, example in examples.items():
        # The message names inputs that are tensors, but not the many tensors of a cache.
        given = [f", {kind} {[*x.shape]}" for kind, x in example.inputs.items() if hasattr(x, "shape")]
        problem = f"torch cannot export it ({phase}{''.join(given)})"
        found[phase] = partial(_said, name, problem, partial(_exported, example, joint=joint))
    return found


def _exported(example: Example, *, joint: bool) -> Captured:
    """Exports an example. If axes are open, conditions that torch cannot prove, on strides for example, become checks."""
    import torch._dynamo.config

    from graphflops.capturing.eager import recorded
    from graphflops.exporters.live import capture

    shapes = example.dynamic_shapes()
    opened = shapes is not None
    # With open sizes, torch's cache of fake results takes more time than it saves: it builds each again to keep it.
    cached = {} if shapes is None else {"fake_tensor_cache_enabled": False}
    with example.ready() as module, _for_torch(module), torch._dynamo.config.patch(cached):
        export = partial(capture, module, (), example.inputs, joint=joint, runtime_asserts=opened)
        try:
            program = export(shapes)
        except Exception as error:
            if shapes is None or "Constraints violated" not in str(error):
                raise
            # Export again with the bounds that torch suggests. If it suggests to fix an axis, that fails in the same way.
            suggested = str(error).partition("Suggested fixes:")[2]
            fixes = re.findall(r"^ *\w+ = .+$", suggested, re.MULTILINE)
            if fixes and not any(re.fullmatch(r" *\w+ = \d+ *", fix) for fix in fixes):
                from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes as refined

                shapes = refined("\n".join(["Suggested fixes:", *fixes]), shapes)
            program = export(shapes)
        return Captured(program, None if joint else recorded(module, ((), example.inputs), program))


@contextmanager
def _for_torch(module: Any) -> Iterator[None]:
    """Within this context, library code that asks only whether torch is exporting is told that it is not: it would make
    calls for other runtimes, such as a loop over rows in place of `solve_triangular`.
    """
    asked, asks_more = "is_torchdynamo_exporting", "is_torchdynamo_compiling"
    homes = {type(one).__module__ for one in module.modules()}
    with contextlib.ExitStack() as stack:
        for home in [sys.modules[name] for name in homes if name in sys.modules]:
            if hasattr(home, asked) and not hasattr(home, asks_more):
                stack.enter_context(mock.patch.object(home, asked, return_value=False))
        yield


def _examples(name: Name, *, training: bool) -> Mapping[str, Example]:
    if name.library == "hf":
        from graphflops.capturing import transformers_models

        return transformers_models.examples(name, training=training)
    return {"model": from_timm(name) if name.library == "timm" else from_torchvision(name)}


def _said(name: Name, problem: str, function: Callable[[], Any]) -> Any:
    """The result of a function. An error of the library or of torch becomes one line that says what to change."""
    try:
        return function()
    except GraphflopsError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        advice = f"{_FACTORY}, or try another version of {LIBRARIES[name.library]}"
        for entry in _ADVICE.read_text(encoding="utf-8").split("\n\n")[1:]:
            words, told = entry.splitlines()
            if re.search(words, text):
                advice = told.strip().replace("{factory}", _FACTORY)
                break
        said = f"{said_by(error).rstrip('.')} ({innermost(error.__traceback__, LIBRARIES[name.library])})"
        raise ModelError(f"{name}: {problem}: {said}: {advice}") from error


@contextmanager
def silence() -> Iterator[None]:
    """Within this context, the user sees nothing that libraries log, warn or print: errors that they log are raised too."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        printed = io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def capture_to(path: str, name: Name, *, joint: bool = False, training: bool = False) -> None:
    """Write the programs of a library's model to one `.pt2`, each exported in its own process. Raises ModelError."""
    with offline(), silence(), tempfile.TemporaryDirectory() as folder:
        found = exports(name, joint=joint, training=training)
        if len(found) == 1:
            save({phase: export() for phase, export in found.items()}, path)
            return
        parts = {phase: os.path.join(folder, f"{phase}.pt2") for phase in found}

        def save_one(phase: str) -> None:
            save({phase: found[phase]()}, parts[phase])

        at_once([partial(save_one, phase) for phase in found])
        join(parts, path)


def save(captured: Mapping[str, Captured], path: str) -> None:
    """Write programs by name, with the records of their eager runs. Raises ModelError if torch cannot save them."""
    import msgspec
    import torch

    from graphflops.exporters.pt2 import record_name

    records = {record_name(name): one.record for name, one in captured.items() if one.record is not None}
    beside = {name: msgspec.json.encode(record).decode() for name, record in records.items()}
    try:
        if [*captured] == ["model"]:
            torch.export.save(captured["model"].program, path, extra_files=beside)
            return
        try:
            from torch.export.pt2_archive._package import package_pt2
        except ImportError:
            text = f"torch {torch.__version__} writes one program a file: capture one --phase, or install torch 2.8"
            raise ModelError(text) from None
        programs = {name: one.program for name, one in captured.items()}
        package_pt2(path, exported_programs=programs, extra_files=beside)
    except (OSError, ModelError):
        raise
    except Exception as error:
        problem = f"torch cannot save it: {said_by(error)}"
        raise ModelError(f"{problem}; write its report instead: --output NAME.json") from error


def join(parts: Mapping[str, str], path: str) -> None:
    """Join files that `save` wrote for one phase each. parts: paths by phase."""
    from torch.export.pt2_archive._package import PT2ArchiveReader, PT2ArchiveWriter

    with PT2ArchiveWriter(path) as whole:
        for phase, part in parts.items():
            with PT2ArchiveReader(part) as own:
                for name in own.get_file_names():
                    folder, _, last = name.rpartition("/")
                    if not folder or folder == ".data":  # the description that each file has
                        continue
                    content = own.read_bytes(name)
                    if last.endswith("_config.json") and folder in _TENSORS:
                        # This member lists each tensor's file. Other phases have files of the same names.
                        config = json.loads(content)
                        for tensor in config["config"].values():
                            tensor["path_name"] += f"_{phase}"
                        content = json.dumps(config).encode()
                    elif folder in _TENSORS:
                        name = f"{name}_{phase}"
                    whole.write_bytes(name, content)


_TENSORS = ("data/weights", "data/constants")


_CALLS = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"})
_SETTINGS = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_state = {"hooked": False, "offline": False}


@contextmanager
def offline() -> Iterator[None]:
    """Within this context, this process opens no connection: an attempt raises ModelError."""
    os.environ.update(_SETTINGS)  # before the libraries are imported, which read them then

    def refuse(event: str, _: tuple[Any, ...]) -> None:
        if _state["offline"] and event in _CALLS:
            text = "the model wants to fetch something: capture reads no network; take that option out"
            raise ModelError(text)

    if not _state["hooked"]:
        sys.addaudithook(refuse)  # Python cannot remove it again
        _state["hooked"] = True
    before, _state["offline"] = _state["offline"], True
    try:
        yield
    finally:
        _state["offline"] = before


def at_once(functions: Sequence[Callable[[], None]]) -> None:
    """Run functions that leave their results in files: the first here, each other in a process, or all here in sequence if
    none can be forked. Raises the error of the first that fails; ModelError if a process is killed.
    """
    first, *others = functions
    # On macOS, system libraries start threads that a forked process lacks.
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        for function in functions:
            function()
        return
    context = multiprocessing.get_context("fork")
    started = []
    try:
        for function in others:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(function, sender))
            process.start()
            sender.close()  # so that the receiver sees the end when the process ends
            started.append((process, receiver))
        first()
        for _, receiver in started:
            try:
                error = receiver.recv()
            except EOFError:
                text = "a process that exports was killed: capture one --phase, which takes less memory"
                raise ModelError(text) from None
            if error is not None:
                raise error
    finally:
        for process, _ in started:
            process.terminate()
            process.join()


def _run(function: Callable[[], None], sender: Connection) -> None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 raised by the process that waits
        sender.send(error)
    else:
        sender.send(None)
