"""A report as text: one function for each format, all of them pure."""
