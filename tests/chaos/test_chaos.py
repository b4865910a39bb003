"""Rounds of faults on every pair of bus and graph.

By default each round has several faults, one after the other, and the same seed in every run. With
``GRAPHWEFT_CHAOS_ROUNDS`` each fault has that many rounds of its own on each pair, with random seeds.
``GRAPHWEFT_CHAOS_SEED`` repeats what a seed decides: rules, events, and the moments of the faults as far as a machine
repeats them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from uuid import uuid4

import pytest

from .faults import FAULTS
from .rounds import Round
from .servers import Servers
from .stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

_ROUNDS = int(os.environ.get("GRAPHWEFT_CHAOS_ROUNDS", "0"))
_SEED = os.environ.get("GRAPHWEFT_CHAOS_SEED")

# Faults of a bus strike both buses, those of a graph both graphs, those of a worker all. "everything" kills a worker
# and the graph, and cuts all connections: what it does to Kafka and Neo4j, which start slowly, no other round repeats.
_QUICK = {
    ("redis", "falkordb"): (
        "worker-killed graph-killed bus-killed graph-cut",
        "one-of-two-killed worker-frozen worker-bus-cut producer-cut",
    ),
    ("redis", "falkordb-always"): ("graph-killed",),
    ("kafka", "falkordb"): ("bus-killed producer-cut one-of-two-killed worker-frozen",),
    ("kafka", "neo4j"): ("everything",),
}
_FULL = {pair: tuple(FAULTS) for pair in [*_QUICK, ("redis", "neo4j")]}
_CASES = [(*pair, faults) for pair, found in (_FULL if _ROUNDS else _QUICK).items() for faults in found]


# The other rounds of the same server are enough for each landing: one strikes Redis and FalkorDB, one Kafka and Neo4j.
@pytest.mark.long("kafka-neo4j-everything", "always-graph-killed")
@pytest.mark.soak("one-of-two-killed worker-frozen")
@pytest.mark.parametrize("number", range(1 if _SEED else max(_ROUNDS, 1)))
@pytest.mark.parametrize(("bus", "graph", "faults"), _CASES)
async def test_the_graph_ends_as_a_serial_pass_leaves_it(
    servers: Servers, tmp_path: Path, bus: str, graph: str, faults: str, number: int
) -> None:
    seed = _SEED or (str(random.SystemRandom().randrange(10**6)) if _ROUNDS else "1")
    # Shown when the round fails.
    print(f"round {number}: GRAPHWEFT_CHAOS_SEED={seed}")
    stack = await Stack.of(servers, bus, graph)
    found = [FAULTS[name] for name in faults.split()]
    try:
        await Round.run(stack, found, app=f"chaos{uuid4().hex[:8]}", seed=f"{faults} {seed}", folder=tmp_path)
    except BaseException:
        await servers.drop(bus, graph)  # the next round must not find what this one left undone
        raise
