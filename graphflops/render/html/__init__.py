"""Reports, sweeps and comparisons as HTML files that open from disk."""
