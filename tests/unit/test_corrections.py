"""Corrected events of dead letters: what changes, what stays, and which letters have none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, override

import pytest
from tests.chaos.memory_bus import MemoryLetters, memory_bus

from graphweft.transport import MAX_EVENT_BYTES
from graphweft_contracts import DeadLetter, Event, InvalidEvent, wire
from graphweft_contracts.signatures import SigningKey
from graphweft_workers.engine.failures.corrections import corrected, refusal_of
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.log.judged_bus import judged

KEY = "acme-1:" + "s" * 43
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def event(**more: Any) -> Event:
    data = {"a": 1, "b": {"c": [1, 2], "d": "x"}, "context": {"n": 1}}
    return Event.create("t.x", app_id="acme", chat_id="c", workflow="W", id="old", data=data, time=TIME, **more)


def letter(**more: Any) -> DeadLetter:
    given: dict[str, Any] = {"rule": "r", "mutation": "m", "fields": {}, "app_id": "acme", "position": "0:1-0"}
    return DeadLetter(id="0:1-0:r/m", reason="invalid_value", message="x", time=TIME, **(given | more))


def test_a_corrected_event_has_a_new_id_names_the_old_one_and_keeps_the_rest() -> None:
    old = event()
    new = corrected(old, {"a": None, "b": {"d": "y", "e": {"f": None, "g": 2}}, "z": [None]})
    assert new.data == {"b": {"c": [1, 2], "d": "y", "e": {"g": 2}}, "context": {"n": 1}, "z": [None]}
    assert new.id.startswith("old-corrected-")
    assert corrected(old, {"a": 2}).id != new.id
    assert new.model_extra == {"corrects": "old"}
    for name in ("source", "type", "time", "appid", "chatid", "workflow", "userid"):
        assert getattr(new, name) == getattr(old, name)
    assert old.data["a"] == 1
    assert len(corrected(event().model_copy(update={"id": "i" * 256}), {"a": 2}).id) <= 256


def test_a_corrected_event_that_breaks_the_contract_is_refused_without_its_data() -> None:
    with pytest.raises(InvalidEvent, match="the corrected event is not valid") as error:
        corrected(event(), {"context": "secret words"})
    assert "secret words" not in str(error.value)


def test_a_corrected_event_that_no_client_could_send_is_refused() -> None:
    assert corrected(event(), {"a": "x" * (MAX_EVENT_BYTES - 1_000)})
    with pytest.raises(InvalidEvent, match="more than the limit of"):
        corrected(event(), {"a": "x" * MAX_EVENT_BYTES})


@pytest.mark.parametrize(
    "given",
    [{"rule": None, "mutation": None}, {"mutation": "*"}, {"offsets": ("1-0", "2-0"), "count": 2}],
)
def test_only_the_letter_of_one_mutation_of_one_event_can_be_corrected(given: dict[str, Any]) -> None:
    bus = memory_bus([()])
    assert refusal_of(bus, letter()) == ""
    assert refusal_of(bus, letter(**given))


def test_no_event_is_corrected_where_events_are_signed() -> None:
    bus = memory_bus([()])
    keyring: Any = object()
    assert "only the app may sign" in refusal_of(judged(bus, keyring), letter())


def test_a_signed_event_is_not_corrected_where_nobody_has_keys() -> None:
    bus = memory_bus([()])
    fields = wire.encode(event())
    assert refusal_of(bus, letter(), fields) == ""
    assert "the event is signed" in refusal_of(bus, letter(), SigningKey.parse(KEY).signed(fields))


async def test_the_retry_of_a_signed_event_stays_where_nobody_can_sign_it() -> None:
    class Taking(MemoryLetters):
        """Takes whatever is put back."""

        taken = 0

        @override
        async def requeue(self, letter: DeadLetter, entries: Sequence[Any], rest: DeadLetter | None = None) -> bool:
            self.taken += len(entries)
            return True

    letters = Taking()
    bus = memory_bus([()], letters=letters)
    signed = letter(fields=wire.pack(SigningKey.parse(KEY).signed(wire.encode(event()))))
    kept = await retry(bus, signed)
    assert (letters.taken, "set GRAPHWEFT_SIGNING_KEYS" in (kept.kept or "")) == (0, True)
    assert (await retry(bus, signed, without_keys=True)).events == letters.taken == 1
    assert (await retry(bus, letter(fields=wire.pack(wire.encode(event()))))).events == 1
