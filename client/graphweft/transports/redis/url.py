"""Redis URLs of several servers: ``redis+sentinel://user:password@one:26379,two:26379/mymaster?wait_replicas=1``.

redis-py reads the URL of a single server. Both kinds of URL may have ``wait_replicas``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from graphweft_contracts import InvalidSettings

SENTINEL_PORT: Final = 26_379
_QUERY: Final = re.compile(r"([^?#]*)\?([^#]*)")
_SENTINEL: Final = re.compile(
    r"(?P<scheme>rediss?)\+sentinel://(?:(?P<login>[^@/?#]*)@)?(?P<hosts>[^@/?#\s]+)/(?P<service>[^/?#\s]+)"
    r"(?:/(?P<db>[0-9]+))?/?(?:\?(?P<query>[^#]*))?",
    re.ASCII,
)
_HOST: Final = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_WAIT: Final = "wait_replicas"
_LOGIN: Final[Mapping[str, str]] = {"sentinel_username": "username", "sentinel_password": "password"}
_MOST_REPLICAS: Final = 100
NO_CLUSTER: Final = (
    "graphweft does not run on a Redis Cluster, whose nodes refuse scripts and transactions over several of its keys. "
    "Use one Redis server with a replica behind Sentinel (redis+sentinel://host:26379/mymaster), or Kafka, for a bus "
    "on several servers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisUrl:
    """The parts of a URL."""

    server: str = field(repr=False)
    """As redis-py reads it. Behind Sentinel, its host is the name of the service, and means nothing."""
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    """The name under which Sentinel knows the servers."""
    sentinel_login: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    wait_replicas: int = 0
    """How many replicas must have an event before it is accepted, and before a worker applies it."""


def split_redis_url(url: str) -> RedisUrl:
    """Read a URL. Raises ``InvalidSettings``, whose text does not quote it."""
    scheme = url.partition("://")[0]
    if scheme.endswith("+cluster"):
        raise InvalidSettings(NO_CLUSTER)
    if scheme.endswith("+sentinel"):
        return _of_sentinel(url)
    found = _QUERY.fullmatch(url)
    if found is None or f"{_WAIT}=" not in found[2]:
        return RedisUrl(server=url)
    query, waits = _without_wait(found[2])
    return RedisUrl(server=f"{found[1]}{'?' * bool(query)}{query}", wait_replicas=waits)


def _of_sentinel(url: str) -> RedisUrl:
    found = _SENTINEL.fullmatch(url)
    hosts = [_HOST.fullmatch(each) for each in found["hosts"].split(",")] if found else [None]
    if found is None or None in hosts:
        raise InvalidSettings(
            "invalid URL of Redis Sentinel: expected redis+sentinel://[[user:]password@]host[:26379][,host…]/service"
            "[/db] or rediss+sentinel://…, such as redis+sentinel://one:26379,two:26379/mymaster; write %2F for / in a "
            "password, and the like"
        )
    query, waits = _without_wait(found["query"] or "")
    pairs = parse_qsl(query, keep_blank_values=True)
    login = {_LOGIN[name]: value for name, value in pairs if name in _LOGIN}
    rest = urlencode([pair for pair in pairs if pair[0] not in _LOGIN], quote_via=quote, safe="/")
    user = "" if found["login"] is None else f"{found['login']}@"
    path = f"/{found['db']}" if found["db"] else ""
    return RedisUrl(
        server=f"{found['scheme']}://{user}sentinel{path}{'?' * bool(rest)}{rest}",
        sentinels=tuple((each["host"].strip("[]"), int(each["port"] or SENTINEL_PORT)) for each in hosts if each),
        service=unquote(found["service"]),
        sentinel_login=login,
        wait_replicas=waits,
    )


def _without_wait(query: str) -> tuple[str, int]:
    """Return a query without ``wait_replicas``, and its value."""
    waits, rest = 0, list[str]()
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name != _WAIT:
            rest.append(part)
        elif value.isascii() and value.isdigit() and int(value) <= _MOST_REPLICAS:
            waits = int(value)
        else:
            raise InvalidSettings(
                f"the URL of a Redis server has an invalid {_WAIT}: expected a number, such as {_WAIT}=1"
            )
    return "&".join(part for part in rest if part), waits
