"""Triton makes its own functions for its interpreter or for a GPU when it is first imported, by whichever test that is."""

import os
from pathlib import Path

if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
