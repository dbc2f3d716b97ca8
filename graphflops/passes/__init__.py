"""The analysis, pass by pass: bind -> price -> attention -> memory -> report. `graphflops.analysis` calls them in order."""
