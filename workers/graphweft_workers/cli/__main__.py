"""``python -m graphweft_workers.cli`` is the ``graphweft`` command of the running Python environment."""

from graphweft_workers.cli import main

if __name__ == "__main__":
    main()
