"""Tables of models for the oracle script: each module has `cases()`, and each case can build itself without any download."""
