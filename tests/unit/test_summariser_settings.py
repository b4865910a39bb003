"""Which job condenses and forgets memories, by the settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from graphweft_contracts import InvalidSettings, channels
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import features as jobs
from graphweft_workers.wiring.connections import make_graph
from graphweft_workers.wiring.consolidation import make_consolidation, make_summariser


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def settings(**values: Any) -> Settings:
    return Settings(bus_url="redis://127.0.0.1:1", graph_url="redis://127.0.0.1:1", **values)  # type: ignore[arg-type]


def made(**values: Any) -> str:
    async def run() -> str:
        chosen = settings(**values)
        graph = make_graph(chosen)
        try:
            job = make_consolidation(chosen, graph)
            await job.aclose()
            return f"{job.group}, {job.tick_s:g}"
        finally:
            await graph.aclose()

    return asyncio.run(run())


def test_nothing_is_condensed_or_forgotten_unless_asked_for() -> None:
    assert jobs.groups(settings()) == ()
    for values in ({"memory_summarise_after": 60}, {"memory_keep_days": 0.5}, {"memory_keep_count": 1}):
        assert jobs.groups(settings(**values)) == (channels.CONSOLIDATION_GROUP,)


def test_time_makes_something_due_only_where_something_is_forgotten() -> None:
    assert made(memory_summarise_after=60) == f"{channels.CONSOLIDATION_GROUP}, 0"
    assert made(memory_keep_days=30) == f"{channels.CONSOLIDATION_GROUP}, 600"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memory_summarise_after": 20}, "memory_summarise_keep is 20 and memory_summarise_after 20: nothing is left"),
        ({"memory_summarise_after": 60, "memory_keep_count": 59}, "memory_keep_count is 59 .* before they are"),
        ({"memory_summarise_after": 60, "summariser": "openai:m"}, "needs GRAPHWEFT_SUMMARISER_API_KEY for https://api"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        made(**values)


def test_summarisers_by_name() -> None:
    async def names() -> list[str]:
        found = [
            make_summariser(settings()),
            make_summariser(settings(summariser="openai:a/b:c", summariser_url="http://localhost:1/v1")),
        ]
        for summariser in found:
            await summariser.aclose()
        return [summariser.model for summariser in found]

    assert asyncio.run(names()) == ["extractive", "a/b:c"]
