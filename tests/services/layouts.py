"""Layouts of buses in tests."""

from __future__ import annotations

import json
from typing import Any

import redis.asyncio as redis

from graphweft import Client
from graphweft.transports.registry import make_transport
from graphweft_contracts import Layout, channels, wire


def spread(partitions: int) -> Layout:
    """Return the layout that spreads the chats of each app, so that several partitions write one graph."""
    return Layout(partitions=partitions, order="chat")


def spreading(url: str) -> Client:
    """Return a client that makes a new bus with two partitions, over which chats are spread.

    A bus that a client makes otherwise has 64, and each app has one of them: a worker takes its time to open so many,
    and one alone writes to a graph.
    """
    return Client(transport=make_transport(url, new=spread(2)))


async def events_on_bus(url: str, app_id: str | None = None) -> list[dict[str, Any]]:
    """Return the structured events of an app, or of all, on a Redis bus, of each partition in order."""
    async with redis.Redis.from_url(url) as raw:
        streams = sorted(await raw.keys(f"{channels.EVENTS}:*"))
        read: Any = raw.xrange
        entries: list[dict[bytes, bytes]] = [fields for stream in streams for _, fields in await read(stream)]
    events = [json.loads(fields[wire.DATA]) for fields in entries if wire.DATA in fields]
    return [event for event in events if app_id in (None, event["appid"])]
