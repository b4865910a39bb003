"""An app's graph by the rules of a folder, as a second graph for a while, and clients that are answered here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from graphweft import Client
from graphweft.transport import Outgoing
from graphweft_contracts import BusUnavailable, ContextReply, ContextRequest
from graphweft_workers.archive.log_gaps import LogGap
from graphweft_workers.engine.log.ledger_reader import ledger_by_other_rules
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.replay import Replay, ReplayStep
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.pipelines import opened_pipeline
from graphweft_workers.wiring.rules import checked_rules, load_given_rules, logged_rules
from graphweft_workers.wiring.second_graph import scratch_graph

if TYPE_CHECKING:
    from graphweft_workers.injection.pipeline import ContextPipeline
    from graphweft_workers.ports.graph_store import GraphStore

type Tell = Callable[[Mapping[int, ReplayStep]], None]
"""Gets how far each partition is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGraph:
    """The graph, the rules that made it, and those that made the live one."""

    graph: GraphStore
    rules: ActiveRules
    lived: ActiveRules
    done: Mapping[int, ReplayStep]
    """What the replay of each partition did."""
    gaps: Sequence[LogGap]
    """What the log lacks, and somebody has accepted as lost."""


@asynccontextmanager
async def replay_given(settings: Settings, log: AppLog, folder: Path, *, tell: Tell) -> AsyncGenerator[GivenGraph]:
    """Yield the graph of the app by the rules of a folder. It is deleted afterwards, also after a cancellation.

    Raises ``InvalidSettings`` if the log lacks its beginning, for an app that was restored, or if there is no place for
    a second graph; and ``RulesError`` for faults of the rules.
    """
    given = await checked_rules(load_given_rules(settings, folder), folder, log.bus, log.app_id, log.live)
    await log.refuse_preludes()
    gaps = await log.check_complete()
    lived = logged_rules(settings, log.bus, without_lost=True)
    async with scratch_graph(settings, log, lived, given=given) as graph:
        rules = FixedRules(given)
        replay = Replay(log.bus, graph, rules, log.app_id, passed_over=ledger_by_other_rules)
        done: dict[int, ReplayStep] = {}
        for partition, offset in sorted((await log.ends()).items()):
            async for step in replay.run(partition, to=offset):
                done[partition] = step
                tell(done)
        await lived.refresh()
        yield GivenGraph(graph=graph, rules=rules, lived=lived, done=done, gaps=gaps)


@asynccontextmanager
async def answered_here(settings: Settings, rules: ActiveRules, graph: GraphStore, app: str) -> AsyncGenerator[Client]:
    """Yield a client whose requests this process answers, as a responder with these settings would."""
    async with (
        opened_pipeline(settings, rules, graph) as pipeline,
        Client(transport=_PipelineTransport(pipeline), app_id=app) as client,
    ):
        yield client


class _PipelineTransport:
    """A ``Transport`` that answers requests, and takes no events."""

    def __init__(self, pipeline: ContextPipeline) -> None:
        self._pipeline = pipeline

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        raise BusUnavailable("this client only asks")

    async def request(self, request: ContextRequest) -> ContextReply:
        return await self._pipeline.answer(request)

    async def aclose(self) -> None:
        """Nothing is open."""
