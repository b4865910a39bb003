"""A Neo4j that has less than it had catches up from the log, and loses and doubles nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.services.older_graphs import Deployment, Loss, Neo4jPlace, ids, lose_and_catch_up

from graphweft_workers.drivers.falkordb.store import FalkorDBStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.long
@pytest.mark.parametrize(
    "loss", ["dump", pytest.param("emptied", marks=pytest.mark.soak), pytest.param("new", marks=pytest.mark.soak)]
)
async def test_a_server_that_has_less_than_it_had_catches_up(url: str, tmp_path: Path, loss: Loss) -> None:
    deployment = Deployment(tmp_path, url, Neo4jPlace(tmp_path / "graph"), ("one",), archive=False)
    async with contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await lose_and_catch_up(deployment, loss, scratch)


@pytest.mark.soak
async def test_a_graph_that_was_deleted_alone_is_made_again_when_its_app_gets_an_event(
    url: str, tmp_path: Path
) -> None:
    place = Neo4jPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one",), archive=False)
    async with deployment.running(), contextlib.aclosing(FalkorDBStore(url)) as scratch:
        await deployment.emit(120)
        await deployment.until_whole()
        before = ids(await deployment.letters())
        await place.delete("one")
        await deployment.emit(2)  # one for each chat
        await deployment.kill_while_it_catches_up()
        await deployment.until_whole()
        assert ids(await deployment.letters()) == before
        await deployment.check_rebuilt(scratch)


@pytest.mark.long
async def test_a_graph_whose_nodes_are_gone_is_made_again_while_its_app_is_quiet(url: str, tmp_path: Path) -> None:
    """First graphweft's own node alone, without which nothing is read, then all of them."""
    place = Neo4jPlace(tmp_path / "graph")
    deployment = Deployment(tmp_path, url, place, ("one",), archive=False)
    async with deployment.running():
        await deployment.emit(40)
        await deployment.until_whole()
        before = ids(await deployment.letters())
        deployment.worker.kill()
        await place.change("MATCH (a:__App) DELETE a")
        assert await deployment.traces() == {}
        found = await asyncio.to_thread(deployment.doctor)
        assert found["graphs"] == ("fail", "deleted, or older than they were: one")
        deployment.worker.start()
        await deployment.until_whole()
        assert ("graph_marks_lost" in deployment.events(), "graph_is_behind" in deployment.events()) == (True, False)
        await place.delete("one")
        await deployment.until_whole()
        assert ids(await deployment.letters()) == before
