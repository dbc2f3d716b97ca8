"""Graphs as pictures: positions in layers, a static SVG, and a page on which boxes open."""

from graphflops.render.picture.svg import page, svg

__all__ = ["page", "svg"]
