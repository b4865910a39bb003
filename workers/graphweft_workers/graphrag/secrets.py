"""Keeps secrets out of what a model reads: see ``redact``.

It errs on the side of silence. A secret is looked for in several readings of a text: as it stands, without what is
invisible, with look-alike letters and escapes resolved, and with broken lines put together again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal

from graphweft_rules.terms import STOP_WORDS

__all__ = ("REDACTED", "is_invisible", "is_value", "redact", "redact_beside", "redact_value")

REDACTED: Final = "[REDACTED]"

_LOOK_ALIKE: Final = str.maketrans(
    "аАеЕоОрРсСхХуУкКмМтТвВнНіІїЇѕЅјЈԁԛԝһҺΑαΒΕΖΗΙΚκΜΝΟοΡρΤτΥυΧχνιıɑɡℓ\u2044\u2215\u2236\ua789\u02d0\u02f8\u201a\u201e\u2212",
    "aAeEoOpPcCxXyYkKmMtTbBhHiIiIsSjJdqwhHAaBEZHIKkMNOoPpTtYuXxviiagl//::::'\"-",
)
"""Letters and signs that look like those of ASCII; dashes and quotation marks come beside."""
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Blanks by their looks only; what Unicode calls a format character comes beside."""
_ESCAPE: Final = re.compile(
    r"\\u\{?([0-9A-Fa-f]{4,6})\}?|\\x([0-9A-Fa-f]{2})|%([2-7][0-9A-Fa-f])|&#[xX]([0-9A-Fa-f]{1,6});|&#([0-9]{1,7});"
    r"|&(quot|apos|colon|equals|commat|sol|lowbar|hyphen|dash);"
)
_ENTITIES: Final = {
    "quot": '"', "apos": "'", "colon": ":", "equals": "=", "commat": "@", "sol": "/", "lowbar": "_", "hyphen": "-",
    "dash": "-",
}  # fmt: skip
_NOT_PLAIN: Final = re.compile(r"[^ -~\s]|[^\x00-\x7f]")
_BREAK: Final = re.compile(
    r"(?<![ \t])[ \t]*\\?(?:\r?\n|\r|\\r\\n|\\n)[ \t]*(?:(?:#+|//+|\*+|>+|\|+|;+|--+(?=[ \t])|<!--|%+)[ \t]*)*[\"'`]?"
    r"|[\"'`][ \t]*(?:[+.&][ \t]*)?(?:\\?(?:\r?\n|\r)[ \t]*(?:[+.&][ \t]*)?)?[\"'`](?=[A-Za-z0-9_./+-])"
)
"""Where one word may have been broken in two: at the end of a line, also of a comment, or between quoted parts."""

_TOKENS: Final = (
    r"sk-(?=[A-Za-z0-9_-]*[0-9A-Z]|[A-Za-z0-9_-]*[A-Za-z0-9]{16})[A-Za-z0-9_-]{16,}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{16,}",
    r"(?:AKIA|ASIA|AGPA|AIDA|AROA|AIPA|ANPA|ANVA|ABIA|ACCA)[A-Z0-9]{16,}",
    r"gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|gl(?:pat|dt|rt|ptt|soat)-[A-Za-z0-9_-]{16,}",
    r"xox[a-z]-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{8,}|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{10,}",
    r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}|GOCSPX-[A-Za-z0-9_-]{16,}",
    r"(?:hf|gsk|npm|dckr_pat|dop_v1|shpat|shpss|lin_api|r8|pplx|tvly|nvapi|xai|pypi|rubygems|sbp|atlasv1|NRAK|SG)"
    r"[_.-](?=[A-Za-z0-9_.-]*[0-9])[A-Za-z0-9_.-]{20,}",
    r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_=-]*){0,4}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{16,}|hv[sb]\.[A-Za-z0-9_-]{16,}",
    r"(?:MII[A-Za-z]|b3BlbnNzaC1rZXk)[A-Za-z0-9+/=]{40,}",
    r"(?:bot)?[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}|[MNO][A-Za-z0-9_-]{17,}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}",
    r"(?:AC|SK|dapi|key-|EZ[AT]K|EAA[A-Z])(?:[0-9a-f]{32}|[A-Za-z0-9]{40,})|sq0[a-z]{3}-[A-Za-z0-9_-]{16,}",
    r"(?:pat-[a-z]{2,3}[0-9]|tskey|CFPAT|PMAK|FlyV1|fm2|ATATT3x|glsa|ntn|figd|sntry[su]|secret|vercel|bkua|phc|rnd|re)"
    r"[ _-]?(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_-]{20,}",
    r"[xyz]prv[1-9A-HJ-NP-Za-km-z]{60,}|[5KL][1-9A-HJ-NP-Za-km-z]{50,51}(?![A-Za-z0-9])",
)
_TOKEN: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_TOKENS)})")
_PRIVATE_KEY: Final = re.compile(
    r"(?<!-)-+[ \t]*BEGIN\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?.*?"
    r"(?:(?<!-)-+[ \t]*END\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?[ \t]*-*|\Z)"
    r"|PuTTY-User-Key-File-[0-9].*\Z",
    re.DOTALL | re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"\bbearer[\"']?[:=]?\s+(?:[#>|*/]+\s*)*(?P<value>(?=[^\s]*[0-9]|[^\s]{20})[A-Za-z0-9._~+/=|-]{6,})", re.IGNORECASE
)
_AUTHORIZATION: Final = re.compile(
    r"authorization[\"'\]\\]*\s*[:=]\s*[\"'\\]*(?:(?:basic|bearer|digest|token|apikey|negotiate|aws4[\w-]*)\s+)"
    r"(?P<value>[^\s\"',;]{4,})",
    re.IGNORECASE,
)
_LOG_IN: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]{1,20}:/{2}(?P<value>[^\s/?#:@\"'<>]*:(?![0-9]{1,5}(?:[/?#\s\"'<>]|\Z))[^\s\"'<>]+)@"
)
_DSN: Final = re.compile(r"(?<![\w/.-])[\w.-]+:(?P<value>[^\s:/@]{3,})@(?:tcp|unix)\(")
_CURL: Final = re.compile(r"(?<!\S)(?:-u|--user|--proxy-user)[ =]*[\"']?(?P<value>[^\s:\"']+:[^\s\"']+)")
_QUERY: Final = re.compile(
    r"[?&](?:sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|code|key|apikey|auth)"
    r"=(?P<value>[^&\s\"'<>]{8,})",
    re.IGNORECASE,
)
_LOG_IN_TOKEN: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]{1,20}:/{2}(?P<value>(?=[^\s/@]*[0-9])(?=[^\s/@]*[A-Za-z])[^\s/?#:@\"'<>]{12,})@"
)
_COMMAND: Final = re.compile(
    r"\b(?:sshpass|docker[ \t]+login|(?:mysql|maria)\w*|redis-cli|mongo\w*|ldap\w+|openssl)\b[^\n|;]{0,200}?[ \t]"
    r"(?:-[paw][ \t]+|-p(?=\S*[0-9!@#$%])|-pass(?:in|out)?[ \t]+pass:)[\"']?"
    r"(?P<value>(?=[^\s\"']*[A-Za-z])[^\s\"']{4,})"
)
_WITH_VALUE: Final = (_LOG_IN, _LOG_IN_TOKEN, _DSN, _CURL, _COMMAND, _QUERY)
_RANDOM: Final = re.compile(r"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{20,}|[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))")
"""What may be a key by its looks alone."""
_SEED: Final = re.compile(r"\b(?:seed|recovery|mnemonic|secret)[ _-]?(?:phrase|words)|\bmnemonic", re.IGNORECASE)
_SEED_PHRASE: Final = re.compile(r"(?<![A-Za-z])(?:[a-z]{3,8}[ \t,]+){11,}[a-z]{3,8}(?![A-Za-z])")

_CERTAIN: Final = (
    r"p[ ._-]?[a@4][ ._-]?[s$5][ ._-]?[s$5][ ._-]?w[ ._-]?[o0][ ._-]?r[ ._-]?d|pass[ _-]?(?:wd|phrase|code)"
    r"|(?:pass|kenn)wort|contrase\u00f1a|mot de passe|senha|wachtwoord|l\u00f6senord|has\u0142o"
    r"|\u043f\u0430\u0440\u043e\u043b\u044c"
    r"|\u5bc6[\u7801\u78bc]|\u30d1\u30b9\u30ef\u30fc\u30c9|\ube44\ubc00\ubc88\ud638|pwd"
    r"|(?:seed|recovery|mnemonic)[ _-]?(?:phrase|words)"
)
_LIKELY: Final = (
    r"(?:api|access|secret|private|encryption|signing|account|shared[ _-]?access|auth|master|service|ssh|license|"
    r"webhook|session)[ _-]?key(?:[ _-]?id)?|secret|credentials?|connection[ _-]?string|(?:api[ _-]?|auth[ _-]?)?token"
    r"|authorization|(?:set-)?cookie|session[ _-]?id"
)
_KEY: Final = rf"(?:(?P<certain>{_CERTAIN})|(?P<likely>{_LIKELY}))"
_KEY_PARTS: Final = (
    "pass", "pwd", "phrase", "words", "key", "secret", "credential", "connection", "token", "auth", "cookie", "session",
    "wort", "contra", "senha", "wacht", "senord", "has\u0142o", "\u043f\u0430\u0440", "\u5bc6", "\u30d1\u30b9",
    "\ube44\ubc00", "w0", "wo", "w.o", "w o", "w-o", "w_o", "pw", "cred", "login", "pin", "otp", "salt", "mac", "sign",
    "root", "admin",
)  # fmt: skip
"""One of them is in whatever ``_KEY`` finds."""
_SIGNS: Final = (
    "\\",
    '"',
    "' ",
    "'+",
    "%",
    "&",
    "?",
    "@",
    "--",
    " -",
    "://",
    "bearer",
    "xox",
    "xapp",
    "begin",
    "seed",
    "mnemonic",
)
_LONG: Final = re.compile(r"[A-Za-z0-9+/=]{30}|(?<![\w+/=.-])(?=[\w+/=.-]*(?:[0-9]|[_.-][A-Za-z0-9]{8}))[\w+/=.-]{12}")
"""Keys are long, and have digits or a prefix."""
_SUFFIX: Final = r"(?:[._-]?(?:[0-9]{1,4}|prod(?:uction)?|dev|test|staging|live|value|old|new|hash|b64|base64))*"
_ASSIGNED: Final = re.compile(
    # `password = `, `"token": `, `**secret**: `, `[api_key] => `
    rf"{_KEY}{_SUFFIX}(?:[\\\"'`*_)\]]{{0,4}}\s*(?P<sign>=>|:=|={{1,3}}|:{{1,2}}|->)"
    # `<password>`, `--token `, `password is `
    r"|(?P<tag>>)|(?P<is>[\"'`*]*\s+(?:is|was|are)(?:\s+set\s+to)?[\s:]+)|(?P<blank>[ \t]+))",
    re.IGNORECASE,
)
_WEAK: Final = re.compile(
    r"(?<![A-Za-z])(?:pw|pass|creds?|credentials|login|auth|key|pin|otp|salt|hmac|signature|root|admin)s?[\"'`*]{0,3}"
    r"[ \t]*(?::|=>?)[ \t]*[\"'`]?(?P<value>[^\s\"'`]{4,})",
    re.IGNORECASE,
)
"""Words that name a secret only where what follows looks like one."""
_NAMED: Final = re.compile(
    rf"(?:{_CERTAIN}|{_LIKELY}|(?<![A-Za-z])(?:pass|pw|creds?|login)(?![A-Za-z]))(?:s|en)?(?![a-rt-z])", re.IGNORECASE
)
_NEAR: Final = 80
"""Characters behind the name of a secret in which it may follow, on the same line."""
_LIST: Final = re.compile(r"[\"'`]?[ \t]*:[ \t]*\n[ \t]*[-*][ \t]+")
_APART: Final = re.compile(r"[^\s\"'`|,;:=(){}\[\]<>\u2190-\u21ff\u27f5-\u27ff]+")
_WORD_LIKE: Final = re.compile(
    r"[A-Z]?[a-z]+(?:[-_./'][A-Za-z]?[a-z]+)*[-_.]?v?[0-9.]*[a-z]?|[A-Z]{1,12}[0-9]{0,6}(?:[-_/.][A-Z0-9]{1,8})*s?|v?[0-9][0-9.,:/x_-]*[a-zA-Z%]{0,4}"
    r"|[a-z][0-9]{1,4}[a-z]?(?:[_-][a-z]+)*[0-9]?|[0-9][A-Z][a-z]+|[0-9]+[a-z]{1,6}/[a-z]{1,6}"
    r"|(?:/[a-z0-9_.{}-]{1,16})+/?|(?:[a-z0-9-]{1,30}\.)+[a-z]{2,6}|[0-9]{1,4}-[a-z-]+|(?i:oauth|argon|base|sha|md|utf|http|pbkdf|bcrypt|ed|curve|aes|rsa|ecdsa|hmac|x|rfc|tls|gpt|ipv?)"
    r"[A-Za-z-]{0,9}[0-9][\w.-]{0,12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?|[\w.+-]+@[\w-]+\.[\w.-]+"
)
"""Words with digits that are in every text: ``Redis7``, ``SHA-256``, ``v2``, ``2024-01-01``, ``OAuth2``."""
_LEAD: Final = re.compile(
    r"(?:\s|\\(?=\s)|#+(?=\s)|//+(?=\s)|\*+(?=\s)|[|>][+-]?(?=\s)|--+(?=\s)|\|(?=\s)|!!?\w+(?=\s))*"
)
_OPENING: Final = re.compile(r"[bfruBFRU]{0,2}\\*(\"\"\"|'''|[\"'`])")
_LINE_START: Final = re.compile(
    r"(?:\A|\n)[ \t]*(?:(?:#+|//+|\*+|>|-+|;|<!--|export|set|let|const|var)[ \t]*)*[\w.-]*\Z"
)
_NOTHING: Final = """
none null nil true false yes no on off undefined empty missing required optional n/a na todo tbd unknown invalid
valid expired incorrect str string text int integer number bool boolean bytes float object array
list dict map any secretstr char varchar uuid bearer basic jwt oauth oauth2 type hidden masked redacted unset
rotated revoked forgotten reset changed stored hashed encrypted disabled enabled varies example
"""
_NO_VALUES: Final = frozenset(_NOTHING.split())
_REFERENCE: Final = re.compile(
    r"\[REDACTED|<[^<>\s]*>|\$\{|\$[A-Za-z_(]\w*|\{\{|%\(?[A-Za-z_]|%[A-Z_]+%|(?:\*|x|X|\.|\u2022|_|-){3,}\W*\Z"
    r"|(?:os\.)?(?:environ|getenv)\b|process\.env|[A-Za-z_][\w.]*\(|Optional\[|str\b|vault:"
)
_WORD: Final = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_PROSE: Final = STOP_WORDS | frozenset("must may shall see use ask please never always minimum length rules".split())  # noqa: SIM905
"""With what a sentence about a password begins, and no password does."""
_PLAIN: Final = re.compile(r"[A-Za-z]?[a-z]*[.,;:!?]?")
_QUOTES: Final = "\"'`.,;:?()[]{}<>*"
_EDGES: Final = "\"'`.,;:!?()[]{}<>*"
_PHRASE_WORDS: Final = 6
_SEED_WORDS: Final = 25


@dataclass(frozen=True, slots=True)
class _Reading:
    """A text as it may be read, and of each character where it stands in the text itself."""

    text: str
    starts: list[int] | range
    ends: list[int] | range

    def places(self, found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for start, end in found:
            if start < end:
                yield self.starts[start], self.ends[end - 1]

    def without(self, pattern: re.Pattern[str]) -> _Reading:
        chars: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        at = 0
        for match in [*pattern.finditer(self.text), None]:
            until = match.start() if match else len(self.text)
            chars.append(self.text[at:until])
            starts += self.starts[at:until]
            ends += self.ends[at:until]
            at = match.end() if match else until
        return _Reading("".join(chars), starts, ends)


def redact(text: str) -> str:
    """Return the text with ``[REDACTED]`` in the place of each secret. Never raises; twice is the same as once.

    A secret is an API key, a bearer token, a JWT, a private key (without its end, all that follows), user and password
    of a URL, or what is assigned to a password, a token and the like, by ``=``, ``:``, a tag or an option.
    """
    return _masked(text, _secrets(text))


def redact_value(label: str, text: str) -> str:
    """Return the text as ``redact`` does, where ``label`` stands before it as the name of what it is."""
    head = f"{label}: "
    found = [(start - len(head), end - len(head)) for start, end in _secrets(head + text) if end > len(head)]
    return _masked(text, [(max(0, start), end) for start, end in found] + _secrets(text))


def redact_beside(label: str, text: str) -> str:
    """Return the text without what looks like a secret, where ``label`` names one and stands elsewhere on the line."""
    named = _named(label) if _may_name_one(label) else None
    if named is None:
        return text
    looks = _looks_random if named == "certain" else _is_strange
    return _masked(text, [word.span() for word in _APART.finditer(text) if looks(word[0].strip(_QUOTES))])


@lru_cache(maxsize=4_096)
def _may_name_one(label: str) -> bool:
    small = label.lower()
    return not label.isascii() or any(part in small for part in _KEY_PARTS) or not label.isprintable()


@lru_cache(maxsize=4_096)
def _named(label: str) -> Literal["certain", "likely"] | None:
    """Tell whether a label ends with what names a secret."""
    last = None
    for match in _NAMED.finditer(label):
        last = match
    if last is None or label[last.end() :].strip(_EDGES + " "):
        return None
    return "certain" if re.match(_CERTAIN, last[0], re.IGNORECASE) else "likely"


def is_value(label: str, text: str) -> bool:
    """Tell whether a text looks like the secret that ``label`` names, where the two may be things of their own."""
    text = text.strip()
    return _may_name_one(label) and _looks_random(text) and redact_value(label, text) != redact(text)


def is_invisible(char: str) -> bool:
    """Tell whether a character shows nothing, and is no blank either."""
    return char in _INVISIBLE or unicodedata.category(char) in {"Cf", "Cs", "Co", "Cn"}


def _masked(text: str, found: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    at = 0
    until = -1
    for start, end in sorted(found):
        if start > until or until < 0:
            parts += [text[at:start], REDACTED]
        until = at = max(until, end)
    return "".join(parts) + text[at:]


def _secrets(text: str) -> list[tuple[int, int]]:
    if not _may_hold_one(text):
        return []
    found: list[tuple[int, int]] = []
    for reading in _readings(text):
        found += reading.places(_tokens(reading.text))
        found += reading.places(_assigned(reading.text))
        if _BREAK.search(reading.text):
            whole = reading.without(_BREAK)
            found += whole.places(_mended(reading, whole))
    return found


def _may_hold_one(text: str) -> bool:
    """Tell whether a text has anything that a secret has; most have not, and end here, in a tenth of the time."""
    if not (text.isascii() and text.isprintable()) or _LONG.search(text):
        return True
    small = text.lower()
    return any(sign in small for sign in (*_SIGNS, *_KEY_PARTS))


def _readings(text: str) -> Iterator[_Reading]:
    yield _Reading(text, range(len(text)), range(1, len(text) + 1))
    has_escapes = _ESCAPE.search(text) is not None
    if _NOT_PLAIN.search(text):
        yield _resolved(text, escapes=False, between="")
        yield _resolved(text, escapes=False, between=" ")
    if has_escapes:
        yield _resolved(text, escapes=True, between="")


def _resolved(text: str, *, escapes: bool, between: str) -> _Reading:
    """Return the text with plain letters; ``between`` stands for what is invisible."""
    chars: list[str] = []
    starts: list[int] = []
    ends: list[int] = []

    def add(shown: str, start: int, end: int) -> None:
        for char in shown:
            chars.append(char)
            starts.append(start)
            ends.append(end)

    at = 0
    while at < len(text):
        match = _ESCAPE.match(text, at) if escapes and text[at] in "\\%&" else None
        if match:
            add(_plain(_unescaped(match), between), at, match.end())
            at = match.end()
        else:
            add(_plain(text[at], between), at, at + 1)
            at += 1
    return _Reading("".join(chars), starts, ends)


def _unescaped(match: re.Match[str]) -> str:
    *numbers, name = match.groups()
    if name:
        return _ENTITIES[name]
    number = next(int(digits, 10 if place == 4 else 16) for place, digits in enumerate(numbers) if digits)
    return chr(number) if number < 0x110000 else ""


def _plain(char: str, between: str) -> str:
    if char.isascii():
        return char if char.isprintable() or char.isspace() else between
    if "\U000e0020" <= char <= "\U000e007e":  # tags: ASCII that nobody sees
        return chr(ord(char) - 0xE0000)
    if is_invisible(char):
        return between
    if char in "\u2028\u2029\u0085":
        return "\n"
    if char.isspace():
        return " "
    category = unicodedata.category(char)
    if category in {"Pd", "Pi", "Pf"}:
        return "-" if category == "Pd" else "'" if char in "\u2018\u2019\u201b" else '"'
    kept = (part for part in unicodedata.normalize("NFKD", char.translate(_LOOK_ALIKE)) if not _is_mark(part))
    return "".join(kept).translate(_LOOK_ALIKE)


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in {"Mn", "Me"}


def _tokens(text: str) -> Iterator[tuple[int, int]]:
    yield from _by_looks(text)
    for pattern in (_TOKEN, _PRIVATE_KEY):
        for match in pattern.finditer(text):
            yield match.span()
    for pattern in (*_WITH_VALUE, _BEARER, _AUTHORIZATION):
        for match in pattern.finditer(text):
            if not match["value"].startswith(REDACTED):
                yield match.span("value")


def _by_looks(text: str) -> Iterator[tuple[int, int]]:
    """Yield what is a key by its looks: letters of both cases and digits without any order; and seed phrases."""
    for match in _RANDOM.finditer(text):
        kinds = ["0" if char.isdigit() else "A" if char.isupper() else "a" for char in match[0] if char.isalnum()]
        changes = sum(one != other for one, other in pairwise(kinds))
        at_digits = sum((one == "0") != (other == "0") for one, other in pairwise(kinds))
        often = changes / (len(kinds) - 1)
        if len({*kinds}) == 3 and often >= 0.35 and (at_digits >= 4 or often >= 0.55):
            yield match.span()
    if _SEED.search(text):
        for match in _SEED_PHRASE.finditer(text):
            words = match[0].replace(",", " ").split()
            if sum(word in STOP_WORDS for word in words) * 6 <= len(words):
                yield match.span()


def _near(text: str) -> Iterator[tuple[int, int]]:
    """Yield what looks like a secret and stands behind a word that names one, on the same line."""
    for match in _WEAK.finditer(text):
        word, name = match["value"].strip(_EDGES), match[0][:3].lower()
        sure = re.fullmatch(r"[0-9]{4,8}", word) if name == "pin" else name[:2] in ("pw", "pa") and _looks_random(word)
        if not _is_reference(word) and (sure or _is_strange(word) or _is_strange(word.rpartition("/")[2])):
            yield match.span("value")
    for match in _NAMED.finditer(text):
        lead = _LIST.match(text, match.end())
        begin = lead.end() if lead else match.end()
        line = text[begin : begin + _NEAR].partition("\n")[0]
        for word in _APART.finditer(line):
            start = begin + word.start()
            whole = _APART.match(text, start)
            if whole and _is_strange(whole[0].strip(_QUOTES)):
                yield whole.span()


def _is_strange(word: str) -> bool:
    """Tell whether a word with digits in it is none of those that are in every text."""
    if len(word) < 6 or "://" in word or _is_reference(word):
        return False
    has_both = any(char.isalpha() for char in word) and any(char.isdigit() for char in word)
    return has_both and word.isascii() and _WORD_LIKE.fullmatch(word) is None


def _mended(reading: _Reading, whole: _Reading) -> Iterator[tuple[int, int]]:
    """Yield what is a key in a text without its breaks, and no more of what is behind a break than belongs to it."""
    ends = {reading.ends[end - 1] for match in _TOKEN.finditer(reading.text) for end in [match.end()]}
    for match in _TOKEN.finditer(whole.text):
        start, end = match.span()
        for at in range(start + 1, end):
            # A key that is whole at the end of a line does not go on with the word that begins the next one.
            if whole.ends[at - 1] in ends and whole.starts[at] > whole.ends[at - 1]:
                if _PLAIN.fullmatch(whole.text[at:end]):
                    end = at
                break
        yield start, end
    for pattern in _WITH_VALUE:
        for match in pattern.finditer(whole.text):
            if not match["value"].startswith(REDACTED):
                yield match.span("value")


def _assigned(text: str) -> Iterator[tuple[int, int]]:
    small = text.lower()
    if not any(part in small for part in _KEY_PARTS):  # most texts end here
        return
    for match in _ASSIGNED.finditer(text):
        span = _value(text, match)
        if span is not None:
            yield span
    yield from _near(text)


def _value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Return where the secret is that is assigned here, if it is one."""
    certain, sign = match["certain"] is not None, match["sign"]
    is_option = bool(re.search(r"(?<![\w-])--?[\w-]*\Z", text[max(0, match.start() - 40) : match.start()]))
    if match["blank"] and not is_option:
        return None
    if match["tag"] and not re.search(r"<[\w:.-]*\Z", text[max(0, match.start() - 40) : match.start()]):
        return None
    at = match.end()
    lead = _LEAD.match(text, at)
    at = lead.end() if lead else at
    opening = _OPENING.match(text, at)
    if opening:
        start = opening.end()
        end = _closing(text, start, opening[1])
        value = text[start:end].strip()
        sentence = not certain and len(value.split()) > 3 and not _looks_random(max(value.split(), key=len))
        spared = not value or _is_reference(value) or sentence or (match["is"] and not _looks_random(value))
        return None if spared else (start, end)
    run = re.compile(r"[^\s<]+" if match["tag"] else r"\S+").match(text, at)
    if run is None or _is_reference(run[0]):
        return None
    word = run[0].strip(_EDGES)
    if word.casefold() in _NO_VALUES or not word:
        return None
    if match["is"]:
        return run.span() if _looks_random(word) else None
    rest = text[run.end() :].partition("\n")[0]
    is_prose = _WORD.fullmatch(word) is not None and bool(rest.strip(_EDGES + " "))
    if is_prose and word.casefold() in _PROSE:
        return None
    if certain:
        return run.start(), run.end() + _phrase(text, match, rest)
    is_plain = _WORD.fullmatch(word) is not None and len(word) < 16 and word[1:] == word[1:].lower()
    if is_plain and sign != "=" and not is_option and (is_prose or len(word) < 6 or "\n" in text[match.end() : at]):
        return None
    is_number = re.fullmatch(r"[0-9.,%]+[A-Za-z]{0,3}", word) is not None and len(word) < 6
    return None if is_number else run.span()


def _phrase(text: str, match: re.Match[str], rest: str) -> int:
    """Return how far a password goes on behind its first word: to the line's end, if that can be a phrase of words."""
    words = rest.split()
    is_seed = re.match(r"seed|recovery|mnemonic|pass[ _-]?phrase", match["certain"], re.IGNORECASE) is not None
    most = _SEED_WORDS if is_seed else _PHRASE_WORDS
    starts = _LINE_START.search(text[max(0, match.start() - 60) : match.start()]) is not None
    plain = all(re.fullmatch(r"[a-z]+", word) for word in words)
    return len(rest.rstrip()) if words and len(words) < most and plain and (starts or is_seed) else 0


def _closing(text: str, start: int, quote: str) -> int:
    at = start
    while (at := text.find(quote, at)) >= 0:
        slashes = at - len(text[start:at].rstrip("\\")) - start
        if slashes % 2 == 0 or text[start - len(quote) - 1 : start - len(quote)] == "\\":
            return at - slashes if slashes % 2 else at
        at += 1
    return len(text)


def _is_reference(value: str) -> bool:
    return value.strip().casefold() in _NO_VALUES or _REFERENCE.match(value.strip()) is not None


def _looks_random(value: str) -> bool:
    """Tell whether a value is no word: letters with digits or signs in it."""
    if len(value) < 6 or " " in value:
        return False
    letters = any(char.isalpha() for char in value)
    return letters and any(char.isdigit() or char in "!@#$%^&*+=~|" for char in value)
