"""The rights that each role needs on the servers, as the servers' own commands."""

from __future__ import annotations

from typing import Literal

from graphweft_workers.drivers import rights

type RightsRole = Literal["tenant", "gateway", "responder", "worker"]


def commands(
    server: str, role: RightsRole, *, app_id: str | None, user: str, graph_template: str, own: int | None = None
) -> list[str]:
    """Return the commands that give a user the rights of a role on a kind of server. Raises ``InvalidSettings``.

    ``own`` is the partition of the tenant's app, if it shares none.
    """
    return rights.commands(server, role, app_id=app_id, user=user, graph_template=graph_template, own=own)
