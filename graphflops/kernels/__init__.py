"""Which kernels PyTorch's libraries launch for a call, and what these need: one answer for memory and time."""
