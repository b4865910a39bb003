"""Data that an earlier version wrote, opened by this one: log, rules, graphs, letters, memories, archive, settings.

``record.py`` has made it, see there. ``expected.json`` is what the earlier version said of it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.services.buses import applied
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.upgrade.record import APPS, event

from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.processes.mutation import open_mutation
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
RECORDED = Path(__file__).parent / "recorded"
EXPECTED: dict[str, Any] = json.loads((RECORDED / "expected.json").read_text("utf-8"))


@dataclass(frozen=True)
class Upgraded:
    """A copy of the recorded folder whose server runs."""

    folder: Path
    server: EmbeddedServer

    @property
    def environment(self) -> dict[str, str]:
        return clean_environment(GRAPHWEFT_DATA=str(self.folder / "data"), GRAPHWEFT_LOG_LEVEL="error")

    async def run(self, *words: str, code: int = 0) -> str:
        """Run a command as an operator in the folder would; return its standard output."""
        done = await asyncio.to_thread(inside, words, self.environment, folder=self.folder)
        assert done.code == code, (words, done.code, done.out, done.err)
        return done.out

    async def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(await self.run(*words, "--json", code=code))

    async def column(self, app: str, cypher: str) -> list[Any]:
        """Return the first value of each row."""
        return [next(iter(row.values())) for row in (await self.json("query", "--app", app, cypher))["rows"]]

    def settings(self) -> Settings:
        return Settings.load(
            file=self.folder / "graphweft.yaml", cwd=False, data=self.folder / "data",
            rules=self.folder / "workflows", worker_name="w",
        )  # fmt: skip

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """Run a mutation worker of this version until all events are applied, and through the block."""
        settings = self.settings()
        bus = make_bus(settings)
        async with open_mutation(settings) as service:
            task = asyncio.create_task(service.run())
            try:
                await applied(bus, worker=task)
                yield
            finally:
                service.stop()
                await task
                await bus.aclose()


@pytest.fixture
async def upgraded(tmp_path: Path) -> AsyncIterator[Upgraded]:
    folder = tmp_path / "deployment"
    shutil.copytree(RECORDED, folder)
    server = EmbeddedServer(folder / "data")
    await server.start()
    try:
        yield Upgraded(folder, server)
    finally:
        await server.stop()


async def test_what_an_earlier_version_stored_is_read_as_it_was(upgraded: Upgraded) -> None:
    for app in APPS:
        now, before = await upgraded.json("digest", "--app", app), EXPECTED["digests"][app]
        assert {name: now[name] for name in ("digest", "nodes", "relationships")} == {
            name: before[name] for name in ("digest", "nodes", "relationships")
        }, app
        assert now["at"] == before["at"]
    status = await upgraded.json("status")
    assert status["lag"] == 9
    assert status["dead_letters"] == EXPECTED["status"]["dead_letters"]
    assert {each["reason"] for each in status["without_effect"]} == {"query_error", "skipped"}
    assert [each["rules"] for each in status["rules"]] == [each["rules"] for each in EXPECTED["status"]["rules"]]
    letters = await upgraded.json("dlq", "list")
    assert [(each["id"], each["reason"], each["count"]) for each in letters] == [
        (each["id"], each["reason"], each["count"]) for each in EXPECTED["letters"]
    ]
    assert await upgraded.json("rules", "list") == EXPECTED["rules"]
    memories = await upgraded.json("memory", "list", "--app", "acme", "--user", "u0")
    assert [(each["id"], each["text"]) for each in memories] == [
        (each["id"], each["text"]) for each in EXPECTED["memories"]
    ]
    assert "no fault" in await upgraded.run("archive", "verify")


async def test_workers_go_on_where_the_earlier_version_stopped(upgraded: Upgraded) -> None:
    async with upgraded.working():
        status = await upgraded.json("status")
        assert status["lag"] == 0
        assert status["parked"] == status["again"] == status["lost_rules"] == []
        assert status["dead_letters"] == EXPECTED["status"]["dead_letters"]
        for app, calls in {"acme": [5, 6, 5], "initech": [8, 9, 8]}.items():
            assert await upgraded.column(app, "MATCH (t:Tool) RETURN t.calls ORDER BY t.name") == calls
        [before, *own] = await upgraded.column("globex", "MATCH (t:Tool) RETURN t.name ORDER BY t.name")
        assert (before, own[-1]) == ("own t0", "t2")


async def test_a_rebuild_makes_the_graphs_of_the_earlier_version(upgraded: Upgraded) -> None:
    async with upgraded.working():
        for app in ("globex", "initech"):
            assert (await upgraded.json("rebuild", "--app", app, "--verify"))["same"] is True
            await upgraded.run("rebuild", "--app", app, "--drop")
        await upgraded.run("archive", "now")
        assert (await upgraded.json("rebuild", "--app", "globex", "--verify", "--archive-only"))["same"] is True
        # Memories of an earlier version have no statements before a rebuild; see docs/operations.md.
        verified = await upgraded.json("rebuild", "--app", "acme", "--verify", code=1)
        assert verified["rebuilt"]["nodes"] - verified["live"]["nodes"] == 2
        assert await upgraded.column("acme", "MATCH (s:Statement) RETURN s.text") == []
        await upgraded.run("rebuild", "--app", "acme", "--drop")
        await upgraded.run("rebuild", "--app", "acme", "--swap")
        texts = await upgraded.column("acme", "MATCH (s:Statement) RETURN s.text ORDER BY s.text")
        assert texts == ["I like tea", "I live in Paris"]
        place = ("--graph-template", "second_{app_id}")
        assert (await upgraded.json("rebuild", "--app", "acme", "--verify", *place))["same"] is True


async def test_an_exported_app_is_the_same_on_new_servers(upgraded: Upgraded, tmp_path: Path) -> None:
    async with upgraded.working():
        await upgraded.run("export", str(tmp_path / "app.json"), "--app", "globex")
        live = (await upgraded.json("digest", "--app", "globex"))["digest"]
    other = Upgraded(tmp_path / "other", EmbeddedServer(tmp_path / "other/data"))
    shutil.copytree(RECORDED / "workflows", other.folder / "workflows")
    shutil.copy(RECORDED / "graphweft.yaml", other.folder)
    await other.server.start()
    try:
        await other.run("restore", str(tmp_path / "app.json"))
        assert (await other.json("digest", "--app", "globex"))["digest"] == live
    finally:
        await other.server.stop()


async def test_operators_go_on_with_letters_archive_and_questions(upgraded: Upgraded) -> None:
    async with upgraded.working():
        why = await upgraded.json("why", "--app", "acme", "--label", "Tool", "--key", "t0")
        assert (why["total"], why["lost"], why["like_live"]) == (5, 0, True)
        checks = {each["check"]: each["state"] for each in await upgraded.json("doctor", code=1)}
        assert [name for name, state in checks.items() if state == "fail"] == ["responders"]
        [letter, _] = await upgraded.json("dlq", "list")
        await upgraded.run("dlq", "drop", letter["id"])
        assert (await upgraded.json("status"))["dead_letters"] == 1
        await upgraded.run("archive", "now")
        assert "no fault" in await upgraded.run("archive", "verify")


async def test_numbered_files_and_copies_of_before_have_no_effect(upgraded: Upgraded) -> None:
    lines = [event(app, number, chat="c1") for app in APPS for number in range(40, 44)]
    (upgraded.folder / "again.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    async with upgraded.working():
        before = [await upgraded.json("digest", "--app", app) for app in APPS]
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "graphweft_workers.cli", "emit", "again.jsonl", "--wait"],
            cwd=upgraded.folder, env=upgraded.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "12 were on the bus before" in done.stdout, done.stderr
        after = [await upgraded.json("digest", "--app", app) for app in APPS]
        assert [each["digest"] for each in after] == [each["digest"] for each in before]
