"""Kafka URLs: ``kafka://host:port``, ``kafka+ssl://user:password@one:9093,two:9093?sasl=PLAIN&ca=/etc/ca.pem``.

Several brokers are separated by commas. ``replication_factor`` and ``min_insync_replicas`` are for the topics that
graphweft makes, and ``client_rack`` names the rack from which a process reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from graphweft_contracts import InvalidSettings

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""Of SASL; the first one is the default."""
_HOST: Final = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_URL: Final = re.compile(
    r"kafka(?P<tls>\+ssl)?://(?:(?P<user>[^:@/?#\s]+):(?P<password>[^@/?#\s]*)@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)/?(?:\?(?P<query>[^#\s]*))?",
    re.ASCII,
)
_FILES: Final = frozenset({"ca", "cert", "key"})
_NUMBERS: Final = ("replication_factor", "min_insync_replicas")
_MOST_REPLICAS: Final = 32_767
"""Kafka's protocol has 16 bits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaUrl:
    """The parts of a URL, unquoted."""

    hosts: str
    """``host[:port]``, separated by commas."""
    tls: bool
    user: str = ""
    password: str = field(default="", repr=False)
    sasl: str = MECHANISMS[0]
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    replication_factor: int | None = None
    """Replicas of the topics that graphweft makes. None: three, or as many as there are brokers."""
    min_insync_replicas: int | None = None
    """How many of them must have a record before it is acknowledged. None: what the cluster says."""
    client_rack: str = ""
    """The rack of this process: brokers let it read from a replica there. Empty: from leaders."""


def split_kafka_url(url: str) -> KafkaUrl:
    """Read a URL. Raises ``InvalidSettings``, whose text does not quote it."""
    found = _URL.fullmatch(url)
    query = dict(parse_qsl(found["query"] or "", keep_blank_values=True)) if found else {}
    if found is None or query.keys() - {"sasl", "client_rack", *_FILES, *_NUMBERS}:
        raise InvalidSettings(
            "invalid Kafka URL: expected kafka://host:port or kafka+ssl://host:port, or several brokers: "
            "kafka://one:9092,[fd00::2]:9092; behind ? only sasl, ca, cert, key, replication_factor, "
            "min_insync_replicas and client_rack; in a password, write %40 for @, and escape other special "
            "characters likewise"
        )
    if not found["tls"] and query.keys() & _FILES:
        raise InvalidSettings("certificates need TLS: begin the Kafka URL with kafka+ssl://")
    if "sasl" in query and not found["user"]:
        raise InvalidSettings("SASL needs a user and a password: set GRAPHWEFT_BUS_USER and GRAPHWEFT_BUS_PASSWORD")
    sasl = query.get("sasl", MECHANISMS[0])
    if sasl not in MECHANISMS:
        raise InvalidSettings(f"invalid SASL mechanism: expected {', '.join(MECHANISMS)}")
    factor, insync = (_number(query, name) for name in _NUMBERS)
    if factor is not None and insync is not None and insync > factor:
        raise InvalidSettings(
            f"the Kafka URL has min_insync_replicas={insync} and replication_factor={factor}: no record could be "
            "acknowledged; give the smaller number for min_insync_replicas"
        )
    return KafkaUrl(
        hosts=found["hosts"],
        tls=bool(found["tls"]),
        user=unquote(found["user"] or ""),
        password=unquote(found["password"] or ""),
        sasl=sasl,
        ca=query.get("ca"),
        cert=query.get("cert"),
        key=query.get("key"),
        replication_factor=factor,
        min_insync_replicas=insync,
        client_rack=query.get("client_rack", ""),
    )


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_REPLICAS)) and int(text) > 0):
        raise InvalidSettings(f"the Kafka URL has an invalid {name}: expected a number from 1, such as {name}=2")
    return min(int(text), _MOST_REPLICAS)
