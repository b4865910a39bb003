"""The job that reads episodes by a model, in virtual time: a model that does not answer for one app."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import cast

import pytest
from tests.chaos.memory_bus import MemoryLetters, memory_bus
from tests.services.virtual_time import VIRTUAL
from tests.services.workers import running

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import wire
from graphweft_contracts.episodes import Structure
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.features.episodes.extraction.protocol import Extractor, TextEpisode
from graphweft_workers.features.episodes.job import EpisodesJob
from graphweft_workers.ports.event_log import Entry


def told(app_id: str, number: int) -> Event:
    data = {"name": f"n{number}", "content": f"{app_id} says {number}", "user_id": "u"}
    return Event.create(
        "episode.add", app_id=app_id, chat_id="c", id=f"{app_id}{number}", source="/test", time=VIRTUAL.now(), data=data
    )


class HangingModel(Extractor):
    """Reads an episode in 2 s, but never one of the app ``bad``."""

    model = "m"

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    async def extract(self, episode: TextEpisode) -> Structure:
        self.tries[episode.text] += 1
        await (asyncio.Event().wait() if episode.text.startswith("bad") else VIRTUAL.sleep(2))
        return Structure()

    async def check(self) -> None:
        await VIRTUAL.sleep(2)

    async def aclose(self) -> None:
        pass


class Taken:
    """The part of a transport that a job needs: it keeps when the events of each app arrived."""

    def __init__(self) -> None:
        self.at: dict[str, list[float]] = {}
        self.users: set[str | None] = set()

    async def append(self, events: Sequence[Outgoing]) -> None:
        for each in events:
            event = wire.decode(each.fields, received=VIRTUAL.now())
            self.at.setdefault(event.appid, []).append(VIRTUAL.monotonic())
            self.users.add(event.userid)


@pytest.mark.parametrize("count", [1, 4, 20])
async def test_episodes_that_a_model_does_not_answer_hold_up_no_other_app(count: int) -> None:
    events = [*(told("bad", number) for number in range(count)), *(told("good", number) for number in range(250))]
    entries = [
        Entry(offset=str(number), fields=wire.encode(event), received=VIRTUAL.now())
        for number, event in enumerate(events, 1)
    ]
    letters, model, taken = MemoryLetters(), HangingModel(), Taken()
    bus = memory_bus([entries], letters=letters)
    job = EpisodesJob(model, bus, timeout_s=120, attempts=5, at_once=4, clock=VIRTUAL)
    worker = JobWorker(bus, cast(Transport, taken), job, name="w", clock=VIRTUAL)
    began = VIRTUAL.monotonic()
    task = asyncio.create_task(worker.run())
    while (await bus.partitions.status())[0].lag:
        await VIRTUAL.sleep(600)
    assert len(taken.at["good"]) == 250
    assert taken.at["good"][-1] - began < 126 + 2 * 120 + 10, "at most two tries stand before them"
    assert len(await letters.read(limit=1000)) == count
    assert {model.tries[f"bad says {number}"] for number in range(count)} == {5}
    worker.stop()
    await task


async def test_what_a_model_read_names_the_user_of_the_episodes_event() -> None:
    """An erasure finds it, also in a chat with others."""
    event = told("good", 1).model_copy(
        update={"userid": "ada", "data": {"name": "n", "content": "good says 1", "agent_id": "a"}}
    )
    bus = memory_bus([[Entry(offset="1", fields=wire.encode(event), received=VIRTUAL.now())]])
    taken = Taken()
    job = EpisodesJob(HangingModel(), bus, clock=VIRTUAL)
    async with running(JobWorker(bus, cast(Transport, taken), job, name="w", clock=VIRTUAL)):
        await VIRTUAL.sleep(60)
    assert taken.users == {"ada"}
