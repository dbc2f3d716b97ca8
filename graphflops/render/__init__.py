"""Renders results: a function for each format and class, all pure, whose module is imported when it is used."""

from graphflops.render.formats import render

__all__ = ["render"]
