"""Neo4j URLs with login and database: ``neo4j://user:password@host:7687/database``.

With ``{app_id}`` in the host or the database, each app has its own server or database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from graphweft.transports.access import tls_context
from graphweft_contracts import InvalidSettings

NEO4J_SCHEMES: Final = ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc")
APP: Final = "{app_id}"
_CA: Final = "ca="
_PASSWORD_FILE: Final = "password_file="
_URL: Final = re.compile(
    r"""
    (?P<scheme>[a-z0-9+]+)://
    (?:(?P<user>[^:@/?\#]*)(?::(?P<password>[^@/?\#]*))?@)?
    (?P<host>(?:[A-Za-z0-9._-]|\{app_id\})+ | \[[0-9A-Fa-f:.]+\])
    (?::(?P<port>[0-9]{1,5}))?
    (?:/(?P<database>(?:[A-Za-z0-9._-]|\{app_id\})*))?
    (?P<query>\?[A-Za-z0-9._~&=%/-]*)?
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neo4jUrl:
    """The parts of a URL, unquoted."""

    uri: str
    """For the driver: scheme, host, port and the routing context, without login and database."""
    user: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    """File of the password, which is read again when the server refuses it; empty: none."""
    database: str = ""
    ca: str = ""
    """File of the authorities that sign the server's certificate; empty: those of the system."""

    @property
    def one_server(self) -> bool:
        """Whether all apps go to the same server."""
        return APP not in self.uri


def split_neo4j_url(url: str) -> Neo4jUrl:
    """Read a URL. Raises ``InvalidSettings``, whose text does not quote it."""
    found = _URL.fullmatch(url)
    if found is None or found["scheme"] not in NEO4J_SCHEMES or not 0 <= int(found["port"] or 0) < 65_536:
        raise InvalidSettings(
            "invalid Neo4j URL: expected neo4j://[user:password@]host[:port][/database], neo4j+s://… or bolt://…; "
            "write %2F for / in a password, and the like"
        )
    port = f":{found['port']}" if found["port"] else ""
    parts = [part for part in (found["query"] or "?")[1:].split("&") if part]
    routing = [part for part in parts if not part.startswith((_CA, _PASSWORD_FILE))]
    ca, password_file = (
        unquote(next((part[len(name) :] for part in parts if part.startswith(name)), ""))
        for name in (_CA, _PASSWORD_FILE)
    )
    if ca and not found["scheme"].endswith("+s"):
        raise InvalidSettings("a file of authorities needs TLS: begin the Neo4j URL with neo4j+s:// or bolt+s://")
    query = f"?{'&'.join(routing)}" if routing else ""
    return Neo4jUrl(
        uri=f"{found['scheme']}://{found['host']}{port}{query}",
        ca=ca,
        user=unquote(found["user"] or ""),
        password=unquote(found["password"] or ""),
        password_file=password_file,
        database=found["database"] or "",
    )


def tls_options(url: Neo4jUrl, uri: str) -> tuple[str, dict[str, Any]]:
    """Return the URI of a server and the options for the driver. It takes an own authority only without ``+s``."""
    if not url.ca:
        return uri, {}
    return uri.replace("+s://", "://", 1), {"ssl_context": tls_context(url.ca, None, None)}


def join_neo4j_url(uri: str, *, user: str = "", password: str = "", password_file: str = "", database: str = "") -> str:
    """Return the four variables of Neo4j's tools as one URL. Raises ``InvalidSettings``.

    ``password_file`` is the file that ``password`` comes from, if any.
    """
    scheme, separator, rest = uri.partition("://")
    address, _, query = rest.rstrip("/").partition("?")
    login = f"{quote(user or 'neo4j', safe='')}:{quote(password, safe='')}@" if user or password else ""
    host = address.rpartition("@")[2]
    if login and host != address:
        raise InvalidSettings("NEO4J_URI contains a login, and NEO4J_USERNAME or NEO4J_PASSWORD is set too: keep one")
    path = f"/{database}" if database else ""
    if password_file:
        query = "&".join(filter(None, [query, f"{_PASSWORD_FILE}{quote(password_file, safe='/')}"]))
    url = f"{scheme}{separator}{login}{address}{path}{'?' * bool(query)}{query}"
    split_neo4j_url(url)
    return url
