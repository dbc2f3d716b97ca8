"""Rules that no default test runs, each with the reason.

A rule is named by its table (`rule` or `backward`) and the first of its operators: `"rule aten.mm": "why"`.
"""

NOT_RUN: dict[str, str] = {}
