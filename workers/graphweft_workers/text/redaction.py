"""Redaction of secrets in text that a model reads: see ``redact``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

from graphweft_workers.text.secret_signs import (
    CARD,
    COLONS,
    LABELLED,
    LONG,
    holds_none,
    may_break,
    may_name_a_secret,
    signs_of,
)
from graphweft_workers.text.terms import STOP_WORDS

REDACTED: Final = "[REDACTED]"
_MAX_CHARS: Final = 4_000
_STRIDE: Final = 3_000
"""Distance of the windows in which a longer text is read. A secret of up to 1,000 characters is whole in one."""
_LOOK_ALIKES: Final = str.maketrans(
    "аАеЕоОрРсСхХуУкКмМтТвВнНіІїЇѕЅјЈԁԛԝһҺΑαΒΕΖΗΙΚκΜΝΟοΡρΤτΥυΧχνιıɑɡℓ\u2044\u2215\u2236\ua789\u02d0\u02f8\u201a\u201e\u2212",
    "aAeEoOpPcCxXyYkKmMtTbBhHiIiIsSjJdqwhHAaBEZHIKkMNOoPpTtYuXxviiagl//::::'\"-",
)


def is_invisible(char: str) -> bool:
    """Tell whether a character shows nothing and is not white space."""
    return char in "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" or unicodedata.category(char) in {
        "Cf", "Cs", "Co", "Cn",
    }  # fmt: skip


@lru_cache(maxsize=4_096)
def _plain(char: str) -> str:
    """Return the ASCII characters that a character looks like, or its own base letter; empty if it is invisible."""
    category = unicodedata.category(char)
    if char in "\u2028\u2029\u0085" or char.isspace():
        return char if char.isascii() else " " if category == "Zs" else "\n"
    if category == "Cc" or is_invisible(char):
        return ""
    if category in {"Pd", "Pi", "Pf"}:
        return "-" if category == "Pd" else "'" if char in "\u2018\u2019\u201b" else '"'
    parts = unicodedata.normalize("NFKD", char.translate(_LOOK_ALIKES))
    parts = parts if len(parts) <= 6 else char
    return "".join(part for part in parts if unicodedata.category(part) not in {"Mn", "Me"}).translate(_LOOK_ALIKES)


_PASSWORD: Final = "".join(
    map(
        _plain,
        r"p[ ._-]?[a@4][ ._-]?[s$5][ ._-]?[s$5][ ._-]?w[ ._-]?[o0][ ._-]?r[ ._-]?d|pass[ _-]?(?:wd|phrase|code)"
        r"|(?:pass|kenn)wort|contraseña|mot de passe|senha|wachtwoord|lösenord|hasło|пароль|pwd"
        r"|密[码碼]|パスワード|비밀번호|(?:seed|recovery|mnemonic)[ _-]?(?:phrase|words)",
    )
)
"""Names of passwords: any value assigned to one is a secret."""
_CREDENTIAL: Final = (
    r"(?:api|access|secret|private|encryption|signing|account|shared[ _-]?access|auth|master|service|ssh|license|"
    r"webhook|session)[ _-]?key(?:[ _-]?id)?|secret|credentials?|connection[ _-]?string|(?:api[ _-]?|auth[ _-]?)?token"
    r"|authorization|(?:set-)?cookie|session[ _-]?id"
)
"""Names of other secrets: a plain word in a sentence behind one is not a secret."""
_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|[spr]k_live|[spr]k_test|gh[pousr]|github_pat|gl(?:pat|dt|rt|ptt|soat|sa)|hf|gsk|npm|dckr_pat|dop_v1|shpat|"
    r"shpss|lin_api|r8|pplx|tvly|nvapi|xai|pypi|rubygems|sbp|atlasv1|NRAK|SG|whsec|lsv2_[a-z]{2}|sq0[a-z]{3}|hv[sb]|tskey|"
    r"CFPAT|PMAK|FlyV1|fm2|ATATT3x|ntn|figd|sntry[su]|vercel|bkua|phc|pat[A-Za-z0-9]{14}|pat-[a-z]{2,3}[0-9]|"
    r"AGE-SECRET-KEY|key)[_.-](?=[A-Za-z_.+/=-]{0,100}+[0-9])[\w.+/=-]{15,}[\w+/=-]|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}|(?:rnd|re)_\w{20,}"
    r"|sk-[A-Za-z0-9]{16,}|hf_[A-Za-z]{30,}|A(?:KIA|SIA|GPA|IDA|ROA|IPA|NPA|NVA|BIA|CCA)[A-Z0-9]{16,}|AIza[\w-]{30,}"
    r"|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}|eyJ[\w-]{8,}(?:\.[\w=-]*){0,4}|(?:MII[A-Za-z]|b3BlbnNzaC1rZXk)[A-Za-z0-9+/=]{40,}"
    r"|hooks\.slack\.com/(?:services|workflows)/[\w/-]{10,}|webhook\.office\.com/[^\s\"'<>]{10,}|1//0[a-z][\w-]{20,}"
    r"|(?:bot)?[0-9]{8,10}:AA[\w-]{30,}|[MNO][\w-]{17,}\.[\w-]{6}\.[\w-]{27,}|ATATT3x\w{16,}"
    r"|access_token\$[a-z]+\$[0-9a-z]{8,}\$[0-9a-f]{20,}|(?:AC|SK|dapi|EZ[AT]K|EAA[A-Z])(?:[0-9a-f]{32}|[A-Za-z0-9]{40,})"
    r"|[xyz]prv[1-9A-HJ-NP-Za-km-z]{60,}|[5KL][1-9A-HJ-NP-Za-km-z]{50,51}(?![A-Za-z0-9])"
    # 32 or more hexadecimal digits, but not 40, which name a commit, nor a digest that says what it is.
    r"|(?<!sha256:)(?<!sha256-)(?<!md5:)(?:0x)?(?![0-9A-Fa-f]{40}(?![0-9A-Za-z]))(?=(?:[A-Fa-f]{0,12}[0-9]){4})"
    r"(?=(?:[0-9]{0,24}[A-Fa-f]){3})(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![0-9A-Za-z]))",
    re.ASCII,
)
_BREAK: Final = re.compile(
    r"(?<![ \t])[ \t]*\\?(?:\r?\n|\r|\\r\\n|\\n)[ \t]*(?:(?:#+|//+|\*+|>+|\|+|;+|--+(?=[ \t])|<!--|%+)[ \t]*)*[\"'`]?"
    r"|[\"'`][ \t]*(?:[+.&][ \t]*)?(?:\\?(?:\r?\n|\r)[ \t]*(?:[+.&][ \t]*)?)?[\"'`](?=[A-Za-z0-9_./+-])"
)
"""A line break, also of a comment, or the gap between two quoted parts: one key may stand on both sides of it."""
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
_PROSE: Final = STOP_WORDS | set("must may shall see use ask please never always minimum length rules".split())  # noqa: SIM905
_PLAIN_WORD: Final = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_COMMON: Final = re.compile(
    r"[A-Z]?[a-z]+(?:[-_./'][A-Za-z]?[a-z]+)*[-_.]?v?[0-9.]*[a-z]?|[A-Z]{1,12}[0-9]{0,6}(?:[-_/.][A-Z0-9]{1,8})*s?"
    r"|v?[0-9][0-9.,:/x_-]*[a-zA-Z%]{0,4}|[a-z][0-9]{1,4}[a-z]?(?:[_-][a-z]+)*[0-9]?|[0-9][A-Z][a-z]+"
    r"|[0-9]+[a-z]{1,6}/[a-z]{1,6}|(?:/[a-z0-9_.{}-]{1,16})+/?|(?:[a-z0-9-]{1,30}\.)+[a-z]{2,6}|[0-9]{1,4}-[a-z-]+"
    r"|(?i:oauth|argon|base|sha|md|utf|http|pbkdf|bcrypt|ed|curve|aes|rsa|ecdsa|hmac|x|rfc|tls|gpt|ipv?)"
    r"[A-Za-z-]{0,9}[0-9][\w.-]{0,12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?|[\w.+-]+@[\w-]+\.[\w.-]+"
)
"""Words with digits that are common in text: ``Server7``, ``SHA-256``, ``v2``, ``2024-01-01``, ``OAuth2``."""
_QUOTES: Final = "\"'`.,;:?()[]{}<>*"
_EDGES: Final = _QUOTES + "!"
_WORDS: Final = re.compile(r"[^\s\"'`|,;:=(){}\[\]<>\u2190-\u21ff\u27f5-\u27ff]+")
_NAME: Final = re.compile(
    rf"(?i)(?:(?P<password>{_PASSWORD})|{_CREDENTIAL}|(?<![A-Za-z])(?:pass|pw|creds?|login)(?![A-Za-z]))(?:s|en)?(?![a-rt-z])"
)
_ASSIGNED: Final = re.compile(
    rf"(?is)(?P<option>(?<![\w-])--?[\w-]{{0,40}}?)?(?P<tagged><[\w:.-]{{0,40}}?)?(?:(?P<password>{_PASSWORD})|(?:{_CREDENTIAL}))"
    r"(?:[._-]?(?:[0-9]{1,4}|prod(?:uction)?|dev|test|staging|live|value|old|new|hash|b64|base64))*"
    # `password = `, `"token": `, `<password>`, `password is `, `--token `
    r"(?:[\\\"'`*_)\]]{0,4}\s*(?P<sign>=>|:=|={1,3}|:{1,2}|->)|(?(tagged)>|(?!))"
    r"|(?P<is>[\"'`*]*\s+(?:is|was|are)(?:\s+set\s+to)?[\s:]+)|(?(option)[ \t]+|(?!)))"
    r"(?P<lead>(?:\s|\\(?=\s)|#++(?=\s)|//++(?=\s)|\*++(?=\s)|[|>][+-]?(?=\s)|--++(?=\s)|\|(?=\s)|!!?\w++(?=\s))*+)"
    r"(?:[bfru]{0,2}(?P<quote>\\*+(?:\"\"\"|'''|[\"'`]))(?P<quoted>(?:(?!(?P=quote))(?:\\.|.))*+)|(?P<run>(?(tagged)[^\s<]|\S)+))"
)


def _is_given(value: str) -> bool:
    """Tell whether a value is one, and not a placeholder, a type or a call."""
    return value.strip(_EDGES + " ").casefold() not in _NOT_SECRET | {""} and _REFERENCE.match(value.strip()) is None


def _is_mixed(value: str) -> bool:
    """Tell whether a value has letters, and digits or signs."""
    others = any(char.isdigit() or char in "!@#$%^&*+=~|" for char in value)
    return len(value) >= 6 and " " not in value and any(map(str.isalpha, value)) and others


def _is_strange(word: str) -> bool:
    """Tell whether a word of ASCII letters and digits is not a common one, such as ``OAuth2``."""
    has_both = word.isascii() and len(word) >= 6 and any(map(str.isalpha, word)) and any(map(str.isdigit, word))
    return has_both and "://" not in word and _is_given(word) and _COMMON.fullmatch(word) is None


def _is_jumble(word: str) -> bool:
    """Tell whether letters of both cases and digits take turns as they do in keys only."""
    kinds = ["0" if char.isdigit() else "A" if char.isupper() else "a" for char in word if char.isalnum()]
    if len({*kinds}) < 3:
        return False
    often = sum(one != other for one, other in pairwise(kinds)) / (len(kinds) - 1)
    at_digits = sum((one == "0") != (other == "0") for one, other in pairwise(kinds))
    return often >= 0.35 and (at_digits >= 4 or often >= 0.55)


def _is_card(text: str) -> bool:
    """Tell whether the last digit is the check digit of a card number (Luhn)."""
    digits = [int(char) for char in text if char.isdigit()]
    return (sum(digits[-1::-2]) + sum(digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2])) % 10 == 0


type _Rule = tuple[str, str, str, Callable[[str], bool]]
"""Two signs that a text must have (``signs_of``); a pattern; and the test of its match, or of its last group."""


def _is_not_redacted(value: str) -> bool:
    return REDACTED not in value


# fmt: off
_LOGINS: Final[Sequence[_Rule]] = tuple((first, second, pattern, _is_not_redacted) for (first, second), pattern in (
    # https://TOKEN@host, ann:PASSWORD@tcp(host), curl -u ann:PASSWORD
    (("://", "@"),
     r"[A-Za-z][A-Za-z0-9+.-]{1,20}://(?P<value>(?=[^\s/@]*[0-9])(?=[^\s/@]*[A-Za-z])[^\s/?#:@\"'<>]{12,})@"),
    (("@", ":"), r"(?<![\w/.-])[\w.-]+:(?P<value>[^\s:/@]{3,})@(?:tcp|unix)\("),
    (("-u", ""), r"(?<!\S)(?:-u|--user|--proxy-user)[ =]*[\"']?(?P<value>[^\s:\"']+:[^\s\"']+)"),
    # mysql -pPASSWORD, https://host/?sig=KEY, .netrc, .pgpass, sqlplus scott/PASSWORD@db
    ((" -", ""),
     r"\b(?:sshpass|docker[ \t]+login|(?:mysql|maria)\w*|[a-z]+-cli|mongo\w*|ldap\w+|openssl)\b[^\n|;]{0,200}?"
     r"[ \t](?:-[paw][ \t]+|-p(?=\S*[0-9!@#$%])|-pass(?:in|out)?[ \t]+pass:)[\"']?"
     r"(?P<value>(?=[^\s\"']*[A-Za-z])[^\s\"']{4,})"),
    (("=", ""), r"(?i)[?&](?:sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|code|key|apikey|auth)"
     r"=(?P<value>[^&\s\"'<>]{8,})"),
    (("login", "password"),
     r"\b(?:machine[ \t]+\S+|default)\s+login\s+\S+\s+(?:account\s+\S+\s+)?password\s+(?P<value>\S{3,})"),
    ((COLONS, ""), r"(?<!\S)[\w.*-]{1,80}:(?:[0-9]{3,5}|\*):[\w*-]{1,80}:[\w*-]{1,80}:(?P<value>[^\s:]{3,})(?!\S)"),
    (("@", "/"), r"(?:\b(?:sqlplus|impdp|expdp|conn(?:ect)?)[ \t]+|\bthin:"
     r"|(?<![\w/@.-])(?=[\w$#]{1,40}/[^\s/@]{3,60}@(?://|[\w.-]{1,60}:[0-9]{2,5}\b)))[\w$#]{1,40}/(?P<value>[^\s/@]{3,})@"),
))
_NO_SPACE: Final = re.compile(r"[^\s\"'<>]+")
_URL: Final = re.compile(r"(?<=[A-Za-z0-9+.-]{2})://(?P<value>[^\s/?#:@\"'<>]*:(?![0-9]{1,5}(?:[/?#\s\"'<>]|\Z))[^\s\"'<>]+)@")
"""postgres://ann:PASSWORD@host, in a text that ends with the last @ of a word."""
_SHAPES: Final[Sequence[_Rule]] = (
    (LONG, "", _TOKEN.pattern, bool),
    ("private", "begin", r"(?is)(?<!-)-+[ \t]*BEGIN\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?.*?"
     r"(?:(?<!-)-+[ \t]*END\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?[ \t]*-*|\Z)", bool),
    ("putty", "", r"(?s)PuTTY-User-Key-File-[0-9].*\Z", bool),
    (LONG, "", r"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{20,}|[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))", _is_jumble),
    (CARD, "", r"(?<![\w.-])(?:(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|6[0-9]{3})(?:[ -]?[0-9]{4}){3}"
     r"|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5})(?![\w-]|\.[0-9])", _is_card),
    ("bearer", "", r"(?i)\bbearer[\"']?[:=]?\s+(?:[#>|*/]+\s*)*(?P<value>(?=\S*[0-9]|\S{20})[\w.~+/=|-]{6,})", bool),
    # key: Z3x-19Qw
    (LABELLED, "",
     r"(?i)(?<![A-Za-z])(?:pw|pass|creds?|credentials|login|auth|key|pin|otp|salt|hmac|signature|root|admin)s?"
     r"[\"'`*]{0,3}[ \t]*(?::|=>?)[ \t]*[\"'`]?(?P<value>[^\s\"'`]{4,})",
     lambda value: any(map(_is_strange, (value.strip(_EDGES), value.strip(_EDGES).rpartition("/")[2])))),
    ("pin", "",
     r"(?i)\bPIN(?:[ \t]+code)?(?:[ \t]+(?:is|was)[ \t]|[ \t]*[:=])[ \t]*(?P<value>[0-9]{4,8})(?![0-9])", bool),
    ("log", "/", r"(?i)\blog(?:ged)?[ -]?(?:in|on)[ \t]+(?:with|as|using)[ \t]+[\"'`]?\S{1,60}[ \t]*/[ \t]*[\"'`]?"
     r"(?P<value>[^\s\"'`]{6,})", lambda value: _is_given(value) and _is_mixed(value.strip(_QUOTES))),
)
_NAMED: Final[Sequence[_Rule]] = (
    # DB_PASS=anything
    ("_", "", r"(?<![A-Za-z0-9_])(?!(?:PRIMARY|FOREIGN|PUBLIC|UNIQUE|SORT|PARTITION|CACHE|ROUTING)_KEY)"
     r"(?:[A-Z][A-Z0-9_]{0,60}_(?:PASS|PW|PWD|KEY|SECRET|CREDS?)|[a-z][a-z0-9_]{0,60}_(?:pass|pw|pwd))"
     r"[ \t]?[=:][ \t]?[\"'`]?(?P<value>[^\s\"'`]{4,})",
     lambda value: _is_given(value) and value.strip(_EDGES).casefold() not in _PROSE),
    ("authorization", "",
     r"(?i)authorization[\"'\]\\]*\s*[:=]\s*[\"'\\]*(?:basic|bearer|digest|token|apikey|negotiate)\s+"
     r"(?P<value>[^\s\"',;]{4,})", _is_given),
    # password on db1 -> PASSWORD
    ("", "", rf"(?i)(?:{_PASSWORD})[^\n.;:!?]{{0,60}}[ \t](?:\u2192|[=-]>)[ \t]*(?P<value>[^\s\"'`]{{4,}})",
     _is_given),
    # the password for the shop is PASSWORD.
    ("", "", rf"(?i)(?:{_PASSWORD})[ \t]+(?:(?:for|of|on|to|in|at)[ \t]+[^\n.;:!?]{{1,60}}?[ \t]+)?(?:is|was)"
     r"[ \t]+[\"'`]?(?P<value>[^\s\"'`]{4,})(?:(?<=[.,;!)])|[\"'`]?(?=[ \t]*(?:\n|\Z)))",
     lambda value: _is_given(value) and _is_mixed(value.strip(_QUOTES))),
    # PASSWORD is the admin password
    (" is", "", r"(?i)(?<!\S)[\"'`]?(?P<value>[^\s\"'`]{6,})[\"'`]?[ \t]+is[ \t]+(?:the|our|my|his|her|their|its)[ \t]+"
     rf"(?:[\w-]{{1,30}}[ \t]+){{0,3}}(?:{_PASSWORD})(?=[ \t]*(?:[.,;!)\n]|\Z|(?:for|of|on)\b))",
     lambda value: _is_given(value) and _is_mixed(value.strip(_QUOTES))),
)
"""For texts with a name of a secret."""
# fmt: on
_LIST: Final = re.compile(r"[\"'`]?[ \t]*+:[ \t]*+\n[ \t]*[-*][ \t]+")
_LEAD: Final = re.compile(r"[\s#/*>;<!-]*+(?:(?:export|set|let|const|var)\s+)?[\w.-]*")
"""What stands in front of a password that begins a line."""
_LONGEST_LEAD: Final = 200
_LONGEST_REST: Final = 400
_NEAR: Final = 80
"""Characters behind the name of a secret in which a strange word is one."""
_SEED: Final = re.compile(r"(?i)\b(?:seed|recovery|mnemonic|secret)[ _-]?(?:phrase|words)|\bmnemonic")
_SEED_PHRASE: Final = re.compile(r"(?<![A-Za-z])(?:[a-z]{3,8}[ \t,]+){11,}[a-z]{3,8}(?![A-Za-z])")


def redact(text: str) -> str:
    """Return the text with ``[REDACTED]`` in place of each secret. Never raises; a second call changes nothing.

    Only the first 4,000 characters are read and returned. A secret is an API key, a token, a private key (without its
    end, all that follows), the user and password of a URL or a command, the number of a payment card, a long run of
    mixed letters and digits, or a value that is assigned to a password, a token or the like, or stands near its name.
    """
    text = _bounded(text)
    return _masked(text, _secrets(text))


def redact_value(label: str, text: str) -> str:
    """Return the text as ``redact`` does when ``label: `` stands in front of it."""
    text = _bounded(text)
    return _masked(text, [*_secrets_behind(label, text), *_secrets(text)])


@lru_cache(maxsize=2_048)
def redact_cell(label: str, text: str) -> str:
    """Return a text of any length with ``[REDACTED]`` in place of each secret; ``label`` is the name of its column.

    Ids stay as they are: the text of a column ``id`` or ``…_id``, except ``session_id``, because an agent needs it.
    """
    if label == "id" or (label.endswith("_id") and not label.endswith("session_id")):
        return text
    if len(text) <= _MAX_CHARS:
        return redact_value(label, text) if label else redact(text)
    found: list[tuple[int, int]] = []
    for start in range(0, len(text), _STRIDE):
        found += ((start + first, start + last) for first, last in _secrets(text[start : start + _MAX_CHARS]))
    return _masked(text, found)


def redact_beside(label: str, text: str) -> str:
    """Return the text without each word that looks like a secret, if ``label`` ends with the name of a secret."""
    label, text = _bounded(label), _bounded(text)
    names = list(_NAME.finditer(label))
    if not names or label[names[-1].end() :].strip(_EDGES + " "):
        return text
    looks = _is_mixed if names[-1]["password"] else _is_strange
    return _masked(text, [word.span() for word in _WORDS.finditer(text) if looks(word[0].strip(_QUOTES))])


def is_value(label: str, text: str) -> bool:
    """Tell whether a text looks like the secret that ``label`` names."""
    text = _bounded(text).strip()
    if not _is_mixed(text) or not (found := _secrets_behind(label, text)):
        return False
    alone = _secrets(text)
    return _masked(text, [*found, *alone]) != _masked(text, alone)


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - len(REDACTED)] + REDACTED


def _masked(text: str, found: Iterable[tuple[int, int]]) -> str:
    parts: list[str] = []
    at, until = 0, -1
    for start, end in sorted(found):
        if start > until:
            parts += [text[at:start], REDACTED]
        until = at = max(until, end)
    return "".join(parts) + text[at:]


def _secrets_behind(label: str, text: str) -> list[tuple[int, int]]:
    """Return where secrets stand in a text when ``label: `` stands in front of it."""
    head = f"{_bounded(label)}: "
    return [(max(0, start - len(head)), end - len(head)) for start, end in _secrets(head + text) if end > len(head)]


def _secrets(text: str) -> list[tuple[int, int]]:
    """Return where secrets stand in a text, also behind look-alike letters and across line breaks."""
    if holds_none(text):
        return []
    places: Sequence[int] = range(len(text))
    plain = text
    if not (text.isascii() and text.isprintable()):
        pairs = [(shown, at) for at, char in enumerate(text) for shown in _plain(char)]
        plain, places = "".join(shown for shown, _ in pairs), [at for _, at in pairs]
    found = [(places[start], places[end - 1] + 1) for start, end in _found(plain)]
    if may_break(plain) and (breaks := [*_BREAK.finditer(plain)]):
        gaps = {at for match in breaks for at in range(*match.span())}
        left = [at for at in range(len(plain)) if at not in gaps]
        whole = "".join(plain[at] for at in left)
        found += [(places[left[start]], places[left[end - 1]] + 1) for start, end in _across(plain, whole, left)]
    return found


def _across(text: str, whole: str, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield what is a key only in a text without its breaks: ``places`` says where in the text its characters stand."""
    signs = signs_of(whole)
    ends = {match.end() for match in _TOKEN.finditer(text)} if LONG in signs else set[int]()
    for match in _TOKEN.finditer(whole) if LONG in signs else ():
        start, end = match.span()
        for at in range(start + 1, end):
            # A key that is whole at the end of a line does not go on with the word that begins the next line.
            if places[at - 1] + 1 in ends and places[at] > places[at - 1] + 1:
                end = at if re.fullmatch(r"[A-Za-z]?[a-z]*[.,;:!?]?", whole[at:end]) else end
                break
        yield start, end
    yield from _logins(whole, signs)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern, at its first use: to compile all takes a tenth of a second."""
    return re.compile(pattern)


def _matches(rules: Iterable[_Rule], text: str, signs: str) -> Iterator[tuple[int, int]]:
    for one, other, pattern, test in rules:
        for match in _compiled(pattern).finditer(text) if one in signs and other in signs else ():
            if test(match[match.lastgroup or 0]):
                yield match.span(match.lastgroup or 0)


def _logins(text: str, signs: str) -> Iterator[tuple[int, int]]:
    if "://" in signs and "@" in signs:
        for word in _NO_SPACE.finditer(text):
            # Each URL of a word goes up to its last @: so none looks for it in vain.
            for match in _URL.finditer(text, word.start(), text.rfind("@", *word.span()) + 1):
                if _is_not_redacted(match["value"]):
                    yield match.span("value")
    yield from _matches(_LOGINS, text, signs)


def _found(text: str) -> Iterator[tuple[int, int]]:
    signs = signs_of(text)
    yield from _logins(text, signs)
    yield from _matches(_SHAPES, text, signs)
    if not may_name_a_secret(text, signs):
        return
    yield from _matches(_NAMED, text, signs)
    for match in _ASSIGNED.finditer(text):
        yield from _assigned(text, match)
    yield from _strange(text)
    if _SEED.search(text):
        for match in _SEED_PHRASE.finditer(text):
            words = match[0].replace(",", " ").split()
            if sum(word in STOP_WORDS for word in words) * 6 <= len(words):
                yield match.span()


def _strange(text: str) -> Iterator[tuple[int, int]]:
    """Yield a strange word behind the name of a secret, on the same line or in the first item of a list."""
    until = 0  # so far words were looked at
    for match in _NAME.finditer(text):
        lead = _LIST.match(text, match.end())
        begin = lead.end() if lead else match.end()
        end = text.find("\n", begin, begin + _NEAR)
        end = end if end >= 0 else begin + _NEAR
        first = [word] if begin < until and (word := _WORDS.match(text, begin, end)) else []
        for near in (*first, *_WORDS.finditer(text, max(begin, until), end)):
            # A key shows in its first characters that it is one: to read on at each name would take too long.
            word = _WORDS.match(text, near.start(), near.start() + _NEAR)
            if word is None:
                continue
            until = max(until, word.end())
            if _is_strange(word[0].strip(_QUOTES)) and (whole := _WORDS.match(text, near.start())):
                yield whole.span()


def _assigned(text: str, match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yield the span of an assigned value, if it is a secret and no part of a sentence."""
    is_password, name = match["password"] is not None, "quoted" if match["quote"] else "run"
    value, end = match[name], match.end(name)
    begin, rest = match.start(), text[end : end + _LONGEST_REST].partition("\n")[0]
    word, words = value.strip(_EDGES), rest.split()
    if not _is_given(value):
        return
    if match["is"]:
        is_secret = _is_mixed(word)
    elif name == "quoted":
        is_secret = is_password or len(value.split()) <= 3 or _is_mixed(max(value.split(), key=len))
    else:
        is_plain = _PLAIN_WORD.fullmatch(word) is not None
        in_prose = is_plain and bool(rest.strip(_EDGES + " "))
        if is_password:
            is_secret = not (in_prose and word.casefold() in _PROSE)
            if words and len(words) < 25 and all(re.fullmatch("[a-z]+", each) for each in words):
                line = text.rfind("\n", max(0, begin - _LONGEST_LEAD - 1), begin) + 1
                starts = (line or begin <= _LONGEST_LEAD) and _LEAD.fullmatch(text, line, begin)
                end += len(rest.rstrip()) if (starts and len(words) < 6) or _SEED.match(match["password"]) else 0
        else:
            is_number = re.fullmatch(r"[0-9.,%]+[A-Za-z]{0,3}", word) is not None and len(word) < 6
            is_weak = (
                is_plain and len(word) < 16 and word[1:].islower() and match["sign"] != "=" and not match["option"]
            )
            is_secret = not is_number and not (is_weak and (in_prose or len(word) < 6 or "\n" in match["lead"]))
            is_secret = is_secret and not (in_prose and word.casefold() in _PROSE)
    if is_secret:
        yield match.start(name), end
