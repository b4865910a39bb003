"""How a process reaches a server: login and certificates, which settings keep apart from the URL.

They become parts of the URL that drivers and transports are given, so that one text says all of it. That text is not
for logs.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from graphweft_contracts import InvalidSettings

logger = logging.getLogger("graphweft.client")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?")
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "rediss": {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "cert_key": "ssl_keyfile"},
    "rediss+sentinel": {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "cert_key": "ssl_keyfile"},
    "kafka+ssl": {"ca": "ca", "cert": "cert", "cert_key": "key", "sasl": "sasl"},
    "kafka": {"sasl": "sasl"},
    "neo4j+s": {"ca": "ca"},
    "bolt+s": {"ca": "ca"},
}
"""By scheme: what may be given, and its name in the query of the URL. Other products name it as we do."""
SECURE: Final[Mapping[str, str]] = {
    "redis": "rediss", "redis+sentinel": "rediss+sentinel", "kafka": "kafka+ssl", "neo4j": "neo4j+s", "bolt": "bolt+s"
}  # fmt: skip
"""By scheme: the one that uses TLS."""
_READ_AGAIN: Final = frozenset({"neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc"})
"""The schemes of those that read the file of a password again."""
_OWN: Final = frozenset({"redis", "redis+sentinel", "unix", "neo4j", "neo4j+ssc", "bolt", "bolt+ssc", *_NAMES})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLogin:
    """The login and the certificates for one server."""

    user: str = ""
    password: str = field(default="", repr=False)
    sasl: str = ""
    ca: str = ""
    """File of the authorities that sign the server's certificate; empty: those of the system."""
    cert: str = ""
    cert_key: str = ""
    password_file: str = ""
    """File that ``password`` comes from, for the products that read it again; others keep the password they have."""

    def applied(self, url: str, what: str) -> str:
        """Return the URL with all of this. A login in the URL stays, and so does what its query says.

        ``what`` begins the names of the settings, for errors. Raises ``InvalidSettings`` for what the URL cannot have.
        """
        found = _URL.fullmatch(url)
        given = {name: value for name in ("sasl", "ca", "cert", "cert_key") if (value := getattr(self, name))}
        if not (self.user or self.password or given):
            return url
        if found is None:
            return url  # its driver says what is wrong
        scheme, authority, path, query = found.groups()
        names = _NAMES.get(scheme, {}) if scheme in _OWN else {"ca": "ca", "cert": "cert", "cert_key": "key"}
        if wrong := sorted(given.keys() - names.keys()):
            tls = f"; TLS needs {secure(scheme)}://" if secure(scheme) != scheme and "sasl" not in wrong else ""
            name = wrong[0].upper() if what.isupper() else wrong[0]
            raise InvalidSettings(f"{what}_{name} has no effect with {scheme}://{tls}")
        added = {names[name]: value for name, value in given.items()}
        if "@" not in authority and (self.user or self.password):
            authority = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@{authority}"
            if self.password_file and scheme in _READ_AGAIN:
                added["password_file"] = self.password_file
        more = [f"{name}={quote(value, safe='/')}" for name, value in added.items()
                if not re.search(rf"[?&]{name}=", query or "")]  # fmt: skip
        query = "&".join([*([query[1:]] if query and query != "?" else []), *more])
        return f"{scheme}://{authority}{path}{'?' * bool(query)}{query}"


def secure(scheme: str) -> str:
    """Return the scheme that reaches the server with TLS; the given one if it has TLS, or none has."""
    return SECURE.get(scheme, scheme)


def file_stamp(*names: str | None) -> tuple[tuple[int, int] | None, ...]:
    """Return what changes when one of some files is replaced. A file that is missing is None."""
    return tuple(_stamp(name) for name in names if name)


class _FileContext(ssl.SSLContext):
    """A context of TLS that reads its files again for the next connection after they were replaced."""

    _make: Callable[[], ssl.SSLContext]
    _names: tuple[str | None, ...]
    _read: tuple[ssl.SSLContext, tuple[tuple[int, int] | None, ...]]

    @classmethod
    def of(cls, make: Callable[[], ssl.SSLContext], *names: str | None) -> _FileContext:
        """Return the context that ``make`` makes of the files of these names. Raises what ``make`` raises."""
        found = cls(ssl.PROTOCOL_TLS_CLIENT)
        stamp = file_stamp(*names)  # before they are read: what is replaced meanwhile is read again
        found._make, found._names, found._read = make, names, (make(), stamp)
        return found

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self._current().wrap_socket(*arguments, **options)

    def _current(self) -> ssl.SSLContext:
        context, read = self._read
        if (stamp := file_stamp(*self._names)) != read:
            try:
                context = self._make()
            except OSError as error:
                logger.warning("%s; those that were read before are used", _unusable(self._names, error))
            self._read = context, stamp
        return context


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Return a context that checks the server's certificate and name.

    The files may be replaced while it is in use: the next connection reads them again. If it cannot, it uses what was
    read before, and a warning is logged.

    ``ca`` is a file with the certificates of authorities, by default those of the system; ``cert`` and ``key`` are the
    certificate of the client and its key, in one file or two. Raises ``InvalidSettings``.
    """
    if cert is None and key is not None:
        raise InvalidSettings("the key of a certificate needs the certificate too")

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=_path(ca))
        if cert is not None:
            context.load_cert_chain(str(_path(cert)), _path(key), password="")
        return context

    try:
        return _FileContext.of(make, _path(ca) or ssl.get_default_verify_paths().cafile, _path(cert), _path(key))
    except OSError as error:
        raise InvalidSettings(_unusable((ca, cert, key), error)) from None


def _unusable(names: Iterable[str | None], error: OSError) -> str:
    """Return what is wrong with files: the error does not name them."""
    return f"the certificates {', '.join(repr(name) for name in names if name)} cannot be used: {error}"


def _stamp(name: str) -> tuple[int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _path(name: str | None) -> str | None:
    return None if name is None else str(Path(name).expanduser())
