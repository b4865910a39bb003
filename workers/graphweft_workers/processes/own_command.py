"""How this program starts itself as a child process."""

from __future__ import annotations

import sys


def own_command(*words: str) -> tuple[str, ...]:
    """Return the ``graphweft`` command with these words, for the Python that runs now.

    Python does not look for modules in the working folder then: its files are data, and never code.
    """
    return (sys.executable, "-P", "-m", "graphweft_workers.cli", *words)
