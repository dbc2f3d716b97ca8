"""Kernels run in Triton's interpreter where there is no GPU; it must be asked for before they are defined."""

import importlib.util
import os

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_flex*.py"]
else:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
