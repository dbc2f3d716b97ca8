"""`python -m graphflops.rules` rewrites index.py, which says where each rule lives so that only what is needed is imported."""

from pathlib import Path

from graphflops.rules.registry import index_text

if __name__ == "__main__":
    Path(__file__).with_name("index.py").write_text(index_text(), encoding="utf-8")
