"""The environment variables of graphweft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "GRAPHWEFT_"
"""Begins the names of all of them."""


def by_upper_name(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with our prefix by their names in upper case, whose values come first."""
    ours = [name for name in values if name.upper().startswith(PREFIX)]
    return {name.upper(): values[name] for name in sorted(ours, key=lambda name: (name.isupper(), name))}
