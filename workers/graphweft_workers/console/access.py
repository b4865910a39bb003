"""Who looks: the app or apps that a token may see, and whether it may change anything. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import DeadLetter
from graphweft_workers.gateway.access import MayUse
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.tokens import AccessToken

_HOST: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[^:\[\]/@\s]{1,253}))(?::[0-9]{1,5})?", re.ASCII
)
_EVERY: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The rights of one request."""

    token: AccessToken
    may_write: bool
    """Whether the console writes at all, and the token may."""
    may_use: MayUse

    @property
    def all_apps(self) -> bool:
        """Whether it sees all apps."""
        return self.token.is_operator

    @property
    def scope(self) -> str:
        """Who shares the limits of this viewer."""
        return _EVERY if self.all_apps else self.token.app_id

    def app(self, asked: str | None) -> str:
        """Return the app of a question. Raises ``Problem`` for another app's, and for none where all are visible."""
        if not self.all_apps:
            if asked not in (None, self.token.app_id):
                raise Problem(403, "other-app", "the token belongs to another app")
            return self.token.app_id
        if asked is None:
            raise Problem(422, "no-app", "choose an app first")
        return asked

    def apps(self, asked: str | None) -> str | None:
        """Return the app whose data may be shown; None for all."""
        return asked if asked is None and self.all_apps else self.app(asked)

    def uses(self, app_id: str, workflow: str) -> bool:
        """Return whether it may see the rules of a workflow for an app."""
        own = self.token.workflows
        return self.all_apps or ((own is None or workflow in own) and self.may_use(app_id, workflow))

    def sees(self, letter: DeadLetter) -> bool:
        """Return whether it may see the rule and the message of a dead letter."""
        app_id, workflow = letter.app_id, letter.workflow
        return self.all_apps or app_id is None or workflow is None or self.uses(app_id, workflow)

    def require_write(self) -> None:
        """Raise ``Problem`` unless this request may change something."""
        if not self.may_write:
            raise Problem(
                403,
                "read-only",
                "the console is read-only for this token: set GRAPHWEFT_CONSOLE_WRITE=true, and use a token with the "
                "role admin; the command line does the same with `graphweft dlq`",
            )


def check_viewer(token: AccessToken) -> None:
    """Raise ``Problem`` unless a token may look at the console."""
    if not token.is_operator and not token.has("read"):
        raise Problem(403, "missing-role", "the token lacks the role read; `graphweft token new --role read` makes one")


def check_host(host: str, names: Collection[str]) -> None:
    """Raise ``Problem`` unless a request names this machine: by ``localhost``, an IP address, or one of ``names``.

    A page of another site can make its own name point to this machine, but not send another name.
    """
    match = _HOST.fullmatch(host)
    name = "" if match is None else (match["six"] or match["name"]).lower().rstrip(".")
    if name == "localhost" or name in names or _is_address(name):
        return
    raise Problem(
        421,
        "other-host",
        "the console answers to localhost and IP addresses only; add the name to GRAPHWEFT_CONSOLE_HOSTS",
    )


def check_origin(origin: str | None, site: str | None, host: str) -> None:
    """Raise ``Problem`` for a request that a page of another site sends."""
    same = origin is None or origin.partition("://")[2].lower() == host.lower()
    if not same or site not in (None, "same-origin", "none"):
        raise Problem(403, "other-site", "the request comes from a page of another site")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
