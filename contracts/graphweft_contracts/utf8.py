"""Names and arguments that are not UTF-8: Python passes their bytes on as surrogates, which fail later."""

from __future__ import annotations

import sys


def utf8_fault(text: str, advice: str) -> str | None:
    """Return why a name or argument cannot be written as UTF-8, with the advice; None if it can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        if encoding == "utf-8":
            return f"not UTF-8: {advice}"
        return f"not UTF-8, or Python reads it as {encoding}: {advice}, or set PYTHONUTF8=1"
    return None
