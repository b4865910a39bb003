"""Which entries the keys of an app let through."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, override

import pytest
import yaml
from tests.chaos.memory_bus import MemoryLetters, memory_bus

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, InvalidSettings, RefusedEvent, wire
from graphweft_contracts.signatures import SIGNATURE, SigningKey
from graphweft_rules import RuleSet
from graphweft_workers.doctor import _key_files
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.history import known_before
from graphweft_workers.engine.log.judged_bus import judged
from graphweft_workers.engine.log.key_file import files_open_to_others, read_keyring
from graphweft_workers.engine.log.keyring import Keyring, KeyringKey
from graphweft_workers.engine.log.read import letter_for, read_range
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.settings.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SECRET = {name: name[0] * 40 for name in ("acme", "new", "globex", "worker", "entry")}


def key(name: str) -> SigningKey:
    return SigningKey(f"{name}-1", SECRET[name])


KEYRING = Keyring(
    [
        KeyringKey(key=key("acme"), app_id="acme", begins=START, ends=START + 10 * DAY),
        KeyringKey(key=key("new"), app_id="acme", begins=START + 8 * DAY),
        KeyringKey(key=key("globex"), app_id="globex", begins=START),
        KeyringKey(key=key("worker"), role="worker", begins=START),
        KeyringKey(key=key("entry"), role="gateway", begins=START),
    ]
)


def event(app: str = "acme", type: str = "order.paid", **data: Any) -> Event:
    return Event.create(type, app_id=app, chat_id="c", id="1", data={"order": "o1", **data}, time=START)


def entry(fields: Mapping[bytes, bytes], at: datetime = START + DAY, offset: str = "1-0") -> Entry:
    return Entry(offset=offset, fields=fields, received=at, judge=KEYRING)


def verdict(fields: Mapping[bytes, bytes], at: datetime = START + DAY) -> str:
    try:
        entry(fields, at).event()
    except RefusedEvent as error:
        return error.reason
    return "ok"


BINARY = {
    b"ce_id": b"1", b"ce_source": b"/s", b"ce_specversion": b"1.0", b"ce_type": b"order.paid", b"ce_appid": b"acme",
    b"ce_chatid": b"c", b"data": b'{"order": 1}',
}  # fmt: skip
EMBEDDED = event(type="memory.embedded", memory_id="m", model="m", embedding=[0.5])
RETRIED = {**wire.encode(event()), wire.RETRY: wire.Retry("0:1-0", "rule", "mutation").encode()}


@pytest.mark.parametrize(
    ("fields", "day", "found"),
    [
        (wire.encode(event()), 1, "unsigned"),
        (key("acme").signed(wire.encode(event())), 1, "ok"),
        (key("acme").signed(BINARY), 1, "ok"),
        (key("acme").signed({**BINARY, b"traceparent": b"x"}) | {b"traceparent": b"y"}, 1, "ok"),
        (key("acme").signed(BINARY) | {b"ce_chatid": b"d"}, 1, "bad_signature"),
        (key("acme").signed(BINARY) | {b"ce_userid": b"eve"}, 1, "bad_signature"),
        (key("acme").signed(wire.encode(event())) | {b"data": wire.encode(event(more=1))[b"data"]}, 1, "bad_signature"),
        (key("globex").signed(wire.encode(event())), 1, "bad_signature"),
        (key("worker").signed(wire.encode(event())), 1, "ok"),
        (key("entry").signed(wire.encode(event())), 1, "ok"),
        (SigningKey("acme-1", "z" * 40).signed(wire.encode(event())), 1, "bad_signature"),
        (SigningKey("who", "z" * 40).signed(wire.encode(event())), 1, "bad_signature"),
        ({**wire.encode(event()), SIGNATURE: b"\xff:::"}, 1, "bad_signature"),
        ({**wire.encode(event()), SIGNATURE: b""}, 1, "bad_signature"),
        ({**wire.encode(event()), SIGNATURE: b"v1:acme-1:\xe9"}, 1, "bad_signature"),
        # Before the first key of an app nothing is looked at, and after the last one everything is.
        (wire.encode(event()), -1, "ok"),
        (key("acme").signed(wire.encode(event())), 9, "ok"),
        (key("new").signed(wire.encode(event())), 9, "ok"),
        (key("acme").signed(wire.encode(event())), 10, "bad_signature"),
        (key("new").signed(wire.encode(event())), 7, "bad_signature"),
        # Apps without keys.
        (wire.encode(event("other")), 1, "ok"),
        (key("acme").signed(wire.encode(event("other"))), 1, "ok"),
        # What only graphweft's own processes write.
        (key("acme").signed(wire.encode(EMBEDDED)), 1, "bad_signature"),
        (key("worker").signed(wire.encode(EMBEDDED)), 1, "ok"),
        (key("acme").signed(RETRIED), 1, "bad_signature"),
        (key("entry").signed(RETRIED), 1, "bad_signature"),
        (key("worker").signed(RETRIED), 1, "ok"),
        (key("acme").signed(wire.encode(event())) | {wire.RETRY: RETRIED[wire.RETRY]}, 1, "bad_signature"),
    ],
)  # fmt: skip
def test_an_entry_needs_a_valid_signature_of_its_app(fields: dict[bytes, bytes], day: int, found: str) -> None:
    assert verdict(fields, START + day * DAY) == found


@pytest.mark.parametrize(("app", "apps"), [("acme", "acme"), (None, None)])
def test_only_workers_record_that_a_letter_was_dropped(app: str | None, apps: str | None) -> None:
    drop = {wire.DROPPED: wire.DroppedLetter(app, None, None, ("1-0",), "invalid_event").encode()}
    for fields, counts in ((drop, False), (key("acme").signed(drop), False), (key("worker").signed(drop), True)):
        passed = EffectLedger(0)
        passed.add_entries([entry(fields, offset="2-0")])
        assert passed.entry("1-0") is counts
    old = EffectLedger(0)
    old.add_entries([entry(drop, START - DAY, offset="2-0")])
    assert old.entry("1-0")


def test_a_refused_event_makes_no_copy_of_the_real_one() -> None:
    forged, real = wire.encode(event(by="eve")), key("acme").signed(wire.encode(event()))
    found = read_range(0, [entry(forged), entry(real, offset="2-0"), entry(real, offset="3-0")],
                       FixedRules(RuleSet({})), RecentEvents())  # fmt: skip
    assert [(letter.reason, letter.position) for letter in found.letters] == [("unsigned", "0:1-0")]
    assert found.copies == 1
    assert "eve" not in found.letters[0].message


class Log:
    """Just enough of a log to read back in it."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = entries

    async def before(self, partition: int, offset: str, *, limit: int) -> list[Entry]:
        return [entry for entry in self._entries if entry.offset <= offset][-limit:]


async def test_a_worker_that_starts_knows_no_refused_event() -> None:
    forged, real = wire.encode(event(by="eve")), key("acme").signed(wire.encode(event()))
    for fields, known in ((forged, False), (real, True)):
        log: Any = Log(entry(fields))
        recent = await known_before(log, 0, "1-0")
        again = entry(real, offset="2-0")
        assert recent.is_copy(identity_of(again, again.event())) is known


async def test_an_event_is_retried_after_its_key_was_added_and_the_worker_restarted() -> None:
    """The worker reads the refused entry back as an event now, and its retry must not count as a copy of it."""
    real = key("acme").signed(wire.encode(event()))
    again = wire.Retry("0:1-0", wire.WHOLE, wire.WHOLE)
    retried = key("worker").signed({**wire.encode(event()), wire.RETRY: again.encode()})
    rules = FixedRules(RuleSet({}))
    for between, copies in (([], 0), ([entry(real, offset="2-0")], 2)):
        log: Any = Log(entry(real))
        recent = await known_before(log, 0, "1-0")
        found = read_range(0, [*between, entry(retried, offset="3-0")], rules, recent)
        assert found.copies == copies
    fresh = RecentEvents()  # it refused the first one itself, and an event with a signature followed
    assert read_range(0, [entry(real, offset="2-0"), entry(retried, offset="3-0")], rules, fresh).copies == 1


def test_every_app_needs_a_signature_from_a_time_on() -> None:
    keyring = Keyring([KeyringKey(key=key("acme"), app_id="acme", begins=START + DAY),
                       KeyringKey(key=key("entry"), role="gateway", begins=START)], START + 2 * DAY)  # fmt: skip
    fields = wire.encode(event("new"))
    keyring.check(fields, event("new"), START + DAY)
    keyring.check(key("entry").signed(fields), event("new"), START + 3 * DAY)
    for day, app in ((3, "new"), (3, "acme"), (1, "acme")):
        with pytest.raises(RefusedEvent):
            keyring.check(wire.encode(event(app)), event(app), START + day * DAY)
    with pytest.raises(RefusedEvent):
        keyring.check(key("acme").signed(fields), event("new"), START + 3 * DAY)


class Entries:
    """Just enough of a log, and of its partitions, to retry dead letters."""

    def __init__(self, *entries: Entry) -> None:
        self._entries = {each.offset: replace(each, judge=None) for each in entries}

    async def entries(self, partition: int, offsets: Sequence[str]) -> list[Entry]:
        return [replace(self._entries[offset]) for offset in offsets if offset in self._entries]

    async def status(self) -> list[PartitionStatus]:
        return [PartitionStatus(id=0, position="9-0", end="9-0", lag=0, owner=None, written=9, trimmed=0)]


class Letters(MemoryLetters):
    """Takes what is retried."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[Mapping[bytes, bytes]] = []
        self.left: DeadLetter | None = None

    @override
    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        self.added += entries
        self.left = rest
        return True


def bus_of(letters: Letters, *entries: Entry) -> Bus:
    log: Any = Entries(*entries)
    return replace(memory_bus([()], letters=letters), log=log, partitions=log)


FORGED, REAL = wire.encode(event(by="eve")), key("acme").signed(wire.encode(event()))
DROP = {wire.DROPPED: wire.DroppedLetter("acme", None, None, ("1-0",), "set_aside").encode()}


async def test_a_letter_of_many_events_is_retried_without_the_forged_ones() -> None:
    contents = {"1-0": FORGED, "2-0": REAL, "3-0": DROP, "4-0": wire.encode(event("other"))}
    letters = Letters()
    bus = bus_of(letters, *(entry(fields, offset=offset) for offset, fields in contents.items()))
    letter = letter_for(0, entry(FORGED), "set_aside", "").of_entries(tuple(contents))
    done = await retry(judged(bus, KEYRING), letter)
    assert done.events == 2
    assert "2 of its events were not retried, the first one at 0:1-0: its signature is refused" in (done.kept or "")
    assert [each[wire.DATA] for each in letters.added] == [REAL[wire.DATA], contents["4-0"][wire.DATA]]
    assert letters.left is not None
    assert letters.left.offsets == ("1-0", "3-0")
    again = await retry(judged(bus, KEYRING), letters.left, partial=True)
    assert (again.events, len(letters.added)) == (0, 2)


@pytest.mark.parametrize("reason", ["set_aside", "internal_error", "invalid_event", "unsigned"])
@pytest.mark.parametrize(
    ("fields", "passes"), [(REAL, True), (FORGED, False), (DROP, False), ({b"data": b"no event"}, False)]
)
async def test_a_retry_signs_no_event_whose_signature_is_refused(
    reason: DeadLetterReason, fields: dict[bytes, bytes], passes: bool
) -> None:
    letters = Letters()
    bus = bus_of(letters, entry(fields))
    done = await retry(judged(bus, KEYRING), letter_for(0, entry(fields), reason, ""))
    assert (done.events, len(letters.added)) == ((1, 1) if passes else (0, 0))
    assert passes or "its signature" in (done.kept or "")


async def test_a_trimmed_event_is_retried_only_if_a_worker_has_checked_it() -> None:
    bus = bus_of(Letters())
    for rule, events in ((None, 0), ("rule", 1)):
        letter = letter_for(0, entry(FORGED), "internal_error", "", rule=rule, mutation=rule)
        assert (await retry(judged(bus, KEYRING), letter)).events == events
    assert (await retry(bus, letter_for(0, entry(FORGED), "internal_error", ""))).events == 1


def test_a_request_is_signed_apart_from_events() -> None:
    body = b'{"id": "1"}'
    KEYRING.check_request("acme", body, key("acme").of_request(body), START + DAY)
    KEYRING.check_request("other", body, b"", START + DAY)
    event_digest = key("acme").signed({b"data": body})[SIGNATURE]
    for signature in (b"", key("globex").of_request(body), key("acme").of_request(body + b" "), event_digest):
        with pytest.raises(RefusedEvent):
            KEYRING.check_request("acme", body, signature, START + DAY)


def test_the_newest_valid_key_signs_what_workers_write() -> None:
    later = KeyringKey(key=SigningKey("worker-2", "x" * 40), role="worker", begins=START + 2 * DAY)
    ring = Keyring([KeyringKey(key=key("worker"), role="worker", begins=START, ends=START + 3 * DAY), later])
    ids = [found and found.id for day in (-1, 1, 2, 4) for found in [ring.own_key("worker", START + day * DAY)]]
    assert ids == [None, "worker-1", "worker-2", "worker-2"]


GOOD = {"id": "w", "role": "worker", "secret": "w" * 40, "from": "2026-01-01T00:00:00Z"}


def written(path: Path, *keys: dict[str, Any]) -> Path:
    file = path / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": [GOOD, *keys]}))
    return file


def test_a_key_may_lie_in_a_file_beside_the_keyring(tmp_path: Path) -> None:
    (tmp_path / "acme.secret").write_text("a" * 40 + "\n")
    entry = {"id": "acme-1", "app_id": "acme", "secret_file": "acme.secret", "from": "2026-01-01T00:00:00Z"}
    ring = read_keyring(written(tmp_path, entry))
    assert ring.apps == ("acme",)
    ring.check(key("acme").signed(wire.encode(event())), event(), START + DAY)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"id": "a", "app_id": "acme", "secret": "sesame-1", "from": "2026-01-01T00:00:00Z"}, "secret"),
        ({"id": "a", "app_id": "acme", "secret": "s" * 40}, "from"),
        (
            {"id": "a", "app_id": "acme", "role": "worker", "secret": "s" * 40, "from": "2026-01-01T00:00:00Z"},
            "or role",
        ),
        ({"id": "a", "app_id": "acme", "from": "2026-01-01T00:00:00Z"}, "secret_file"),
        ({"id": "a", "app_id": "acme", "secret_file": "no", "from": "2026-01-01T00:00:00Z"}, "cannot be read"),
        ({"id": "w", "app_id": "acme", "secret": "s" * 40, "from": "2026-01-01T00:00:00Z"}, "two keys"),
        (
            {
                "id": "a",
                "app_id": "a",
                "secret": "s" * 40,
                "from": "2026-01-02T00:00:00Z",
                "until": "2026-01-01T00:00:00Z",
            },
            "until",
        ),
    ],
)
def test_a_broken_keyring_names_its_fault_and_no_secret(tmp_path: Path, broken: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        read_keyring(written(tmp_path, broken))
    assert said in str(refused.value)
    assert "sesame" not in str(refused.value)
    assert "ssss" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys:\n  - id: w\n    role: worker\n    secret: sesame-1\n", r"keys.yaml:4:5: keys.0.secret: "),
        ("keys:\n  - id: w\n    role: worker\n", r"keys.yaml:2:5: keys.0.from: Field required"),
        ("keys:\n  - {id: w, role: worker, secret: {W}, from: 2026-01-01T00:00:00Z, x: 1}\n", r":2:{X}: keys.0.x: "),
        ("keys: [\n  {id: w, secret: sesame\n", r"keys.yaml:3:1: invalid YAML: .*expected ',' or '}', but got"),
        ("keys:\n- id: w\n  secret: *sesame\n", r"keys.yaml:3:11: invalid YAML: found undefined alias a value"),
        ("keys:\n- id: w\n  secret: !sesame x\n", r"keys.yaml:3:11: invalid YAML: the tag a value"),
        ('{"keys": [{"id": "w", "role": "worker",\n "from": "today"}]}', r"keys.yaml:2:2: keys.0.from: "),
        ('{"keys": [{"id": "sesame"\n "role": "worker"}]}', r"keys.yaml:2:2: invalid YAML: "),
        ("keys:\n- {G}\n- {G}\n", r"keys.yaml:3:4: two keys have the id 'w'"),
        ("\nkeys: [{G2}]\n", r"keys.yaml:2:1: the file has no worker's key"),
        (
            "keys:\n- {G}\n- {id: a, app_id: a, secret_file: none, from: 2026-01-01T00:00:00Z}\n",
            r":3:\d+: keys.1.secret_file",
        ),
        ("required_from: x\x00\n", r"keys.yaml:1:17: invalid YAML"),
    ],
)
def test_a_fault_of_a_key_file_names_line_and_column_and_no_secret(tmp_path: Path, text: str, said: str) -> None:
    good = f"{{id: w, role: worker, secret: {'w' * 40}, from: 2026-01-01T00:00:00Z}}"
    text = text.replace("{W}", "w" * 40).replace("{G2}", good.replace("worker", "gateway")).replace("{G}", good)
    said = said.replace("{X}", str(text.find("x: 1") - text.rfind("\n", 0, text.find("x: 1"))))
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=said) as refused:
        read_keyring(file)
    assert "sesame" not in str(refused.value)
    assert "wwww" not in str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="this system has no such modes")
def test_files_with_keys_that_others_may_read_are_named(tmp_path: Path) -> None:
    entry = {"id": "acme-1", "app_id": "acme", "secret_file": "acme.secret", "from": "2026-01-01T00:00:00Z"}
    file = written(tmp_path, entry)
    secret = tmp_path / "acme.secret"
    secret.write_text("a" * 40)
    for mode, secret_mode, named in ((0o644, 0o640, [file, secret]), (0o600, 0o602, [secret]), (0o400, 0o600, [])):
        file.chmod(mode)
        secret.chmod(secret_mode)
        assert files_open_to_others(file) == named
        checks = _key_files(Settings(signing_keys=file))
        assert [check.state for check in checks] == ["warn"] * len(named)
        assert [check.advice for check in checks] == [f"chmod 600 {path}" for path in named]


def test_a_keyring_needs_a_key_of_workers(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": [{**GOOD, "role": "gateway"}]}))
    with pytest.raises(InvalidSettings, match="no worker's key"):
        read_keyring(file)


def test_a_signing_key_is_never_shown() -> None:
    with pytest.raises(InvalidSettings) as refused:
        SigningKey.parse("acme:sesame")
    assert "sesame" not in str(refused.value)
    assert SECRET["acme"] not in repr(key("acme"))


def test_a_file_with_too_many_levels_is_a_faulty_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("[" * 50_000)
    with pytest.raises(InvalidSettings, match="more than 64 levels"):
        read_keyring(file)
