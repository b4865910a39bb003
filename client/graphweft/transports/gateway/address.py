"""Where a gateway is, and the token for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from typing_extensions import Self

from graphweft_contracts import InvalidSettings

_TOKEN: Final = re.compile(r"[!-~]{1,4096}", re.ASCII)
_PLAIN: Final = re.compile(r"(?:(?![@?#\\])[!-~])+", re.ASCII)
_EXPECTED: Final = "expected http://host:port or https://host, without user, password, ? and #"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAddress:
    """The parts of a gateway's URL, checked, and the token."""

    tls: bool
    host: str
    port: int
    path: str
    """The path that a proxy adds, without a slash at the end; usually empty."""
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str, token: str | None = None, *, origin: str = "the gateway's URL") -> Self:
        """Return the address in ``url``. Raises ``InvalidSettings``, which quotes neither of the two.

        ``origin`` names the setting for errors. Without a token only a gateway with ``--insecure-app`` answers.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # no port, or no IPv6 address
            raise InvalidSettings(f"invalid {origin}: {_EXPECTED}") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or not _PLAIN.fullmatch(url):
            raise InvalidSettings(f"invalid {origin}: {_EXPECTED}")
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidSettings(
                "the gateway's token is not a token: give the line that `graphweft token new` prints, without blanks"
            )
        tls = parts.scheme == "https"
        return cls(
            tls=tls, host=parts.hostname, port=port or (443 if tls else 80), path=parts.path.rstrip("/"), token=token
        )

    @property
    def authority(self) -> str:
        """The value of the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return the URL, without the token."""
        return f"http{'s' * self.tls}://{self.authority}{self.path}"
