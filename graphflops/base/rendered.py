"""What results have in common: text for people, files by suffix, and what a notebook shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.base.lazy import imported

if TYPE_CHECKING:
    import os


class Rendered:
    """A result that the formats of `graphflops.render` write. Its type decides which formats there are."""

    __slots__ = ()

    def summary(self, **options: Any) -> str:
        """The text that the command line prints; options are those of its tables: `top=5`, `width=80`."""
        return str(imported("graphflops.render:render")(self._content(), "table", **options))

    def save(self, path: str | os.PathLike[str], form: str | None = None, **options: Any) -> None:
        """Writes a file, completely or not at all, in the format that its suffix stands for.

        form: the format, whatever the suffix: `json`, `csv`, `markdown`, `html`, `sarif`, `speedscope`, `dot`, `table`.
        options: those that the format takes. Raises OptionError for a suffix, a format or an option that does not exist.
        """
        imported("graphflops.render.formats:save")(self._content(), path, form, **options)

    def __repr__(self) -> str:
        return str(imported("graphflops.render.summary:brief")(self))

    def _repr_html_(self) -> str:
        """What a notebook shows: HTML without script, style or line breaks, which conversions of notebooks keep."""
        return str(imported("graphflops.render.html.fragment:notebook")(self._content()))

    def _repr_markdown_(self) -> str:
        return str(imported("graphflops.render:render")(self._content(), "markdown"))

    def _content(self) -> Any:
        return self
