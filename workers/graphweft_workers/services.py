"""Builds the services from settings. The only place where drivers are chosen.

Rules, worker and responder are imported where they are run: a command that reads a count need not wait for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from graphweft import drivers
from graphweft.drivers import KAFKA
from graphweft.transport import Transport
from graphweft_contracts import Event, InvalidSettings, channels
from graphweft_workers.bus.log import Bus
from graphweft_workers.bus.redis_streams import RedisStreamsBus
from graphweft_workers.graph.neo4j_url import NEO4J_SCHEMES
from graphweft_workers.graph.store import GraphStore
from graphweft_workers.needs import missing_package
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_rules import Ruleset
    from graphweft_rules.ontologies import Ontologies
    from graphweft_workers.mcp.access import Access


def load_rules(settings: Settings) -> Ruleset:
    """Load every workflow below ``settings.rules``, and the ontologies. Raises ``RulesError`` with all findings.

    A folder that was named must exist; without the default one there are no rules.
    """
    from graphweft_rules import Ruleset
    from graphweft_rules.packs.episodes import EpisodePack
    from graphweft_rules.packs.memory import MemoryPack

    packs = (MemoryPack(), EpisodePack(load_ontologies(settings)))
    if not settings.rules.is_dir():
        if "rules" not in settings.model_fields_set:
            return Ruleset({}, packs=packs)
        raise InvalidSettings(
            f"the rules folder {str(settings.rules)!r} does not exist; give --rules, or set GRAPHWEFT_RULES, to a "
            "folder with <Workflow>/graph_injection.yaml files"
        )
    return Ruleset.load(settings.rules, packs)


def load_ontologies(settings: Settings) -> Ontologies:
    """Load the built-in ontologies, and those in the folder ``ontologies`` beside ``settings.rules`` if there is one.

    Raises ``RulesError`` with all findings.
    """
    from graphweft_rules import ontologies

    folder = settings.rules.parent / ontologies.FOLDER
    return ontologies.load_ontologies(folder) if folder.is_dir() else ontologies.Ontologies()


def make_refusal(ontologies: Ontologies) -> Callable[[Event], str | None]:
    """Return what says why an event about episodes would have no effect, None where it has: see ``Pack.refusal``."""
    from graphweft_rules.packs.episodes import EpisodePack

    return EpisodePack(ontologies).refusal


def make_bus(settings: Settings, *, group: str = channels.MUTATION_GROUP) -> Bus:
    """Return the bus that the settings name, for a group of readers; nothing is connected yet."""
    if settings.bus.startswith(KAFKA):
        with _driver("aiokafka", "GRAPHWEFT_BUS_URL", "kafka"):
            from graphweft_workers.bus.kafka import KafkaBus
        return KafkaBus(
            settings.bus,
            partitions=settings.partitions,
            session_s=settings.lease_s,
            barrier_s=settings.kafka_barrier_s,
            instance=settings.kafka_instance,
            group=group,
        )
    return RedisStreamsBus(settings.bus, partitions=settings.partitions, group=group)


def make_graph(settings: Settings) -> GraphStore:
    """Return the graph store that the settings name; nothing is connected yet."""
    if settings.graph.partition("://")[0] in NEO4J_SCHEMES:
        with _driver("neo4j", "GRAPHWEFT_GRAPH_URL", "neo4j"):
            from graphweft_workers.graph.neo4j import Neo4jStore
        return Neo4jStore(
            settings.graph, graph_template=settings.graph_template, write_timeout_ms=settings.mutation_timeout_ms
        )
    from graphweft_workers.graph.falkordb import FalkorDBStore

    return FalkorDBStore(
        settings.graph, graph_template=settings.graph_template, write_timeout_ms=settings.mutation_timeout_ms
    )


def make_transport(settings: Settings) -> Transport:
    """Return the producer's side of the bus; nothing is connected yet."""
    return drivers.make_transport(settings.bus, partitions=settings.partitions)


@contextlib.contextmanager
def _driver(module: str, variable: str, extra: str) -> Generator[None]:
    """Say which extra has the driver that is imported inside, where it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise missing_package(variable, module, extra) from error


async def run_mutation(settings: Settings) -> None:
    """Run a mutation worker until SIGTERM or SIGINT, then finish the batch in hand."""
    from graphweft_workers.hosting import mutation_app

    await mutation_app(settings).run()


async def run_injection(settings: Settings) -> None:
    """Run an injection responder until SIGTERM or SIGINT, then finish the requests in hand."""
    from graphweft_workers.hosting import injection_app

    await injection_app(settings).run()


async def run_memory(settings: Settings) -> None:
    """Run the jobs of memory until SIGTERM or SIGINT. Raises ``InvalidSettings`` when the settings ask for none."""
    from graphweft_workers.hosting import memory_app

    await memory_app(settings).run()


async def run_gateway(
    settings: Settings, *, host: str, port: int, insecure_app: str | None, ready: Callable[[str], None]
) -> None:
    """Run the HTTP gateway until SIGTERM or SIGINT, then finish the requests in hand. See ``serving.run_gateway``."""
    with _driver("starlette", "`run gateway`", "gateway"), _driver("uvicorn", "`run gateway`", "gateway"):
        from graphweft_workers.gateway import serving
    from graphweft_workers.heartbeat import beating

    async with beating("gateway") as heartbeat:

        def listens(url: str) -> None:
            heartbeat.begin()
            ready(url)

        await serving.run_gateway(settings, host=host, port=port, insecure_app=insecure_app, ready=listens)


async def run_mcp(settings: Settings, access: Access) -> None:
    """Run the MCP server on standard input and output until the client closes them. See ``serving.run_mcp``."""
    # mcp_types is what mcp before 2.0 lacks.
    with _driver("mcp", "`run mcp`", "mcp"), _driver("mcp_types", "`run mcp`", "mcp"):
        from graphweft_workers.mcp import serving

    await serving.run_mcp(settings, access)
