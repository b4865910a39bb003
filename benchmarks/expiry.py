"""``python -m benchmarks.expiry``: whether a memory knows that "until Friday" is over, in English and German.

Each statement of a file says when it ends ("until Friday"), when it begins ("from March"), or neither. Before some of
them the user says something that has no end ("I live in Oslo", then "I'm in Rome until Friday"). Each user makes one
statement, among remarks about other things. All go the whole way: over the bus, through the workers, into a graph. Then
the question is asked as if it were the day before, the first or the last day, and the day after, and the rows of a
search are compared with what holds then:

- ``holds``: a row that holds is found, and not shown as ended
- ``ended``: a row that has ended is not shown as if it held
- ``first``: the first row holds, of two that say different things at different times
- ``kept``: a statement without an end is not shown as ended, 60 days later
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.processes import ENGINE, process
from benchmarks.recall import EMBEDDING, remembered
from benchmarks.services import Services, publish
from graphweft.transport import Outgoing
from graphweft_contracts import Event, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.search import Searcher
from graphweft_workers.wiring.connections import make_graph
from graphweft_workers.wiring.embedder import make_embedder

_APP: Final = "expiry"
_FILE: Final = Path("tests/fixtures/recall/stated_ends.json")
_SEARCH_S: Final = 10.0
_TOP: Final = 5
_LATER: Final = timedelta(days=60)
_DAY: Final = timedelta(days=1)
_OTHERS: Final = (
    "I like hiking in the mountains.", "My favourite colour is green.", "The train was crowded this morning.",
    "Ich mag Tee lieber als Saft.", "Meine Lieblingsfarbe ist Blau.", "Der Zug war heute Morgen voll.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """A statement, what holds without an end, and the question that both answer."""

    user: str
    language: str
    text: str
    question: str
    lasting: str | None
    first: datetime | None
    last: datetime | None

    def asked_at(self, said: datetime) -> Sequence[datetime]:
        """Return the days on which the question is asked, at noon."""
        if self.last is not None:
            return [max(said, self.last - _DAY), self.last, self.last + _DAY]
        return [said + _LATER] if self.first is None else [self.first - _DAY, self.first, self.first + _DAY]

    def holds(self, at: datetime) -> bool:
        begun = self.first is None or self.first.date() <= at.date()
        return begun and (self.last is None or at.date() <= self.last.date())


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Statements and questions.")] = _FILE,
    embedder: Annotated[str, typer.Option(help="As GRAPHWEFT_EMBEDDER: none, minilm …")] = "none",
) -> None:
    """Print the share of right rows of each kind and language, and what was wrong, as JSON."""
    print(json.dumps(asyncio.run(_run(json.loads(file.read_text("utf-8")), embedder)), indent=1, ensure_ascii=False))


@asynccontextmanager
async def remembering(
    events: Sequence[Event], app: str, embedder_name: str
) -> AsyncGenerator[tuple[GraphStore, Embedder | None]]:
    """Tell the events of an app over a bus of their own, and yield the graph when all their messages are in it."""
    with tempfile.TemporaryDirectory(prefix="graphweft-told-") as rules:
        async with Services(fsync="everysec") as services, AsyncExitStack() as stack:
            settings = await services.settings("redis", "falkordb", Path(rules))
            settings = settings.model_copy(update={"embedder": embedder_name})
            embedder = make_embedder(settings)
            store = make_graph(settings)
            stack.push_async_callback(store.aclose)
            if embedder is not None:
                stack.push_async_callback(embedder.aclose)
            await publish(settings, [Outgoing(key=each.key, fields=wire.encode(each)) for each in events])
            workers = [await stack.enter_async_context(process(ENGINE, settings))]
            if embedder is not None:
                workers.append(await stack.enter_async_context(process(EMBEDDING, settings)))
            count = sum(len(each.data["messages"]) for each in events)
            await remembered(store, app, count, workers, vectors=embedder is not None)
            yield store, embedder


async def _run(written: Mapping[str, Any], embedder_name: str) -> dict[str, Any]:
    said = _noon(written["said"])
    statements = [
        _Statement(
            user=f"u{number}", language=each["language"], text=each["text"], question=each["question"],
            lasting=each.get("lasting"), first=_noon(each["first"]) if "first" in each else None,
            last=_noon(each["last"]) if "last" in each else None,
        )
        for number, each in enumerate(written["statements"])
    ]  # fmt: skip
    events = [event for each in statements for event in _events(each, said)]
    right: dict[str, list[bool]] = {}
    wrong: list[str] = []
    async with remembering(events, _APP, embedder_name) as (store, embedder):
        for each in statements:
            for at in each.asked_at(said):
                searcher = Searcher(store, embedder, clock=PastClock(at, SYSTEM_CLOCK))
                query = SearchQuery(text=each.question, memory=MemoryScope(user_id=each.user), top_k=_TOP)
                rows = (await searcher.search(_APP, query, timeout_s=_SEARCH_S)).rows()
                for kind, is_right in _judged(each, at, rows):
                    right.setdefault(f"{each.language} {kind}", []).append(is_right)
                    if not is_right:
                        wrong.append(f"{kind}, {at.date()}: {each.text} {each.question}")
    shares = {name: f"{sum(found)} of {len(found)}" for name, found in sorted(right.items())}
    return {"embedder": embedder_name, "statements": len(statements), "right": shares, "wrong": wrong}


def _judged(each: _Statement, at: datetime, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield what was looked at, and whether it was right."""
    shown = {row["text"]: row["invalid_at"] for row in rows}
    is_shown_as_held = each.text in shown and shown[each.text] is None
    if each.first is None and each.last is None:
        yield "kept", is_shown_as_held
    elif each.holds(at):
        yield "holds", is_shown_as_held
    elif each.last is not None and at > each.last:
        yield "ended", not is_shown_as_held
    if each.lasting is not None and (each.first is not None or each.last is not None):
        now = each.text if each.holds(at) else each.lasting
        yield "first", bool(rows) and rows[0]["text"] == now


def _events(each: _Statement, said: datetime) -> Iterator[Event]:
    """Yield two events of a user: remarks and what has no end on the day before, then the statement."""
    own = ([each.lasting] if each.lasting else []) + list(_OTHERS)
    for day, texts in ((said - _DAY, own), (said, [each.text])):
        messages = [
            {"role": "user", "text": text, "time": (day + timedelta(minutes=place)).isoformat()}
            for place, text in enumerate(texts)
        ]
        data = {"user_id": each.user, "messages": messages}
        yield Event.create(
            "memory.add", app_id=_APP, chat_id=each.user, data=data, id=f"{each.user}-{day.date()}", source="/expiry",
            time=day,
        )  # fmt: skip


def _noon(day: str) -> datetime:
    return datetime.combine(datetime.fromisoformat(day).date(), time(12), UTC)


if __name__ == "__main__":
    typer.run(main)
