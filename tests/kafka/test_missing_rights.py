"""Commands that run as a tenant's user of Kafka: they end, and name the rights that this user lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from tests.services.buses import mutation_bus
from tests.services.commands import Done, inside
from tests.services.environment import clean_environment
from tests.services.fixtures import SecureKafka
from tests.services.kafka_rights import apply
from tests.services.layouts import spread

from graphweft.transports.kafka.connection import servers
from graphweft_contracts import Event
from graphweft_workers.drivers.rights import commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def tenant(secure_kafka: SecureKafka) -> str:
    """Return the URL of the bus for the user of the app ``vendor``, made by the lines of ``graphweft acl``."""

    async def prepare() -> None:
        admin, bus = AIOKafkaAdminClient(**servers(secure_kafka.address("admin")).options), None
        await admin.start()
        try:
            bus = mutation_bus(secure_kafka.address("admin"), spread(2), lease_s=10)
            await bus.partitions.layout()  # the bus has topics
            await apply(admin, commands("kafka", "tenant", app_id="vendor", user="vendor", graph_template=""))
        finally:
            await admin.close()
            if bus is not None:
                await bus.aclose()

    asyncio.run(prepare())
    return secure_kafka.address("vendor")


@pytest.fixture
def call(tenant: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:
    """Run a command as the tenant, in a folder with an event in ``e.jsonl``."""
    monkeypatch.chdir(tmp_path)
    event = Event.create("order.placed", app_id="vendor", chat_id="c", workflow="shop")
    (tmp_path / "e.jsonl").write_text(event.model_dump_json() + "\n")
    environment = clean_environment(GRAPHWEFT_BUS_URL=tenant)
    return lambda *arguments: inside(arguments, environment)


def test_waiting_ends_for_a_user_who_may_not_read_how_far_workers_are(call: Callable[..., Done]) -> None:
    done = call("emit", "e.jsonl", "--wait", "--give-up-after", "100")
    said = " ".join(done.err.split())
    assert (done.code, "1 event sent" in done.out) == (1, True), said
    assert "this user may not read how far workers are" in said
    assert "`graphweft acl kafka` prints the rights of each role" in said
    assert "trying again" not in said


@pytest.mark.parametrize("arguments", [("status",), ("dlq", "list"), ("events", "tail"), ("order", "vendor", "chat")])
def test_a_command_names_the_rights_that_its_user_lacks(call: Callable[..., Done], arguments: tuple[str, ...]) -> None:
    done = call(*arguments)
    said = " ".join(done.err.split())
    assert done.code in (1, 2), said
    assert "the bus refuses this user a right" in said
    assert "`graphweft acl kafka` prints the rights of each role" in said
