"""The ledger of effects says of each row what the letters and entries that name it say, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Final, Literal

from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import DeadLetter, DeadLetterReason, Event, wire
from graphweft_contracts.dead_letters import UNREAD
from graphweft_rules import BoundMutation, CompiledMutation, MatchResult
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.model import Place
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.ports.event_log import Entry

NOW: Final = datetime(2026, 2, 1, tzinfo=UTC)
APPS: Final = ("a", "b")
NAMES: Final = (("r", "one"), ("r", "two"))
OFFSETS: Final = tuple(str(number) for number in range(1, 7))
REASONS: Final[tuple[DeadLetterReason, ...]] = (
    "timeout", "quarantined", "skipped", "no_rules", "invalid_event", "internal_error", "unsigned", "trimmed",
)  # fmt: skip

type Name = tuple[str | None, str | None]
type Void = Callable[[str, str], bool]


def letter_of(offsets: Sequence[str], reason: DeadLetterReason, name: Name, app: str | None) -> DeadLetter:
    return DeadLetter(
        id="l", reason=reason, message="why", position=f"0:{offsets[0]}", offsets=tuple(offsets), count=len(offsets),
        time=NOW, app_id=app, rule=name[0], mutation=name[1], fields={},
    )  # fmt: skip


def entry_of(offset: str, fields: dict[bytes, bytes], app: str) -> Entry:
    event = Event.create("x.y", app_id=app, chat_id="c", workflow="W", id=offset)
    return Entry(offset=offset, fields={**wire.encode(event), **fields}, received=NOW)


names = st.sampled_from([*NAMES[:1] * 4, *NAMES, (None, None), ("x.y", wire.WHOLE)])
offsets = st.lists(st.sampled_from(OFFSETS), min_size=1, max_size=3, unique=True).map(sorted)
apps = st.sampled_from(["a", "a", "a", "b", None])


@st.composite
def letters(draw: st.DrawFn) -> DeadLetter:
    if draw(st.integers(0, 4)) == 0:
        made = letter_of(draw(offsets), "set_aside", (None, None), draw(apps))
        heeded = tuple(each for each in made.offsets if draw(st.booleans()))
        return made.model_copy(update={"heeded": draw(st.sampled_from([None, heeded]))})
    return letter_of(draw(offsets), draw(st.sampled_from(REASONS)), draw(names), draw(apps))


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    found: list[Entry] = []
    for number, offset in enumerate(OFFSETS):
        kind: Literal["event", "retry", "corrected", "drop"] = draw(
            st.sampled_from(["event", "event", "retry", "retry", "corrected", "drop"])
        )
        app, (rule, mutation) = draw(st.sampled_from(("a", "a", "a", "b"))), draw(names)
        at = OFFSETS[max(0, number - draw(st.sampled_from([1, 1, 1, 2, 3])))]  # often the retry of a retry
        fields: dict[bytes, bytes] = {}
        match kind:
            case "event":
                pass
            case "retry":
                row = f"0:{at}" + ("" if rule is None else f":{rule}/{mutation}")
                fields[wire.RETRY] = wire.Retry(row, rule or wire.WHOLE, mutation or wire.WHOLE).encode()
            case "corrected":
                name = draw(st.sampled_from(NAMES))
                fields[wire.RETRY] = wire.Retry.of_corrected(0, at, *name).encode()
            case "drop":
                reason = draw(st.sampled_from(REASONS))
                dropped = wire.DroppedLetter(draw(apps), rule, mutation, tuple(draw(offsets)), reason)
                found.append(Entry(offset=offset, fields={wire.DROPPED: dropped.encode()}, received=NOW))
                continue
        found.append(entry_of(offset, fields, app))
    return found


type Named = tuple[Sequence[str], str | None, Name]
"""Offsets, an app or all of them, rule and mutation."""


def named_by(given: Sequence[DeadLetter], log: Sequence[Entry], void: Void, *, unread: bool) -> Iterator[Named]:
    """Yield what letters, drops and retries take away, those of a void retry left out."""
    for letter in given:
        if letter.reason != "trimmed" and (not unread or (letter.rule is None and letter.reason in UNREAD)):
            app = None if letter.reason == "set_aside" else letter.app_id
            yield letter.passed_over, app, (letter.rule, letter.mutation)
    for entry in log:
        dropped, retried = wire.dropped_of(entry.fields), wire.retry_of(entry.fields)
        if dropped is not None:
            if not unread or (dropped.rule is None and dropped.reason in UNREAD):
                yield dropped.offsets, dropped.app_id, (dropped.rule, dropped.mutation)
        elif retried is not None and not is_void(entry, void) and (not unread or retried.rule == wire.WHOLE):
            place = retried.letter.split(":")[1]
            yield (place,), entry.event().appid, (retried.rule, retried.mutation)


def is_void(entry: Entry, void: Void) -> bool:
    retried = wire.retry_of(entry.fields)
    if retried is None or retried.rule == wire.WHOLE or retried.corrects:
        return False
    return void(entry.event().appid, entry.offset)


def is_out(named: Sequence[Named], log: Sequence[Entry], void: Void, offset: str, app: str, name: Name) -> bool:
    """Tell whether a row, or with a name of None a whole event, has no effect at its place."""
    for places, whose, (rule, mutation) in named:
        whole = rule is None or mutation in (None, wire.WHOLE)
        if offset in places and ((whole and whose in (None, app)) or ((rule, mutation) == name and whose == app)):
            return True
    for entry in log:
        if not is_void(entry, void) or entry.event().appid != app:
            continue
        retried = wire.retry_of(entry.fields)
        assert retried is not None
        if entry.offset == offset:
            return True
        own = (retried.rule, retried.mutation)
        if retried.letter.split(":")[1] == offset and (retried.mutation == wire.WHOLE or own == name):
            # The row of a retry without effect is out where its retry would be.
            others = [each for each in log if each is not entry]
            if is_out(named, others, void, entry.offset, app, own):
                return True
    return False


VOIDS: Final[tuple[Void, ...]] = (
    lambda _app, _offset: False,
    lambda _app, _offset: True,
    lambda app, offset: app == "a" and offset < "5",
)


@given(st.lists(letters(), max_size=4), entries(), st.sampled_from(VOIDS), st.integers(0, len(OFFSETS)))
def test_a_row_is_out_if_a_letter_or_an_entry_takes_it_away(
    given_letters: list[DeadLetter], log: list[Entry], void: Void, page: int
) -> None:
    ledger = EffectLedger(0, void)
    for letter in given_letters:
        ledger.add_letter(letter)
    ledger.add_entries(log[:page])
    ledger.add_entries(log[page:])
    ledger.close()
    named = list(named_by(given_letters, log, void, unread=False))
    unread = list(named_by(given_letters, log, void, unread=True))
    for offset, app in product(OFFSETS, APPS):
        assert (ledger.event(offset, app) is not None) == is_out(named, log, void, offset, app, (None, None))
        assert (ledger.unread(offset, app) is not None) == any(
            offset in places and whose in (None, app) for places, whose, _ in unread
        )
        for name in NAMES:
            assert (ledger.row(offset, app, *name) is not None) == is_out(named, log, void, offset, app, name)
        if ledger.event(offset, app) is None:
            matched = MatchResult(mutations=tuple(BoundMutation(each, {}) for each in MUTATIONS))
            rest = [(each.mutation.rule, each.mutation.id) for each in ledger.rest(offset, app, matched).mutations]
            assert rest == [name for name in NAMES if ledger.row(offset, app, *name) is None]


PLACE: Final = Place(file="rules.yaml")
MUTATIONS: Final = [
    CompiledMutation(rule=rule, id=name, cypher=parse("CREATE (:N)", role="mutation"), sources=(), place=PLACE)
    for rule, name in NAMES
]
