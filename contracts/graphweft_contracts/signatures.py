"""Signatures of entries: they say who wrote an event or a context request.

The field ``gw_signature`` of an entry is ``v1:<key id>:<hex>``, an HMAC-SHA256. It covers every field that says what
the entry is, byte for byte: ``content-type``, ``data``, the ``ce_`` attributes, and the fields of retries and drops. So
it covers app, type, source, id, chat and payload. Other fields, such as headers that a tracer adds, are not covered and
have no meaning here.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any, Final

from graphweft_contracts.errors import InvalidSettings
from graphweft_contracts.wire import CONTENT_TYPE, DATA, DROPPED, PREFIX, RECORDED, RETRY

SIGNATURE: Final = b"gw_signature"
"""The field of an entry that holds its signature."""
KEY_ID_PATTERN: Final = r"[A-Za-z0-9_.-]{1,64}"
SECRET_PATTERN: Final = r"[!-~]{32,512}"
"""``graphweft key new`` makes 43 characters, which are 256 random bits."""
_EVENT: Final = b"graphweft-event-1\n"
_REQUEST: Final = b"graphweft-request-1\n"
"""A signature of an event is none of a request, and the other way round."""
_VERSION: Final = b"v1"
_COVERED: Final = frozenset({CONTENT_TYPE, DATA, RETRY, RECORDED, DROPPED})
_KEY: Final = re.compile(rf"({KEY_ID_PATTERN}):({SECRET_PATTERN})", re.ASCII)


class SigningKey:
    """The key of one app, or of a worker or a gateway, with the id by which a keyring knows it."""

    __slots__ = ("_event", "_request", "id")

    def __init__(self, id: str, secret: str) -> None:
        self.id = id
        # Copied for each signature, which is cheaper than to begin with the secret.
        self._event: Any = hmac.new(secret.encode(), _EVENT, "sha256")
        self._request: Any = hmac.new(secret.encode(), _REQUEST, "sha256")

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Read ``id:secret``. Raises ``InvalidSettings``, whose text does not quote it."""
        found = _KEY.fullmatch(text.strip())
        if found is None:
            raise InvalidSettings(
                "invalid signing key: expected ID:SECRET, with at least 32 characters after the colon, as `graphweft "
                "key new` prints it"
            )
        return cls(found[1], found[2])

    def signed(self, fields: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the fields of an entry with their signature, in place of any other."""
        return {**fields, SIGNATURE: self._field(self.digest_of_event(fields))}

    def of_request(self, body: bytes) -> bytes:
        """Return the field ``SIGNATURE`` for an encoded request."""
        return self._field(self.digest_of_request(body))

    def digest_of_event(self, fields: Mapping[bytes, bytes]) -> bytes:
        """Return the signature of an entry in hexadecimal digits."""
        mac = self._event.copy()
        mac.update(_covered(fields))
        return bytes(mac.hexdigest(), "ascii")

    def digest_of_request(self, body: bytes) -> bytes:
        """Return the signature of an encoded request in hexadecimal digits."""
        mac = self._request.copy()
        mac.update(body)
        return bytes(mac.hexdigest(), "ascii")

    def _field(self, digest: bytes) -> bytes:
        return b"%b:%b:%b" % (_VERSION, self.id.encode(), digest)


def _covered(fields: Mapping[bytes, bytes]) -> bytes:
    """Return what a signature covers. With the lengths, no two sets of fields look alike."""
    content_type, data = fields.get(CONTENT_TYPE), fields.get(DATA)
    if content_type is not None and data is not None and len(fields) == 2 + (SIGNATURE in fields):
        return b"12:content-type%d:%b4:data%d:%b" % (len(content_type), content_type, len(data), data)  # nearly all
    return b"".join(
        b"%d:%b%d:%b" % (len(name), name, len(value := fields[name]), value)
        for name in sorted(fields)
        if name in _COVERED or name.startswith(PREFIX)
    )


def split_signature(value: bytes) -> tuple[str, bytes] | None:
    """Return the key id and the digits of a field ``SIGNATURE``; None for anything else, which anybody may write."""
    parts = value.split(b":")
    if len(parts) != 3 or parts[0] != _VERSION:
        return None
    return str(parts[1], "latin-1"), parts[2]
