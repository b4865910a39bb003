"""The requests that a responder has, and what it says of them to clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from graphweft_contracts.channels import app_of_replies
from graphweft_workers.ports.request_queue import PendingRequest, read_requester

_REMEMBERED: Final = 4_096
"""Requests of which a copy is known. A copy follows within a second."""
_NOTED: Final = re.compile(r"[!-~]{1,64}")
"""Ids that are noted; those of clients of graphweft have 32 characters."""
_APP_BYTES: Final = 16_384
"""Of an app's ids in the notes of one time, about 500: 0.3 MB a second. A request that is not noted costs a copy."""
_CHANNEL_BYTES: Final = 16 * _APP_BYTES
"""Of all ids in a note: requests may name any number of apps, and a record has a largest size."""


class HeldRequests:
    """Requests that were read and are not done.

    A client that hears nothing of a request sends a copy to another responder. If it comes to this one, which also has
    the first, it is known: nobody else could answer it.
    """

    def __init__(self) -> None:
        self._held: dict[str, PendingRequest] = {}
        self._noted: dict[str, _Noted | None] = {}
        self._read: dict[int, None] = {}
        """Hashes of the latest requests; hashes of bytes differ from process to process, so nobody can forge one."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, pending: PendingRequest) -> bool:
        """Add a request; return False if it is a copy of one that was added before."""
        key = hash(pending.body)
        if key in self._read:
            return False
        self._read[key] = None
        if len(self._read) > _REMEMBERED:
            del self._read[next(iter(self._read))]
        self._held[pending.token] = pending
        return True

    def remove(self, token: str) -> None:
        """Remove a request; unknown ones are ignored."""
        self._held.pop(token, None)
        self._noted.pop(token, None)

    def notes(self) -> Mapping[str, bytes]:
        """Return for each channel of replies the record that tells which requests are held: no id, then their ids.

        Those that were read first come first, as long as there is room for their app and in the record. So a request
        that was noted stays so.
        """
        notes: dict[str, bytearray] = {}
        of_apps: dict[str, int] = {}
        for token, pending in self._held.items():
            if token not in self._noted:
                self._noted[token] = _noted(pending.body)
            if (noted := self._noted[token]) is None:
                continue
            note = notes.setdefault(noted.channel, bytearray())
            of_app = of_apps.get(noted.app_id, 0) + len(noted.line)
            if of_app <= _APP_BYTES and len(note) + len(noted.line) <= _CHANNEL_BYTES:
                of_apps[noted.app_id] = of_app
                note += noted.line
        return {channel: bytes(note) for channel, note in notes.items() if note}


class _Noted(NamedTuple):
    """What notes say of a request, and to whom."""

    app_id: str
    channel: str
    line: bytes


def _noted(body: bytes) -> _Noted | None:
    """Return what notes say of a request; None for one that they do not name."""
    asks = read_requester(body)
    if asks is None or not _NOTED.fullmatch(asks.id) or app_of_replies(asks.reply_to) not in ("", asks.app_id):
        return None
    app_id = asks.app_id if isinstance(asks.app_id, str) else ""
    return _Noted(app_id, asks.reply_to, b"\n" + asks.id.encode())
