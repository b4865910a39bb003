"""Settings that hold a secret may name a file instead: ``GRAPHWEFT_SIGNING_KEY_FILE`` for ``GRAPHWEFT_SIGNING_KEY``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from graphweft_contracts import InvalidSettings

FILE: Final = "_FILE"
"""Ends the name of the variable that names the file."""
_MOST_BYTES: Final = 64 * 1024


def secret_of(values: Mapping[str, str], name: str) -> str | None:
    """Return the value of a variable, or the content of the file that ``{name}_FILE`` names; None for neither.

    An empty variable counts as not set. Raises ``InvalidSettings`` if both are set, and for a file without a secret.
    """
    value, file = values.get(name), values.get(name + FILE)
    if not file:
        return value or None
    if value:
        raise InvalidSettings(f"{name} and {name}{FILE} are both set: keep one")
    return read_secret_file(Path(file), name + FILE)


def full_path(name: str) -> str:
    """Return the path of a file for processes in other folders; an empty name stays empty."""
    return str(Path(name).expanduser().resolve()) if name else ""


def read_secret_file(path: Path, origin: str) -> str:
    """Return the secret in a file, without the line end. Raises ``InvalidSettings``, which names ``origin``."""
    try:
        with path.expanduser().open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig").strip()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no home folder"
        raise InvalidSettings(f"{origin}: {str(path)!r} cannot be read: {reason}") from error
    except UnicodeDecodeError:  # its text quotes the bytes
        raise InvalidSettings(f"{origin}: {str(path)!r} is not text in UTF-8") from None
    if not text or len(content) > _MOST_BYTES:
        raise InvalidSettings(
            f"{origin}: {str(path)!r} is {'too large' if text else 'empty'}: write the secret into it"
        )
    return text
