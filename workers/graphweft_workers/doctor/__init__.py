"""What ``graphweft doctor`` looks at: each check says what it found and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from graphweft.drivers import KAFKA
from graphweft_contracts import BusUnavailable, GraphweftError, InvalidSettings, QueryFailed
from graphweft_rules.findings import errors
from graphweft_workers.bus.log import PartitionStatus
from graphweft_workers.dead_letter_counts import SKIPS, Cause, count_causes
from graphweft_workers.doctor import redis_servers
from graphweft_workers.doctor.check import Check
from graphweft_workers.embedding.factory import make_embedder
from graphweft_workers.extraction.factory import make_extractor
from graphweft_workers.graph.neo4j_url import NEO4J_SCHEMES
from graphweft_workers.memory import jobs
from graphweft_workers.mutation.position_note import PositionNote
from graphweft_workers.query_check import check_queries
from graphweft_workers.services import load_rules, make_bus, make_graph
from graphweft_workers.settings import Settings

if TYPE_CHECKING:
    from graphweft_rules import Ruleset

__all__ = ("Check", "examine")

_MOST_LETTERS: Final = 10_000
_MOST_NAMES: Final = 10


async def examine(settings: Settings) -> list[Check]:
    """Return all checks in the order in which a fault explains the ones after it."""
    rules, rules_check = _rules(settings)
    checks = [_python(), rules_check, await _embedder(settings), await _extractor(settings), _graphrag(settings, rules)]
    bus = await _bus(settings)
    checks += bus
    graph = await _graph(settings)
    checks += graph
    if rules is not None and rules.workflows and all(check.state != "fail" for check in graph if check.name == "graph"):
        checks.append(await _queries(settings, rules))
    states = {check.name: check.state for check in bus}
    if states["bus"] != "ok":
        return checks
    # Asking a bus for its partitions makes those of a new one, so a topic that is not there is not asked for.
    if states.get("bus topic", "ok") == "ok":
        checks += await _services(settings)
        checks += [await _memory(settings, group) for group in jobs.groups(settings)]
    elif states["bus topic"] == "warn":
        checks.append(_no_worker("no mutation worker runs, nor ever did"))
    checks.append(await _responders(settings))
    return checks


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(name="python", state="ok", found=version)


def _rules(settings: Settings) -> tuple[Ruleset | None, Check]:
    try:
        rules = load_rules(settings)
    except InvalidSettings as error:
        advice = "make the folder, or name yours by --rules or GRAPHWEFT_RULES"
        return None, Check(name="rules", state="fail", found=str(error), advice=advice)
    except GraphweftError as error:
        return None, Check(name="rules", state="fail", found=str(error), advice=f"graphweft lint {settings.rules}")
    names = ", ".join(sorted(rules.workflows)) or "none"
    if not rules.workflows:
        advice = "put rules into <Workflow>/graph_injection.yaml"
        return rules, Check(name="rules", state="warn", found=f"{settings.rules} holds no workflow", advice=advice)
    return rules, Check(name="rules", state="ok", found=f"{settings.rules}: {names}")


def _graphrag(settings: Settings, rules: Ruleset | None) -> Check:
    """Say whether ``graphrag:`` queries ask the graph, by the settings that are here."""
    if settings.graphrag_enabled:
        return Check(name="graphrag", state="ok", found="on: `graphrag:` queries of rules ask the graph")
    if rules is not None and rules.asks_for_facts:
        advice = "set GRAPHRAG_ENABLED=true where the responder runs (and here), or take `graphrag:` out of the rules"
        return Check(name="graphrag", state="warn", found="off, and rules ask for facts by `graphrag:`", advice=advice)
    return Check(name="graphrag", state="ok", found="off: `graphrag:` queries of rules would bring nothing")


async def _embedder(settings: Settings) -> Check:
    """Say what turns texts into vectors; it is not asked, for that may cost money."""
    try:
        embedder = make_embedder(settings)
    except InvalidSettings as error:
        return Check(name="embedder", state="fail", found=str(error), advice="set GRAPHWEFT_EMBEDDER and what it needs")
    if embedder is None:
        return Check(name="embedder", state="ok", found="none: memories are found by words and by time, not by meaning")
    try:
        return Check(name="embedder", state="ok", found=f"{settings.embedder}, recorded as {embedder.model!r}")
    finally:
        await embedder.aclose()


async def _extractor(settings: Settings) -> Check:
    """Say what reads text episodes; it is not asked, for that may cost money."""
    try:
        extractor = make_extractor(settings)
    except InvalidSettings as error:
        return Check(
            name="extractor", state="fail", found=str(error), advice="set GRAPHWEFT_EXTRACTOR and what it needs"
        )
    if extractor is None:
        return Check(name="extractor", state="ok", found="none: text episodes are kept, and found by their words")
    await extractor.aclose()
    return Check(name="extractor", state="ok", found=settings.extractor)


async def _bus(settings: Settings) -> list[Check]:
    """Return what is found out about the bus; the first check says whether it answers."""
    advice = "check GRAPHWEFT_BUS_URL and that the server runs and lets this machine in"
    if settings.bus_url is None:
        advice = _start(settings, "GRAPHWEFT_BUS_URL", other=settings.graph_url is not None)
    asked = settings.partitions if "partitions" in settings.model_fields_set else None
    if not settings.bus.startswith(KAFKA):
        return await redis_servers.examine_bus(settings.bus, advice, asked=asked)
    try:
        await make_bus(settings).aclose()
    except InvalidSettings as error:
        return [_not_installed("bus", error)]
    from graphweft_workers.doctor import kafka_cluster

    return await kafka_cluster.examine(settings.bus, advice, partitions=settings.partitions, asked=asked)


async def _graph(settings: Settings) -> list[Check]:
    advice = "check GRAPHWEFT_GRAPH_URL and that the server runs and lets this machine in"
    if settings.graph_url is None:
        advice = _start(settings, "GRAPHWEFT_GRAPH_URL", other=settings.bus_url is not None)
    if settings.graph.partition("://")[0] not in NEO4J_SCHEMES:
        return await redis_servers.examine_graph(settings.graph, advice)
    try:
        store = make_graph(settings)
    except InvalidSettings as error:
        return [_not_installed("graph", error)]
    from graphweft_workers.doctor import neo4j_server

    try:
        await store.check()
    except GraphweftError as error:
        advice = "check GRAPHWEFT_GRAPH_URL, or NEO4J_URI and the others, and that the server runs"
        return [Check(name="graph", state="fail", found=" ".join(str(error).split()), advice=advice)]
    finally:
        await store.aclose()
    return await neo4j_server.examine(settings.graph)


async def _queries(settings: Settings, rules: Ruleset) -> Check:
    """Say whether the graph server takes the queries of the rules."""
    store = make_graph(settings)
    try:
        checked = await check_queries(store, (*rules.mutations, *rules.injections))
    except GraphweftError as error:
        advice = "try again; if it stays so, look into the log of the server"
        if isinstance(error, QueryFailed):
            advice = "let graphweft ask, or look for what fails in the dead letters"
        return Check(name="queries", state="warn", found=f"not checked: {error}", advice=advice)
    finally:
        await store.aclose()
    if not checked.findings:
        return Check(name="queries", state="ok", found=f"{checked.count} queries were checked by the server")
    found = "\n".join(map(str, checked.findings))
    if errors(checked.findings):
        advice = "correct them, then start worker and responder again: they do not start with these"
        return Check(name="queries", state="fail", found=found, advice=advice)
    return Check(name="queries", state="warn", found=found, advice="see whether the server lacks a plugin")


def _start(settings: Settings, variable: str, *, other: bool) -> str:
    """Return what to do about a server that no URL names; ``up`` runs only where neither of the two is named."""
    return f"set {variable} too" if other else f"start `graphweft up --data {settings.data}`, or set {variable}"


def _not_installed(name: str, error: InvalidSettings) -> Check:
    return Check(name=name, state="fail", found=str(error), advice="install it into the environment of graphweft")


async def _memory(settings: Settings, group: str) -> Check:
    """Say whether a job of memory is done."""
    bus = make_bus(settings, group=group)
    try:
        partitions = await bus.status()
    except BusUnavailable as error:
        advice = "try again; if it stays so, look into the log of the server"
        return Check(name=group, state="fail", found=f"not known: {error}", advice=advice)
    finally:
        await bus.aclose()
    idle = [str(partition.id) for partition in partitions if partition.owner is None]
    lag = sum(partition.lag for partition in partitions)
    if not idle:
        return Check(name=group, state="ok", found=f"all {len(partitions)} partitions are read, lag {lag}")
    found = f"nobody reads partition {', '.join(idle)}, lag {lag}"
    return Check(name=group, state="warn", found=found, advice="start `graphweft run memory`")


async def _services(settings: Settings) -> list[Check]:
    bus = make_bus(settings)
    try:
        partitions = await bus.status()
        letters = await bus.dead_letter_count()
        causes = count_causes(await bus.dead_letters(limit=_MOST_LETTERS)) if letters else []
    except BusUnavailable as error:
        advice = "try again; if it stays so, look into the log of the server"
        return [Check(name="workers", state="fail", found=f"not known: {error}", advice=advice)]
    finally:
        await bus.aclose()
    idle = [str(partition.id) for partition in partitions if partition.owner is None]
    lag = sum(partition.lag for partition in partitions)
    found = f"nobody reads partition {', '.join(idle)}, lag {lag}"
    if not idle:
        checks = [Check(name="workers", state="ok", found=f"all {len(partitions)} partitions are read, lag {lag}")]
    elif len(idle) == len(partitions):
        checks = [_no_worker(f"no mutation worker runs: {found}")]
    else:  # workers share them anew, or one has just gone
        advice = "look again in a minute; if it stays so, start another `graphweft run mutation`"
        checks = [Check(name="workers", state="warn", found=found, advice=advice)]
    return [*checks, *_without_effect(letters, causes), *_parked(partitions)]


def _without_effect(letters: int, causes: Sequence[Cause]) -> list[Check]:
    checks: list[Check] = []
    if letters:
        advice = "graphweft dlq list"
        checks.append(Check(name="dead letters", state="warn", found=f"{letters} wait", advice=advice))
    skips = [cause for cause in causes if cause.reason in SKIPS]
    if skips:
        worst = skips[0]
        place = f" at {worst.place}" if worst.place else ""
        found = (
            f"{sum(cause.events for cause in skips)} times, by {len(skips)} causes; most often "
            f"{worst.name}{place} of app {worst.app_id!r}: {worst.message}"
        )
        advice = (
            "`graphweft status` lists the causes; after a fix, restart the workers and run `graphweft dlq retry --all`"
        )
        checks.append(Check(name="skipped", state="warn", found=found, advice=advice))
    return checks


def _parked(partitions: Iterable[PartitionStatus]) -> list[Check]:
    """Say which apps are behind the others of their partition."""
    apps = sorted({app for partition in partitions for app in PositionNote.decode(partition.note).parked})
    if not apps:
        return []
    names = ", ".join(apps[:_MOST_NAMES]) + (" and others" if len(apps) > _MOST_NAMES else "")
    advice = "`graphweft status` says since when and why; look into the workers' log and at the queries of their rules"
    return [Check(name="parked", state="warn", found=f"apps behind the others: {names}", advice=advice)]


def _no_worker(found: str) -> Check:
    return Check(name="workers", state="fail", found=found, advice="start `graphweft run mutation`")


async def _responders(settings: Settings) -> Check:
    if not settings.bus.startswith(KAFKA):
        return await redis_servers.examine_responders(settings.bus)
    from graphweft_workers.doctor import kafka_cluster

    return await kafka_cluster.examine_responders(settings.bus)
