"""The rights that each role needs on the servers, as the server's own commands."""

from __future__ import annotations

from typing import Final, Literal

from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers.falkordb import rights as falkordb
from graphweft_workers.drivers.redis import rights as redis
from graphweft_workers.optional_dependencies import naming_extra

type Server = Literal["redis", "falkordb", "kafka"]
type RightsRole = Literal["tenant", "gateway", "responder", "worker"]

PASSWORD: Final = "PASSWORD"
"""Stands for the password in what is printed."""


def commands(server: Server, role: RightsRole, *, app_id: str | None, user: str, graph_template: str) -> list[str]:
    """Return the commands that give a user the rights of a role, and no other. Raises ``InvalidSettings``."""
    if (role == "tenant") != (app_id is not None):
        raise InvalidSettings("--app names the app of a tenant: give it with --role tenant, and only with it")
    match server:
        case "redis":
            rules = redis.rules_of(role, app_id)
        case "falkordb":
            if role in ("tenant", "gateway"):
                raise InvalidSettings(f"a {role} needs no rights on the graph server: it uses the bus only")
            rules = falkordb.rules_of(role, graph_template)
        case "kafka":
            with naming_extra("graphweft acl kafka", "aiokafka", "kafka"):
                from graphweft_workers.drivers.kafka import rights as kafka
            return kafka.commands(role, user, app_id)
    return [f"ACL SETUSER {user} reset on >{PASSWORD} {' '.join(rules)}"]
