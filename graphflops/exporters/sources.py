"""The module and source line of a call, from the module stack and stack trace that an export records."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^[ \t]*File "([^"\n]+)", line (\d+)', re.MULTILINE)
# Not the user's: torch (installed, or a checkout in a directory of its name), Python's library, generated.
_FOREIGN = re.compile(
    r"(?:^|(?:^|/)(?:site|dist)-packages/|/pytorch/)(?:torch|functorch)/"
    r"|(?:^|/)lib/python\d+\.\d+/(?!(?:site|dist)-packages/)"
    r"|^<(?:eval_with_key|string|frozen)"
)
_PACKAGES = ("site-packages/", "dist-packages/")
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")

_ROOT = re.compile(r"^L\['\w+'\]\.?")
_ITEM = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|(\d+))\]""")
_CALL_NUMBER = re.compile(r"@\d+(?=\.|$)")
_NO_STACK = "_empty_nn_module_stack_from_metadata_hook"
_EXPORT_ROOT = re.compile(r"^_export_root(?:\.|$)")


class Sources:
    """Reads stack traces and module stacks; each distinct text is read once.

    modules: type of every module read so far, by path.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self._lines: dict[str, str] = {"": ""}
        self._places: dict[str, tuple[str, str]] = {"": ("", "")}

    def line(self, trace: str) -> str:
        """The innermost line of the user's own code, `model.py:17`; "" where the trace names none.

        A path inside an installed package starts at the package; any other absolute path is cut to the file's name,
        because the directories of the exporting machine say nothing about the model.
        """
        known = self._lines.get(trace)
        if known is None:
            known = self._lines[trace] = _innermost(trace)
        return known

    def place(self, stack: str) -> tuple[str, str]:
        """Path and type of the innermost module of a stack: entries `key,path,type` separated by `;`."""
        known = self._places.get(stack)
        if known is None:
            known = self._places[stack] = self._innermost_module(stack)
        return known

    def _innermost_module(self, stack: str) -> tuple[str, str]:
        path = kind = ""
        for entry in stack.split(";"):
            _, _, described = entry.partition(",")
            recorded, _, recorded_type = described.rpartition(",")
            if _NO_STACK in recorded_type:
                continue
            path, kind = module_path(recorded), recorded_type
            self.modules.setdefault(path, kind)
        return path, kind


def module_path(recorded: str) -> str:
    """`blocks.0.fc` from any spelling: `L['self'].blocks[0].fc`, or `blocks.0.fc@1` for its second call."""
    path = recorded
    if "[" in path:
        path = _ITEM.sub(lambda item: f".{item[1] or item[2] or item[3] or ''}", _ROOT.sub("", path)).lstrip(
            "."
        )
    if "@" in path:
        path = _CALL_NUMBER.sub("", path)
    return _EXPORT_ROOT.sub("", path) if path.startswith("_export_root") else path


def _innermost(trace: str) -> str:
    for file, line in reversed(_FRAME.findall(trace)):
        path = file.replace("\\", "/")
        if _FOREIGN.search(path):
            continue
        path = _within_package(path)
        if _ABSOLUTE.match(path):
            path = path.rpartition("/")[2]
        return f"{path}:{line}"
    return ""


def _within_package(path: str) -> str:
    """The path from the installed package on; any other path as it is."""
    for folder in _PACKAGES:
        before, found, inner = path.rpartition(folder)
        if found and (not before or before.endswith("/")):
            path = inner
    return path
