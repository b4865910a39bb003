"""What a tenant's user may do on Redis: what docs/security.md lists, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

from graphweft_contracts import channels
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.redis.rights import missing, rules_of
from graphweft_workers.drivers.rights import PASSWORD, commands

pytestmark = pytest.mark.integration
OWN = 64
"""The partition of its own."""
PAGE = Path(__file__).parents[2] / "docs/security.md"
HEADINGS = {None: "### On Redis", OWN: "### A partition of its own"}
GROUPS = (
    channels.MUTATION_GROUP, channels.MEMORY_GROUP, channels.CONSOLIDATION_GROUP, channels.VERDICTS_GROUP,
    channels.EPISODES_GROUP,
    channels.ARCHIVE_GROUP,
)  # fmt: skip
NAMES = sorted(
    {value for name, value in vars(channels).items() if name.isupper() and str(value).startswith("graphweft:")}
    | {channels.lease(0, group) for group in GROUPS}
    | {channels.workers(group) for group in GROUPS}
    | {channels.notes(group) for group in GROUPS}
    | {channels.events_stream(0), channels.events_stream(63), channels.stream_copy(0), channels.CONTEXT_REQUESTS}
    | {channels.own_events_stream(number) for number in (6, OWN, 65, 640)}
    | {channels.own_context_requests(app) for app in ("acme", "globex", "acme2")}
    | {channels.graph_positions("t"), channels.graphs_reached("t", 0), channels.graph_indexes("mozaiks_acme")}
    | {channels.graph_name("acme"), channels.graph_name("globex"), "anything", "", "*"}
)
CHANNELS = sorted(
    {channels.context_replies("x", app) for app in ("acme", "globex", "acme2", "acm", "*")}
    | {channels.context_replies("x"), "graphweft:context:replies:*", "__redis__:invalidate", "anything"}
)


def documented(own: int | None) -> dict[str, frozenset[str]]:
    """Return each command of the page's tables with the names on which it may be run; ``own`` replaces some."""
    return _table(HEADINGS[None]) | (_table(HEADINGS[own]) if own else {})


def _table(heading: str) -> dict[str, frozenset[str]]:
    lines = PAGE.read_text().partition(f"{heading}\n")[2].splitlines()
    begin = lines.index("|---|---|---|")
    rows = [line.strip("|").split("|") for line in lines[begin : lines.index("", begin)] if "`" in line]
    found: dict[str, frozenset[str]] = {}
    for names, places, *_ in rows:
        for command in names.split("`")[1::2]:
            found[command.lower().replace(" ", "|")] = frozenset(places.split("`")[1::2])
    return found


@pytest.fixture(params=[None, OWN], ids=["shared", "own"])
def own(request: pytest.FixtureRequest) -> int | None:
    """The partition of its own of the tenant's app, if it has one."""
    found: int | None = request.param
    return found


@pytest.fixture
async def admin(server: EmbeddedServer, url: str, own: int | None) -> AsyncIterator[Any]:
    """A user who may do everything, beside the user ``acme`` with a tenant's rights."""
    async with redis.Redis.from_url(url) as connection:
        for line in commands("redis", "tenant", app_id="acme", user="acme", graph_template="", own=own):
            await connection.execute_command(*line.replace(PASSWORD, "secret").split())
        try:
            yield connection
        finally:
            await connection.execute_command("ACL", "DELUSER", "acme")


async def try_out(admin: Any, *command: str) -> str:
    """Return what the server says when the tenant runs a command, without running it."""
    answer = await admin.execute_command("ACL", "DRYRUN", "acme", *command)
    return str(answer.decode())


async def every_command(admin: Any) -> list[str]:
    """Return all commands of the server and its modules; those with subcommands by these."""
    rows = await admin.execute_command("EVAL", "return redis.call('COMMAND')", 0)
    found: list[str] = []
    for row in rows:
        parts = row[9] if len(row) > 9 and row[9] else [row]
        found += [part[0].decode() for part in parts]
    return found


async def may_run(admin: Any, command: str) -> bool:
    for more in range(12):
        with contextlib.suppress(redis.ResponseError):  # it has another number of arguments
            return "to run the" not in await try_out(admin, *command.split("|"), *["1"] * more)
    raise AssertionError(command)


async def test_a_tenant_may_run_the_documented_commands_and_no_other(admin: Any, own: int | None) -> None:
    commands = await every_command(admin)
    assert len(commands) > 300
    assert "graph.query" in {each.lower() for each in commands}
    assert {each.lower() for each in commands if await may_run(admin, each)} == documented(own).keys()


@pytest.mark.parametrize(
    ("command", "more"), [("xadd", ("*", "a", "b")), ("get", ()), ("hgetall", ()), ("subscribe", ())]
)
async def test_a_tenant_reaches_the_documented_names_and_no_other(
    admin: Any, command: str, more: tuple[str, ...], own: int | None
) -> None:
    patterns = {each.replace("APP", "acme") for each in documented(own)[command]}
    reached: list[str] = []
    for name in CHANNELS if command == "subscribe" else NAMES:
        if await try_out(admin, command, name, *more) == "OK":
            reached.append(name)
            assert any(fnmatchcase(name, pattern) for pattern in patterns), name
    assert all(any(fnmatchcase(name, pattern) for name in reached) for pattern in patterns)


async def test_only_these_commands_have_names(own: int | None) -> None:
    assert {name for name, places in documented(own).items() if places} == {"xadd", "get", "hgetall", "subscribe"}


async def test_nobody_who_may_append_may_write_to_the_copy_of_a_stream(admin: Any) -> None:
    for number in range(64):
        answer = await try_out(admin, "XADD", channels.stream_copy(number), "*", "a", "b")
        assert "no permissions to access" in answer


@pytest.mark.parametrize("role", ["tenant", "gateway", "responder", "worker"])
async def test_each_command_that_a_role_lacks_is_named(url: str, role: str) -> None:
    rules = rules_of(role, "acme" if role == "tenant" else None)
    # Work goes on without them: the client says its name where it may, and database 0 is not selected.
    needed = [rule for rule in rules if rule[0] == "+" and not rule.startswith(("+client|set", "+select"))]
    login = url.replace("unix://", "unix://few:pw@")
    async with redis.Redis.from_url(url) as raw, redis.Redis.from_url(login) as few:
        try:
            for lacking in needed:
                await raw.execute_command("ACL", "SETUSER", "few", "reset", "on", ">pw", *rules, f"-{lacking[1:]}")
                assert lacking in [rule for rule, _ in await missing(few, role)], lacking
            assert await raw.keys() == [], "nothing that was tried had an effect"
        finally:
            await raw.execute_command("ACL", "DELUSER", "few")
