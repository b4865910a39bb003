"""What a client reads from the environment, and nothing else does in this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from graphweft.location import DEFAULT_DATA, embedded_url

__all__ = ("ClientSettings",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where the bus is, on Redis or Kafka.

    ``GRAPHWEFT_BUS_URL`` wins; otherwise the embedded server of ``GRAPHWEFT_DATA`` is meant.
    """

    bus_url: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environment``, by default the process's own."""
        values = os.environ if environment is None else environment
        url = values.get("GRAPHWEFT_BUS_URL") or embedded_url(Path(values.get("GRAPHWEFT_DATA") or DEFAULT_DATA))
        return cls(bus_url=url)
