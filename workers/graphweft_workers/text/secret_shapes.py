"""Secrets that the text around them tells: a row for each kind, with an example and a text that must stay. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from graphweft_workers.text.secret_signs import CARD, COLONS, LABELLED, LONG
from graphweft_workers.text.secret_words import (
    EDGES,
    PASSWORD,
    PROSE,
    QUOTES,
    is_card,
    is_given,
    is_jumble,
    is_mixed,
    is_strange,
)


class SecretShape(NamedTuple):
    """A kind of secrets: its pattern matches the secret, or has it in the group ``value``."""

    name: str
    signs: tuple[str, str]
    """What a text must have, see ``secret_signs.signs_of``; "" for nothing."""
    pattern: str
    counts: Callable[[str], bool]
    """Whether a match is a secret."""
    example: str
    """A text with the secret between « and »."""
    stays: str
    """A text much like a secret that is none."""


def _is_not_redacted(value: str) -> bool:
    return "[REDACTED]" not in value


def _is_any(value: str) -> bool:
    return True


def _is_given_and_mixed(value: str) -> bool:
    return is_given(value) and is_mixed(value.strip(QUOTES))


def _ends_strangely(value: str) -> bool:
    value = value.strip(EDGES)
    return is_strange(value) or is_strange(value.rpartition("/")[2])


def _is_given_outside_prose(value: str) -> bool:
    return is_given(value) and value.strip(EDGES).casefold() not in PROSE


# fmt: off
LOGINS: Final[Sequence[SecretShape]] = (
    SecretShape("token in a URL", ("://", "@"),
          r"[A-Za-z][A-Za-z0-9+.-]{1,20}://(?P<value>(?=[^\s/@]*[0-9])(?=[^\s/@]*[A-Za-z])[^\s/?#:@\"'<>]{12,})@",
          _is_not_redacted, "git clone https://«a1b2c3d4e5f6g7»@host/x.git", "https://documentation@host/x"),
    SecretShape("login of Go's MySQL driver", ("@", ":"),
          r"(?<![\w/.-])[\w.-]+:(?P<value>[^\s:/@]{3,})@(?:tcp|unix)\(",
          _is_not_redacted, "ann:«hunter2»@tcp(db:3306)/shop", "ann@tcp(db:3306)/shop"),
    SecretShape("user of curl", ("-u", ""),
          r"(?<!\S)(?:-u|--user|--proxy-user)[ =]*+[\"']?(?P<value>[^\s:\"']+:[^\s\"']+)",
          _is_not_redacted, "curl -u «ann:hunter2» https://host", "curl -u ann https://host"),
    SecretShape("option of a client", (" -", ""),
          r"\b(?:sshpass|docker[ \t]+login|(?:mysql|maria)\w*|[a-z]+-cli|mongo\w*|ldap\w+|openssl)\b[^\n|;]{0,200}?"
          r"[ \t](?:-[paw][ \t]+|-p(?=\S*[0-9!@#$%])|-pass(?:in|out)?[ \t]+pass:)[\"']?"
          r"(?P<value>(?=[^\s\"']*[A-Za-z])[^\s\"']{4,})",
          _is_not_redacted, "mysql -u ann -p«hunter2» shop", "mysql -u ann -p 3306"),
    SecretShape("signature in a query", ("=", ""),
          r"(?i)[?&](?:sig|signature|x-amz-signature|x-amz-security-token|x-goog-signature|code|key|apikey|auth)"
          r"=(?P<value>[^&\s\"'<>]{8,})",
          _is_not_redacted, "https://host/x?sig=«hunter2-Zx»&y=1", "https://host/x?sig=none&y=1"),
    SecretShape(".netrc", ("login", "password"),
          r"\b(?:machine[ \t]+\S+|default)\s+login\s+\S+\s+(?:account\s+\S+\s+)?password\s+(?P<value>\S{3,})",
          _is_not_redacted, "machine host login ann password «hunter»", "machine host login ann"),
    SecretShape(".pgpass", (COLONS, ""),
          r"(?<!\S)[\w.*-]{1,80}:(?:[0-9]{3,5}|\*):[\w*-]{1,80}:[\w*-]{1,80}:(?P<value>[^\s:]{3,})(?!\S)",
          _is_not_redacted, "db.example:5432:shop:ann:«hunter»", "at 10:30:00:12:34"),
    SecretShape("login of Oracle's clients", ("@", "/"),
          r"(?:\b(?:sqlplus|impdp|expdp|conn(?:ect)?)[ \t]+|\bthin:"
          r"|(?<![\w/@.-])(?=[\w$#]{1,40}/[^\s/@]{3,60}@(?://|[\w.-]{1,60}:[0-9]{2,5}\b)))[\w$#]{1,40}/(?P<value>[^\s/@]{3,})@",
          _is_not_redacted, "sqlplus scott/«tiger»@db", "see src/main@v2"),
    SecretShape("password of NuGet", ("<add", "password"),
          r"(?i)<add\s+key=\"(?:cleartext)?password\"\s+value=\"(?P<value>[^\"<>]{4,})\"",
          _is_not_redacted, '<add key="ClearTextPassword" value="«hunter2»" />', '<add key="Username" value="ann" />'),
)
SHAPES: Final[Sequence[SecretShape]] = (
    SecretShape("private key", ("private", "begin"),
          r"(?is)(?<!-)-+[ \t]*BEGIN\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?.*?"
          r"(?:(?<!-)-+[ \t]*END\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?[ \t]*-*|\Z)",
          _is_any, "«-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----» and more",
          "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----"),
    SecretShape("private key of PuTTY", ("putty", ""), r"(?s)PuTTY-User-Key-File-[0-9].*\Z",
          _is_any, "«PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nabc»", "PuTTY-User-Key-File is a format"),
    SecretShape("jumble of letters and digits", (LONG, ""),
          r"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{20,}|[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))",
          is_jumble, "it is «K3sd82Hdk29XkdPq0ZaB»", "it is ThisIsALongNameOfAClass2"),
    SecretShape("payment card", (CARD, ""),
          r"(?<![\w.-])(?:(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|6[0-9]{3})(?:[ -]?[0-9]{4}){3}"
          r"|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5})(?![\w-]|\.[0-9])",
          is_card, "card «4111 1111 1111 1111»", "order 4111 1111 1111 1112"),
    SecretShape("bearer token", ("bearer", ""),
          r"(?i)\bbearer[\"']?[:=]?\s[\s#>|*/]*+(?P<value>(?=\S*[0-9]|\S{20})[\w.~+/=|-]{6,})",
          _is_any, "Bearer «hunter2-Zx»", "The bearer of the news"),
    SecretShape("word behind the short name of a secret", (LABELLED, ""),
          r"(?i)(?<![A-Za-z])(?:pw|pass|creds?|credentials|login|auth|key|pin|otp|salt|hmac|signature|root|admin)s?"
          r"[\"'`*]{0,3}[ \t]*(?::|=>?)[ \t]*[\"'`]?(?P<value>[^\s\"'`]{4,})",
          _ends_strangely, "key: «Z3x-19Qw»", "key: SHA-256"),
    SecretShape("PIN", ("pin", ""),
          r"(?i)\bPIN(?:[ \t]+code)?(?:[ \t]+(?:is|was)[ \t]|[ \t]*[:=])[ \t]*(?P<value>[0-9]{4,8})(?![0-9])",
          _is_any, "the PIN is «4821»", "pin 4821 is bent"),
    SecretShape("log in as", ("log", "/"),
          r"(?i)\blog(?:ged)?[ -]?(?:in|on)[ \t]+(?:with|as|using)[ \t]+[\"'`]?\S{1,60}[ \t]*/[ \t]*[\"'`]?"
          r"(?P<value>[^\s\"'`]{6,})",
          _is_given_and_mixed, "log in as ann / «hunter2»", "log in as ann / support"),
)
NAMED: Final[Sequence[SecretShape]] = (
    SecretShape("constant", ("_", ""),
          r"(?<![A-Za-z0-9_])(?!(?:PRIMARY|FOREIGN|PUBLIC|UNIQUE|SORT|PARTITION|CACHE|ROUTING)_KEY)"
          r"(?:[A-Z][A-Z0-9_]{0,60}_(?:PASS|PW|PWD|KEY|SECRET|CREDS?)|[a-z][a-z0-9_]{0,60}_(?:pass|pw|pwd))"
          r"[ \t]?[=:][ \t]?[\"'`]?(?P<value>[^\s\"'`]{4,})",
          _is_given_outside_prose, "DB_PASS=«anything»", "PRIMARY_KEY=anything"),
    SecretShape("header", ("authorization", ""),
          r"(?i)authorization[\"'\]\\]*\s*[:=]\s*[\"'\\]*(?:basic|bearer|digest|token|apikey|negotiate)\s+"
          r"(?P<value>[^\s\"',;]{4,})",
          is_given, "Authorization: Basic «YW5uOmh1»", "Authorization: Basic or Digest"),
    SecretShape("arrow", ("", ""),
          rf"(?i)(?:{PASSWORD})[^\n.;:!?]{{0,60}}[ \t](?:\u2192|[=-]>)[ \t]*(?P<value>[^\s\"'`]{{4,}})",
          is_given, "password on db1 -> «hunter»", "password on db1 -> none"),
    SecretShape("sentence that ends with it", ("", ""),
          rf"(?i)(?:{PASSWORD})[ \t]++(?:(?:for|of|on|to|in|at)[ \t]++[^\n.;:!?]{{1,60}}?(?<![ \t])[ \t]++)?(?:is|was)"
          r"[ \t]++[\"'`]?(?P<value>[^\s\"'`]{4,})(?:(?<=[.,;!)])|[\"'`]?(?=[ \t]*(?:\n|\Z)))",
          _is_given_and_mixed, "the password for the shop is «hunter2!»", "the password for the shop is secure."),
    SecretShape("sentence that begins with it", (" is", ""),
          r"(?i)(?<!\S)[\"'`]?(?P<value>[^\s\"'`]{6,})[\"'`]?[ \t]+is[ \t]+(?:the|our|my|his|her|their|its)[ \t]+"
          rf"(?:[\w-]{{1,30}}[ \t]+){{0,3}}(?:{PASSWORD})(?=[ \t]*(?:[.,;!)\n]|\Z|(?:for|of|on)\b))",
          _is_given_and_mixed, "«hunter2-Zx» is the admin password", "Secrecy is the admin password policy"),
)
"""For texts with a name of a secret."""
# fmt: on
