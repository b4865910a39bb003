"""``python -m benchmarks.changes``: how many changes in ordinary talk a memory notices without a model.

Two persons who had not seen the forms of claims wrote 80 pairs of a statement and a later message that changes it, 120
pairs that are alike and change nothing, and 60 short dialogues with a question. Each is told by a user of its own,
among remarks, over the bus and through the workers, without a model. Then a search asks:

- ``ended``: a statement that has changed is shown as ended, or not at all, when its own words are searched
- ``kept``: one that has not changed is shown as it was
- ``first``, ``among three``: the right line of a dialogue is the first row for its question, or among the first three,
  and is not shown as ended
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.expiry import remembering
from graphweft_contracts import Event
from graphweft_contracts.memory import MemoryScope
from graphweft_contracts.search import SearchQuery
from graphweft_workers.retrieval.search import Searcher

_APP: Final = "changes"
_FILE: Final = Path("tests/fixtures/recall/changes.json")
_SEARCH_S: Final = 10.0
_TOP: Final = 8
_SAID: Final = datetime(2026, 3, 2, 12, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_OTHERS: Final = (
    "The train was crowded this morning.", "I watched a documentary about whales.", "What a strange week.",
)  # fmt: skip


def main(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Pairs and dialogues.")] = _FILE,
    embedder: Annotated[str, typer.Option(help="As GRAPHWEFT_EMBEDDER: none, minilm …")] = "none",
) -> None:
    """Print what was right of each kind and language, and what was wrong, as JSON."""
    print(json.dumps(asyncio.run(_run(json.loads(file.read_text("utf-8")), embedder)), indent=1, ensure_ascii=False))


async def _run(written: Mapping[str, Any], embedder_name: str) -> dict[str, Any]:
    pairs, dialogues = written["pairs"], written["questions"]
    told = {f"pair-{number}": [each["first"], each["later"]] for number, each in enumerate(pairs)}
    told |= {f"dialogue-{number}": each["lines"] for number, each in enumerate(dialogues)}
    events = [event for user, texts in told.items() for event in _events(user, texts)]
    right: dict[str, list[bool]] = {}
    wrong: list[str] = []

    def judge(kind: str, each: Mapping[str, Any], what: str, *, is_right: bool) -> None:
        right.setdefault(f"{each['language']} {kind}", []).append(is_right)
        if not is_right:
            wrong.append(f"{kind}: {what}")

    async with remembering(events, _APP, embedder_name) as (store, embedder):
        searcher = Searcher(store, embedder)

        async def shown(user: str, text: str) -> list[str]:
            """Return the texts that a search shows as what holds, in order."""
            query = SearchQuery(text=text, memory=MemoryScope(user_id=user), top_k=_TOP)
            rows = (await searcher.search(_APP, query, timeout_s=_SEARCH_S)).rows()
            return [row["text"] for row in rows if row["invalid_at"] is None]

        for number, each in enumerate(pairs):
            is_kept = each["first"] in await shown(f"pair-{number}", each["first"])
            kind = "ended" if each["changes"] else "kept"
            judge(kind, each, f"{each['first']} {each['later']}", is_right=is_kept is not each["changes"])
        for number, each in enumerate(dialogues):
            texts = await shown(f"dialogue-{number}", each["question"])
            what = f"{' '.join(each['lines'])} {each['question']}"
            judge("first", each, what, is_right=texts[:1] == [each["right"]])
            judge("among three", each, what, is_right=each["right"] in texts[:3])
    shares = {name: f"{sum(found)} of {len(found)}" for name, found in sorted(right.items())}
    return {"embedder": embedder_name, "right": shares, "wrong": wrong}


def _events(user: str, texts: Sequence[str]) -> Iterator[Event]:
    """Yield an event a day: the first text, remarks, and the other texts."""
    for day, text in enumerate((texts[0], *_OTHERS, *texts[1:])):
        at = _SAID + day * _DAY
        data = {"user_id": user, "messages": [{"role": "user", "text": text, "time": at.isoformat()}]}
        yield Event.create(
            "memory.add",
            app_id=_APP,
            chat_id=f"{user}-{day}",
            data=data,
            id=f"{user}-{day}",
            source="/changes",
            time=at,
        )


if __name__ == "__main__":
    typer.run(main)
