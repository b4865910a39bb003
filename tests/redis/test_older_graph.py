"""A FalkorDB that has less than it had catches up from the log, and loses and doubles nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.services.older_graphs import LOSSES, Deployment, FalkorDBPlace, Loss, ids, lose_and_catch_up
from tests.services.rules import load_rules
from tests.services.waiting import until

from graphweft_contracts import GraphUnavailable
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.graph_store import GraphStore, PositionMove, Write, WriteResult
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.support.timing import QueueTiming, Timing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.long(keep=("emptied",))
@pytest.mark.parametrize("loss", LOSSES)
async def test_a_server_that_has_less_than_it_had_catches_up(url: str, tmp_path: Path, loss: Loss) -> None:
    deployment = Deployment(tmp_path, url, FalkorDBPlace(tmp_path / "graph"), ("one", "two"), archive=False)
    async with contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await lose_and_catch_up(deployment, loss, scratch)


@pytest.mark.long
async def test_with_an_archive_it_catches_up_from_what_was_trimmed(url: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, url, FalkorDBPlace(tmp_path / "graph"), ("one", "two"), archive=True)
    async with contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await lose_and_catch_up(deployment, "new", scratch, trims=True)


@pytest.mark.long
async def test_a_graph_that_was_deleted_alone_is_made_again_when_its_app_gets_an_event(
    url: str, tmp_path: Path
) -> None:
    place = FalkorDBPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one", "two"), archive=False)
    async with deployment.running(), contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await deployment.emit(120)
        await deployment.until_whole()
        before = ids(await deployment.letters())
        deployment.worker.kill()
        await place.delete("one")
        assert (await asyncio.to_thread(deployment.doctor))["graphs"] == (
            "fail",
            "deleted, or older than they were: one",
        )
        deployment.worker.start()
        await deployment.emit(2)  # one for each chat
        await deployment.kill_while_it_catches_up()
        await deployment.until_whole()
        assert ids(await deployment.letters()) == before
        await deployment.check_rebuilt(scratch)


@pytest.mark.long(keep=("emptied",))
@pytest.mark.parametrize("how", ["emptied", "deleted"])
async def test_a_graph_that_was_emptied_alone_is_made_again_while_its_app_is_quiet(
    url: str, tmp_path: Path, how: str
) -> None:
    place = FalkorDBPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one", "two"), archive=False)
    async with deployment.running():
        await deployment.emit(40)
        await deployment.until_whole()
        before = ids(await deployment.letters())
        await (place.delete("one") if how == "deleted" else place.change("one", "MATCH (n) DETACH DELETE n"))
        await deployment.until_whole()
        assert ids(await deployment.letters()) == before
        assert "graphs" not in await asyncio.to_thread(deployment.doctor)


async def test_a_graph_of_which_only_checkpoints_were_deleted_waits_for_a_rebuild(url: str, tmp_path: Path) -> None:
    """To apply all events to it again would double what they add up."""
    place = FalkorDBPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one",), archive=False)
    async with deployment.running():
        await deployment.emit(40)
        await deployment.until_whole()
        await place.change("one", "MATCH (n:__Progress) DELETE n")
        await deployment.emit(2)

        async def is_waiting() -> bool:
            return "needs_rebuild" in str(await asyncio.to_thread(deployment.command, "status", "--json"))

        await until(is_waiting, why=f"the app waits, see {deployment.log}")
        assert "does not say of which events" in deployment.log.read_text()
        await asyncio.to_thread(deployment.command, "rebuild", "--app", "one", "--swap")
        await deployment.until_whole()


@pytest.mark.long("no archive")
@pytest.mark.parametrize("archive", [False, True], ids=["no archive", "archive"])
async def test_a_loss_that_the_log_does_not_cover_is_an_error_that_stays(
    url: str, tmp_path: Path, archive: bool
) -> None:
    deployment = Deployment(tmp_path, url, FalkorDBPlace(tmp_path / "graph"), ("one",), archive=archive)
    async with deployment.running():
        await deployment.emit(40)
        await deployment.until_whole()
        async with contextlib.aclosing(deployment.bus()) as bus:
            gone: dict[int, tuple[str, int]] = {}
            for number in range(2):
                entries = await bus.log.after(number, "", limit=100)
                gone[number] = entries[10].offset, 10
                await bus.partitions.trim(number, entries[9].offset)
        await deployment.lose("emptied")

        async def lost() -> dict[int, tuple[str, int]]:
            found = [letter for letter in await deployment.letters() if letter.reason == "trimmed"]
            assert all("graphweft rebuild" in letter.message for letter in found)
            return {each.partition: (each.message.split("before ")[1].split(",")[0], each.count) for each in found}

        await until(lost, lambda found: found == gone, why=f"letters name what is gone, see {deployment.log}")
        await deployment.emit(2)

        async def has_the_rest() -> bool:
            return all("n40" in each or "n41" in each for each in (await deployment.traces()).values())

        await until(has_the_rest, why=f"the worker goes on, see {deployment.log}")
        assert "events_lost" in deployment.events()
        assert (await asyncio.to_thread(deployment.doctor))["lost events"][0] == "fail"


@pytest.mark.long
async def test_graphs_of_an_earlier_version_are_trusted_where_the_log_does_not_reach_back(
    url: str, tmp_path: Path
) -> None:
    place = FalkorDBPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one",), archive=False)
    async with deployment.running():
        await deployment.emit(40)
        await deployment.until_whole()
        deployment.worker.kill()
        before = ids(await deployment.letters())
        async with contextlib.aclosing(deployment.bus()) as bus:
            for number in range(2):
                entries = await bus.log.after(number, "", limit=100)
                await bus.partitions.trim(number, entries[9].offset)
        await place.forget_positions()
        deployment.worker.start()
        await deployment.emit(2)
        await deployment.until_whole()
        assert ids(await deployment.letters()) == before


@pytest.mark.long
async def test_a_graph_without_its_restored_history_waits_for_a_rebuild(url: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, url, FalkorDBPlace(tmp_path / "graph"), ("one",), archive=True)
    async with deployment.running(), contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await deployment.emit(40)
        await deployment.until_whole()
        await asyncio.to_thread(deployment.command, "export", "--app", "one", "one.tar")
        await asyncio.to_thread(deployment.command, "restore", "one.tar", "--as", "again")
        deployment.apps = ("one", "again")
        await deployment.emit(10)
        await deployment.until_whole()
        await deployment.lose("emptied")
        one = {of: trace for of, trace in deployment.expected().items() if of[0] == "one"}

        async def is_waiting() -> bool:
            traces = await deployment.traces()
            return all(traces.get(of) == trace for of, trace in one.items()) and "needs_rebuild" in str(
                await asyncio.to_thread(deployment.command, "status", "--json")
            )

        await until(is_waiting, why=f"one app catches up and the other one waits, see {deployment.log}")
        found = await asyncio.to_thread(deployment.doctor)
        assert found["parked"] == ("fail", "graphs that do not fit the log, and cannot catch up: again")
        await asyncio.to_thread(deployment.command, "rebuild", "--app", "again", "--swap")
        await deployment.until_whole()
        assert "graphs" not in await asyncio.to_thread(deployment.doctor)
        await deployment.check_rebuilt(scratch)


class Ill:
    """A graph that one app's writes never reach; a worker that is ``dead`` keeps no position any more."""

    def __init__(self, graph: GraphStore, app_id: str) -> None:
        self._graph = graph
        self._app_id = app_id
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    async def apply(self, app_id: str, partition: int, writes: Sequence[Write]) -> WriteResult:
        if app_id == self._app_id:
            raise GraphUnavailable("refused", retry_after_s=0.05)
        return await self._graph.apply(app_id, partition, writes)

    async def durable(self, run: str, move: PositionMove | None = None) -> None:
        if self.dead:
            raise GraphUnavailable("dead")
        await self._graph.durable(run, move)


@contextlib.asynccontextmanager
async def working(deployment: Deployment, graph: Any) -> AsyncIterator[None]:
    """Run a worker in this process."""
    async with contextlib.aclosing(deployment.bus()) as bus:
        rules = load_rules(deployment.rules)
        worker = MutationWorker(
            bus, graph, rules, name="w", lease_s=2.0, batch_events=5, timing=Timing(queues=QueueTiming(park_s=0.3))
        )
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await running


async def test_an_app_that_is_parked_waits_on_while_others_catch_up(url: str, tmp_path: Path) -> None:
    place = FalkorDBPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one", "two"), archive=False)
    await place.start()
    try:
        async with contextlib.aclosing(place.store()) as graph:
            await deployment.emit(60)
            expected = {of: trace for of, trace in deployment.expected().items() if of[0] == "two"}

            async def is_two_whole_and_one_parked() -> bool:
                async with contextlib.aclosing(deployment.bus()) as bus:
                    notes = [(PositionNote.decode(each.note), each.end) for each in await bus.partitions.status()]
                # What was skipped is in dead letters up to the place that is done.
                done = all(note.parked.keys() == {"one"} and note.done == end for note, end in notes)
                return done and await deployment.traces() == expected

            async with working(deployment, Ill(graph, "one")):
                await until(is_two_whole_and_one_parked)
            before = ids(await deployment.letters())
            assert before
            await place.empty()
            ill = Ill(graph, "one")
            async with working(deployment, ill):
                await until(deployment.traces, bool)
                ill.dead = True
            assert ids(await deployment.letters()) == before
            async with working(deployment, Ill(graph, "one")):
                await until(is_two_whole_and_one_parked)
            assert ids(await deployment.letters()) == before
            async with working(deployment, graph):
                await deployment.until_whole()
            two = [each for each in await deployment.letters() if each.app_id == "two"]
            assert ids(two) == before
    finally:
        await place.stop()
        await deployment.transport.aclose()
