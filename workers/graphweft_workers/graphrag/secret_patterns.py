"""What secrets look like, and what looks like one and is none: the patterns of ``secrets``."""

from __future__ import annotations

import re
from typing import Final

from graphweft_rules.terms import STOP_WORDS

_TOKENS: Final = (
    r"sk-(?=[A-Za-z0-9_-]{0,80}[0-9A-Z]|[A-Za-z0-9_-]{0,80}[A-Za-z0-9]{16})[A-Za-z0-9_-]{16,}+",
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
    r"lsv2_[a-z]{2}_[0-9a-f_]{20,}|sk_[0-9a-f]{40,}|pat[A-Za-z0-9]{14}\.[0-9a-f]{40,}|1//0[a-z][A-Za-z0-9_-]{20,}",
    r"access_token\$[a-z]+\$[0-9a-z]{8,}\$[0-9a-f]{20,}|hf_[A-Za-z]{30,}|webhook\.office\.com/[^\s\"'<>]{10,}",
    # Not 40 digits, which name a commit, nor a digest that says that it is one.
    r"(?<!sha256:)(?<!sha256-)(?<!md5:)(?:0x)?(?![0-9A-Fa-f]{40}(?![0-9A-Za-z]))(?=(?:[A-Fa-f]{0,12}[0-9]){4})"
    r"(?=(?:[0-9]{0,24}[A-Fa-f]){3})(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![0-9A-Za-z])",
    r"[xyz]prv[1-9A-HJ-NP-Za-km-z]{60,}|[5KL][1-9A-HJ-NP-Za-km-z]{50,51}(?![A-Za-z0-9])",
)
TOKEN: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_TOKENS)})")
PRIVATE_KEY: Final = re.compile(
    r"(?<!-)-+[ \t]*BEGIN\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?.*?"
    r"(?:(?<!-)-+[ \t]*END\s+(?:[A-Z0-9]+\s+){0,4}PRIVATE\s+KEY(?:\s+BLOCK)?[ \t]*-*|\Z)"
    r"|PuTTY-User-Key-File-[0-9].*\Z",
    re.DOTALL | re.IGNORECASE,
)
BEARER: Final = re.compile(
    r"\bbearer[\"']?[:=]?\s+(?:[#>|*/]+\s*)*(?P<value>(?=[^\s]*[0-9]|[^\s]{20})[A-Za-z0-9._~+/=|-]{6,})", re.IGNORECASE
)
AUTHORIZATION: Final = re.compile(
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
_NETRC: Final = re.compile(
    r"\b(?:machine[ \t]+\S+|default)\s+login\s+\S+\s+(?:account\s+\S+\s+)?password\s+(?P<value>\S{3,})"
)
_PGPASS: Final = re.compile(
    r"(?<!\S)[\w.*-]{1,80}:(?:[0-9]{3,5}|\*):[\w*-]{1,80}:[\w*-]{1,80}:(?P<value>[^\s:]{3,})(?!\S)"
)
_ORACLE: Final = re.compile(
    r"(?:\b(?:sqlplus|impdp|expdp|conn(?:ect)?)[ \t]+|\bthin:"
    r"|(?<![\w/@.-])(?=[\w$#]{1,40}/[^\s/@]{3,60}@(?://|[\w.-]{1,60}:[0-9]{2,5}\b)))"
    r"[\w$#]{1,40}/(?P<value>[^\s/@]{3,})@"
)
WITH_VALUE: Final = (_LOG_IN, _LOG_IN_TOKEN, _DSN, _CURL, _COMMAND, _QUERY, _NETRC, _PGPASS, _ORACLE)
CARD: Final = re.compile(
    r"(?<![\w.-])(?:(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|6[0-9]{3})(?:[ -]?[0-9]{4}){3}"
    r"|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5})(?![\w-]|\.[0-9])"
)
"""Digits that may be the number of a card: see ``is_card``."""
RANDOM: Final = re.compile(r"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{20,}|[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))")
"""What may be a key by its looks alone."""
SEED: Final = re.compile(r"\b(?:seed|recovery|mnemonic|secret)[ _-]?(?:phrase|words)|\bmnemonic", re.IGNORECASE)
SEED_PHRASE: Final = re.compile(r"(?<![A-Za-z])(?:[a-z]{3,8}[ \t,]+){11,}[a-z]{3,8}(?![A-Za-z])")

CERTAIN: Final = (
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
_KEY: Final = rf"(?:(?P<certain>{CERTAIN})|(?P<likely>{_LIKELY}))"
KEY_PARTS: Final = (
    "pass", "pwd", "phrase", "words", "key", "secret", "credential", "connection", "token", "auth", "cookie", "session",
    "wort", "contra", "senha", "wacht", "senord", "has\u0142o", "\u043f\u0430\u0440", "\u5bc6", "\u30d1\u30b9",
    "\ube44\ubc00", "w0", "wo", "w.o", "w o", "w-o", "w_o", "pw", "cred", "login", "pin", "otp", "salt", "mac", "sign",
    "root", "admin",
    "log in", "log on",
)  # fmt: skip
"""One of them is in whatever ``_KEY`` finds."""
SIGNS: Final = (
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
LONG: Final = re.compile(
    r"[0-9]{4}[ -][0-9]{4,6}[ -]|:[0-9*]+:|[A-Za-z0-9+/=]{30}"
    r"|(?<![\w+/=.-])(?=[\w+/=.-]*(?:[0-9]|[_.-][A-Za-z0-9]{8}))[\w+/=.-]{12}"
)
"""Keys are long, and have digits or a prefix."""
_SUFFIX: Final = r"(?:[._-]?(?:[0-9]{1,4}|prod(?:uction)?|dev|test|staging|live|value|old|new|hash|b64|base64))*"
ASSIGNED: Final = re.compile(
    # `password = `, `"token": `, `**secret**: `, `[api_key] => `
    rf"{_KEY}{_SUFFIX}(?:[\\\"'`*_)\]]{{0,4}}\s*(?P<sign>=>|:=|={{1,3}}|:{{1,2}}|->)"
    # `<password>`, `--token `, `password is `
    r"|(?P<tag>>)|(?P<is>[\"'`*]*\s+(?:is|was|are)(?:\s+set\s+to)?[\s:]+)|(?P<blank>[ \t]+))",
    re.IGNORECASE,
)
WEAK: Final = re.compile(
    r"(?<![A-Za-z])(?:pw|pass|creds?|credentials|login|auth|key|pin|otp|salt|hmac|signature|root|admin)s?[\"'`*]{0,3}"
    r"[ \t]*(?::|=>?)[ \t]*[\"'`]?(?P<value>[^\s\"'`]{4,})",
    re.IGNORECASE,
)
"""Words that name a secret only where what follows looks like one."""
SHELL: Final = re.compile(
    r"(?<![A-Za-z0-9_])(?!(?:PRIMARY|FOREIGN|PUBLIC|UNIQUE|SORT|PARTITION|CACHE|ROUTING)_KEY)"
    r"(?:[A-Z][A-Z0-9_]{0,60}_(?:PASS|PW|PWD|KEY|SECRET|CREDS?)|[a-z][a-z0-9_]{0,60}_(?:pass|pw|pwd))"
    r"[ \t]?[=:][ \t]?[\"'`]?(?P<value>[^\s\"'`]{4,})"
)
"""Names of settings that hold a secret, whatever it looks like."""
SAID: Final = re.compile(
    rf"(?:{CERTAIN})[ \t]+(?:(?:for|of|on|to|in|at)[ \t]+[^\n.;:!?]{{1,60}}?[ \t]+)?"
    r"(?:is|was|(?P<sure>\u2192|[=-]>))"
    r"[ \t]+[\"'`]?(?P<value>[^\s\"'`]{4,})(?:(?<=[.,;!)])|[\"'`]?(?=[ \t]*(?:\n|\Z)))"
    rf"|(?<!\S)[\"'`]?(?P<before>[^\s\"'`]{{6,}})[\"'`]?[ \t]+is[ \t]+(?:the|our|my|his|her|their|its)[ \t]+"
    rf"(?:[\w-]{{1,30}}[ \t]+){{0,3}}(?:{CERTAIN})(?=[ \t]*(?:[.,;!)\n]|\Z|(?:for|of|on)\b))"
    r"|\blog(?:ged)?[ -]?(?:in|on)[ \t]+(?:with|as|using)[ \t]+[\"'`]?\S{1,60}[ \t]*/[ \t]*[\"'`]?"
    r"(?P<beside>[^\s\"'`]{6,})",
    re.IGNORECASE,
)
"""Sentences that tell a password, at their end or at their beginning."""
PIN: Final = re.compile(r"\bPIN(?:[ \t]+code)?[ \t]+(?:is|was)[ \t]+(?P<value>[0-9]{4,8})(?![0-9])", re.IGNORECASE)
NAMED: Final = re.compile(
    rf"(?:{CERTAIN}|{_LIKELY}|(?<![A-Za-z])(?:pass|pw|creds?|login)(?![A-Za-z]))(?:s|en)?(?![a-rt-z])", re.IGNORECASE
)
NEAR: Final = 80
"""Characters behind the name of a secret in which it may follow, on the same line."""
LIST: Final = re.compile(r"[\"'`]?[ \t]*+:[ \t]*+\n[ \t]*[-*][ \t]+")
APART: Final = re.compile(r"[^\s\"'`|,;:=(){}\[\]<>\u2190-\u21ff\u27f5-\u27ff]+")
WORD_LIKE: Final = re.compile(
    r"[A-Z]?[a-z]+(?:[-_./'][A-Za-z]?[a-z]+)*[-_.]?v?[0-9.]*[a-z]?|[A-Z]{1,12}[0-9]{0,6}(?:[-_/.][A-Z0-9]{1,8})*s?|v?[0-9][0-9.,:/x_-]*[a-zA-Z%]{0,4}"
    r"|[a-z][0-9]{1,4}[a-z]?(?:[_-][a-z]+)*[0-9]?|[0-9][A-Z][a-z]+|[0-9]+[a-z]{1,6}/[a-z]{1,6}"
    r"|(?:/[a-z0-9_.{}-]{1,16})+/?|(?:[a-z0-9-]{1,30}\.)+[a-z]{2,6}|[0-9]{1,4}-[a-z-]+|(?i:oauth|argon|base|sha|md|utf|http|pbkdf|bcrypt|ed|curve|aes|rsa|ecdsa|hmac|x|rfc|tls|gpt|ipv?)"
    r"[A-Za-z-]{0,9}[0-9][\w.-]{0,12}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z?|[\w.+-]+@[\w-]+\.[\w.-]+"
)
"""Words with digits that are in every text: ``Redis7``, ``SHA-256``, ``v2``, ``2024-01-01``, ``OAuth2``."""
LEAD: Final = re.compile(
    r"(?:\s|\\(?=\s)|#++(?=\s)|//++(?=\s)|\*++(?=\s)|[|>][+-]?(?=\s)|--++(?=\s)|\|(?=\s)|!!?\w++(?=\s))*+"
)
OPENING: Final = re.compile(r"[bfruBFRU]{0,2}\\*+(\"\"\"|'''|[\"'`])")
LINE_START: Final = re.compile(
    r"(?:\A|\n)[ \t]*(?:(?:#+|//+|\*+|>|-+|;|<!--|export|set|let|const|var)[ \t]*)*[\w.-]*\Z"
)
_NOTHING: Final = """
none null nil true false yes no on off undefined empty missing required optional n/a na todo tbd unknown invalid
valid expired incorrect str string text int integer number bool boolean bytes float object array
list dict map any secretstr char varchar uuid bearer basic jwt oauth oauth2 type hidden masked redacted unset
rotated revoked forgotten reset changed stored hashed encrypted disabled enabled varies example
"""
NO_VALUES: Final = frozenset(_NOTHING.split())
REFERENCE: Final = re.compile(
    r"\[REDACTED|<[^<>\s]*>|\$\{|\$[A-Za-z_(]\w*|\{\{|%\(?[A-Za-z_]|%[A-Z_]+%|(?:\*|x|X|\.|\u2022|_|-){3,}\W*\Z"
    r"|(?:os\.)?(?:environ|getenv)\b|process\.env|[A-Za-z_][\w.]*\(|Optional\[|str\b|vault:"
)
WORD: Final = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
PROSE: Final = STOP_WORDS | frozenset("must may shall see use ask please never always minimum length rules".split())  # noqa: SIM905
"""With what a sentence about a password begins, and no password does."""
PLAIN: Final = re.compile(r"[A-Za-z]?[a-z]*[.,;:!?]?")
QUOTES: Final = "\"'`.,;:?()[]{}<>*"
EDGES: Final = "\"'`.,;:!?()[]{}<>*"
PHRASE_WORDS: Final = 6
SEED_WORDS: Final = 25
