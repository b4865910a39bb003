"""Rounds with everything on: signing keys, quotas, an archive that trims, an embedder, summaries, retention, erasures,
a judge of statements.

``GRAPHWEFT_KILL_ROUNDS`` says how many processes are killed on each stack, 6 by default on one stack.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from tests.services.models import ModelServer, model_server

from .cases import Case
from .deployment import Deployment
from .long_round import LongRound, Tally, answer_judge
from .servers import Servers
from .stack import Stack

__all__ = ("model_server",)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(6000),
    pytest.mark.asyncio(loop_scope="session"),
]

_KILLS = int(os.environ.get("GRAPHWEFT_KILL_ROUNDS", "0"))
_SEED = os.environ.get("GRAPHWEFT_CHAOS_SEED")
_KILLS_OF_ROUND = 25
_STACKS = [("redis", "falkordb"), ("kafka", "neo4j")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    """Servers that no other round uses: their bus has an archive."""
    running = Servers(tmp_path_factory.mktemp("long"))
    try:
        yield running
    finally:
        await running.stop()


@pytest.mark.long
@pytest.mark.parametrize(("bus", "graph"), _STACKS if _KILLS else _STACKS[:1])
async def test_everything_on_and_killed_the_graph_is_exact(
    own_servers: Servers, tmp_path: Path, model_server: ModelServer, bus: str, graph: str
) -> None:
    seed = _SEED or (str(random.SystemRandom().randrange(10**6)) if _KILLS else "1")
    print(f"GRAPHWEFT_CHAOS_SEED={seed}")
    rng = random.Random(f"{bus} {graph} {seed}")
    stack = await Stack.of(own_servers, bus, graph)
    tally = Tally()
    apps: list[str] = []
    left = _KILLS or 6
    while left > 0:
        kills = min(left, _KILLS_OF_ROUND)
        left -= kills
        name = f"long{uuid4().hex[:8]}"
        # The Community edition of Neo4j holds the graph of one app.
        own = [f"{name}-a"] if graph == "neo4j" else [f"{name}-a", f"{name}-b"]
        memory = None if graph == "neo4j" else f"{name}-memory"
        apps += own if memory is None else [*own, memory]
        cases = [Case(random.Random(rng.random()), app, 4) for app in own]
        model_server.answer = answer_judge
        deployment = Deployment(stack, tmp_path, apps, model_server.url)
        await LongRound(stack, deployment, rng, cases, memory, tally, tmp_path / name).run(kills=kills)
        print(f"kills left: {left}; so far {tally}", flush=True)
    assert graph == "neo4j" or tally.verdicts_taken_back, tally
    if graph != "neo4j" and _KILLS >= _KILLS_OF_ROUND:
        assert all(tally.left[each] for each in ("JUDGED", "Statement", "Relation")), tally
