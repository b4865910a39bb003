"""The requests that a responder has, and what it says of them to clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts.channels import app_of_replies
from graphweft_workers.ports.request_queue import PendingRequest, Requester, read_requester

_REMEMBERED: Final = 4_096
"""Requests of which a copy is known. A copy follows within a second."""


class HeldRequests:
    """Requests that were read and are not done.

    A client that hears nothing of a request sends a copy to another responder. If it comes to this one, which also has
    the first, it is known: nobody else could answer it.
    """

    def __init__(self) -> None:
        self._held: dict[str, PendingRequest] = {}
        self._requesters: dict[str, Requester | None] = {}
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
        self._requesters.pop(token, None)

    def notes(self) -> Mapping[str, bytes]:
        """Return for each channel of replies the record that tells which requests are held: no id, then their ids."""
        ids: dict[str, list[bytes]] = {}
        for token, pending in self._held.items():
            if token not in self._requesters:
                self._requesters[token] = read_requester(pending.body)
            requester = self._requesters[token]
            if requester is not None and app_of_replies(requester.reply_to) in ("", requester.app_id):
                ids.setdefault(requester.reply_to, []).append(requester.id.encode())
        return {channel: b"\n" + b"\n".join(those) for channel, those in ids.items()}
