"""The memory that a program needs on a GPU when Python runs it: what lives how long, and what kernels need beside it."""
