"""The rights that each role needs on the servers, as the servers' own commands."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from graphweft_contracts import InvalidSettings
from graphweft_workers.support.optional_dependencies import naming_extra

SERVERS: Final = ("redis", "kafka", "falkordb")
PASSWORD: Final = "PASSWORD"
"""Stands for the password in what is printed."""


def commands(
    server: str, role: str, *, app_id: str | None, user: str, graph_template: str, own: int | None = None
) -> list[str]:
    """Return the commands that give a user the rights of a role, and no other. Raises ``InvalidSettings``.

    ``own`` is the partition of the tenant's app, if it shares none.
    """
    if server not in SERVERS:
        raise InvalidSettings(f"unknown kind of server {server!r}: expected {', '.join(SERVERS)}")
    if (role == "tenant") != (app_id is not None):
        raise InvalidSettings("--app names the app of a tenant: give it with --role tenant, and only with it")
    if own is not None and (server != "redis" or app_id is None):
        raise InvalidSettings("--partition names the own partition of a tenant's app on Redis: give it with --app only")
    if server == "kafka":
        with naming_extra("graphweft acl kafka", "kafka", "aiokafka"):
            found: list[str] = import_module("graphweft_workers.drivers.kafka.rights").commands(role, user, app_id)
        return found
    if server == "redis":
        rules = import_module("graphweft_workers.drivers.redis.rights").rules_of(role, app_id, own)
    elif role in ("tenant", "gateway"):
        raise InvalidSettings(f"a {role} needs no rights on the graph server: it uses the bus only")
    else:
        rules = import_module("graphweft_workers.drivers.falkordb.rights").rules_of(role, graph_template)
    return [f"ACL SETUSER {user} reset on >{PASSWORD} {' '.join(rules)}"]
