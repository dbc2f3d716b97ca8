"""Renders reports, comparisons, findings and lists: one function for each format and class, all of them pure.

Importing this is fast: the module of a format, and what it needs, is imported when the format is used.
"""

from graphflops.render.formats import render

__all__ = ["render"]
