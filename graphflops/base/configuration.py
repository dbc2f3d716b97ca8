"""Where the settings of a project are: graphflops.toml in the working folder, else in the nearest folder above it."""

from __future__ import annotations

import os

NAME = "graphflops.toml"


def nearest(name: str = NAME) -> str | None:
    """Path of the file of that name in this folder or in the nearest one above it; None where there is none."""
    folder = ""
    while True:
        path = os.path.join(folder, name)
        if os.path.exists(path) and not os.path.isdir(path):  # a pipe of that name is refused, not passed by
            return path
        if os.path.dirname(os.path.abspath(folder)) == os.path.abspath(folder):
            return None
        folder = os.path.join(folder, os.pardir)
