"""Functions and modules named by text, imported when they are first used."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


def imported(name: str) -> Any:
    """The object that `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


class LazyModule(ModuleType):
    """A module that is imported when anything of it is first asked for, and not by who names it at the top of a file."""

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(import_module(self.__name__), name)
        return found


if TYPE_CHECKING:
    import fractions as fractions

    import numpy as numpy
else:
    fractions, numpy = LazyModule("fractions"), LazyModule("numpy")
