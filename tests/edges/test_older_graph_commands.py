"""Commands that read the graph of an app refuse one from before an erasure, as contexts and the console do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edges.test_cli_memory import Up, run

from graphweft.transports.embedded import embedded_url
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.ports.graph_basis import GraphBasis
from graphweft_workers.ports.purges import Purge, put_purge

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

QUESTIONS = 'questions:\n  - {question: "nuts?", user: ada, expect: m1}\n'
SAID = '{"role": "user", "message_id": "m1", "text": "I eat nuts."}'
OF_ADA = ("--app", "shop", "--user", "ada")
READERS = [
    ("query", "MATCH (n) RETURN n", "--app", "shop"),
    ("digest", "--app", "shop"),
    ("show", "--app", "shop", "--mermaid"),
    ("export", "shop.export", "--app", "shop"),
    ("eval", "q.yaml", "--app", "shop"),
    ("eval", "collect", *OF_ADA),
    ("memory", "list", *OF_ADA),
    ("memory", "profile", *OF_ADA),
    ("memory", "get", "m1", "--app", "shop"),
    ("memory", "update", "m1", "--app", "shop", "--text", "No nuts."),
    ("memory", "forget", "m1", "--app", "shop"),
    ("memory", "embed", "--app", "shop"),
]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("older"), GRAPHWEFT_EMBEDDER="hash:16")
    try:
        for app in ("shop", "other"):
            running.ok("memory", "add", "--app", app, "--user", "ada", "--wait", "--file", "-", stdin=SAID)
        (running.folder / "q.yaml").write_text(QUESTIONS)
        asyncio.run(need(running.folder / ".graphweft"))
        yield running
    finally:
        running.stop()


async def need(data: Path) -> None:
    """Let the bus say that the graph of ``shop`` is made after erasures, which it is not: as if a copy came back."""
    async with contextlib.aclosing(redis_bus(embedded_url(data))) as bus:
        await put_purge(bus.purges, Purge(app_id="shop", needed=GraphBasis(erasures=2)))


@pytest.mark.parametrize("arguments", READERS, ids=lambda arguments: " ".join(arguments[:2]))
def test_a_command_shows_no_graph_from_before_an_erasure(up: Up, arguments: tuple[str, ...]) -> None:
    done = up.run(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    assert "the graph of 'shop' is from before something was erased" in done.stderr
    assert "graphweft rebuild --app shop --swap" in done.stderr


def test_another_app_is_shown(up: Up) -> None:
    assert up.texts("--app", "other", "--user", "ada") == ["I eat nuts."]


def test_without_a_bus_a_warning_says_that_it_is_not_known(up: Up) -> None:
    servers = {
        "GRAPHWEFT_GRAPH_URL": embedded_url(up.folder / ".graphweft"),
        "GRAPHWEFT_DATA": str(up.folder / "no-bus"),
    }
    done = run(("memory", "list", *OF_ADA), up.environment | servers, up.folder)
    assert (done.returncode, "I eat nuts." in done.stdout) == (0, True), done.stderr
    assert "it is not known whether the graph of 'shop' is from before an erasure" in done.stderr
