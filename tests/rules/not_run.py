"""Rules that no default test runs, each with the reason; a rule is named by its table and the first of its operators."""

_LATER_TORCH = "the torch that tests run with has no such operator"

NOT_RUN: dict[str, str] = {
    "backward aten.linalg_matrix_sqrth": _LATER_TORCH,
    "backward aten.linalg_polar": _LATER_TORCH,
}
