"""Variables of Kubernetes and Docker for services whose names begin like our settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from graphweft.variables import PREFIX

_SERVICE_VALUES: Final = {
    r"SERVICE_HOST": r"[0-9A-Fa-f.:]+",
    r"SERVICE_PORT(_[A-Z0-9_]+)?": r"[0-9]+",
    r"PORT": r"(tcp|udp|sctp)://\S+:[0-9]+",
    r"PORT_[0-9]+_(TCP|UDP|SCTP)(_START|_END)?": r"(tcp|udp|sctp)://\S+:[0-9]+",
    r"PORT_[0-9]+_(TCP|UDP|SCTP)_PROTO": r"tcp|udp|sctp",
    r"PORT_[0-9]+_(TCP|UDP|SCTP)_PORT(_START|_END)?": r"[0-9]+",
    r"PORT_[0-9]+_(TCP|UDP|SCTP)_ADDR": r"[0-9A-Fa-f.:]+",
}
"""Suffixes that Kubernetes and Docker add to the name of a service, and the values they set."""
_SERVICE: Final = [
    (re.compile(rf"GRAPHWEFT(_[A-Z0-9_]+)?_{name}", re.ASCII), re.compile(value, re.ASCII))
    for name, value in _SERVICE_VALUES.items()
]
_LINK: Final = re.compile(r"(GRAPHWEFT(?:_[A-Z0-9_]+)?)_NAME", re.ASCII)


def service_variables(environment: Mapping[str, str]) -> set[str]:
    """Return the variables that Kubernetes and Docker set for services whose names begin like ours.

    Names alone would take settings for theirs, so the value has to be one that they give.
    """
    found = {
        name
        for name, value in environment.items()
        if name.startswith(PREFIX)
        and any(names.fullmatch(name) and values.fullmatch(value) for names, values in _SERVICE)
    }
    # A link tells the container's name, /consumer/alias, and all of its environment.
    links = {
        match[1]
        for name, value in environment.items()
        if (match := _LINK.fullmatch(name))
        and value.startswith("/")
        and value.rpartition("/")[2].replace("-", "_").upper() == match[1]
    }
    found |= {f"{link}_NAME" for link in links}
    return found | {name for name in environment if name.startswith(tuple(f"{link}_ENV_" for link in links))}
