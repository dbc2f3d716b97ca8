"""Files changed at random, given to every command that reads files: none may fail otherwise than in one line, and soon.

    python -m tests.fuzz --seconds 3600 [--kind pt2] [--seed N] [--keep FOLDER]

`kinds.py` makes inputs, `mutate.py` changes them, `judge.py` tells what became of one. `corpus/` holds the
smallest file of each defect that was found; `test_fuzz.py` tries them, and a fixed number of new ones.
"""
