"""The names of secrets, and what tells a secret from other words. Pure."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from graphweft_rules.output.look_alikes import plain
from graphweft_workers.text.terms import STOP_WORDS

PASSWORD: Final = "".join(
    map(
        plain,
        r"p[ ._-]?[a@4][ ._-]?[s$5][ ._-]?[s$5][ ._-]?w[ ._-]?[o0][ ._-]?r[ ._-]?d|pass[ _-]?(?:wd|phrase|code)"
        r"|(?:pass|kenn)wort|contraseña|mot de passe|senha|wachtwoord|lösenord|hasło|пароль|pwd"
        r"|密[码碼]|パスワード|비밀번호|(?:seed|recovery|mnemonic)[ _-]?(?:phrase|words)",
    )
)
"""Names of passwords: any value assigned to one is a secret."""
CREDENTIAL: Final = (
    r"(?:api|access|secret|private|encryption|signing|account|shared[ _-]?access|auth|master|service|ssh|license|"
    r"webhook|session)[ _-]?key(?:[ _-]?id)?|secret|credentials?|connection[ _-]?string|(?:api[ _-]?|auth[ _-]?)?token"
    r"|authorization|(?:set-)?cookie|session[ _-]?id"
)
"""Names of other secrets: a plain word in a sentence behind one is not a secret."""
NAME: Final = re.compile(
    rf"(?i)(?:(?P<password>{PASSWORD})|{CREDENTIAL}|(?<![A-Za-z])(?:pass|pw|creds?|login)(?![A-Za-z]))(?:s|en)?(?![a-rt-z])"
)
_NOT_SECRET: Final = frozenset("""
none null nil true false yes no on off undefined empty missing required optional n/a na todo tbd unknown invalid valid
expired incorrect str string text int integer number bool boolean bytes float object array list dict map any secretstr
char varchar uuid bearer basic jwt oauth oauth2 type hidden masked redacted unset rotated revoked forgotten reset
changed stored hashed encrypted disabled enabled varies example
""".split())  # fmt: skip  # noqa: SIM905
_REFERENCE: Final = re.compile(
    r"\[REDACTED|<[^<>\s]*>|\$\{|\$[A-Za-z_(]\w*|\{\{|%\(?[A-Za-z_]|%[A-Z_]+%|(?:\*|x|X|\.|\u2022|_|-){3,}\W*\Z"
    r"|(?:os\.)?(?:environ|getenv)\b|process\.env|[A-Za-z_][\w.]*\(|Optional\[|str\b|vault:"
)
PROSE: Final = STOP_WORDS | set("must may shall see use ask please never always minimum length rules".split())  # noqa: SIM905
PLAIN_WORD: Final = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_COMMON: Final = re.compile(
    r"[A-Z]?[a-z]+(?:[-_./'][A-Za-z]?[a-z]+)*[-_.]?v?[0-9.]*[a-z]?|[A-Z]{1,12}[0-9]{0,6}(?:[-_/.][A-Z0-9]{1,8})*s?"
    r"|v?[0-9][0-9.,:/x_-]*[a-zA-Z%]{0,4}|[a-z][0-9]{1,4}[a-z]?(?:[_-][a-z]+)*[0-9]?|[0-9][A-Z][a-z]+"
    r"|[0-9]+[a-z]{1,6}/[a-z]{1,6}|(?:/[a-z0-9_.{}-]{1,16})+/?|(?:[a-z0-9-]{1,30}\.)+[a-z]{2,6}|[0-9]{1,4}-[a-z-]+"
    r"|(?i:oauth|argon|base|sha|md|utf|http|pbkdf|bcrypt|ed|curve|aes|rsa|ecdsa|hmac|x|rfc|tls|gpt|ipv?)"
    r"[A-Za-z-]{0,9}[0-9][\w.-]{0,12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?|[\w.+-]+@[\w-]+\.[\w.-]+"
)
"""Words with digits that are common in text: ``Server7``, ``SHA-256``, ``v2``, ``2024-01-01``, ``OAuth2``."""
QUOTES: Final = "\"'`.,;:?()[]{}<>*"
EDGES: Final = QUOTES + "!"
WORDS: Final = re.compile(r"[^\s\"'`|,;:=(){}\[\]<>\u2190-\u21ff\u27f5-\u27ff]+")


def is_given(value: str) -> bool:
    """Tell whether a value is one, and not a placeholder, a type or a call."""
    return value.strip(EDGES + " ").casefold() not in _NOT_SECRET | {""} and _REFERENCE.match(value.strip()) is None


def is_mixed(value: str) -> bool:
    """Tell whether a value has letters, and digits or signs."""
    others = any(char.isdigit() or char in "!@#$%^&*+=~|" for char in value)
    return len(value) >= 6 and " " not in value and any(map(str.isalpha, value)) and others


def is_strange(word: str) -> bool:
    """Tell whether a word of ASCII letters and digits is not a common one, such as ``OAuth2``."""
    has_both = word.isascii() and len(word) >= 6 and any(map(str.isalpha, word)) and any(map(str.isdigit, word))
    return has_both and "://" not in word and is_given(word) and _COMMON.fullmatch(word) is None


def is_jumble(word: str) -> bool:
    """Tell whether letters of both cases and digits take turns as they do in keys only."""
    kinds = ["0" if char.isdigit() else "A" if char.isupper() else "a" for char in word if char.isalnum()]
    if len({*kinds}) < 3:
        return False
    often = sum(one != other for one, other in pairwise(kinds)) / (len(kinds) - 1)
    at_digits = sum((one == "0") != (other == "0") for one, other in pairwise(kinds))
    return often >= 0.35 and (at_digits >= 4 or often >= 0.55)


def is_card(text: str) -> bool:
    """Tell whether the last digit is the check digit of a card number (Luhn)."""
    digits = [int(char) for char in text if char.isdigit()]
    return (sum(digits[-1::-2]) + sum(digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2])) % 10 == 0
