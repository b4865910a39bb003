"""Secrets in dresses that an attacker, or a careless colleague, may think of; and odd words that are none."""

from __future__ import annotations

from typing import Final

import pytest

from graphweft_workers.features.graphrag.context_block import pack
from graphweft_workers.features.graphrag.expansion import Expansion
from graphweft_workers.features.graphrag.rows import EntityNode, Relation
from graphweft_workers.text.redaction import REDACTED, redact, redact_beside

# Put together here, so that no scanner takes this file for a leak.
WORD: Final = "hunter2" + "-Zx"
RANDOM: Final = "q7Lm2Kc8VtYwN4" + "rDf6GzX1pB"
HEX: Final = "9f86d081884c7d65" + "9a2feaa0c55ad015"
BASE64: Final = "Zm9vYmFyYmF6cXV4" + "MTIzNDU2Nzg5MA=="
WITH_WORD: Final = (
    "Kennwort: {}",
    "contrase\u00f1a: {}",
    "mot de passe : {}",
    "senha: {}",
    "wachtwoord={}",
    "\u043f\u0430\u0440\u043e\u043b\u044c: {}",
    "\u5bc6\u7801\uff1a{}",
    "\u30d1\u30b9\u30ef\u30fc\u30c9: {}",
    "pw: {}",
    "pass={}",
    "DB_PASS={}",
    "MYSQL_PW={}",
    "passcode {}",
    "creds: ann/{}",
    "login: ann / {}",
    "user ann with password {}",
    "password '{}'",
    "use password {} to log in",
    "the password for the db was changed to {}",
    "my password's {}",
    "password \u2013 {}",
    "password ~ {}",
    "| password | {} |",
    "password\t{}",
    "password,{}",
    "password ({})",
    "password [{}]",
    "root:{}",
    "sshpass -p {} ssh x",
    "mysql -u root -p{} shop",
    "redis-cli -a {}",
    "docker login -u a -p {}",
    "openssl rsa -passin pass:{}",
    "kubectl create secret generic x --from-literal=pw={}",
    "password = \\\n  {}",
    "p a s s w o r d : {}",
    "p.a.s.s.w.o.r.d={}",
    "passw0rd: {}",
    "pa$$word: {}",
    "password\u2192{}",
    "password equals {}",
    "password set to {}",
    "password should be {}",
    "password for db: {}",
    "password (prod): {}",
    "password[prod]={}",
    "passwords: ['a', '{}']",
    "passwords:\n- {}",
    "secrets = {{'db': '{}'}}",
    "stringData: {{pw: {}}}",
)
WITH_RANDOM: Final = (
    "key={}",
    "apikey {}",
    "X-Api-Key {}",
    "token {}",
    "secret {}",
    "hmac: {}",
    "salt={}",
    "the value {} of it",
    "https://{}@github.com/a/b.git",
    "curl -H 'X-Auth: {}'",
    "https://discord.com/api/webhooks/1234567/{}",
    '{{"kty":"RSA","d":"{}"}}',
    "sq0atp-{}",
    "glsa_{}_a1b2c3d4",
    "tskey-auth-{}",
    "dt0c01.{}",
    "1//0g{}",
    "ATATT3xFf{}",
)
WITH_HEX: Final = (
    "AC{}",
    "SK{}",
    "key-{}",
    "dapi{}",
    "SECRET_KEY_BASE={}",
    "DSN=https://{}@o1.ingest.example/2",
    "ENCRYPTION_KEY: {}",
)
MORE: Final = (
    ("lsv2_pt_{}_" + HEX[:10], HEX),
    ("sk_{}" + HEX[:16], HEX),
    ("pat" + "AbCdEfGhIjKlMn.{}" + HEX, HEX),
    ("access_token$production${}$" + HEX, HEX[:16]),
    ("hf_{}", "abcdefghijklmnopqrst" + "uvwxyzabcdefgh"),
    ("1//0g{}", "abc-defg_hijklmnopqrs" + "tuvwxyz"),
    ("https://x.webhook.office.com/webhookb2/{}/IncomingWebhook/z", "abcdefgh-ijkl" + "mnop@qrst"),
    ("{}", HEX),
    ("{}", HEX.upper()),
    ("0x{}" + HEX, HEX),
    ("MY_PASS={}", "correct" + "horse"),
    ("MYSQL_PW: {}", "sun" + "shine"),
    ("STRIPE_KEY='{}'", "abcd" + "efgh"),
    ("db_pwd={}", "sun" + "shine"),
    ("APP_SECRET = {}", "sun" + "shine"),
    ("machine api.example login bob password {}", "hunter" + "2"),
    ("db.example.com:5432:app:bob:{}", "hunter" + "2pw"),
    ("sqlplus scott/{}@db", "tig" + "er"),
    ("jdbc:oracle:thin:scott/{}@//db:1521/x", "tig" + "er"),
    ("app/{}@db.example:1521", "tig" + "er"),
    ("card {} exp 12/27", "4111 1111" + " 1111 1111"),
    ("{}", "378282246" + "310005"),
    ("The password for the staging box is {}.", "hunter" + "2"),
    ("his PIN is {}", "47" + "11"),
    ("pin: {}", "47" + "11"),
    ("Log in with admin / {}", "Winter" + "2024!"),
    ("{} is the admin password.", "hunter" + "2"),
)
"""Forms, and the secret in them."""
AT_THE_END: Final = (
    ("the password for the staging box is {}", "hunter" + "2"),
    ("Root password on db1 \u2192 {}", "correct" + "horse"),
    ("{} is the admin password", "hunter" + "2"),
)
WITH_BASE64: Final = ("_auth={}", "auth: {}", "Basic {}", "FERNET_KEY={}", "<D>{}</D>", "password base64: {}")
INNOCENT: Final = (
    "The token service runs on Redis7 and Python3.12.",
    "password hashing uses Argon2id and SHA-256",
    "API key rotation happens every 90d",
    "secret sharing per RFC-7919",
    "token limit is 128k",
    "OAuth2.0 token endpoint",
    "GPT-4o counts tokens with o200k_base",
    "session key AES-256-GCM",
    "Auth: see ADR-0007",
    "key: order_id2",
    "login: 3 attempts, then 2FA",
    "password reset at 10:30am on 2026-01-02",
    "tokens are JWTs signed by RS256",
    "the API key is stored in vault-eu1",
    "Token 42 of Catalog B12",
    "the password manager 1Password",
    "credentials for db-prod-01",
    "Password policy v3: 12-character minimum",
    "PaymentServiceV2 DEPENDS_ON LedgerDB3",
    "user-authentication-service-v2-eu-west-1a",
    "entity 01J8ZQ4V7N5T3R2K9M6P1W0XYC",
    "mysql -h db.example -P 3306 shop",
    "openssl s_client -connect host:443 -pause",
    "https://user@github.com/a",
    "git@github.com:a/b.git",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "image@sha256:" + HEX + HEX,
    "id 12345678901234567890123456789012",
    "order 4111 1111 1111 1112",
    "called 1700000000000 times",
    "PRIMARY_KEY=order_id",
    "DB_PASS=${DB_PASS}",
    "API_KEY: required",
    "sort_key: created",
    "uses actions/checkout@v4 and babel/core@7.0",
    "the password for the shop is rotated.",
    "The password is checked by bcrypt",
    "1Password is the best password manager",
    "the PIN is four digits",
    "log in with Google / GitHub",
    "at 10:30:15:ab:cd we met",
    "the default login page asks for a password twice",
    "The seed phrase has twelve words and nobody should store that phrase online because attackers will find them all",
)


@pytest.mark.parametrize(
    "text",
    [
        each.format(secret)
        for forms, secret in ((WITH_WORD, WORD), (WITH_RANDOM, RANDOM), (WITH_HEX, HEX), (WITH_BASE64, BASE64))
        for each in forms
    ],
)
def test_a_secret_goes_whatever_it_is_dressed_as(text: str) -> None:
    result = redact(f"Before. {text} After.")
    assert REDACTED in result
    assert result.startswith("Before.")
    assert not any(secret in result for secret in (WORD, RANDOM, HEX, BASE64))
    assert redact(result) == result


@pytest.mark.parametrize(("form", "secret"), MORE)
def test_secrets_of_more_kinds_go(form: str, secret: str) -> None:
    for text in (form.format(secret), f"Before. {form.format(secret)}\nAfter."):
        result = redact(text)
        assert secret not in result
        assert REDACTED in result
        assert redact(result) == result


@pytest.mark.parametrize(("form", "secret"), AT_THE_END)
def test_a_secret_at_the_end_of_a_line_goes(form: str, secret: str) -> None:
    text = form.format(secret)
    assert redact(f"{text}\nAfter.") == f"{text.replace(secret, REDACTED)}\nAfter."


@pytest.mark.parametrize("text", INNOCENT)
def test_words_with_digits_near_the_name_of_a_secret_stay(text: str) -> None:
    assert redact(text) == text


def test_a_seed_phrase_goes_on_either_side_of_its_name() -> None:
    words = "ripple canvas orbit velvet hazard mango quilt ember flock drift sugar tunnel"
    assert words not in redact(f"{words} is the seed phrase")
    assert words not in redact(f"our recovery phrase, on paper: {words}")


def node(handle: int, name: str, kind: str = "", description: str = "") -> EntityNode:
    return EntityNode(
        handle=handle, entity=True, shown=True, key=str(handle), name=name, kind=kind, description=description
    )


def shown(one: EntityNode, other: EntityNode, fact: str = "") -> str:
    relation = Relation(handle=1, source=one, type="RELATED_TO", target=other, fact=fact, hop=1)
    *_, packed = pack(Expansion(pinned=(one,), nodes={1: one, 2: other}, relations={1: relation}), most=50)
    assert packed is not None
    return packed.text


@pytest.mark.parametrize("secret", [WORD, RANDOM, "Summer" + "2024!", "tr0ub4dor" + "&3"])
@pytest.mark.parametrize(
    "name", ["DB password", "password", "token", "API key", "AWS secret access key", "db credentials", "Kennwort", "pw"]
)
def test_a_secret_that_is_split_over_the_parts_of_a_fact_goes(name: str, secret: str) -> None:
    shop = node(2, "shop")
    for text in (
        shown(node(1, name), node(2, secret)),
        shown(node(1, secret), node(2, name)),
        shown(node(1, secret, name), shop),
        shown(node(1, name, secret), shop),
        shown(node(1, name, "Setting", secret), shop),
        shown(node(1, "shop", name, f"value {secret}"), shop),
        shown(node(1, name), shop, secret),
        shown(node(1, "shop"), node(2, name), secret),
        shown(node(1, name), shop, f"its value is {secret}"),
        shown(node(1, f"{name}: {secret}"), shop),
    ):
        assert secret not in text


def test_of_a_fact_beside_the_name_of_a_secret_the_rest_stays() -> None:
    assert redact_beside("DB password", f"is {WORD} since May") == f"is {REDACTED} since May"
    assert redact_beside("Token", "introduced with OAuth2 in v2.1") == "introduced with OAuth2 in v2.1"
    assert redact_beside("Password policy", "asks for Upper1 case") == "asks for Upper1 case"
