"""An app for whose graph a server has no room can be erased: its events are on the log all the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest
from tests.neo4j.test_neo4j_tenants import OWNED
from tests.services.buses import applied
from tests.services.commands import Done, inside
from tests.services.memories import empty_neo4j
from tests.services.neo4j import Neo4jServer
from tests.services.rules import load_rules
from tests.services.workers import working

from graphweft import Client, Event
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.ports.bus import Bus

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("user", [None, "u1"])
async def test_an_app_without_a_graph_is_erased_and_the_other_app_keeps_its_own(
    neo4j_server: Neo4jServer, url: str, bus: Bus, tmp_path: Path, user: str | None
) -> None:
    empty_neo4j(neo4j_server.uri)
    for name in ("Support", "archive"):
        (tmp_path / name).mkdir()
    (tmp_path / "Support" / "graph_injection.yaml").write_text(OWNED)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_RULES": str(tmp_path),
        "GRAPHWEFT_GRAPH_URL": neo4j_server.uri, "GRAPHWEFT_ARCHIVE_URL": str(tmp_path / "archive"),
    }  # fmt: skip

    async def erase(*more: str) -> Done:
        of_user = () if user is None else ("--user", user)
        command = ("erase", "--app", "second", *of_user, "--json", *more)
        return await asyncio.to_thread(inside, command, environment, folder=tmp_path)

    def places(done: Done) -> dict[str, int]:
        return {each["name"]: each["left"] for each in json.loads(done.out)["places"]}

    async with contextlib.aclosing(Neo4jStore(neo4j_server.uri)) as graph, Client(url) as client:
        await graph.progress("first", 0)
        async with working(bus, graph, load_rules(tmp_path)):
            for app in ("first", "second"):
                said = Event.create(
                    "order.paid", app_id=app, chat_id="c", user_id="u1", workflow="Support", data={"id": "o1"}
                )
                assert await client.emit(said, wait_s=120)
            await applied(bus)
            before = await erase("--report")
            assert (before.code, before.err) == (0, "")
            assert {name: left for name, left in places(before).items() if left} == {"event log": 1, "dead letters": 1}
            assert (await erase("--yes")).code == 0
            assert not any(places(await erase("--report")).values())
        assert (await graph.read("first", "MATCH (o:Order) RETURN o.id", {}, timeout_s=30)).rows == (("o1",),)
