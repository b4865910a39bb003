"""Lets ``python -m graphweft_workers.cli`` be the ``graphweft`` command, whichever environment runs it."""

from graphweft_workers.cli import main

if __name__ == "__main__":
    main()
