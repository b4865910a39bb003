"""Finds the transport for the URL of a bus, by the URL's scheme.

Another package adds a transport by an entry point in the group ``graphweft.transports``. Its name is the scheme. Its
value is a callable ``(url, *, new: Layout) -> Transport``, which connects nothing and raises ``InvalidSettings`` or
``ValueError`` for an invalid URL. One that signs takes ``signing_key: SigningKey | None`` too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from graphweft.transport import Transport
from graphweft_contracts import InvalidSettings, Layout
from graphweft_contracts.layout import NEW_LAYOUT
from graphweft_contracts.signatures import SigningKey

__all__ = ("make_transport",)

_GROUP: Final = "graphweft.transports"
_REDIS: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster", "unix")
_KAFKA: Final = ("kafka", "kafka+ssl")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def make_transport(url: str, *, new: Layout = NEW_LAYOUT, signing_key: SigningKey | None = None) -> Transport:
    """Return the transport to the bus at a URL; nothing is connected yet.

    ``new`` is the layout of a new bus. With ``signing_key`` it signs all events and requests. Raises
    ``InvalidSettings`` when no transport is installed for the scheme, and when the Python package that a transport
    needs is missing; this error names the extra to install. Raises ``InvalidSettings`` or ``ValueError`` for an invalid
    URL.
    """
    found = _SCHEME.match(url)
    scheme = found[1] if found else ""
    if scheme in _REDIS:
        from graphweft.transports.redis.transport import RedisTransport

        return RedisTransport(url, new=new, signing_key=signing_key)
    if scheme in _KAFKA:
        return _kafka_transport(url, new, signing_key)
    for entry in entry_points(group=_GROUP, name=scheme):
        make: Callable[..., Transport] = entry.load()
        return make(url, new=new) if signing_key is None else make(url, new=new, signing_key=signing_key)
    # The URL may hold a password, so the message shows its scheme at most.
    fault = f"no transport is installed for the scheme {scheme!r}" if scheme else "it has no scheme"
    raise InvalidSettings(f"invalid bus URL: {fault}; expected {_known_schemes()}")


def _kafka_transport(url: str, new: Layout, signing_key: SigningKey | None) -> Transport:
    try:
        from graphweft.transports.kafka.transport import KafkaTransport
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "aiokafka":
            raise
        raise InvalidSettings(
            "a bus on Kafka needs the Python package 'aiokafka', which is not installed: pip install 'graphweft[kafka]'"
        ) from error
    return KafkaTransport(url, new=new, signing_key=signing_key)


def _known_schemes() -> str:
    own = (*_REDIS, *_KAFKA)
    others = sorted(entry_points(group=_GROUP).names - set(own))
    *first, last = (f"{scheme}://…" for scheme in (*own, *others))
    return f"{', '.join(first)} or {last}"
