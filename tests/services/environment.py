"""The environment of processes that tests start."""

from __future__ import annotations

import os
from typing import Final

__all__ = ("PEAK_KB", "clean_environment")

PEAK_KB: Final = "next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]"
"""Python that gives the most memory of its process, in kB. ``ru_maxrss`` counts the process that started it, too."""


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without settings of graphweft and Neo4j, and ``more``."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GRAPHWEFT_", "NEO4J_"))} | more
