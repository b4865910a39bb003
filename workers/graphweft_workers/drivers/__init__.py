"""One folder per product: everything that knows its protocol, its URL, its query language and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from graphweft_contracts import InvalidSettings

if TYPE_CHECKING:
    from graphweft_workers.ports.dialect import GraphDialect
    from graphweft_workers.ports.driver import BusDriver, GraphDriver

__all__ = ("bus_driver", "bus_name", "dialects", "graph_driver", "graph_name")

_REFUSED: Final = ("redis+cluster", "rediss+cluster")
"""They are known, so that their refusal says what to use instead."""
_REDIS: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix", *_REFUSED)
_BUSES: Final[Mapping[str, str]] = {
    **dict.fromkeys(_REDIS, "redis"),
    "kafka": "kafka",
    "kafka+ssl": "kafka",
}
_GRAPHS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_REDIS, "falkordb"),
    **dict.fromkeys(("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc"), "neo4j"),
}
"""By the scheme of a URL: the folder of the driver."""


def bus_driver(url: str) -> BusDriver:
    """Return the driver for the URL of a bus. Raises ``InvalidSettings`` when there is none."""
    driver: BusDriver = _driver(url, "graphweft.buses", _BUSES)
    return driver


def graph_driver(url: str) -> GraphDriver:
    """Return the driver for the URL of a graph server. Raises ``InvalidSettings`` when there is none."""
    driver: GraphDriver = _driver(url, "graphweft.graphs", _GRAPHS)
    return driver


def bus_name(url: str) -> str:
    """Return the name of the product at the URL of a bus, in lower case."""
    return _name(url, _BUSES)


def graph_name(url: str) -> str:
    """Return the name of the product at the URL of a graph server, in lower case."""
    return _name(url, _GRAPHS)


def dialects() -> tuple[GraphDialect, ...]:
    """Return the dialects of the graph servers that graphweft comes with; no server's own library is imported."""
    from graphweft_workers.drivers.falkordb.dialect import FALKORDB
    from graphweft_workers.drivers.neo4j.dialect import NEO4J

    return FALKORDB, NEO4J


def _name(url: str, folders: Mapping[str, str]) -> str:
    scheme = url.partition("://")[0]
    return folders.get(scheme, scheme)


def _driver(url: str, group: str, folders: Mapping[str, str]) -> Any:
    scheme = url.partition("://")[0]
    if folder := folders.get(scheme):
        return import_module(f"{__name__}.{folder}.driver").DRIVER
    if found := entry_points(group=group, name=scheme):
        return next(iter(found)).load()
    schemes = (*folders, *sorted(entry_points(group=group).names - folders.keys()))
    known = ", ".join(f"{name}://" for name in schemes if name not in _REFUSED)
    raise InvalidSettings(f"no driver is installed for this URL; expected one that begins with {known}")
