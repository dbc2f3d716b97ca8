"""Measures the kernels that times are predicted from, on the device of this machine."""
