"""Redaction: planted secrets go, whatever they are dressed as, and innocent texts stay."""

from __future__ import annotations

import json
import random
import re
import string
import textwrap
from collections.abc import Callable
from itertools import product
from typing import Final

import pytest

from graphweft_workers.text import redaction, secret_structures
from graphweft_workers.text.redaction import REDACTED, is_value, redact, redact_beside, redact_cell, redact_value
from graphweft_workers.text.secret_signs import hold_none_together

# Put together here, so that no scanner takes this file for a leak.
AWS: Final = "AKIA" + "IOSFODNN7EXAMPLE"
OPENAI: Final = "sk-" + "proj-Zq3xT9bLm2Kc8VtYwN4rDf6G"
ANTHROPIC: Final = "sk-" + "ant-api03-Ab12Cd34Ef56Gh78Ij90-KlMnOp"
GITHUB: Final = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
SLACK: Final = "xoxb-" + "123456789012-abcdefGHIJKL"
JWT: Final = "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.s5pQ-8zR_1kd"
TOKENS: Final = (
    AWS, OPENAI, ANTHROPIC, GITHUB, SLACK, JWT, "sk-" + "abcdefghijklmnopqrstuvwx", "sk_live_" + "51HqZ9aBcDeFgHiJk",
    "gho_" + "a1B2c3D4e5F6g7H8i9J0k1", "github_pat_" + "11ABCDEFG0aBcDeFgHiJkLmN", "glpat-" + "aBcD1234eFgH5678iJkL",
    "xoxp-" + "1234-5678-abcdef", "xapp-" + "1-A012-345-abcdef", "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "hf_" + "aBcDeFgHiJkLmNoPqRsTuVw1", "gsk_" + "aBcDeFgHiJkLmNoPqRsTuVw1", "ASIA" + "Y34FZKBOKMUTVV7A",
    "npm_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789", "SG." + "aBcDeFgHiJkLmNoPqRsTuV.w1234567890",
)  # fmt: skip
PRIVATE_KEY: Final = (
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7bq0\nQ29uZ3JhdHMh+/aa\n-----END RSA PRIVATE KEY-----"
)
WORD: Final = "hunter2-Zx"
ASSIGNED: Final = (
    f"password={WORD}", f"password: {WORD}", f"Password : {WORD}", f'"password": "{WORD}"', f"DB_PASSWORD={WORD}",
    f"dbPassword = '{WORD}'", f"PGPASSWORD={WORD} psql", f"passwd:{WORD}", f"pwd={WORD};", f"token: {WORD}",
    f'{{"token":"{WORD}","a":1}}', f"API_KEY={WORD}", f"api key: {WORD}", f"apiKey => '{WORD}'",
    f"client_secret = \"{WORD}\"", f"aws_secret_access_key = {WORD}", f"secret: {WORD}", f"password:\n  {WORD}",
    f"password: >\n    {WORD}", f"# password: {WORD}", f"// token = {WORD}", f"<!-- password: {WORD} -->",
    f"/* api_key: {WORD} */", f"-- password = {WORD}", f"# password:\n# {WORD}", f"// token:\n// {WORD}",
    f" * secret:\n * {WORD}", f"**Password**: {WORD}", f"`password`: `{WORD}`", f"<password>{WORD}</password>",
    f"<db.password>\n{WORD}\n</db.password>", f"--password {WORD}", f"--token={WORD}", f"-password {WORD}",
    f"the password is {WORD}", f"password is: {WORD}", f"Authorization: Basic {WORD}", f"authorization: Bearer {WORD}",
    f"'Authorization': 'Bearer {WORD}'", f"Bearer {WORD}", f"bearer\n  {WORD}", f"Authorization:\n Bearer\n {WORD}",
    f"postgres://ann:{WORD}@db:5432/shop", f"redis://:{WORD}@cache:6379/0", f"https://ann:{WORD}@host/path?x=1",
    f"mongodb+srv://ann:{WORD}@cluster0.example.net", f"amqp://guest:{WORD}@mq", f"ann:{WORD}@tcp(db:3306)/shop",
    f"Server=db;Uid=ann;Pwd={WORD};", f"jdbc:postgresql://db/shop?user=ann&password={WORD}", f"curl -u ann:{WORD} url",
    f"AccountKey={WORD};EndpointSuffix=x", f"SharedAccessKey={WORD}", f"https://h/x?sig={WORD}&y=1",
    f"password := \"{WORD}\"", f"password -> {WORD}", f"my.token.value={WORD}", f"PASSWORD_2={WORD}",
    f'\\"password\\": \\"{WORD}\\"', f"password\u00a0=\u00a0{WORD}", f"export TOKEN={WORD}", f"Passwort: {WORD}",
    f"session_id={WORD}", f"cookie: {WORD}", f"password==={WORD}", f"['password'] = '{WORD}'",
    f"postgres://ann:p@ss/{WORD}@db/shop", f"password = r'{WORD}'", f'"""password: {WORD}"""', f"x-api-key: {WORD}",
    f"Kennwort: {WORD}", f"contrase\u00f1a: {WORD}", f"mot de passe: {WORD}", f"senha: {WORD}", f"wachtwoord: {WORD}",
    f"l\u00f6senord: {WORD}", f"has\u0142o: {WORD}", f"\u043f\u0430\u0440\u043e\u043b\u044c: {WORD}",
    f"\u5bc6\u7801: {WORD}",
    f"pwd: {WORD}", f"p4$$w0rd: {WORD}", f"p.a.s.s.w.o.r.d: {WORD}", f"connection string: {WORD}",
)  # fmt: skip
INNOCENT: Final = (
    "", "Checkout depends on Redis.", "The password policy asks for 12 characters.",
    "Passwords are hashed with argon2.",
    "token: the unit of text that a model reads", "max_tokens=4096", "Tokens: 512", "The tokenizer splits words.",
    "Secret: required", "password: null", "password: ${DB_PASSWORD}", "token = os.environ['TOKEN']",
    "API key (Concept): a string that names a caller", "password: <your password>", "token: str", "password: ********",
    "sk-learn-compatible estimators", "task-management-and-planning-tools", "AKIA is how AWS keys begin.",
    "Bearer tokens are sent in a header.", "The bearer of the news", "Basic understanding of Cypher",
    "https://example.com:8080/path/@user", "http://localhost:7474/browser", "redis://cache:6379/0",
    "see neo4j://graph.example.com:7687", "mail ann@example.com at 10:30", "ratio 3:1@home", "key: value",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8", "uuid 123e4567-e89b-12d3-a456-426614174000",
    "BEGIN PRIVATE KEY marks the beginning of a key", "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----", "ghp_ is GitHub's prefix", "xoxb- begins a token",
    "The secret of good tea is time.", "password reset flow", "the password is required", "token is expired",
    "password: must be long", "Q&A: what is a token?", "sha256:abcdef0123456789", "Die Straße führt nach Oslo.",
    "日本語を話す。パスワードは安全です。", "Привет мир",
    "emoji 👩‍👩‍👧 stays", "a\u200bb",
    "C:\\path\\new",
    "class Token: pass", "def login(user: str, password: str) -> Token: ...", "password = getpass()",
    "SELECT password FROM users", "eyJ is base64 for a brace", "pass: 12, fail: 3", "path/to/token/file", "1:2:3",
    "50% = half", "x=1&y=2", "The cookie: crunchy and sweet", "step 1: token refresh", "API keys: see the vault",
)  # fmt: skip


def gone(text: str, secret: str) -> None:
    result = redact(text)
    assert REDACTED in result
    # Not a part of it either.
    plain = "".join(char for char in secret if char.isalnum())
    for at in range(len(plain) - 6):
        assert plain[at : at + 7] not in "".join(char for char in result if char.isalnum()), result
    assert redact(result) == result


@pytest.mark.parametrize("secret", TOKENS)
@pytest.mark.parametrize(
    "around", ["{}", "key {} is", "({})", '"{}",', "x={};", "<b>{}</b>", "# {}", "_{}_", "日{}本", "\n{}\n"]
)
def test_keys_go_and_what_is_around_them_stays(secret: str, around: str) -> None:
    text = "Before it. " + around.format(secret) + " After it."
    gone(text, secret)
    assert redact(text).startswith("Before it.")
    assert redact(text).endswith("After it.")


@pytest.mark.parametrize("text", ASSIGNED)
def test_what_is_assigned_goes(text: str) -> None:
    gone(text, WORD)
    gone(f"Some words before.\n{text}\nSome words after.", WORD)
    assert redact(f"Some words before.\n{text}\nSome words after.").startswith("Some words before.\n")


STRUCTURES: Final = (
    "passwords:\n- {0}\n- {1}\n- {2}\nhost: db", "password:\n  - {0}\n  - {1}\n  - {2}",
    "tokens:\n* {0}\n* {1}\n* {2}", "password:\n- '{0}'\n- \"{1}\"\n\n- {2}  # the old one",
    "- secrets:\n  - {0}\n  - {1}\n  - {2}\n- host: db", "Passwords:\n1. {0}\n2. {1}\n3) {2}",
    "password: |\n  {0}\n  {1}\n  {2}\nhost: db", "password: >-\n  {0}\n\n  {1}\n  {2}",
    "db:\n  secret: |\n    {0}\n    {1}\n    {2}\n  host: db",
    '{{"password": ["{0}", "{1}", "{2}"], "host": "db"}}', '{{"passwords": [\n  "{0}",\n  "{1}",\n  "{2}"\n]}}',
    '{{"tokens": ["{0}","{1}","{2}"]}}', "passwords = ['{0}', '{1}', '{2}']", "passwords: [{0}, {1}, {2}]",
    "password = ({0}, {1}, {2})", 'password: {{"old": "{0}", "value": "{1}", "new": "{2}"}}',
    '{{"credentials": {{"a": ["{0}", ["{1}"]], "b": "{2}"}}}}', "secret:\n  value: {0}\n  old: {1}\n  next: '{2}'",
    "passwords:\n- user: ann\n  value: {0}\n- value: {1}\n- old: {2}",
    '"{{\\"password\\": [\\"{0}\\", \\"{1}\\", \\"{2}\\"]}}"', 'said: "passwords:\\n- {0}\\n- {1}\\n- {2}\\n"',
    'passwords: "x"\npasswords:\r\n- {0}\r\n- {1}\r\n- {2}\r\n', "password: [[{0}, {1}], [{2}]]",
    "**Passwords**:\n- {0}\n- {1}\n- {2}", "passwords:\n[\n{0},\n{1},\n{2}]",
    "password: &pw |\n  {0}\n  {1}\n  {2}\nhost: db", "passwords: &pw\n- {0}\n- &a {1}\n- !!str {2}\nhost: db",
    "passwords: !!seq\n- {0}\n- {1}\n- {2}", "password: !!str |\n  {0}\n  {1}\n  {2}\nhost: db",
    "passwords:\n  # main\n  - {0}\n\n  # others\n  - {1}\n  - {2}\nhost: db",
    "passwords: # main\n- {0}\n# - {1}\n- {2}",
    "passwords:\n  a: {0} # {1}\n  b: {2}\n# next\nhost: db", "passwords:\n100. {0}\n101. {1}\n1020. {2}",
    "passwords:\x0b- {0}\x0b- {1}\u2028- {2}", "passwords:\n- - {0}\n  - {1}\n- [{2}]",
    "[passwords]\nmain = {0}\n\n# others\na = {1}\nb = {2}\n[host]\nname = db",
    "[[db.passwords]]  # all\na = {0}\nb = {1}\nc = {2}",
    "passwords:\n  prod:\n    main: {0}\n    old:\n      - {1}\n  dev: [{2}]\nhost: db",
    "passwords:\n  {0}\n  {1}\n  {2}\nhost: db",
    '{{"passwords": {{"prod": "{0}", "dev": "{1}", "test": "{2}"}}, "host": "db"}}',
    'passwords = {{"{0}", "{1}", "{2}"}}',
    *(f'{begin}"{{0}}", "{{1}}", "{{2}}"{end}; host = "db"' for begin, end in (
        ("passwords: string[] = [", "]"), ("passwords: list[str] = [", "]"), ("passwords: Array<string> = [", "]"),
        ("passwords: dict[str, list[str]] = {{'a': [", "]}}"), ("passwords := []string{{", "}}"),
        ("passwords = set([", "])"), ("passwords = list((", "))"), ("passwords = new Array(", ")"),
        ("passwords = new HashSet<String>(Arrays.asList(", "))"), ("$passwords = array(", ")"),
        ("passwords = List.of(", ")"), ("password_list = [", "]"),
    )),
    "passwords = %w[{0} {1} {2}]", "PASSWORDS=({0} {1} {2})", 'passwords = [  # main\n  "{0}", # {1}\n  "{2}",\n]',
)  # fmt: skip
"""One secret name, and several values in a structure behind it."""
SAID_OF_SECRETS: Final = (
    "Password:\n- at least 8 characters\n- no name of yours", "password:\n- must not be shared\nhost: db",
    '{"token": {"type": "string", "description": "The token of the caller", "format": "jwt"}}',
    '"tokens": ["The", "cat", "sat"]', "tokens: [512, 1024]", "secrets:\n- rotation\n- storage",
    "cookies: [necessary, others]", "session key:\n  type: string", "password: []", "tokens: {}",
    '"secret": [null, true]', "passwords:\n\nhost: db", "Forgot password: (click here)",
    "I forgot the password :( Can you help?",
    "Password: (at least 8 characters)", "Password: [click here](https://reset.example/now)",
    "tokens = (prompt_tokens + completion_tokens)", "passwords = [hash(p) for p in users]", "passwords: string[] = []",
    '"password": {"type": "string", "minLength": 8, "format": "password"}',
    "tokens: (I mean the small ones\nand others",
    "password:\n  valueFrom:\n    secretKeyRef:\n      name: db\n      key: password", "passwords:\n# none\nhost: db",
    "password: {min: 8, max: 20}", "password: {min:8, type: string}",
    "if not password:\n    count = total\n    shown = plain",
)  # fmt: skip


CUT_OFF: Final = (
    'passwords: ["{0}", "{1}"',
    "passwords: [{0}, {1}",
    'x: {{"passwords": {{"a": "{0}", "b": "{1}',
    'passwords = ("{0}", "{1}',
    "passwords: [hun({0}, {1}]",
    "passwords: [hun){0}, {1}]",
    "passwords: [hun]{0}, {1}]",
    "secrets: [hun({0}, {1}]",
    "passwords: [[{0}, {1}]",
    "passwords = set([{0}, {1}]",
    'passwords: [\n  "{0}",\n  "{1}"',
    'passwords: [\n"{0}",\n\n"{1}"',
    "passwords:\n  a: [{0},\n    {1}",
    "passwords: {{a: {0}=, b: {1}:}}",
)
"""Structures whose brackets do not end, or do not fit, and values with signs at their ends."""


@pytest.mark.parametrize("text", STRUCTURES)
@pytest.mark.parametrize("before", ["", "Some words before.\n"])
def test_each_value_of_a_structure_goes_and_the_rest_stays(before: str, text: str) -> None:
    words = (WORD, "letmein-4U", "s3cret!pass")
    shown = redact(before + text.format(*words))
    assert not [word for word in words if word in shown], shown
    assert redact(shown) == shown
    assert shown == before + text.format(REDACTED, REDACTED, REDACTED) or {*"\\'"} & {*text}, shown
    assert ("db" in shown) == ("db" in text)


@pytest.mark.parametrize("text", SAID_OF_SECRETS)
def test_what_is_said_of_secrets_in_a_structure_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("words", [("hunter2", "letmein"), ("letmein", "swordfish")])
@pytest.mark.parametrize("text", [*STRUCTURES, *CUT_OFF])
def test_of_a_structure_nothing_is_shown_that_may_be_a_password(text: str, words: tuple[str, str]) -> None:
    if re.search("(?i)tokens?|secrets?|credentials", text) or "# {1}" in text:
        words = (WORD, "letmein-4U")  # words of letters only are no secrets there
    shown = redact("Some words before.\n" + text.format(*words, words[0]) + "\nhost: db")
    assert not [word for word in words if word in shown], shown
    assert redact(shown) == shown
    assert shown.startswith("Some words before.\n")
    assert shown.endswith("db") or (text.endswith((",", "{1}")) and "\n" not in text)


@pytest.mark.parametrize(
    ("begin", "item", "end"),
    [("passwords: [", '"letmein{0}", ', "]"), ("passwords:\n", "- letmein{0}\n", "host: db"),
     ("passwords: {", 'a{0}: "letmein", ', "}"), ("password: |\n", "  letmein {0}\n", "host: db")],
)  # fmt: skip
def test_a_structure_of_any_length_goes(begin: str, item: str, end: str) -> None:
    for items in (150, 3_000):
        text = begin + "".join(item.format(number) for number in range(items)) + end
        assert "letmein" not in redact(text)
        assert "letmein" not in redact_cell("text", text)
        assert redact_cell("text", text).endswith(end)


def test_json_within_json_stays_json() -> None:
    inner = {"passwords": ["hunter2", "x1y2z3"], "password": "hunter2", "token": "x1y2z3w4"}
    shown = json.loads(redact(json.dumps({"a": json.dumps(inner)})))
    assert json.loads(shown["a"]) == {"passwords": [REDACTED] * 2, "password": REDACTED, "token": REDACTED}


@pytest.mark.parametrize("text", ["password: &pw letmein", "password: !!str letmein", "password: &pw hunter2x # a"])
def test_a_value_behind_an_anchor_goes(text: str) -> None:
    assert not {"letmein", "hunter2x"} & {*redact(text).split()}


def test_random_structures_neither_fail_nor_change_twice() -> None:
    rnd = random.Random(5)
    parts = (
        "passwords: ", "password:\n", "secrets = ", "tokens: ", "[passwords]\n", "[REDACTED]", "list[str] = ", "set(",
        *"[](){}\"'|=\\\n", ", ", "  ", "- ", "# ", "a: ", "&x ", "!!str ", "\\n", ": ", "x y z", "100. ", "hunter2",
        "letmein",
    )  # fmt: skip
    for _ in range(2_000):
        text = "".join(rnd.choices(parts, k=rnd.randint(2, 25)))
        once = redact(text)
        assert redact(once) == once, repr(text)
    assert redact("tokens: \n  !!str ") == "tokens: \n  !!str "


def test_structures_without_end_are_read_up_to_a_limit() -> None:
    for text in ("passwords: [a", "password:\n- ", "token: {a:", "secret:\n  a: ", "password: |\n b"):
        found = [*secret_structures.structures(text * 1_000)]
        read = sum(each.end - each.sign for each in found)
        assert read <= (secret_structures._MOST + 2) * len(text * 1_000)


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_texts_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "broken",
    [
        "{0}\n{1}", "{0}\r\n  {1}", "# {0}\n# {1}", "// {0}\n// {1}", " * {0}\n * {1}", "> {0}\n> {1}", "{0}\\\n{1}",
        '"{0}" + "{1}"', "'{0}' '{1}'", '"{0}"\n  "{1}"', "'{0}' +\n '{1}'", "{0}\u2028{1}", "{0}\u200b{1}",
        "{0}\u00ad{1}", "{0}\u2060{1}", "{0}\ufeff{1}", "{0}\x00{1}", "{0}\U000e0041{1}", "{0}\u0301{1}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("secret", [AWS, OPENAI, GITHUB, JWT, SLACK])
def test_a_key_that_is_broken_goes(secret: str, broken: str) -> None:
    for at in (6, len(secret) // 2, len(secret) - 3):
        result = redact("see " + broken.format(secret[:at], secret[at:]) + " there")
        assert REDACTED in result
        assert secret[:at] not in result
        assert result.startswith("see ")
        assert result.endswith(" there")
        if len(secret) - at > 3 and "\U000e0041" not in broken:
            assert secret[at:] not in result


@pytest.mark.parametrize(
    "text",
    [
        "\u0440\u0430ssw\u043erd: {}", "\uff50\uff41\uff53\uff53word\uff1d{}", "pass\u200bword: {}",
        "p\u00e1ssw\u00f6rd={}",
        "password\uff1a{}", "password\u2236 {}", "password\u2028=\u2028{}", "\U0001d429assword = {}", "password&#61;{}",
        "password\\u003d{}", "password%3D{}", "password&colon;{}", "p\u0430ssword\u200b=\u200b{}", "pass\u00adword: {}",
        "password: \u201c{}\u201d", "t\u043ek\u0435n={}",
        "\u202epassword={}\u202c",
    ],
)  # fmt: skip
def test_an_assignment_in_disguise_is_one(text: str) -> None:
    gone(text.format(WORD), WORD)


def fullwidth(text: str) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)


def test_a_key_in_other_letters_is_one() -> None:
    for secret in (AWS, OPENAI, GITHUB):
        for disguised in (
            fullwidth(secret), "\u200b".join(secret), "\u2063".join(secret), "".join(c + "\u0332" for c in secret),
            secret.replace("A", "\u0410").replace("o", "\u043e"), secret.replace("-", "\u2011"),
        ):  # fmt: skip
            assert redact(f"a {disguised} b").replace("\u0332", "") == f"a {REDACTED} b"


@pytest.mark.parametrize(
    "key",
    [
        PRIVATE_KEY,
        PRIVATE_KEY.replace("RSA ", ""),
        PRIVATE_KEY.replace("RSA", "OPENSSH"),
        PRIVATE_KEY.replace("RSA", "EC"),
        PRIVATE_KEY.replace("RSA ", "PGP ").replace("KEY-", "KEY BLOCK-"),
        PRIVATE_KEY.replace("\n", "\\n"),
        PRIVATE_KEY.replace("\n", " "),
        PRIVATE_KEY.replace("\n", "\n# "),
        textwrap.indent(PRIVATE_KEY, "  // "),
        PRIVATE_KEY.replace("-----", "\u2014\u2014"),
        PRIVATE_KEY.replace("RSA ", "RSA\n"),
        PRIVATE_KEY.replace("R", "\u200bR"),
        PRIVATE_KEY.replace("BEGIN", "begin"),
    ],
)
def test_private_keys_go(key: str) -> None:
    result = redact(f"Before. {key} After.")
    assert result.startswith("Before. ")
    assert result.endswith(" After.")
    assert REDACTED in result
    assert "MII" not in result
    assert "Q29u" not in result


def test_a_private_key_without_an_end_takes_all_that_follows() -> None:
    assert redact("Before. -----BEGIN PRIVATE KEY-----\nMIIE\nabc def") == f"Before. {REDACTED}"


def test_what_is_useful_stays_around_a_secret() -> None:
    assert redact(f"postgres://ann:{WORD}@db:5432/shop") == f"postgres://{REDACTED}@db:5432/shop"
    assert redact(f'{{"user": "ann", "password": "{WORD}", "port": 1}}') == (
        f'{{"user": "ann", "password": "{REDACTED}", "port": 1}}'
    )
    assert redact(f"Use {AWS} and {GITHUB}.") == f"Use {REDACTED} and {REDACTED}."
    assert redact("passphrase: correct horse battery staple\nNext.") == f"passphrase: {REDACTED}\nNext."
    assert redact("password: correct horse battery staple") == f"password: {REDACTED}"


def test_a_label_says_what_a_text_is() -> None:
    assert redact_value("DB_PASSWORD", WORD) == REDACTED
    assert redact_value("Admin password", "hunter") == REDACTED
    assert redact_value("Token", "the unit of text that a model reads") == "the unit of text that a model reads"
    assert redact_value("Redis", "a cache") == "a cache"
    assert not is_value("Password", "Login")
    assert not is_value("Redis", WORD)
    assert is_value("DB password", WORD)
    assert redact_value("x", f"see {AWS}") == f"see {REDACTED}"


def test_any_secret_at_any_place_goes() -> None:
    rnd = random.Random(7)
    filler = (
        "The",
        "cache",
        "holds",
        "carts;",
        "\n",
        "\n# ",
        "- item",
        "日本",
        "🙂",
        "x=1",
        "(see",
        "docs)",
        "\t",
        "1.",
    )
    for _ in range(600):
        secret = rnd.choice((*TOKENS, *(text for text in ASSIGNED if "\n" not in text)))
        words = [rnd.choice(filler) for _ in range(rnd.randint(0, 30))]
        at = rnd.randint(0, len(words))
        text = " ".join([*words[:at], secret, *words[at:]])
        gone(text, WORD if WORD in secret else secret)


@pytest.mark.parametrize(
    "ruler",
    ["/" * 40, "/" * 39 + "a", "a" + "/" * 39, "/" * 20 + "1" + "+" * 19, "a" * 20, f"# {'/' * 40} #", "\n" + "/" * 40],
)
def test_a_ruler_is_no_secret(ruler: str) -> None:
    assert redact(ruler) == ruler


HOSTILE = [
    "sk-", "sk_live_", "ghp_", "hf_", "key_", "SG.", "AKIA", "eyJa.", "xoxb-", "1//0a", "M.", "://", "a://", "a://b:",
    "https://", "a:b@", "-u ", "mysql -p ", "?key=", "login a password ", "a:1234:", "a/b@", "-----BEGIN ",
    "BEGIN PRIVATE KEY ", "4111 ", "bearer ", "pw:", "pw: ", "pass ", "PIN is ", "log in as ", "password", "password ",
    "password=", "password is ", "password for a is ", "password \u2192 ", "p.a.s.s.", "token", "token:", "token:1",
    "api key ", "A_KEY=", "a_pw=", "authorization: ", "abcdef is our ", "seed phrase ", "abc ", "\n", "\\", '"',
    '" + "', "\n# ", "--", "--token ", "<password>", "\u043f\u0430\u0440\u043e\u043b\u044c", "\u5bc6\u7801",
    "\u5bc6\u7801:", "\u00e9=", "password \\", "deadbeef", "pat-na1-", "0x", "aB3", "a1", "/",
    "+", ".", "-", "_", "=", ":", "@", " ",
]  # fmt: skip


def test_hostile_texts_are_read_in_proportion_to_their_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of words grows with the text, and not with its square; ``benchmarks/hostile.py`` has the time."""
    asked: list[int] = []

    def counting(real: Callable[[str], bool]) -> Callable[[str], bool]:
        return lambda text: (asked.append(len(text)), real(text))[1]

    for name in ("is_strange", "is_given", "is_mixed"):
        monkeypatch.setattr(redaction, name, counting(getattr(redaction, name)))
    rnd = random.Random(9)
    units = [*HOSTILE, *("".join(rnd.choices(HOSTILE, k=rnd.choice((2, 3)))) for _ in range(150))]
    for unit in units:
        text = (unit * 4_000)[:3_900]
        asked.clear()
        redact(text)
        assert sum(asked) < 100 * len(text), unit


def test_random_texts_neither_fail_nor_change_twice() -> None:
    rnd = random.Random(8)
    parts = [
        *string.printable,
        *"\u0430\u0430\u0435ё\u2010\u201c\u201d\uff50\u200b\u0301\ud800",
        "password",
        "token",
        "=",
        ": ",
        "sk-",
        "://",
        "@",
        '"',
        "\\",
        "--",
    ]
    for _ in range(2_000):
        text = "".join(rnd.choice(parts) for _ in range(rnd.randint(0, 60)))
        once = redact(text)
        assert redact(once) == once, repr(text)


@pytest.mark.parametrize(
    "unit",
    [
        "a", "password", "password=", "-", "-----BEGIN ", "x://", "://a:", "eyJ", "eyJ.", '"', "\\", "sk-", " ",
        "\n", "# \n",
        "bearer ", "password: ", "\u0430", "\u200b", "&#1", "AKIA", "a:b@", "'\n'", "is ", "token is ",
        "sk-\n", "\n\\n",
    ],
)  # fmt: skip
def test_no_text_takes_long(unit: str) -> None:
    text = (unit * 4_000)[:4_000]
    redact(text)  # milliseconds; a pattern that runs away takes longer than a test may


@pytest.mark.parametrize(
    "unit",
    [
        "A", "a", "1", "\ufdfa", "\u00e9", "\u0301", "\u043f\u0430\u0440\u043e\u043b\u044c", "aA1", "pw ", "password=",
        "secret key=", "-", "#", "/", "\\", "sk-", "a.b", "a_", "&#x41;", "\n# ", " ", "\t", "a:1:", "1234 ",
        "mysql -p ", "login a password ", "p.a.s.s.", "a/b@",
    ],
)  # fmt: skip
def test_of_a_text_without_end_only_so_much_is_read(unit: str) -> None:
    text = (unit * 200_000)[:200_000]
    for result in (redact(text), redact_value(text, text), redact_beside(text, text)):
        assert len(result) <= 10 * 4_000
    assert is_value("password", text) in (True, False)


def test_what_is_behind_the_bound_does_not_come_back() -> None:
    result = redact("x " * 3_000 + AWS)
    assert result.endswith(REDACTED)
    assert len(result) <= 4_000


def test_a_cell_of_any_length_is_read() -> None:
    key = "sk-" + "a1B2c3D4" * 5
    for before in (0, 10, 2_990, 3_985, 3_999, 10_000):
        text = "word " * (before // 5) + f" {key} " + "word " * 500
        shown = redact_cell("text", text)
        assert key not in shown
        assert "a1B2c3D4" not in shown
        assert len(shown) >= len(text) - len(key)


def test_a_cell_goes_by_the_name_of_its_column_and_ids_stay() -> None:
    jumble = "K3sd82Hdk29XkdPq0ZaB"
    assert REDACTED in redact_cell("text", jumble)
    assert redact_cell("id", jumble) == jumble
    assert redact_cell("order_id", jumble) == jumble
    assert REDACTED in redact_cell("session_id", jumble)
    assert REDACTED in redact_cell("password", "hunter22!")
    assert redact_cell("name", "hunter22!") == "hunter22!"


PARTS: Final = (
    "pw", "pass", "passed", "password", "p.a.s.s.w.o.r.d", "p@$$w0rd", "key", "keyboard", "api-key", "API_KEY",
    "DB_PASS",
    "service key", "session", "session_id", "id", "connection", "connection string", "token", "secret", "creds",
    "author",
    "authorization", "Cookie", "login", "logged in as", "ann/", "PIN", "4821", "otp", "salt", "hmac", "signature",
    "root",
    "seed phrase", "recovery words", "mnemonic", "kennwort", "contrase\u00f1a", "senha", "wachtwoord", "l\u00f6senord",
    "\u5bc6\u7801", "bearer", "private", "PuTTY-User-Key-File-2", "BEGIN", "mysql -p", "-u", "machine", "default",
    "4111 1111",
    "1111 1111", "378282246310005", "eyJ", "xox", "xapp-", "://", "@", "=", "->", " is the ", "?sig=", "\\n", "\u017f",
    "\u212a", "host:5432:db:user:", "19Z7q",
)  # fmt: skip

ONE_SIGN: Final = (
    *(f"{name}: Zx19Qw7k" for name in ("pw", "pass", "creds", "login", "auth", "key", "pin", "otp", "salt", "hmac")),
    *(f"{name}= Zx19Qw7k" for name in ("signature", "root", "admin")),
    *(f"{kind}key {WORD}1" for kind in ("api", "access ", "secret_", "private-", "encryption ", "signing ")),
    *(f"{kind}key {WORD}1" for kind in ("account ", "auth", "master ", "service_", "ssh-", "license ")),
    *(f"{kind}key {WORD}1" for kind in ("webhook ", "session ")),
    *(f"{name} {WORD}1" for name in ("session id", "connection string", "token", "secret", "cookie", "authorization")),
    *(f"{name} {WORD}1" for name in ("credential", "login", "password", "pw", "p.a.s.s.w.o.r.d")),
    *(f"{name} {WORD}1" for name in ("kennwort", "contrase\u00f1a", "senha", "wachtwoord", "l\u00f6senord")),
    *(f"{name} phrase: {'apple river stone cloud ' * 3}" for name in ("seed", "recovery")),
    "mnemonic " + "apple river stone cloud " * 3,
    f"logged in as ann / {WORD}", "PIN is 4821", f"bearer {WORD}", f"curl -u ann:{WORD}", f"mysql -p {WORD}",
    f"ann:{WORD}@tcp(db)", f"scott/{WORD}@db:1521", f"ftp://ann:{WORD}@host", f"db:5432:shop:ann:{WORD}",
    f"?sig={WORD}",
    "PuTTY-User-Key-File-2: x", "-----BEGIN PRIVATE KEY----- x", "4111 1111 1111 1111", "378282246310005",
    "DB_PASS=abcd",
    "DB_KEY=abcd", "db://a:Zx1@h", "xapp-" + "1-abcdef1", "-----BEGIN PRIVATE  KEY----- x",
    f"machine h login ann password {WORD}", *TOKENS,
    *(f"{key[:9]}{gap}{key[9:]}" for key in TOKENS for gap in ("''", "' + '", "\\n")),
)  # fmt: skip
"""Each has one thing by which the quick look sees it, or not many."""


def random_text(rnd: random.Random) -> str:
    """Return some parts of secrets, cut here and there, and signs and letters between them."""
    text = ""
    for _ in range(rnd.randint(1, 6)):
        part = rnd.choice((rnd.choice(PARTS), rnd.choice((*TOKENS, *ASSIGNED, *INNOCENT, WORD))))
        if rnd.random() < 0.2:
            part = "".join(rnd.choices("abcdEFG0123", k=rnd.choice((8, 18, 19, 20, 32))))
        if rnd.random() < 0.2:
            part = part[rnd.randint(0, len(part)) :]
        text += part + rnd.choice(("", " ", " ", "\n", ": ", "=", "'", '"', "-", ".", "\\n", "\u2028", "\x1c"))
    return text


def test_the_quick_look_at_a_text_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = random.Random(9)
    pairs = [(random_text(rnd)[:60], random_text(rnd)) for _ in range(600)]
    pairs += [("", text) for text in ONE_SIGN]
    looked = [(redact(text), redact_value(label, text), is_value(label, text)) for label, text in pairs]

    class Everything:
        def __contains__(self, sign: str) -> bool:
            return True

    monkeypatch.setattr(redaction, "signs_of", lambda text: Everything())
    monkeypatch.setattr(redaction, "may_name_a_secret", lambda text, signs: True)
    monkeypatch.setattr(redaction, "may_break", lambda text: True)
    found = [(redact(text), redact_value(label, text), is_value(label, text)) for label, text in pairs]
    assert looked == found
    assert 200 < sum(REDACTED in text for text, *_ in found[:600]) < 550
    assert all(REDACTED in text for text, *_ in found[600:])


def test_texts_that_hold_no_secret_together_hold_none_behind_one_another() -> None:
    rnd = random.Random(10)
    plain = ("Redis", "Entity12", "holds carts", "since release 12", "a:b", "it's")
    groups = [[text] for text in (*ONE_SIGN, "a:100:b:c:Zx1")]
    for _ in range(3_000):
        whole = rnd.choice(ONE_SIGN)
        at = rnd.randint(0, len(whole))
        groups.append([rnd.choice((whole[:at].rstrip(": "), rnd.choice(plain))), whole[at:], rnd.choice(plain)])
    held = [group for group in groups if hold_none_together(group)]
    assert 50 < len(held) < len(groups) - 50
    for texts in held:
        for label, text in product(texts, repeat=2):
            assert (redact(text), redact_value(label, text), redact_beside(label, text)) == (text, text, text)
            assert not is_value(label, text)
