"""Kafka URLs: ``kafka://host:port``, ``kafka+ssl://user:password@one:9093,two:9093?sasl=PLAIN&ca=/etc/ca.pem``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from graphweft_contracts import InvalidSettings

MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""Of SASL; the first one is the default."""
_URL: Final = re.compile(
    r"kafka(?P<tls>\+ssl)?://(?:(?P<user>[^:@/?#\s]+):(?P<password>[^@/?#\s]*)@)?"
    r"(?P<hosts>[\w.-]+(?::[0-9]{1,5})?(?:,[\w.-]+(?::[0-9]{1,5})?)*)/?(?:\?(?P<query>[^#\s]*))?",
    re.ASCII,
)
_FILES: Final = frozenset({"ca", "cert", "key"})


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


def split_kafka_url(url: str) -> KafkaUrl:
    """Read a URL. Raises ``InvalidSettings``, whose text does not quote it."""
    found = _URL.fullmatch(url)
    query = dict(parse_qsl(found["query"] or "", keep_blank_values=True)) if found else {}
    if found is None or query.keys() - {"sasl", *_FILES}:
        raise InvalidSettings(
            "invalid Kafka URL: expected kafka://host:port or kafka+ssl://host:port, or several brokers: "
            "kafka://one:9092,two:9092; in a password, write %40 for @, and escape other special characters likewise"
        )
    if not found["tls"] and query.keys() & _FILES:
        raise InvalidSettings("certificates need TLS: begin the Kafka URL with kafka+ssl://")
    if "sasl" in query and not found["user"]:
        raise InvalidSettings("SASL needs a user and a password: set GRAPHWEFT_BUS_USER and GRAPHWEFT_BUS_PASSWORD")
    sasl = query.get("sasl", MECHANISMS[0])
    if sasl not in MECHANISMS:
        raise InvalidSettings(f"invalid SASL mechanism: expected {', '.join(MECHANISMS)}")
    return KafkaUrl(
        hosts=found["hosts"],
        tls=bool(found["tls"]),
        user=unquote(found["user"] or ""),
        password=unquote(found["password"] or ""),
        sasl=sasl,
        ca=query.get("ca"),
        cert=query.get("cert"),
        key=query.get("key"),
    )
