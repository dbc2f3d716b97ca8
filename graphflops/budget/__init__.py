"""Limits of what models may cost: read from TOML, checked against reports and against what was measured before."""
