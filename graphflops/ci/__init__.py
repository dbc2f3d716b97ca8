"""What a job of continuous integration runs: changed models compared, budgets checked, results put where people look."""
