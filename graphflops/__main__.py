"""`python -m graphflops` is the command line."""

from graphflops.cli import main

if __name__ == "__main__":
    main()
