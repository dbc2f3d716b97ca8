"""Budgets: limits on what models may cost, read from TOML and checked against reports and baselines."""
