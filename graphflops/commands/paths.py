"""Commands whose paths stand behind `--`, as git's do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.commands import options

if TYPE_CHECKING:
    import click

PATHS = "graphflops.paths"  # where the arguments behind `--` are kept


class PathsCommand(options.LimitedCommand):
    """A command that keeps the paths behind `--` apart; options there are options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the paths behind `--` apart."""
        if "--" in args:
            at = args.index("--")
            behind = args[at + 1 :]
            marked = [
                text if text.startswith("-") else f"{text}\0{index}" for index, text in enumerate(behind)
            ]
            found, _, _ = self.make_parser(ctx).parse_args(marked)
            # Click's mark for none.
            paths = found["sides"] if isinstance(found["sides"], (list, tuple)) else ()
            places = [int(text.rpartition("\0")[2]) for text in paths]
            ctx.meta[PATHS] = tuple(behind[place] for place in places)
            args = args[:at] + [text for index, text in enumerate(behind) if index not in places]
        return super().parse_args(ctx, args)
