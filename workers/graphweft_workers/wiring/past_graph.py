"""An app's graph as it was, replayed into a second graph for a while."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from graphweft_contracts import ContextReply, ContextRequest, InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, PastClock
from graphweft_workers.archive.log_gaps import LogGap
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.histories import replay_preludes
from graphweft_workers.replay.past import find_past
from graphweft_workers.replay.replay import Replay, ReplayStep
from graphweft_workers.rule_sets.lost_rules import MissingRules, RulesLost
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.pipelines import opened_pipeline
from graphweft_workers.wiring.rules import logged_rules
from graphweft_workers.wiring.second_graph import scratch_graph
from graphweft_workers.wiring.snapshots import make_restoring

if TYPE_CHECKING:
    from graphweft_rules import RuleSet
    from graphweft_workers.ports.graph_store import GraphStore

_BUDGET_MS: Final = 60_000
_QUERY_S: Final = 30.0
"""A new graph is slow at first, and nobody's turn waits."""

type Tell = Callable[[Mapping[int, ReplayStep]], None]
"""Gets how far each partition is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGraph:
    """The graph, the rules that were active there, and the time."""

    graph: GraphStore
    rules: RuleSet
    time: datetime
    positions: Sequence[str]
    events: int
    """Events with mutations up to there."""
    restored: int
    """How many of them came from a snapshot."""
    done: Mapping[int, ReplayStep]
    """What the replay of each partition did."""
    gaps: Sequence[LogGap]
    """What the log lacks, and somebody has accepted as lost."""

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` says about it."""
        return {"time": self.time.isoformat(), "positions": list(self.positions)} | {
            "events": self.events,
            "restored": self.restored,
            "lost": sum(each.entries for each in self.gaps),
        }

    async def context(self, settings: Settings, fields: Mapping[str, Any]) -> ContextReply:
        """Answer a context request as a responder would have at that time. Raises ``RulesLost``."""
        if isinstance(self.rules, MissingRules):
            raise RulesLost(self.rules.digest)
        try:
            deadline_ms = int(self.time.timestamp() * 1000) + _BUDGET_MS
            request = ContextRequest(id="as-of", deadline_ms=deadline_ms, **fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidSettings(f"invalid request: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        clock = PastClock(self.time, SYSTEM_CLOCK)
        async with opened_pipeline(settings, self.rules, self.graph, clock=clock, query_timeout_s=_QUERY_S) as pipeline:
            return await pipeline.answer(request)


@asynccontextmanager
async def replay_past(
    settings: Settings,
    log: AppLog,
    when: datetime | tuple[int, str],
    *,
    into: str | None = None,
    tell: Tell = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[PastGraph]:
    """Yield the graph of the app as of a time or position. It is deleted afterwards, also after a cancellation.

    Raises ``InvalidSettings`` if the log lacks its beginning, or there is no place for a second graph.
    """
    app = log.app_id
    past = await find_past(log, when)
    gaps = await log.check_complete()
    preludes = await log.preludes()
    if preludes and past.time < preludes[0].restored:
        raise InvalidSettings(
            f"invalid time: {app!r} was restored at {preludes[0].restored.isoformat()}, and it is not known here when "
            "its earlier events took effect"
        )
    rules = logged_rules(settings, log.bus, without_lost=True)
    async with scratch_graph(settings, log, rules, into=into) as graph:
        # Snapshots are of the bus alone.
        restoring = None if preludes else make_restoring(settings, log.bus, graph, app, warn)
        replay = Replay(log.bus, graph, rules, app, restoring=restoring)
        restored = await replay.restore(past.offsets)
        done: dict[int, ReplayStep] = {}
        async for number, step in replay_preludes(preludes, graph, rules, app):
            done[number] = step
            tell(done)
        for partition, offset in sorted(past.offsets.items()):
            async for step in replay.run(partition, to=offset):
                done[partition] = step
                tell(done)
        await replay.finish()
        await rules.refresh()
        yield PastGraph(
            graph=graph,
            rules=past.rules(rules, app),
            time=past.time,
            positions=past.positions,
            events=restored + sum(each.events for each in done.values()),
            restored=restored,
            done=done,
            gaps=gaps,
        )
