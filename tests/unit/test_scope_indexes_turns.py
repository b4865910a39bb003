"""The order in which the indexes of scopes are built, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from tests.services.virtual_time import VirtualClock

from graphweft_workers.retrieval import scope_indexes
from graphweft_workers.retrieval.scope_index import ScopeIndex
from graphweft_workers.retrieval.scope_indexes import ScopeIndexes, _Kept, _key_of
from graphweft_workers.retrieval.targets import memories

if TYPE_CHECKING:
    import pytest

    from graphweft_workers.ports.graph_store import GraphStore


async def nothing() -> None:
    """Do nothing."""


class Unknown:
    """No version is known, so builds end before they read the graph."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.meanwhile: Callable[[], Awaitable[None]] = nothing
        self.go = asyncio.Event()

    async def current(self, app_id: str, timeout_s: float) -> object | None:
        self.asked.append(app_id)
        await self.meanwhile()
        await self.go.wait()
        return None

    def may_keep(self, app_id: str, version: object, at: float) -> bool:
        return False

    @property
    def built_for(self) -> list[str]:
        return [app_id for app_id, _ in groupby(self.asked)]


def indexes_of(versions: Unknown) -> ScopeIndexes:
    return ScopeIndexes(cast("GraphStore", None), versions, 1_000_000, clock=VirtualClock())


async def search(indexes: ScopeIndexes, app: str, user: str) -> None:
    """Search a scope often enough for an index."""
    for _ in range(2):
        await indexes.find(app, [memories({"user_id": user}, now="")], 1.0)


async def test_an_app_that_searches_all_the_time_lets_others_have_their_turn() -> None:
    versions = Unknown()
    indexes = indexes_of(versions)

    async def meanwhile() -> None:
        if len(versions.asked) < 20:
            await search(indexes, "busy", f"user{len(versions.asked)}")

    versions.meanwhile = meanwhile
    await search(indexes, "busy", "first")
    await asyncio.sleep(0)
    await search(indexes, "one", "u")
    await search(indexes, "other", "u")
    versions.go.set()
    await indexes.built()
    assert versions.built_for == ["busy", "one", "other", "busy"]


async def test_of_the_searches_that_wait_the_newest_of_an_app_is_built() -> None:
    versions = Unknown()
    indexes = indexes_of(versions)
    await search(indexes, "busy", "first")
    await asyncio.sleep(0)
    for number in range(5):
        await search(indexes, "busy", f"user{number}")
    versions.go.set()
    await indexes.built()
    assert indexes.builds == 2


async def test_a_scope_that_was_built_meanwhile_is_not_built_again() -> None:
    versions = Unknown()
    indexes = indexes_of(versions)
    await search(indexes, "app", "u")
    await asyncio.sleep(0)
    await search(indexes, "app", "u")
    versions.go.set()
    await indexes.built()
    assert indexes.builds == 1


async def test_apps_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_indexes, "_MOST_WAITING", 3)
    versions = Unknown()
    indexes = indexes_of(versions)
    await search(indexes, "first", "u")
    await asyncio.sleep(0)
    for number in range(10):
        await search(indexes, f"app{number}", "u")
    versions.go.set()
    await indexes.built()
    assert versions.built_for == ["first", "app0", "app1", "app2"]


async def test_many_names_of_an_app_keep_no_index_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope_indexes, "_MOST_SCOPES", 10)
    versions = Unknown()
    indexes = indexes_of(versions)

    async def once(app: str, user: str) -> None:
        await indexes.find(app, [memories({"user_id": user}, now="")], 1.0)

    for user in "abc":
        await once("quiet", user)
    for number in range(100):
        await once("loud", f"user{number}")
    await once("loud", "user50")
    await once("loud", "user99")  # the same app forgets its own, the least recently used first
    for user in "abc":
        await once("quiet", user)
    versions.go.set()
    await indexes.built()
    assert versions.built_for == ["loud", "quiet"]


def kept_index(app: str, user: str, size: int) -> tuple[Any, Any]:
    key = _key_of(app, memories({"user_id": user}, now=""))
    return key, _Kept(index=ScopeIndex([]), version=None, marks={}, bytes=size, at=0.0, used=1)


def test_an_index_that_grows_makes_room_by_the_rule_of_one_that_is_built() -> None:
    indexes = indexes_of(Unknown())
    indexes.limit, indexes._searches = 100, 2
    small, large, other = kept_index("quiet", "u", 40), kept_index("loud", "u", 30), kept_index("loud", "v", 30)
    for key, kept in (small, large, other):
        assert indexes._keep(key, kept, 1)
    assert indexes._grown(*large, 50)
    assert [*indexes._kept] == [small[0], large[0]], "the index in use stays, and the app gives way to itself"
    assert not indexes._grown(*large, 70)
    assert [*indexes._kept] == [small[0]], "an app within its share does not give way"
    assert indexes.bytes == 40


async def test_nothing_that_waits_is_built_after_the_end() -> None:
    versions = Unknown()
    indexes = indexes_of(versions)
    await search(indexes, "one", "u")
    await asyncio.sleep(0)
    await search(indexes, "other", "u")
    await indexes.aclose()
    await indexes.built()
    assert versions.asked == ["one"]


class Slow(Unknown):
    """Does not say the version of one app's graph, and knows none of the others."""

    async def current(self, app_id: str, timeout_s: float) -> object | None:
        self.asked.append(app_id)
        if app_id == "slow":
            await self.go.wait()
        return None


async def test_a_build_that_takes_too_long_ends_and_its_app_pauses(clock: VirtualClock) -> None:
    versions = Slow()
    indexes = ScopeIndexes(cast("GraphStore", None), versions, 1_000_000, clock=clock)
    await search(indexes, "slow", "one")
    await asyncio.sleep(0)
    await search(indexes, "other", "u")
    await search(indexes, "slow", "two")
    await indexes.built()
    assert versions.built_for == ["slow", "other"]
    assert (indexes.failed, indexes.outdated) == (1, 1)
