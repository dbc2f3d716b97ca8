"""What every part uses: numbers as text, limits, files, names, and JSON of records."""
