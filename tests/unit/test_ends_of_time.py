"""Times at the ends of the calendar are answered or refused; none is a defect."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_workers.cli.memory_records import time_of
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.ports.graph_store import Table
from graphweft_workers.retrieval.questions import read_question
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.text.iso_time import in_utc

ENDS = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-10:00")
QUESTIONS = (
    "where yesterday", "three days ago", "500 years ago", "last week", "this week", "the week before last",
    "last month", "this month", "last year", "this year", "the last 999 years", "last sunday", "on monday",
    "since monday", "last weekend", "in may", "since may", "since 29 February", "gestern",
    "letztes Jahr", "vor zwei Wochen",
)  # fmt: skip


class Empty:
    """A graph without rows."""

    dialect = FALKORDB

    async def read(self, app_id: str, statement: str, params: Any, **options: Any) -> Table:
        return Table(columns=(), rows=())


@pytest.mark.parametrize("today", [date.min, date.max])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_names_no_days_beyond_the_calendar(question: str, today: date) -> None:
    for period in read_question(question, today=today).periods:
        assert period.begin(today) <= period.end(today)


@pytest.mark.parametrize("as_of", ENDS)
@pytest.mark.parametrize("of", ["memories", "facts", "profile"])
async def test_a_search_as_of_an_end_of_time_has_an_answer(as_of: str, of: Any) -> None:
    text = "" if of == "profile" else "where yesterday"
    query = SearchQuery(text=text, memory=MemoryScope(user_id="u"), of=of, as_of=datetime.fromisoformat(as_of))
    found = await Searcher(Empty(), None).search("a", query, timeout_s=60)  # type: ignore[arg-type]
    assert found.table.rows == ()


@pytest.mark.parametrize("text", ENDS[1::2])
def test_an_option_of_a_command_refuses_such_a_time(text: str) -> None:
    with pytest.raises(InvalidSettings, match="invalid --since"):
        time_of(text, "--since")
    with pytest.raises(ValueError, match="outside of the years"):
        in_utc(datetime.fromisoformat(text))
