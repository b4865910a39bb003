"""A server that refuses the login has answered: each place says so, and which setting to look at."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
import redis.asyncio as redis

from graphweft_contracts import BusUnavailable, GraphUnavailable, MissingRight
from graphweft_workers.doctor import examine
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph

pytestmark = pytest.mark.integration


async def test_a_wrong_password_names_its_setting(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data")
    await server.start()
    url = f"unix://{server.socket}"
    try:
        async with aclosing(redis.from_url(url)) as admin:
            await admin.config_set("requirepass", "right")
            for given in ({}, {"bus_password": "wrong", "graph_password": "wrong"}):
                settings = Settings.load(bus_url=url, graph_url=url, **given)
                checks = {check.name: check for check in await examine(settings)}
                for name in ("bus", "graph"):
                    assert checks[name].state == "fail"
                    assert checks[name].found.startswith("it answers, and refuses the login: ")
                    assert f"GRAPHWEFT_{name.upper()}_PASSWORD" in checks[name].advice
                async with aclosing(make_bus(settings)) as bus, aclosing(make_graph(settings)) as graph:
                    with pytest.raises(BusUnavailable, match=r"refuses the login: .*GRAPHWEFT_BUS_PASSWORD"):
                        await bus.partitions.layout()
                    with pytest.raises(GraphUnavailable, match=r"refuses the login: .*GRAPHWEFT_GRAPH_PASSWORD"):
                        await graph.check()
            await admin.config_set("requirepass", "")
    finally:
        await server.stop()


@pytest.mark.parametrize("right", ["get", "mget", "exec"])
async def test_a_missing_right_is_named_wherever_the_server_meets_it(url: str, right: str) -> None:
    """In a command, in a script, at the end of a transaction: the login of the URL is one that the doctor looks at."""
    async with aclosing(redis.from_url(url)) as admin, aclosing(make_bus(Settings.load(bus_url=url))) as first:
        await first.partitions.layout()
        try:
            await admin.execute_command("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all", f"-{right}")
            login = url.replace("unix://", "unix://few:pw@")
            async with aclosing(make_bus(Settings.load(bus_url=login))) as bus:

                async def work() -> None:
                    await bus.partitions.layout()
                    await bus.leases.claim(0, "me", ttl_s=60)
                    await bus.partitions.status()

                with pytest.raises(MissingRight, match=r"`graphweft acl redis --role worker` prints the rights"):
                    await work()
            checks = {check.name: check for check in await examine(Settings.load(bus_url=login, graph_url=url))}
            assert checks["bus rights"].state == "fail"
        finally:
            await admin.execute_command("ACL", "DELUSER", "few")
