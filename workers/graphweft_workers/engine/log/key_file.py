"""Reads the file of ``GRAPHWEFT_SIGNING_KEYS``, and makes keys for it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from graphweft.secret_files import read_secret_file
from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.events import AppId
from graphweft_contracts.moments import Moment
from graphweft_contracts.signatures import KEY_ID_PATTERN, SECRET_PATTERN, SigningKey
from graphweft_workers.engine.log.keyring import Keyring, KeyringKey, Role
from graphweft_workers.text.yaml_model import place_in, read_model

_ORIGIN: Final = "signing_keys"
_OTHERS: Final = 0o077
_FORM: Final = (
    "{id: ID, app_id: APP or role: worker or role: gateway, secret: TEXT or secret_file: PATH, from: TIME, until: TIME}"
    "; `graphweft key new` writes one"
)


def new_secret() -> str:
    """Return the secret of a new key, 256 random bits. A shell and YAML take its characters without escaping."""
    return secrets.token_urlsafe(32)


def read_keyring(path: Path) -> Keyring:
    """Read ``keys: […]``. Raises ``InvalidSettings`` with each fault and its place, without any secret."""
    read = _read(path)
    entries = read.keys
    ids = [entry.id for entry in entries]
    if twice := next((number for number, each in enumerate(ids) if each in ids[:number]), None):
        where = place_in(path, "keys", twice, "id")
        raise InvalidSettings(f"{_ORIGIN}: {where}: two keys have the id {ids[twice]!r}: give each an id of its own")
    if not any(entry.role == "worker" for entry in entries):
        raise InvalidSettings(
            f"{_ORIGIN}: {place_in(path, 'keys')}: the file has no worker's key, and workers sign what they write: add "
            "one, `graphweft key new --role worker` makes it"
        )
    return Keyring((_key(entry, path, number) for number, entry in enumerate(entries)), read.required)


def files_open_to_others(path: Path) -> list[Path]:
    """Return which of the key file and the secret files that it names others than their owner may read or write.

    None on systems without such modes. Raises ``InvalidSettings`` like ``read_keyring``.
    """
    if os.name != "posix":
        return []
    named = (path.parent / each.secret_file.expanduser() for each in _read(path).keys if each.secret_file is not None)
    return [each for each in dict.fromkeys((path, *named)) if each.exists() and each.stat().st_mode & _OTHERS]


def _read(path: Path) -> _File:
    return read_model(path, _File, setting=_ORIGIN, form=f"each key is {_FORM}", holds_secrets=True)


def _key(entry: _Entry, path: Path, number: int) -> KeyringKey:
    secret = entry.secret
    if secret is None:
        assert entry.secret_file is not None
        origin = f"{_ORIGIN}: {place_in(path, 'keys', number, 'secret_file')}: keys.{number}.secret_file"
        secret = read_secret_file(path.parent / entry.secret_file.expanduser(), origin)
    key = SigningKey.parse(f"{entry.id}:{secret}") if entry.secret is None else SigningKey(entry.id, secret)
    return KeyringKey(key=key, app_id=entry.app_id, role=entry.role, begins=entry.begins, ends=entry.ends)


def new_entry(
    id: str, secret: str, *, app_id: str | None, role: Role | None, clock: Clock = SYSTEM_CLOCK
) -> dict[str, str]:
    """Return the entry of a key that is valid from now on."""
    owner = {"app_id": app_id} if app_id is not None else {"role": role}
    begins = f"{clock.now():%Y-%m-%dT%H:%M:%SZ}"
    return {"id": id, **{name: value for name, value in owner.items() if value}, "secret": secret, "from": begins}


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, StringConstraints(pattern=f"^{KEY_ID_PATTERN}$")]
    app_id: AppId | None = None
    role: Role | None = None
    secret: Annotated[str, StringConstraints(pattern=f"^{SECRET_PATTERN}$")] | None = Field(default=None, repr=False)
    secret_file: Path | None = None
    begins: Moment = Field(alias="from")
    ends: Moment | None = Field(default=None, alias="until")

    @model_validator(mode="after")
    def _sound(self) -> _Entry:
        if (self.app_id is None) == (self.role is None):
            raise ValueError("give app_id or role")
        if (self.secret is None) == (self.secret_file is None):
            raise ValueError("give secret or secret_file")
        if self.ends is not None and self.ends <= self.begins:
            raise ValueError("until must come after from")
        return self


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    keys: tuple[_Entry, ...]
    required: Moment | None = Field(default=None, alias="required_from")
