"""Lowering: the kernels that PyTorch launches for a call, one file for each kind of operator."""
