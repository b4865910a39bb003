"""A quick look at a text, before the patterns of ``redaction``: which of them may match? Pure.

The patterns have many branches, which ``re`` tries at each character. Nearly all texts lack something that a pattern
needs, such as a long word, and to find that out takes a fraction of the time. The look errs on one side only: what it
rules out cannot match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

LONG: Final = "\x00"
"""A word of 19 characters, or the first characters of a shorter key."""
CARD: Final = "\x01"
"""15 digits with at most one blank or hyphen between two."""
COLONS: Final = "\x02"
"""Four colons."""
LABELLED: Final = "\x03"
"""The short name of a secret, and a sign that assigns."""
_LEAST_COLONS: Final = 4
_LEAST_KEY: Final = 19
_SHORT_KEYS: Final = ("eyJ", "xox", "xapp-")
_CARD: Final = re.compile("[0-9](?:[ -]?[0-9]){14}")
_LABELS: Final = (
    "pw", "pass", "cred", "login", "auth", "key", "pin", "otp", "salt", "hmac", "signature", "root", "admin",
)  # fmt: skip
_SHAPES: Final = ("@", "-u", " -", "=", "begin", "putty", "bearer", "pin", "log")
"""One of these is in every secret that has no name, besides those of the constants above."""
_NAMES: Final = (
    "pass", "pw", "secret", "cred", "token", "authorization", "cookie", "login", "mnemonic", "seed", "recovery",
    "kennwort", "contrasena", "senha", "wachtwoord", "losenord", "_key",
)  # fmt: skip
"""One of these, or what ``may_name_a_secret`` adds, is in every name of a secret in ASCII."""
_KEYS: Final = (
    "api", "access", "private", "encryption", "signing", "account", "auth", "master", "service", "ssh", "license",
    "webhook", "session",
)  # fmt: skip
"""The secret kinds of keys; "secret" is a name by itself."""
_LONGEST_KIND: Final = max(map(len, _KEYS)) + 1
_SPACED_OUT: Final = re.compile("[s$5][ ._-]?w[ ._-]?[o0]")
"""Of ``p.a.s.s.w.o.r.d`` and ``p@$$w0rd``."""
_BREAKS: Final = ("\n", "\r", "\\")


def hold_none_together(texts: Sequence[str]) -> bool:
    """Tell, of some texts, that none holds a secret, also if ``other: `` stands in front of it.

    False for texts that must be read.
    """
    text = "".join([f": {each}" for each in texts])
    if not (text.isascii() and text.isprintable()):
        return False
    signs = signs_of(text)
    return (
        signs[len(text) :] in ("", COLONS)
        and text.count(":") - len(texts) < _LEAST_COLONS - 1
        and not any(map(signs.__contains__, _SHAPES))
        and not may_name_a_secret(text, signs)
        and not may_break(text)
    )


def signs_of(text: str) -> str:
    """Return the text in lower case, and the constants above that apply to it: a pattern needs one or two of its parts.

    Control characters of the text itself are taken for these, which only makes the look less quick.
    """
    signs = text.lower()
    labelled = (":" in text or "=" in text) and (any(map(signs.__contains__, _LABELS)) or not text.isascii())
    if labelled:
        signs += LABELLED
    if text.count(":") >= _LEAST_COLONS:
        signs += COLONS
    if any(map(text.__contains__, _SHORT_KEYS)) or max(map(len, text.split()), default=0) >= _LEAST_KEY:
        signs += LONG
    if _CARD.search(text) is not None:
        signs += CARD
    return signs


def may_name_a_secret(text: str, signs: str) -> bool:
    """Tell whether a text may have the name of a secret; ``signs`` is what ``signs_of`` returns for it.

    Letters beyond ASCII may be names in other alphabets, or match in another case.
    """
    return (
        any(map(signs.__contains__, _NAMES))
        or ("key" in signs and _names_a_key(signs))
        or ("session" in signs and "id" in signs)
        or ("connection" in signs and "string" in signs)
        or ("w" in signs and _SPACED_OUT.search(signs) is not None)
        or not text.isascii()
    )


def may_break(text: str) -> bool:
    """Tell whether a text may have a line break, or a gap between two quoted parts."""
    return any(map(text.__contains__, _BREAKS)) or text.count('"') + text.count("'") + text.count("`") > 1


def _names_a_key(signs: str) -> bool:
    at = signs.find("key")
    while at >= 0:
        before = signs[max(0, at - _LONGEST_KIND) : at]
        if before.endswith(_KEYS) or (before[-1:] in (" ", "_", "-") and before[:-1].endswith(_KEYS)):
            return True
        at = signs.find("key", at + 1)
    return False
