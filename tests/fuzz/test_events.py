"""Whatever stands on the log, no event stops the worker, vanishes, or reaches another event. No server is needed."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

import pytest
from tests.fuzz.events import Case, Producer, committed
from tests.fuzz.pipeline import check

_EVENTS: Final = int(os.environ.get("GRAPHWEFT_FUZZ_EVENTS", "2000"))
_SEED: Final = int(os.environ.get("GRAPHWEFT_FUZZ_SEED", "1"))
_CORPUS: Final = dict(committed())


@pytest.mark.parametrize("name", _CORPUS)
def test_an_event_that_once_did_harm_does_none(name: str) -> None:
    case = _CORPUS[name]
    outcomes = check(case)
    assert outcomes["work"] >= 1  # the sound event behind them
    for entry in case.entries[:-1]:  # each beside nothing but itself
        check(Case(entries=(entry, case.entries[-1]), sound=case.sound))


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_random_events_are_all_accounted_for() -> None:
    producer = Producer(_SEED)
    outcomes: Counter[str] = Counter()
    events = 0
    while events < _EVENTS:
        case = producer.case()
        events += len(case.entries)
        try:
            outcomes += check(case)
        except Exception as error:
            shown = "\n".join(f"{entry.offset} {dict(entry.fields)!r:.2000}" for entry in case.entries)
            error.add_note(f"GRAPHWEFT_FUZZ_SEED={_SEED}, entry {events} or a few before it:\n{shown}")
            raise
    print(dict(outcomes))
    # A producer of rubbish alone, or of nothing but sound events, would prove nothing.
    for kind in ("work", "letter", "copy", "nothing", "refused by falkordb", "refused by neo4j"):
        assert outcomes[kind] > events / 1_000, f"of {events} events hardly any came to: {kind}"
