"""Graphs as pictures: positions in layers, a static SVG, and a page on which boxes open."""
