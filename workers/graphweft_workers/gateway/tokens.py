"""Bearer tokens, each for one app. The file holds only hashes, so it cannot be used to send requests.

A token has 256 random bits and cannot be guessed, so a plain SHA-256 is as safe as a slow hash.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import AppId, Name
from graphweft_contracts.moments import Moment
from graphweft_workers.text.yaml_model import place_in, read_model

Role = Literal["emit", "read", "erase", "admin", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""What a token may do: publish events; get context and search; publish events that erase; all of these. An operator
sees all apps in the console; for the gateway the role means nothing."""
DEFAULT_ROLES: Final[frozenset[Role]] = frozenset({"emit", "read", "erase"})
"""The roles of a runtime that may erase. An entry of a file names its roles: one that is cut off has none."""
_PREFIX: Final = "gw_"
"""Lets people and scanners for leaked secrets recognise a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """The app, the rights and the hash of a token. The token itself is not stored."""

    app_id: str
    name: str
    sha256: bytes
    roles: frozenset[Role] = DEFAULT_ROLES
    workflows: frozenset[str] | None = None
    """Workflows that it may name; None: those of its app."""
    expires: datetime | None = None

    def has(self, *roles: Role) -> bool:
        """Return whether the token has one of the roles."""
        return "admin" in self.roles or not self.roles.isdisjoint(roles)

    def has_expired(self, now: datetime) -> bool:
        """Return whether it has ended."""
        return self.expires is not None and self.expires <= now

    @property
    def is_operator(self) -> bool:
        """Whether it sees all apps in the console; ``admin`` does not mean that."""
        return "operator" in self.roles


class Tokens:
    """The tokens that a gateway accepts."""

    def __init__(self, tokens: Sequence[AccessToken]) -> None:
        self.all = tuple(tokens)
        """In the order of the file."""
        self._by_hash = {token.sha256: token for token in tokens}

    def find(self, presented: str) -> AccessToken | None:
        """Return the entry of a token, expired or not, or None.

        The time says nothing about the tokens: what is looked up is a hash, which nobody can choose.
        """
        return self._by_hash.get(hashlib.sha256(presented.encode(errors="replace")).digest())


NO_TOKENS: Final = Tokens([])
"""Of a file that is gone or empty: whoever removed it may have wanted to revoke all of them."""


def new_token() -> str:
    """Return a new token. A header and a shell take its characters without escaping."""
    return _PREFIX + secrets.token_urlsafe(32)


def sha256_of(token: str) -> str:
    """Return the hash of a token for the file."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path, setting: str = "gateway_tokens") -> Tokens:
    """Read ``tokens: [{sha256: …, app_id: …, name: …, roles: […], …}]``. Raises ``InvalidSettings`` with each fault.

    An empty list is valid: no token is. ``setting`` names the file, for errors.
    """
    entries = read_model(path, _File, setting=setting, form=_FORM, holds_secrets=True).tokens
    digests = [entry.sha256.lower() for entry in entries]
    if twice := next((number for number, digest in enumerate(digests) if digest in digests[:number]), None):
        place = place_in(path, "tokens", twice)
        raise InvalidSettings(f"{setting}: {place}: tokens.{twice}: duplicate of an earlier token: remove one")
    return Tokens([entry.token for entry in entries])


_FORM: Final = (
    f"each token is {{sha256: 64 hexadecimal digits, app_id: APP, name: TEXT, roles: [{', '.join(ROLES)}], "
    "workflows: [NAME, …], expires: TIME}; sha256, app_id and roles are required. "
    "`graphweft token new --app APP` writes one"
)


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, StringConstraints(pattern="^[0-9A-Fa-f]{64}$")]
    app_id: AppId
    name: str = ""
    roles: Annotated[frozenset[Role], Field(min_length=1)]
    workflows: frozenset[Name] | None = None
    expires: Moment | None = None

    @property
    def token(self) -> AccessToken:
        return AccessToken(
            app_id=self.app_id,
            name=self.name,
            sha256=bytes.fromhex(self.sha256),
            roles=self.roles,
            workflows=self.workflows,
            expires=self.expires,
        )


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[_Entry, ...]
