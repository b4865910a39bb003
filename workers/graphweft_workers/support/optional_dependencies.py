"""Checks that a setting has the packages and addresses it needs."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Generator
from typing import Final

from graphweft_contracts import InvalidSettings

OPENAI_URL: Final = "https://api.openai.com/v1"
"""The default endpoint."""


def require_package(who: str, module: str, extra: str) -> None:
    """Raise ``InvalidSettings``, which names the extra, if a package is missing. Does not import it."""
    if importlib.util.find_spec(module) is None:
        raise missing_package(who, module, extra)


def missing_package(who: str, module: str, extra: str) -> InvalidSettings:
    """Return the error for a package or module that is missing."""
    return InvalidSettings(
        f"{who} needs the Python package {module!r}, which is not installed: pip install 'graphweft[{extra}]'"
    )


@contextlib.contextmanager
def naming_extra(who: str, extra: str, *modules: str) -> Generator[None]:
    """Raise ``missing_package`` if the block cannot import one of ``modules``, or a part of one; other errors pass."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] not in modules:
            raise
        raise missing_package(who, missing, extra) from error


def openai_endpoint(who: str, url: str | None, key: object | None, *, key_names: str, url_names: str) -> str:
    """Return ``url``, or OpenAI's URL. Raises ``InvalidSettings`` if both URL and key are missing."""
    if url is None and key is None:
        raise InvalidSettings(
            f"{who} needs {key_names} for {OPENAI_URL}, or {url_names} for another endpoint (http://localhost:11434/v1)"
        )
    return url or OPENAI_URL
