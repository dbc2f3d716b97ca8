"""Renders comparisons: one function for each format, all of them pure."""
