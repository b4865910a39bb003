"""A server for rule tests: the embedded one on an empty folder, with worker and responder in this process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphweft_contracts import NotRunning
from graphweft_contracts.clock import Clock
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_bus, make_graph, make_transport
from graphweft_workers.wiring.pipelines import make_pipeline

if TYPE_CHECKING:
    from graphweft.transport import Transport
    from graphweft_rules import RuleSet
    from graphweft_workers.engine.worker import MutationWorker
    from graphweft_workers.injection.pipeline import ContextPipeline
    from graphweft_workers.ports.bus import Bus
    from graphweft_workers.ports.graph_store import GraphStore

_PARTITIONS: Final = 8
_STRANGE: Final = {
    *("bus_url", "graph_url", "data", "partitions", "order", "graphrag_enabled", "context_off"),
    *("signing_key", "signing_keys"),
}
"""Settings of a deployment that tests do not follow: they must never write to its servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTestServer:
    """The server, and connections to it."""

    bus: Bus
    graph: GraphStore
    transport: Transport
    _settings: Settings
    _process: asyncio.subprocess.Process
    _log: EmbeddedServer

    async def ended(self) -> None:
        """Wait until the server's process has ended, then raise ``NotRunning``."""
        code = await self._process.wait()
        raise NotRunning(
            f"the server of the tests ended with code {code}. Select single cases with --match to find the one that "
            f"ends it. Its last words:\n{self._log.last_words()}"
        )

    def worker(self, rules: RuleSet) -> MutationWorker:
        """Return a mutation worker with these rules; run it as a task."""
        from graphweft_workers.engine.worker import MutationWorker

        return MutationWorker(self.bus, self.graph, rules, name="test", batch_events=self._settings.batch_events)

    def pipeline(self, rules: RuleSet, clock: Clock) -> ContextPipeline:
        """Return a pipeline for requests at the time of ``clock``; close it. It has no embedder."""
        return make_pipeline(self._settings, rules, self.graph, clock=clock)


@asynccontextmanager
async def rule_test_server(settings: Settings) -> AsyncGenerator[RuleTestServer]:
    """Start a server, and stop and remove it at the end. Of the settings, those that name servers do not matter."""
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        own = settings.model_copy(
            update={name: Settings.model_fields[name].default for name in _STRANGE}
            | {"data": Path(folder), "partitions": _PARTITIONS, "graphrag_enabled": True}
        )
        server = EmbeddedServer(own.data)
        await server.start()
        assert server.process is not None
        bus, graph, transport = make_bus(own), make_graph(own), make_transport(own)
        try:
            yield RuleTestServer(
                bus=bus, graph=graph, transport=transport, _settings=own, _process=server.process, _log=server
            )
        finally:
            await transport.aclose()
            await graph.aclose()
            await bus.aclose()
            await server.stop()
