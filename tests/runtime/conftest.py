"""Kernels run in Triton's interpreter where there is no GPU (see tests/conftest.py), and without Triton not at all."""

import importlib.util

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_flex*.py"]
