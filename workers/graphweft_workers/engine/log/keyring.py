"""The keys of apps, and which entries they let through. Pure.

Whether a key was valid at an entry is judged by the log's time of the entry, so a replay decides as the live worker
did, as long as no key is taken out of the file.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from graphweft_contracts import Event, RefusedEvent, wire
from graphweft_contracts.event_rights import INTERNAL_TYPES
from graphweft_contracts.signatures import SIGNATURE, SigningKey, split_signature

type Role = Literal["worker", "gateway"]

_SIGN: Final = "set GRAPHWEFT_SIGNING_KEY where it comes from"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyringKey:
    """A key of an app, or of a process that may sign for every app: a worker or a gateway."""

    key: SigningKey
    app_id: str | None = None
    role: Role | None = None
    begins: datetime
    ends: datetime | None = None

    def is_valid(self, time: datetime) -> bool:
        """Tell whether the key is valid at a time."""
        return self.begins <= time and (self.ends is None or time < self.ends)


class Keyring:
    """Refuses entries of apps that have keys, unless they are signed. Entries of other apps are not looked at.

    An app has keys from the begin of its first one on, also after the end of its last one. From ``required`` on, every
    app needs a signature: one without keys of its own that of a gateway or a worker.
    """

    def __init__(self, keys: Iterable[KeyringKey], required: datetime | None = None) -> None:
        self._required = required
        self._keys = {each.key.id: each for each in keys}
        self._since: dict[str, datetime] = {}
        for each in self._keys.values():
            if each.app_id is not None:
                self._since[each.app_id] = min(each.begins, self._since.get(each.app_id, each.begins))
        begins = (*self._since.values(), *(() if required is None else (required,)))
        self._first = min(begins, default=None)

    @property
    def apps(self) -> tuple[str, ...]:
        """The apps that have keys, or will have some."""
        return tuple(sorted(self._since))

    def own_key(self, role: Role, time: datetime) -> SigningKey | None:
        """Return the newest key of a role that is valid at a time; None without one."""
        valid = [each for each in self._keys.values() if each.role == role and each.is_valid(time)]
        return max(valid, key=lambda each: each.begins).key if valid else None

    def check(self, fields: Mapping[bytes, bytes], event: Event, received: datetime) -> None:
        """See ``Judge.check``."""
        app_id = event.appid
        since = self._since_when(app_id)
        if since is None or received < since:
            return
        key, digest = self._found(fields.get(SIGNATURE), app_id, received)
        if not hmac.compare_digest(key.key.digest_of_event(fields), digest):
            raise _bad(app_id, f"is not one that the key {key.key.id!r} makes of this entry")
        if wire.RETRY in fields and key.role != "worker":
            raise _bad(app_id, "is of a key that is no worker's, and only workers retry dead letters")
        if key.role is None and event.type in INTERNAL_TYPES:
            raise _bad(app_id, f"is of an app's key, and only workers and gateways sign {event.type}")

    def check_drop(self, fields: Mapping[bytes, bytes], dropped: wire.DroppedLetter, received: datetime) -> None:
        """See ``Judge.check_drop``. A drop that names no app concerns all of them."""
        since = self._first if dropped.app_id is None else self._since_when(dropped.app_id)
        if since is None or received < since:
            return
        app_id = dropped.app_id or "*"
        key, digest = self._found(fields.get(SIGNATURE), app_id, received)
        if not hmac.compare_digest(key.key.digest_of_event(fields), digest):
            raise _bad(app_id, f"is not one that the key {key.key.id!r} makes of this entry")
        if key.role != "worker":
            raise _bad(app_id, "is of a key that is no worker's, and only workers drop dead letters")

    def check_request(self, app_id: str, body: bytes, signature: bytes, time: datetime) -> None:
        """Raise ``RefusedEvent`` for a context request that is not the app's."""
        since = self._since_when(app_id)
        if since is None or time < since:
            return
        key, digest = self._found(signature or None, app_id, time)
        if not hmac.compare_digest(key.key.digest_of_request(body), digest):
            raise _bad(app_id, f"is not one that the key {key.key.id!r} makes of this request")

    def _since_when(self, app_id: str) -> datetime | None:
        """Return when an app's entries begin to need a signature; None if they need none."""
        since, required = self._since.get(app_id), self._required
        return required if since is None else since if required is None else min(since, required)

    def _found(self, signature: bytes | None, app_id: str, time: datetime) -> tuple[KeyringKey, bytes]:
        """Return the key that a signature names, and its digits."""
        if signature is None:
            raise RefusedEvent(
                f"it has no signature, and the app {app_id!r} needs one: {_SIGN}, and send it again", reason="unsigned"
            )
        parts = split_signature(signature)
        key = None if parts is None else self._keys.get(parts[0])
        if parts is None or key is None:
            raise _bad(app_id, "names no key that GRAPHWEFT_SIGNING_KEYS holds")
        if key.app_id is not None and key.app_id != app_id:
            raise _bad(app_id, f"is of the key {key.key.id!r}, which is another app's")
        if not key.is_valid(time):
            raise _bad(app_id, f"is of the key {key.key.id!r}, which was not valid at that time")
        return key, parts[1]


def _bad(app_id: str, fault: str) -> RefusedEvent:
    return RefusedEvent(
        f"it says that it is of the app {app_id!r}, but its signature {fault}: {_SIGN} to a valid key of the app, and "
        "send it again. If the key is missing here, add it to the file of GRAPHWEFT_SIGNING_KEYS, and retry the dead "
        "letter",
        reason="bad_signature",
    )
