"""`python -m graphflops.rules` writes `ops/index.txt`: where each rule lives, so that only what is needed is imported."""

from graphflops.ops import index
from graphflops.rules.registry import index_text

if __name__ == "__main__":
    index.RULES.clear()  # the old index may be out of date and must not stop a rule from moving to another module
    index.BACKWARDS.clear()
    index.INDEX.write_text(index_text(), encoding="utf-8")
