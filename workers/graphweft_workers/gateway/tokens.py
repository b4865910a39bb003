"""Bearer tokens, each for one app. The file holds only hashes, so it cannot be used to send requests.

A token has 256 random bits and cannot be guessed, so a plain SHA-256 is as safe as a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import AppId

_PREFIX: Final = "gw_"
"""Lets people and scanners for leaked secrets recognise a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The app and the hash of a token. The token itself is not stored."""

    app_id: str
    name: str
    sha256: bytes


class Tokens:
    """The tokens that a gateway accepts."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tuple(tokens)

    def find(self, presented: str) -> Token | None:
        """Return the entry of a token, or None. The time does not depend on the token."""
        digest = hashlib.sha256(presented.encode(errors="replace")).digest()
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found


def new_token() -> str:
    """Return a new token. A header and a shell take its characters without escaping."""
    return _PREFIX + secrets.token_urlsafe(32)


def sha256_of(token: str) -> str:
    """Return the hash of a token for the file."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(path: Path) -> Tokens:
    """Read ``tokens: [{sha256: …, app_id: …, name: …}]``. Raises ``InvalidSettings`` with each fault."""
    try:
        raw: Any = yaml.safe_load(path.read_text("utf-8-sig"))
    except OSError as error:
        raise InvalidSettings(f"gateway_tokens: {str(path)!r} cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InvalidSettings(f"gateway_tokens: {path}{where}: invalid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidSettings(f"gateway_tokens: {path}: invalid YAML: {error}") from error
    try:
        entries = _File.model_validate(raw).tokens
    except ValidationError as error:
        faults = (
            f"gateway_tokens: {path}: {'.'.join(map(str, fault['loc'])) or 'the file'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidSettings("\n".join([*faults, f"each token is {_FORM}"])) from None
    if not entries:
        raise InvalidSettings(f"gateway_tokens: {path} has no tokens: `graphweft token new --app APP` makes one")
    digests = [entry.sha256.lower() for entry in entries]
    if twice := next((number for number, digest in enumerate(digests) if digest in digests[:number]), None):
        raise InvalidSettings(f"gateway_tokens: {path}: tokens.{twice}: duplicate of an earlier token: remove one")
    return Tokens(
        [Token(app_id=entry.app_id, name=entry.name, sha256=bytes.fromhex(entry.sha256)) for entry in entries]
    )


_FORM: Final = "{sha256: 64 hexadecimal digits, app_id: APP, name: TEXT}; `graphweft token new --app APP` writes one"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, StringConstraints(pattern="^[0-9A-Fa-f]{64}$")]
    app_id: AppId
    name: str = ""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[_Entry, ...]
