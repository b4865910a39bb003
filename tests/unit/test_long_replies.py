"""Replies with much text: what is read for secrets is bounded, and long texts are packed in a thread."""

from __future__ import annotations

import threading

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import ContextReply, ContextRequest
from graphweft_rules import BoundQuery, MatchedQueries
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.model import InjectionQuery, Place
from graphweft_workers.injection.cache import Cache
from graphweft_workers.injection.reply import ReplyBuilder
from graphweft_workers.injection.rows import RequestRows
from graphweft_workers.injection.work_turns import WorkTurns
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.support.timing import TIMING

KEY = "sk-" + "a1B2c3D4" * 6
CYPHER = parse("RETURN 1", role="injection")
REQUEST = ContextRequest(
    id="r", app_id="app", chat_id="c", workflow="W", agent="A", deadline_ms=1, max_tokens=1_000_000
)


class Reply:
    """Builds a reply and notes which threads counted its tokens."""

    def __init__(self, *, redact: bool = True) -> None:
        self.threads: set[threading.Thread] = set()
        self._builder = ReplyBuilder(
            Cache(0), 0.0, self._count, redact=redact, turns=WorkTurns(VIRTUAL, TIMING.context)
        )

    def _count(self, text: str) -> int:
        self.threads.add(threading.current_thread())
        return len(text) // 4

    async def of(self, *cells: str) -> ContextReply:
        place = Place(file="rules.yaml", line=1)
        query = InjectionQuery(id="q", cypher="RETURN 1", inject_as="notes", format="markdown", place=place)
        bound = BoundQuery(rule="r", query=query, cypher=CYPHER, params={}, priority=0, max_tokens=None)
        rows = RequestRows(table=Table(columns=["text"], rows=[[cell] for cell in cells]), elapsed_s=0.0, cached=False)
        return await self._builder.build(
            REQUEST, 0.0, MatchedQueries(queries=(bound,), skipped=()), [rows], stale_by=None, rules=""
        )


@pytest.mark.parametrize(("cells", "aside"), [(["short"], False), (["a b " * 3_000], True), (["a b "] * 3_000, True)])
async def test_long_rows_are_packed_in_a_thread(cells: list[str], aside: bool) -> None:
    reply = Reply()
    found = await reply.of(*cells)
    assert found.blocks
    assert (threading.current_thread() not in reply.threads) is aside


async def test_text_beyond_what_is_read_for_secrets_is_not_shown() -> None:
    cells = ["first " * 20_000, "second " * 20_000, f"third {KEY}"]
    shown = (await Reply().of(*cells)).text
    assert "first" in shown
    assert "second" in shown
    assert "third" not in shown
    assert KEY not in shown
    assert shown.count("[REDACTED]") == 2
    assert 200_000 < len(shown) < 201_000
    whole = (await Reply(redact=False).of(*cells)).text
    assert KEY in whole
    assert len(whole) > 260_000


async def test_the_same_text_counts_once() -> None:
    shown = (await Reply().of(*["again " * 10_000] * 9)).text
    assert "[REDACTED]" not in shown
    assert len(shown) > 500_000
