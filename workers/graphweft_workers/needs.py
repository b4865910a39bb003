"""What a choice in the settings needs, and what to do where it is missing."""

from __future__ import annotations

import importlib.util
from typing import Final

from graphweft_contracts import InvalidSettings

OPENAI_URL: Final = "https://api.openai.com/v1"
"""The endpoint of who names none."""


def require_package(who: str, module: str, extra: str) -> None:
    """Raise ``InvalidSettings``, which names the extra, where a package is missing.

    Nothing is imported: some packages take seconds.
    """
    if importlib.util.find_spec(module) is None:
        raise missing_package(who, module, extra)


def missing_package(who: str, module: str, extra: str) -> InvalidSettings:
    """Return the error for a package, or a part of one, that could not be imported."""
    return InvalidSettings(
        f"{who} needs the Python package {module!r}, which is not installed: pip install 'graphweft[{extra}]'"
    )


def openai_endpoint(who: str, url: str | None, key: object | None, *, key_names: str, url_names: str) -> str:
    """Return the address to ask: ``url``, or OpenAI's own, which takes no one without a key (``InvalidSettings``)."""
    if url is None and key is None:
        raise InvalidSettings(
            f"{who} needs {key_names} for {OPENAI_URL}, or {url_names} for another endpoint (http://localhost:11434/v1)"
        )
    return url or OPENAI_URL
