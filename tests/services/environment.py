"""The environment of processes that tests start."""

from __future__ import annotations

import os

__all__ = ("clean_environment",)


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without settings of graphweft and Neo4j, and ``more``."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GRAPHWEFT_", "NEO4J_"))} | more
