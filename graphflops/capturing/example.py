"""What is exported: a module with example inputs, and which of their axes stay open."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphflops.capturing.name import LIBRARIES, Name
from graphflops.errors import ModelError, OptionError, shown


@dataclass(frozen=True, slots=True)
class Example:
    """A module on the meta device with its inputs by name.

    open_axes: by position of a tensor among the leaves of `inputs`, by its axis: what the axis is called. results: of the
    inputs by name, what the module computes; None for what its own forward does.
    """

    module: Any
    inputs: Mapping[str, Any]
    open_axes: Mapping[int, Mapping[int, str]]
    results: Callable[[Mapping[str, Any]], Any] | None = None

    @contextmanager
    def ready(self) -> Iterator[Any]:
        """The module, whose forward takes exactly the inputs: modules and parameters keep the names of the library."""
        results = self.results
        if results is None:
            yield self.module
            return

        def forward(**given: Any) -> Any:
            return results(given)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        taken = [inspect.Parameter(name, kind) for name in self.inputs]
        forward.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        self.module.forward = forward
        try:
            yield self.module
        finally:
            del self.module.forward

    def dynamic_shapes(self) -> Any:
        """The open axes as `torch.export.export` takes them; axes of one name are one size."""
        import torch

        if not any(self.open_axes.values()):
            return None
        leaves, form = torch.utils._pytree.tree_flatten(dict(self.inputs))
        dims: dict[str, Any] = {}

        def dim(name: str) -> Any:
            return dims.setdefault(name, torch.export.Dim(name, min=2))

        shapes = [
            {axis: dim(name) for axis, name in self.open_axes.get(place, {}).items()}
            for place in range(len(leaves))
        ]
        return torch.utils._pytree.tree_unflatten(shapes, form)


def library(name: Name) -> Any:
    """The module of a library. Raises ModelError where it, or something that it needs, is not installed."""
    try:
        return importlib.import_module(LIBRARIES[name.library])
    except ImportError as error:
        problem = shown(str(error)) if error.name != LIBRARIES[name.library] else "it is not installed"
        advice = "pip install 'graphflops[capture]'"
        raise ModelError(f"{name}: needs {LIBRARIES[name.library]}: {problem}: {advice}") from None


def unknown(name: Name, there: Iterable[str]) -> ModelError:
    """The error for a model that a library does not have, with those that are called nearly so."""
    near = difflib.get_close_matches(name.target, [*there], 3)
    advice = f"; it has {', '.join(near)}" if near else ""
    return ModelError(f"{name}: {LIBRARIES[name.library]} has no model of that name{advice}")


def refuse_choices(name: Name, **given: object) -> None:
    """Raises OptionError for choices that a model does not have. given: by choice, its value unless it is the default."""
    for choice, value in given.items():
        if value:
            raise OptionError(f"{name}: has no {choice} to choose")
