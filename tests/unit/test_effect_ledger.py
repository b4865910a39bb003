"""What retries, drops and dead letters take from its place in the log, and what they leave there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.chaos.memory_bus import MemoryLetters, MemoryRules, memory_bus
from tests.services.rules import load_rules

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, InvalidEvent, Layout, wire
from graphweft_contracts.layout import OwnPartition
from graphweft_contracts.rules_log import Activation, restated_scope
from graphweft_rules import RuleSet
from graphweft_workers.engine.failures.corrections import corrected, event_of, publish
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived, ledger_by_other_rules
from graphweft_workers.engine.log.read import letter_for, read_range
from graphweft_workers.ports.dead_letters import drop_entry, retry_entry
from graphweft_workers.ports.event_log import Entry, EntryPlace
from graphweft_workers.rule_sets.active_rules import FixedRules

NOW = datetime(2026, 2, 1, tzinfo=UTC)
RULES = """
mutation_rules:
  - name: r
    events: ["*"]
    mutations:
      - {id: one, cypher: "CREATE (:One {v: $v})", params: {v: $event.v}}
      - {id: two, cypher: "CREATE (:Two {v: $v})", params: {v: $event.v}}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "W").mkdir()
    (folder / "W/graph_injection.yaml").write_text(RULES)
    return load_rules(folder)


def event(name: str, app: str = "a") -> dict[bytes, bytes]:
    return wire.encode(Event.create("x.y", app_id=app, chat_id="c", workflow="W", id=name, data={"v": name}))


def log_of(*fields: Mapping[bytes, bytes]) -> list[Entry]:
    return [Entry(offset=str(number), fields=each, received=NOW) for number, each in enumerate(fields, start=1)]


def letter(
    entry: Entry, mutation: str | None = None, reason: DeadLetterReason = "timeout", app: str | None = "a"
) -> DeadLetter:
    rule = None if mutation is None else "r"
    return letter_for(0, entry, reason, "why", rule=rule, mutation=mutation).model_copy(update={"app_id": app})


async def corrected_by(there: DeadLetter) -> list[Mapping[bytes, bytes]]:
    """Return the entries that a correction of a dead letter appends."""

    class Taking(MemoryLetters):
        taken: list[Mapping[bytes, bytes]]

        async def requeue(
            self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
        ) -> bool:
            self.taken = [*entries]
            return letter == there

    letters = Taking()
    bus = memory_bus([()], letters=letters)
    event, recorded = await event_of(bus, there)
    assert await publish(bus, there, corrected(event, {"v": "corrected"}), recorded)
    return letters.taken


async def effects(rules: RuleSet, log: Sequence[Entry], *letters: DeadLetter, app: str = "a") -> list[tuple[str, str]]:
    bus = memory_bus([log])
    await bus.dead_letters.put(letters)
    found = await ledger_as_lived(bus, 0)
    read = read_range(0, log, FixedRules(rules), RecentEvents(), passed_over=found)
    assert read.letters == []
    return [(each.entry.offset, bound.mutation.id) for each in read.apps.get(app, []) for bound in each.mutations]


async def test_a_retried_mutation_takes_effect_at_its_retry_only(rules: RuleSet) -> None:
    [failed] = log_of(event("e1"))
    log = log_of(event("e1"), event("e2"), retry_entry(letter(failed, "two")))
    assert await effects(rules, log) == [("1", "one"), ("2", "one"), ("2", "two"), ("3", "two")]


async def test_a_retry_that_failed_and_was_retried_takes_effect_at_the_last_one(rules: RuleSet) -> None:
    again = retry_entry(letter(log_of(event("e1"))[0], "two"))
    once_more = retry_entry(letter(log_of(event("e1"), again)[1], "two"))
    assert await effects(rules, log_of(event("e1"), again, once_more)) == [("1", "one"), ("3", "two")]


async def test_a_dropped_mutation_and_a_dropped_event_take_no_effect(rules: RuleSet) -> None:
    first, second = log_of(event("e1"), event("e2"))
    drops = [drop_entry(letter(first, "one")), drop_entry(letter(second))]
    assert await effects(rules, log_of(event("e1"), event("e2"), *drops)) == [("1", "two")]


async def test_what_still_is_a_dead_letter_takes_no_effect(rules: RuleSet) -> None:
    log = log_of(event("e1"), event("e2"), event("e3"))
    several = letter(log[0], "one", "quarantined").of_entries(("1", "2"))
    assert await effects(rules, log, several) == [("1", "two"), ("2", "two"), ("3", "one"), ("3", "two")]


async def test_a_letter_of_trimmed_events_hides_nothing(rules: RuleSet) -> None:
    log = log_of(event("e1"))
    gone = letter(log[0], None, "trimmed")
    assert await effects(rules, [*log, *log_of({}, drop_entry(gone))[1:]], gone) == [("1", "one"), ("1", "two")]


async def test_an_event_that_is_set_aside_is_hidden_whatever_its_app(rules: RuleSet) -> None:
    log = log_of(event("e1"), event("e2", "b"))
    aside = letter(log[0], None, "set_aside").of_entries(("1", "2"))
    assert await effects(rules, log, aside) == await effects(rules, log, aside, app="b") == []
    dropped = log_of(event("e1"), event("e2", "b"), drop_entry(aside))
    assert await effects(rules, dropped) == await effects(rules, dropped, app="b") == []


async def test_of_events_that_are_set_aside_those_are_hidden_that_workers_heeded(rules: RuleSet) -> None:
    log = log_of(event("e1"), event("e2"))
    aside = letter(log[0], None, "set_aside").of_entries(("1", "2")).model_copy(update={"heeded": ("2",)})
    for letters in ([aside], []):
        entries = log if letters else log_of(event("e1"), event("e2"), drop_entry(aside))
        assert await effects(rules, entries, *letters) == [("1", "one"), ("1", "two")]
        assert await by_other_rules(rules, entries, *letters) == [("1", "one"), ("1", "two")]


async def test_no_app_hides_events_of_another(rules: RuleSet) -> None:
    mine, _ = log_of(event("e1", "b"), event("e2"))
    forged = {**event("e2"), wire.RETRY: wire.Retry("0:1:r/one", "r", "one").encode()}
    whole = {**event("e2"), wire.RETRY: wire.Retry("0:1", "x.y", wire.WHOLE).encode()}
    log = log_of(event("e1", "b"), forged, whole, drop_entry(letter(mine, "two")), drop_entry(letter(mine)))
    assert await effects(rules, log, app="b") == [("1", "one"), ("1", "two")]


async def test_an_entry_that_could_not_be_read_and_was_retried_is_one_event(rules: RuleSet) -> None:
    broken = Entry(offset="1", fields=event("e1"), received=NOW)  # this version can read it
    again = retry_entry(letter(broken, app=None))
    assert await effects(rules, log_of(event("e1"), again)) == [("2", "one"), ("2", "two")]
    # A copy of the event itself is known as one, too.
    assert await effects(rules, log_of({}, again, event("e1"))[1:]) == [("2", "one"), ("2", "two")]


async def by_other_rules(
    rules: RuleSet, log: Sequence[Entry], *letters: DeadLetter, app: str = "a"
) -> list[tuple[str, str]]:
    bus = memory_bus([log])
    await bus.dead_letters.put(letters)
    found = await ledger_by_other_rules(bus, 0)
    read = read_range(0, log, FixedRules(rules), RecentEvents(), passed_over=found)
    return [(each.entry.offset, bound.mutation.id) for each in read.apps.get(app, []) for bound in each.mutations]


async def test_by_other_rules_a_row_takes_effect_at_its_own_place_only(rules: RuleSet) -> None:
    again = retry_entry(letter(log_of(event("e1"))[0], "two"))
    once_more = retry_entry(letter(log_of(event("e1"), again)[1], "two"))
    log = log_of(event("e1"), again, once_more, event("e2"))
    failed = letter(log[3], "one")
    both = [("1", "one"), ("1", "two"), ("4", "one"), ("4", "two")]
    assert await by_other_rules(rules, log, failed) == both
    whole = retry_entry(letter(log[0]).model_copy(update={"event_type": "x.y", "reason": "no_rules"}))
    assert await by_other_rules(rules, log_of(event("e1"), whole)) == both[:2]


async def test_by_other_rules_what_an_operator_took_out_stays_out(rules: RuleSet) -> None:
    log = log_of(event("e1"), event("e2"), event("e3"))
    dropped = drop_entry(letter(log[0], "two"))
    aside = letter(log[1], None, "set_aside").of_entries(("2",))
    assert await by_other_rules(rules, log_of(event("e1"), event("e2"), dropped), aside) == [("1", "one")]
    again = retry_entry(letter(log[0], "two"))
    once_more = retry_entry(letter(log_of(event("e1"), again)[1], "two"))
    gone = drop_entry(letter(log_of(event("e1"), again, once_more)[2], "two"))
    assert await by_other_rules(rules, log_of(event("e1"), again, once_more, gone)) == [("1", "one")]
    of_retry = letter(log_of(event("e1"), again)[1], None, "set_aside").of_entries(("2",))
    assert await by_other_rules(rules, log_of(event("e1"), again), of_retry) == [("1", "one")]


async def test_by_other_rules_an_unreadable_entry_stays_one_and_its_retry_is_the_event(rules: RuleSet) -> None:
    broken = Entry(offset="1", fields=event("e1"), received=NOW)
    again = retry_entry(letter(broken, reason="invalid_event", app=None))
    assert await by_other_rules(rules, log_of(event("e1"), again)) == [("2", "one"), ("2", "two")]
    there = letter(broken, reason="invalid_event")
    assert await by_other_rules(rules, log_of(event("e1")), there) == []


async def test_a_forged_retry_hides_no_event_of_another_app_by_other_rules(rules: RuleSet) -> None:
    forged = {**event("e2"), wire.RETRY: wire.Retry("0:1:r/one", "r", "one").encode()}
    log = log_of(event("e1", "b"), forged)
    dropped = drop_entry(letter(log[1], "one"))
    log = log_of(event("e1", "b"), forged, dropped)
    assert await by_other_rules(rules, log, app="b") == [("1", "one"), ("1", "two")]


async def test_retries_before_a_restatement_are_void_and_later_ones_are_not(rules: RuleSet) -> None:
    first, second = log_of(event("e1"), event("e2"))
    one, two = retry_entry(letter(first, "two")), retry_entry(letter(second, "two"))
    made = Activation(number=1, scope=restated_scope("a"), digest="d", time=NOW, positions={0: "4"})
    log = log_of(event("e1"), event("e2"), one, made.entry(), two)
    rules_log = MemoryRules()
    rules_log.activated.append(made)
    bus = replace(memory_bus([log]), rules=rules_log)
    found = await ledger_as_lived(bus, 0)
    read = read_range(0, log, FixedRules(rules), RecentEvents(), passed_over=found)
    effects = [(each.entry.offset, bound.mutation.id) for each in read.apps["a"] for bound in each.mutations]
    assert effects == [("1", "one"), ("1", "two"), ("2", "one"), ("5", "two")]


async def test_a_correction_takes_effect_in_place_of_its_row_by_the_same_and_by_other_rules(rules: RuleSet) -> None:
    skips = letter(log_of(event("e1"))[0], "two", "skipped").of_entries(("1",)).model_copy(update={"id": "0:skipped:x"})
    correction = await corrected_by(skips)
    log = log_of(event("e1"), *correction)
    assert await effects(rules, log) == [("1", "one"), ("2", "two")]
    assert await by_other_rules(rules, log) == [("1", "one"), ("2", "two")]
    again = retry_entry(letter(log[1], "two"))
    log = log_of(event("e1"), *correction, again)
    assert await effects(rules, log) == [("1", "one"), ("4", "two")]
    assert await by_other_rules(rules, log) == [("1", "one"), ("2", "two")], "a retry of a correction is a retry"


async def test_a_correction_of_a_retry_takes_effect_in_place_of_the_first_row(rules: RuleSet) -> None:
    again = retry_entry(letter(log_of(event("e1"))[0], "two"))
    correction = await corrected_by(letter(log_of(event("e1"), again)[1], "two"))
    log = log_of(event("e1"), again, *correction)
    assert await effects(rules, log) == await by_other_rules(rules, log) == [("1", "one"), ("3", "two")]


async def test_a_forged_correction_takes_nothing_of_another_app(rules: RuleSet) -> None:
    forged = {**event("e2"), wire.RETRY: wire.Retry.of_corrected(0, "1", "r", "one").encode()}
    log = log_of(event("e1", "b"), forged)
    assert await effects(rules, log, app="b") == [("1", "one"), ("1", "two")]
    assert await by_other_rules(rules, log, app="b") == [("1", "one"), ("1", "two")]


async def test_corrections_of_skips_of_one_cause_are_no_copies_of_each_other(rules: RuleSet) -> None:
    first, second = log_of(event("e1"), event("e2"))
    skips = [letter(each, "two", "skipped").of_entries((each.offset,)) for each in (first, second)]
    entries = [entry for each in skips for entry in await corrected_by(each.model_copy(update={"id": "0:skipped:x"}))]
    log = log_of(event("e1"), event("e2"), *entries)
    assert await effects(rules, log) == [("1", "one"), ("2", "one"), ("3", "two"), ("5", "two")]


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"{}", b'["a", "r", "m", [1], "x"]', b'["a", "r", "m", "1", "x"]', b"[" * 5_000]
)
def test_a_malformed_record_of_a_drop_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidEvent, match="gw_dropped"):
        wire.dropped_of({wire.DROPPED: value})


def test_a_record_of_a_drop_is_read_as_written() -> None:
    for dropped in (
        wire.DroppedLetter("a", "r", "m", ("1", "2"), "timeout"),
        wire.DroppedLetter(None, None, None, (), "trimmed"),
    ):
        assert wire.dropped_of({wire.DROPPED: dropped.encode()}) == dropped
    assert wire.dropped_of({}) is None


def test_an_entry_without_an_event_is_of_the_app_that_owns_its_partition(rules: RuleSet) -> None:
    own = Layout(partitions=1, own={"acme": OwnPartition(number=1, before="app", since=NOW)})
    for partition, owner in ((0, None), (1, "acme")):
        place = EntryPlace(partition=partition, layout=own)
        entries = [replace(each, place=place) for each in log_of({b"a": b""}, event("x", "acme"))]
        [found] = read_range(partition, entries, FixedRules(rules), RecentEvents()).letters[:1]
        assert (found.offset, found.app_id) == ("1", owner)
        # Its drop names the app, and takes the entry from its place.
        log = [*entries, replace(entries[0], offset="3", fields=drop_entry(found))]
        passed_over = EffectLedger(partition)
        passed_over.add_entries(log)
        assert passed_over.entry("1")
        read = read_range(partition, log, FixedRules(rules), RecentEvents(), passed_over=passed_over)
        assert [each for each in read.letters if each.offset == "1"] == []
