"""No random text ends the library that reads it, or holds it for long: conditions in CEL, queries on a real server.

``GRAPHWEFT_FUZZ_CASES=20000`` reads more texts than the suite does, and ``GRAPHWEFT_FUZZ_SEED`` other ones.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.fuzz.texts import Texts

from graphweft_rules.cypher.query import Cypher, parse
from graphweft_rules.matching.searches import parse_retrieval
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.dialect import FALKORDB

pytestmark = [pytest.mark.timeout(7_200)]

_CASES: Final = int(os.environ.get("GRAPHWEFT_FUZZ_CASES", "600"))
_SEED: Final = int(os.environ.get("GRAPHWEFT_FUZZ_SEED", "1"))
_ANSWER_S: Final = 30.0
"""A query that takes longer holds a thread of the server for longer than any time limit."""


def test_no_random_condition_ends_the_process() -> None:
    command = [sys.executable, "-m", "tests.fuzz.text_reader", str(_SEED), str(_CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    *texts, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"GRAPHWEFT_FUZZ_SEED={_SEED}, text {len(texts) + 1}: {last}\n{done.stderr[-2_000:]}"
    found: dict[str, int] = ast.literal_eval(last)
    for kind in ("refused", "error", "decided", "undecided"):
        assert found[kind] > _CASES / 50, f"of {_CASES} texts hardly any were {kind}: {found}"


@pytest.mark.integration
async def test_no_random_query_ends_the_graph_server(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    client = redis.Redis(unix_socket_path=str(server.socket), socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0))
    found: Counter[str] = Counter()
    texts = Texts(_SEED)
    try:
        _fill(client)
        for number in range(_CASES):
            text = texts.query() if number % 2 else texts.retrieval_query()
            read = _as_mutation(text, number) if number % 2 else _as_retrieval(text)
            if isinstance(read, str):
                found[read] += 1
                continue
            verb, query = read
            try:
                client.execute_command(verb, "g", f"CYPHER a=1 p='x' {query}", "TIMEOUT", 200)
                found["ran"] += 1
            except redis.ResponseError:
                found["failed"] += 1
            except redis.RedisError as error:
                error.add_note(f"GRAPHWEFT_FUZZ_SEED={_SEED}, text {number}: {text!r}")
                raise
            if number % 10 == 1:
                client.execute_command("GRAPH.DELETE", "g")
                _fill(client)
        assert client.ping()
    finally:
        client.close()
        await server.stop()
    for kind in ("too-much", "ran", "failed"):
        assert found[kind] > _CASES / 100, f"of {_CASES} queries hardly any: {kind}: {found}"


def _fill(client: redis.Redis) -> None:
    for query in ("UNWIND range(1, 20) AS i CREATE (:N {id: i, text: 'a'})", "CREATE (:__Progress {pos: 0})"):
        client.execute_command("GRAPH.QUERY", "g", query)


def _as_mutation(text: str, number: int) -> tuple[str, str] | str:
    """Return command and text of a mutation as a store writes it, or why it is refused."""
    cypher = parse(text, role="mutation", dialects=(FALKORDB,))
    if (code := _refused(cypher)) is not None:
        return code
    cypher.batch_query(FALKORDB)
    guard, inner = "MATCH (__gw:__Progress) ", f"CALL {{ {cypher.statement}\n}}"
    if number % 4 == 1:
        return "GRAPH.QUERY", f"{guard}SET __gw.pos = {number} WITH __gw.pos AS moved {inner} RETURN count(*)"
    return "GRAPH.QUERY", f"{guard}WITH __gw {inner} SET __gw.pos = {number}"


def _as_retrieval(text: str) -> tuple[str, str] | str:
    """Return command and text of a search, or why it is refused."""
    cypher = parse_retrieval(text)
    if (code := _refused(cypher)) is not None:
        return code
    return "GRAPH.RO_QUERY", f"MATCH (node:N) WITH node, 1.0 AS score {cypher.statement}"


def _refused(cypher: Cypher) -> str | None:
    return next((problem.code for problem in cypher.problems if problem.level == "error"), None)
