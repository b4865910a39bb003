"""The name of the user that runs a command."""

from __future__ import annotations

import getpass
from typing import Final

UNKNOWN_USER: Final = "a user without a name"


def process_user() -> str | None:
    """Return the name; None if the system has none for this user, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None
