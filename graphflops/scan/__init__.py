"""Prices every model of a fleet: one row for each file and binding, in a Parquet table that is appended to in parts."""
