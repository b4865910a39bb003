"""What a client reads from the environment, and nothing else does in this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from graphweft.location import DEFAULT_DATA, embedded_url
from graphweft_contracts import InvalidSettings

__all__ = ("CAPTURE_VARIABLE", "CONTEXT_VARIABLE", "ClientSettings", "graphrag_enabled")

CONTEXT_VARIABLE: Final = "GRAPHWEFT_CONTEXT"
CAPTURE_VARIABLE: Final = "GRAPHWEFT_CAPTURE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where the bus is, on Redis or Kafka, and whether context is asked for at all.

    ``GRAPHWEFT_BUS_URL`` wins; otherwise the embedded server of ``GRAPHWEFT_DATA`` is meant. ``GRAPHWEFT_CONTEXT`` is
    ``on``, as without it, or ``off``; so is ``GRAPHWEFT_CAPTURE``, which says whether adapters publish events.
    """

    bus_url: str
    context: bool = True
    capture: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the settings from ``environment``, by default the process's own. Raises ``InvalidSettings``."""
        values = os.environ if environment is None else environment
        url = values.get("GRAPHWEFT_BUS_URL") or embedded_url(Path(values.get("GRAPHWEFT_DATA") or DEFAULT_DATA))
        return cls(bus_url=url, context=_switch(values, CONTEXT_VARIABLE), capture=_switch(values, CAPTURE_VARIABLE))


def graphrag_enabled(environment: Mapping[str, str] | None = None) -> bool:
    """Return whether ``GRAPHRAG_ENABLED`` or, where it is not set, ``GRAPH_RAG_ENABLED`` switches facts of a graph on.

    Anything but ``true``, ``1``, ``yes`` and ``on`` is off: a runtime must not connect to anybody by mistake.
    """
    values = os.environ if environment is None else environment
    value = values.get("GRAPHRAG_ENABLED") or values.get("GRAPH_RAG_ENABLED") or ""
    return value.strip().lower() in {"true", "1", "yes", "on"}


def _switch(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name) or "on"
    if value.lower() not in {"on", "off"}:
        raise InvalidSettings(f"{name}={value!r}: write on or off")
    return value.lower() == "on"
