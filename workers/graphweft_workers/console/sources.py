"""What the console reads from: bus, graph, client and rules. They are opened once and shared by all requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from graphweft import Client
from graphweft_contracts import InvalidSettings
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.rules_log import Activation, active_for
from graphweft_rules import RuleSet
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.ports.basis_comparison import BasisComparison
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.reports.rules_at import RulesAt
from graphweft_workers.reports.scan import Decoder
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport
from graphweft_workers.wiring.rules import rules_maker
from graphweft_workers.wiring.status import ServiceStatus, read_status

_STATUS_S: Final = 2.0
"""Status is read at most once in this time, however many people look."""
_LETTERS_SIZE: Final = 32 * 1024**2
"""Bytes of the dead letters that the status reads: somebody asks for it every few seconds."""
_MOST_RULES: Final = 16
"""Rule sets that are kept compiled."""


@dataclass(kw_only=True, eq=False)
class Sources:
    """The sources of all pages."""

    settings: Settings
    bus: Bus
    graph: GraphStore
    client: Client
    replaying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by what replays the log: one at a time."""
    replayed: set[str] = field(default_factory=set[str])
    """Apps whose log is replayed, or waits for its turn."""
    findings: BoundedDict[tuple[str, frozenset[str]], list[dict[str, Any]]] = field(
        default_factory=lambda: BoundedDict(_MOST_RULES)
    )
    """What the linter says of files of a rule set, by the digest of the rule set and the names of the files."""
    _comparison: BasisComparison = field(init=False)
    _decoder: Decoder | None = None
    _rules: RulesAt | None = None
    _compiled: set[str] = field(default_factory=set[str])
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _status: tuple[float, ServiceStatus] | None = None

    def __post_init__(self) -> None:
        self._comparison = BasisComparison(self.graph, self.bus.purges)

    async def graph_of(self, app_id: str) -> GraphStore:
        """Return the graphs, to show that of an app. Raises ``Problem`` if it may hold what was erased."""
        if older := await self._comparison.older(app_id):
            raise Problem(503, "unavailable", f"{older[:1].upper()}{older[1:]}.")
        return self.graph

    @property
    def redacts(self) -> bool:
        """Whether secrets are replaced, as in contexts."""
        return self.settings.context_redact

    async def decoder(self) -> Decoder:
        """Return the decoder, which knows all activations of now."""
        if self._decoder is None:
            self._decoder = await Decoder.of(self.bus)
        else:
            known = self._decoder.activations
            fresh = await self.bus.rules.activations(after=len(known))
            self._decoder.activations = [*known, *(each for each in fresh if each.number > len(known))]
        return self._decoder

    async def rules(self, activation: Activation | None) -> RuleSet:
        """Return the rule set of an activation; without one, an empty rule set."""
        digest = "" if activation is None else activation.digest
        if self._rules is None or (digest not in self._compiled and len(self._compiled) >= _MOST_RULES):
            self._rules, self._compiled = RulesAt(self.bus, rules_maker(self.settings)), set()
        self._compiled.add(digest)
        return await self._rules.rules(activation)

    async def usable_rules(self, activation: Activation | None) -> tuple[RuleSet, str]:
        """Return the rule set of an activation and "", or an empty one and why it cannot be loaded."""
        try:
            return await self.rules(activation), ""
        except InvalidSettings as error:
            return await self.rules(None), str(error)

    async def active_rules(self, activations: Sequence[Activation], app_id: str) -> RuleSet:
        """Return the rule set of an app that is active now. Raises ``InvalidSettings`` if it cannot be loaded."""
        return await self.rules(active_for(activations, app_id))

    async def current_rules(self, activations: Sequence[Activation], app_id: str) -> RuleSet:
        """Return the rule set of an app that is active now; an empty one if none is, or it cannot be loaded."""
        return (await self.usable_rules(active_for(activations, app_id)))[0]

    async def status(self) -> ServiceStatus:
        """Return the state of the deployment, two seconds old at most."""
        async with self._looking:
            if self._status is None or SYSTEM_CLOCK.monotonic() - self._status[0] > _STATUS_S:
                self._status = (
                    SYSTEM_CLOCK.monotonic(),
                    await read_status(self.settings, self.bus, letters_size=_LETTERS_SIZE),
                )
            return self._status[1]


@asynccontextmanager
async def open_sources(settings: Settings) -> AsyncGenerator[Sources]:
    """Yield the sources. Nothing is connected yet, so the console starts while a server is unavailable."""
    bus, graph = make_bus(settings), make_graph(settings)
    try:
        async with Client(transport=make_transport(settings)) as client:
            yield Sources(settings=settings, bus=bus, graph=graph, client=client)
    finally:
        await graph.aclose()
        await bus.aclose()
