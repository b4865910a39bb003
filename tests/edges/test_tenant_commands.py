"""Commands that run as a tenant's user of the bus: they end, and name the rights that this user lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from tests.services.commands import Done, inside
from tests.services.environment import clean_environment

from graphweft_contracts import Event
from graphweft_workers.drivers.rights import PASSWORD, commands

pytestmark = pytest.mark.integration
Call = Callable[..., Done]
OF_A_WORKER = "`graphweft acl redis --role worker` prints the rights of a user who may"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Run a command in an empty folder, with an event in ``e.jsonl``."""
    monkeypatch.chdir(tmp_path)
    event = Event.create("order.placed", app_id="acme", chat_id="c", workflow="shop")
    (tmp_path / "e.jsonl").write_text(event.model_dump_json() + "\n")
    return lambda *arguments, **environment: inside(arguments, clean_environment(**environment))


@contextlib.contextmanager
def tenant(url: str, own: int | None = None) -> Iterator[str]:
    """Make the user of the app ``acme`` by the lines of ``graphweft acl``; yield the URL of the bus for it."""
    with redis.Redis.from_url(url) as admin:
        for line in commands("redis", "tenant", app_id="acme", user="acme", graph_template="", own=own):
            admin.execute_command(*line.replace(PASSWORD, "p").split())
        try:
            yield url.replace("unix://", "unix://acme:p@")
        finally:
            admin.execute_command("ACL", "DELUSER", "acme")


@pytest.mark.parametrize("arguments", [("emit", "e.jsonl"), ("memory", "add", "tea", "--app", "acme", "--user", "u")])
def test_waiting_ends_for_a_user_who_may_not_read_how_far_workers_are(
    call: Call, url: str, arguments: tuple[str, ...]
) -> None:
    assert call("order", GRAPHWEFT_BUS_URL=url).code == 0  # the bus has partitions
    with tenant(url) as bus:
        done = call(*arguments, "--wait", "--give-up-after", "3", GRAPHWEFT_BUS_URL=bus)
    assert done.code == 1
    said = " ".join(done.err.split())
    assert "this user may not read how far workers are" in said
    assert OF_A_WORKER in said
    assert ("1 event sent" in done.out) == (arguments[0] == "emit")


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("dlq", "list"), ("events", "tail"), ("order", "acme", "own", "--force"), ("order", "acme", "chat")],
)
def test_a_command_names_the_rights_that_its_user_lacks(call: Call, url: str, arguments: tuple[str, ...]) -> None:
    assert call("order", GRAPHWEFT_BUS_URL=url).code == 0
    with tenant(url) as bus:
        done = call(*arguments, GRAPHWEFT_BUS_URL=bus)
    said = " ".join(done.err.split())
    assert done.code == 1
    assert "the bus refuses this user a right: " in said
    assert OF_A_WORKER in said
    assert "unavailable" not in said


def test_emit_ends_for_a_user_who_may_send_nothing(call: Call, url: str) -> None:
    assert call("order", GRAPHWEFT_BUS_URL=url).code == 0
    with tenant(url) as bus, redis.Redis.from_url(url) as admin:
        admin.execute_command("ACL", "SETUSER", "acme", "-xadd")
        done = call("emit", "e.jsonl", "--give-up-after", "3", GRAPHWEFT_BUS_URL=bus)
    assert done.code == 1
    assert "`graphweft acl redis --role tenant --app APP` prints the rights of a user who may" in " ".join(
        done.err.split()
    )
    assert "trying again" not in done.err


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_the_doctor_names_the_line_that_gives_a_tenant_its_rights(call: Call, url: str, own: bool) -> None:
    """The user has the rights from before its app got a partition of its own, or lacks one."""
    assert call("order", *(("acme", "own", "--force") if own else ()), GRAPHWEFT_BUS_URL=url).code == 0
    with tenant(url) as bus, redis.Redis.from_url(url) as admin:
        if not own:
            admin.execute_command("ACL", "SETUSER", "acme", "-xadd")
        done = call("doctor", "--rights", "tenant", "--app", "acme", GRAPHWEFT_BUS_URL=bus, GRAPHWEFT_GRAPH_URL=url)
    said = " ".join((done.out + done.err).split())
    assert done.code == 1
    line = "graphweft acl redis --role tenant --app acme" + (" --partition 64" if own else "")
    assert line in said
    assert call(*line.split()[1:]).code == 0
    assert ("ACL SETUSER" in said) != own
