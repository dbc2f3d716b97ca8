"""Measures kernels on the device of this machine, from which times are then predicted."""
