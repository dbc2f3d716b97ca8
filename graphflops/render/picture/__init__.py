"""Graphs as pictures: positions in layers, a static SVG, and a page on which boxes open."""

from graphflops.render.picture.page import page
from graphflops.render.picture.svg import svg

__all__ = ["page", "svg"]
