"""The doctor's checks of what a stranger on the network could do: read along, or log in with a known password."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import unquote

from graphweft.transports.access import SECURE, secure
from graphweft_workers.ports.check import Check

_URL: Final = re.compile(r"([A-Za-z0-9+.-]+)://(?:([^/?#]*)@)?([^/?#]*)")
_ENCRYPTED: Final = frozenset({*SECURE.values(), "neo4j+ssc", "bolt+ssc"})
_PLAIN: Final = frozenset(SECURE)
_KNOWN: Final = frozenset({"", "neo4j", "password", "redis", "secret", "changeme", "admin", "falkordb", "test", "1234"})
"""Passwords of examples and of servers that nobody has set up."""
_OF_COMPOSE: Final = "only-on-this-machine"


def exposure(name: str, url: str) -> list[Check]:
    """Return the warnings about the address of a server; ``name`` is ``bus`` or ``graph``."""
    found = _URL.match(url)
    if found is None or found[1] not in _PLAIN | _ENCRYPTED:  # a socket, or a product of another package
        return []
    scheme, login, hosts = found[1], found[2] or "", found[3].split(",")
    user, _, password = (unquote(part) for part in login.partition(":"))
    far = sorted({host for each in hosts if not is_loopback(host := _host(each))})
    checks: list[Check] = []
    if far and scheme not in _ENCRYPTED:
        what = f"{scheme}:// sends everything in plain text to {', '.join(map(repr, far))}"
        advice = f"use TLS on the server, and {secure(scheme)}:// here: docs/security.md says how"
        checks.append(Check(name=f"{name} encryption", state="warn", found=what, advice=advice))
    if far and not password:
        what = "this process logs in without a password, so anybody who reaches the server may do so"
        advice = f"`graphweft acl` prints what makes a user on the server; then set GRAPHWEFT_{name.upper()}_USER"
        checks.append(Check(name=f"{name} login", state="warn", found=what, advice=advice))
    elif password and (password in _KNOWN or password in (user, _OF_COMPOSE)) and (far or password != _OF_COMPOSE):
        what = f"the password of the user {user or 'default'!r} is one that everybody knows"
        advice = f"give it another one on the server, and in GRAPHWEFT_{name.upper()}_PASSWORD_FILE"
        checks.append(Check(name=f"{name} login", state="fail" if far else "warn", found=what, advice=advice))
    return checks


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, whatever networks there are."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "localhost.localdomain")


def _host(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0]
