"""Trees of modules by path; patterns of module paths, operators and files, whose matching takes at most quadratic time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

if TYPE_CHECKING:
    from typing_extensions import Self

_OUTERMOST = 100  # modules around one, whose paths together take quadratic memory
DEEPEST = 100  # components of a path in a tree; what goes on past them counts as the last one
Module = TypeVar("Module", bound="ModuleNode")


def modules_around(path: str) -> list[str]:
    """The paths of the modules around one, outermost first; for a path of absurd length, the outermost hundred."""
    parts = path.split(".", _OUTERMOST)
    return [".".join(parts[:end]) for end in range(1, len(parts))]


class ModuleNode(Struct, eq=False):
    """A module in a tree of modules."""

    name: str
    path: str
    parent: Self | None = None
    type: str = ""  # as the file records it
    parameters: int = 0  # elements that it holds itself
    children: dict[str, Self] = {}

    def walk(self) -> Iterator[Self]:
        """The module and all in it, one before those in it."""
        waiting = [self]
        while waiting:
            module = waiting.pop()
            yield module
            waiting += module.children.values()


def module_at(tree: dict[str, Module], path: str, types: Mapping[str, str]) -> Module:
    """The module at a path of a tree, made if it is missing. types: of modules, by path."""
    if path not in tree:
        module, so_far = tree[""], ""
        for name in path.split(".", DEEPEST - 1):
            so_far = f"{so_far}.{name}" if so_far else name
            if name not in module.children:
                module.children[name] = type(module)(name, so_far, module, types.get(so_far, ""))
            module = module.children[name]
        tree[path] = module
    return tree[path]


def is_within(path: str, module: str) -> bool:
    """Whether a path is that of the module or of one inside it; all are inside the model, ""."""
    return not module or path == module or path.startswith(f"{module}.")


def matches_module(pattern: str, path: str) -> bool:
    """Whether the pattern matches a module path: `*` matches one part between dots, `**` any number of parts."""
    return _meets(pattern.split("."), path.split("."), "**", _part)


def matches_file(pattern: str, path: str) -> bool:
    """Whether the pattern matches a path: `*` matches one part between slashes, `**` any number of parts."""
    return _meets(pattern.split("/"), path.split("/"), "**", _part)


def matches_op(pattern: str, op: str) -> bool:
    """True if the pattern matches an operator: `*` matches anything, `aten.add` all of its overloads and versions."""
    return _part(pattern, op) or op.startswith(f"{pattern}.")


def _part(pattern: str, text: str) -> bool:
    return _meets(pattern, text, "*", str.__eq__)


def _meets(
    pattern: Sequence[str], text: Sequence[str], any_number: str, equal: Callable[[str, str], bool]
) -> bool:
    """True if the sequence matches; on a mismatch only the last `any_number` is extended by one element."""
    at = start = kept = 0
    star = -1
    while start < len(text):
        if at < len(pattern) and pattern[at] == any_number:
            star, kept, at = at, start, at + 1
        elif at < len(pattern) and equal(pattern[at], text[start]):
            at, start = at + 1, start + 1
        elif star >= 0:
            kept += 1
            at, start = star + 1, kept
        else:
            return False
    return all(part == any_number for part in pattern[at:])
