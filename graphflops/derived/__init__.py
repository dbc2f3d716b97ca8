"""Figures that follow from a report: other sizes, several models, costs per item."""
