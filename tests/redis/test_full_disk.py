"""A server whose disk is full refuses all writes: `doctor`, `status` and the look of a role say so meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
import redis.asyncio as redis
from tests.services.waiting import until

from graphweft_workers.doctor import examine
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.processes.server_look import looking_at_servers
from graphweft_workers.reports.status import StatusReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus
from graphweft_workers.wiring.status import read_status

pytestmark = pytest.mark.integration


async def test_a_server_that_cannot_save_says_so_everywhere(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data")
    await server.start()
    url = f"unix://{server.socket}"
    settings = Settings.load(bus_url=url, graph_url=url, partitions=2)
    try:
        async with (
            aclosing(redis.from_url(url, decode_responses=True)) as client,
            aclosing(make_bus(settings)) as bus,
            looking_at_servers(settings, "mutation") as look,
        ):

            async def saved(state: str) -> None:
                await client.bgsave()
                await until(lambda: client.info("persistence"), lambda told: told["rdb_last_bgsave_status"] == state)

            await client.config_set("save", "3600 1")
            await bus.partitions.layout()
            assert await look.look() == {"bus": True, "graph": True}
            assert (await read_status(settings, bus)).server_faults == {}
            where = await client.config_get("dir", "dbfilename")
            snapshot = Path(where["dir"], where["dbfilename"])
            await asyncio.to_thread(snapshot.unlink, missing_ok=True)
            await asyncio.to_thread(snapshot.mkdir)  # as a full disk: the snapshot cannot be put there
            await saved("err")
            with pytest.raises(redis.ResponseError, match="MISCONF"):
                await client.set("a", "b")

            checks = {check.name: check for check in await examine(settings)}
            for server_name in ("bus", "graph"):
                check = checks[f"{server_name} disk"]
                assert (check.state, "refuses all writes" in check.found) == ("fail", True)
                assert check.advice.startswith("free space on the disk of the server")
            for name in ("workers", "responders"):  # which hold their leases and names by writes
                assert (checks[name].state, checks[name].found.startswith("not known: ")) == ("warn", True)
                assert "graphweft run" not in checks[name].advice
            status = await read_status(settings, bus)
            assert status.server_faults.keys() == {"bus", "graph"}
            said = " ".join(str(part) for part in StatusReport(status=status).parts())
            assert "the server of the graph: it cannot write its snapshot" in said
            async with looking_at_servers(settings, "mutation") as again:
                assert await again.look() == {"bus": False, "graph": False}
            async with looking_at_servers(settings, "injection") as reader:
                assert await reader.look() == {"bus": False, "graph": True}

            await asyncio.to_thread(snapshot.rmdir)
            await saved("ok")
            assert (await read_status(settings, bus)).server_faults == {}
    finally:
        await server.stop()
