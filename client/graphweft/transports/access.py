"""TLS of connections to a bus, from files."""

from __future__ import annotations

import ssl
from pathlib import Path

from graphweft_contracts import InvalidSettings

__all__ = ("tls_context",)


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return a context that checks the server's certificate and name.

    ``ca`` is a file with the certificates of authorities, by default those of the system; ``cert`` and ``key`` are the
    certificate of the client and its key, in one file or two. Raises ``InvalidSettings``.
    """
    try:
        context = ssl.create_default_context(cafile=_path(ca))
        if cert is not None:
            context.load_cert_chain(str(_path(cert)), _path(key), password="")
    except (OSError, ssl.SSLError) as error:  # neither names the file
        names = ", ".join(repr(name) for name in (ca, cert, key) if name)
        raise InvalidSettings(f"the certificates cannot be used ({names}): {error}") from None
    if cert is None and key is not None:
        raise InvalidSettings("a key of a certificate needs the certificate: set GRAPHWEFT_BUS_CERT")
    return context


def _path(name: str | None) -> str | None:
    return None if name is None else str(Path(name).expanduser())
