"""Files changed at random, given to every command that reads files: none may fail otherwise than in one line, and soon.

    python -m tests.fuzz --seconds 3600 [--kind pt2] [--seed N] [--keep FOLDER]

`kinds.py` makes inputs, from `mutate.py` and `documents.py`, which change files, and `programs.py`, which makes programs of
any operators; `judge.py` tells what became of one; `workers.py` tries them in processes. `corpus/` holds the smallest file
of each defect that was found; `test_fuzz.py` tries them, and a fixed number of new ones. `python -m tests.fuzz.runs` runs
single calls with wrong operands as `validate` does.
"""
