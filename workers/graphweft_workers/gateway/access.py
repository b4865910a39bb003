"""What the token of a request may do. A refusal says which right is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from graphweft_contracts import Event
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.event_rights import ERASING_TYPES, INTERNAL_TYPES
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.tokens import AccessToken, Role, Tokens

type Fault = dict[str, str]
type MayUse = Callable[[str, str], bool]
"""Tells whether an app may use a workflow."""

OTHER_WORKFLOW: Final = (
    "the token may not use this workflow; nothing was taken. The operator can allow it in the file of tokens, or in "
    "the file of GRAPHWEFT_APPS"
)
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="graphweft"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRights:
    """The rights of one request: those of its token, within the policy of its app."""

    token: AccessToken
    app_may_use: MayUse

    @property
    def app_id(self) -> str:
        """The app of the token."""
        return self.token.app_id

    def require(self, *roles: Role) -> None:
        """Raise ``Problem`` unless the token has one of the roles."""
        if not self.token.has(*roles):
            raise _missing_role(*roles)

    def may_use(self, workflow: str | None) -> bool:
        """Return whether the token may name a workflow. None, no workflow, is always allowed."""
        if workflow is None:
            return True
        allowed = self.token.workflows
        return (allowed is None or workflow in allowed) and self.app_may_use(self.app_id, workflow)

    def other_workflow(self, workflow: str) -> str | None:
        """Return why the token itself may not name a workflow; None if its list has it. It shows nothing of others."""
        allowed = self.token.workflows
        if allowed is None or workflow in allowed:
            return None
        return (
            f"the token may not use the workflow {workflow!r}: its list `workflows` in the file of tokens is "
            f"{', '.join(sorted(allowed)) or 'empty'}. Name one of these, or ask the operator to add it there"
        )

    def check_events(self, events: Sequence[Event], place: Callable[[int, str], Fault]) -> None:
        """Raise ``Problem`` when the token may not publish all events. ``place`` maps number and attribute to a place.

        Nobody may publish what only workers emit, whatever the roles.
        """
        internal = [number for number, event in enumerate(events) if event.type in INTERNAL_TYPES]
        if internal:
            raise Problem(
                403,
                "internal-event",
                "events of this type hold answers of models and come from graphweft's workers only; nothing was taken",
                faults=[place(number, "type") | {"detail": "remove this event"} for number in internal],
            )
        for role in ("emit", "erase"):
            lacking = [
                number
                for number, event in enumerate(events)
                if (role == "erase") == (event.type in ERASING_TYPES) and not self.token.has(role)
            ]
            if lacking:
                said = {"detail": f"events of this type need the role {role}"}
                raise _missing_role(role, faults=[place(number, "type") | said for number in lacking])
        others = [number for number, event in enumerate(events) if not self.may_use(event.workflow)]
        if others:
            raise Problem(
                403,
                "other-workflow",
                OTHER_WORKFLOW,
                faults=[place(number, "workflow") | {"detail": "name a workflow of the token"} for number in others],
            )


def find_access(
    tokens: Tokens, request: Request, app_may_use: MayUse, found: Callable[[AccessToken], None] = lambda _: None
) -> RequestRights:
    """Return the access of the token in a request's ``Authorization`` header. Raises ``Problem`` without a valid one.

    ``found`` gets the entry of the token, also of one that has expired. A request with two headers is refused: a proxy
    may have checked the other one.
    """
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise Problem(400, "repeated-header", "send one Authorization header; nothing was taken")
    header = headers[0] if headers else ""
    scheme, _, presented = header.partition(" ")
    token = tokens.find(presented.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise Problem(
            401,
            "no-token",
            "send the header `Authorization: Bearer TOKEN`; `graphweft token new --app APP` makes a token",
            headers=_CHALLENGE,
        )
    found(token)
    if token.has_expired(SYSTEM_CLOCK.now()):
        assert token.expires is not None
        raise Problem(
            401,
            "token-expired",
            f"the token expired at {token.expires:%Y-%m-%dT%H:%M:%SZ}; `graphweft token new --app APP` makes a new one",
            headers=_CHALLENGE | {"WWW-Authenticate": 'Bearer realm="graphweft", error="invalid_token"'},
        )
    return RequestRights(token=token, app_may_use=app_may_use)


def _missing_role(*roles: Role, faults: Sequence[Fault] = ()) -> Problem:
    needed = " or ".join(roles)
    return Problem(
        403,
        "missing-role",
        f"the token lacks the role {needed}; nothing was taken. `graphweft token new --app APP --role {roles[0]}` "
        "makes a token with it",
        faults=faults,
        roles=list(roles),
    )
